"""A ``reply-to`` that was an instance's own topic or a request topic made an answer run a tool elsewhere (399 runs for 200
requests). Now ``reply-to`` must be a reply topic of the sender, and a reply is no request. Own topics of instances had
ambiguous names: those of ``web-1`` of the service ``search`` and of ``1`` of ``search-web`` were one."""

from __future__ import annotations

import asyncio

import pytest

from dispatch import Catalog
from dispatch.messaging.wire import instance_topic
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, Peer, Service, dispatching, serving
from tests.helpers.internals import correlator_of

OTHER = "non-persistent://tg/response/other"


@pytest.mark.parametrize(
    "reply_to",
    [
        OTHER,
        "non-persistent://tg/response/dispatch-control-other-two",
        "non-persistent://tg/response/dispatch-control-7-other-two",
        "non-persistent://tg/request/dispatch-instance-5-other-two",
        "non-persistent://tg/response/dispatch-announce-other",
        "non-persistent://tg/response/dispatch-hello-other",
    ],
)
async def test_an_answer_runs_no_tool_of_another_service(reply_to: str) -> None:
    first, second = Service(lambda _: '{"arguments":"{}"}'), Service(lambda _: "ran")
    async with (
        serving(first, instance="one", reply_namespaces=["tg/request"]),
        serving(second, instance="two", request_queue=OTHER, response_queue="non-persistent://tg/response/third"),
        Peer.as_caller(RESPONSES) as agent,
    ):
        for number in range(100):
            await agent.ask(b"{}", id=f"0123456789abcdef-{number + 1:x}", reply_to=reply_to, session="an agent's own")
        await advance(1)
        assert len(first.requests) == 100
        assert second.requests == []
        assert agent.arrived.qsize() == 100, "they went where all answers go"


async def test_a_third_partys_reply_on_a_request_topic_runs_nothing() -> None:
    service = Service(lambda _: "ran")
    async with serving(service) as server, Peer.as_caller() as agent:
        for payload in (b'{"error":null,"response":"x","end_of_stream":true}', b'{"response":"x"}'):
            await agent.ask(payload, id="1")
        await advance(1)
        assert service.requests == []
        assert server.refused["invalid-request"] == 2


async def test_services_and_instances_whose_names_run_together_do_not_meet() -> None:
    names = ("search", "web-1"), ("search-web", "1")
    topics = {
        service: {
            "request_queue": f"non-persistent://tg/request/{service}",
            "response_queue": f"non-persistent://tg/response/{service}",
        }
        for service, _ in names
    }
    tools = Catalog.of(
        [
            {"id": service, **{key.replace("_", "-"): topic for key, topic in topics[service].items()}}
            for service, _ in names
        ],
        [{"type": "tool-service", "name": f"ask-{each}", "description": "", "service": each} for each, _ in names],
    )
    async with (
        serving(lambda _: "of search", instance="web-1", **topics["search"]) as one,
        serving(lambda _: "of search-web", instance="1", **topics["search-web"]) as other,
        dispatching(tools) as dispatcher,
    ):
        for _ in range(20):
            texts = await asyncio.gather(dispatcher.call("ask-search"), dispatcher.call("ask-search-web"))
            assert texts == ["of search", "of search-web"]
        assert (one.requests, other.requests) == (20, 20), "neither saw a request of the other one"
        inboxes = {instance_topic(each.request_queue, each.instance) for each in (one, other)}
        assert len(inboxes) == 2


async def test_a_reply_topic_of_another_dispatcher_is_not_answered() -> None:
    async with serving(lambda _: "done"), dispatching() as dispatcher, Peer.as_caller() as agent:
        assert await dispatcher.call("work") == "done"
        topic = f"non-persistent://tg/response/dispatch-reply-{correlator_of(dispatcher).identity.key}-{dispatcher.client_id}"
        before = dict(dispatcher.reply_counts())
        for session in ({}, {"session": "an agent's own"}):
            await agent.send(REQUESTS, b"{}", {"id": "0123456789abcdef-1", "reply-to": topic, **session})
        await advance(1)
        # Both answers are on the response topic, where the dispatcher listens, too, and knows no such id.
        after = dispatcher.reply_counts()
        assert {key: after[key] - before[key] for key in after if after[key] != before[key]} == {"unknown": 2}
        assert agent.arrived.qsize() == 3 - 1, "and the answer to the call went to the dispatcher alone"
