"""One forged announcement made an instance of its sender, which then read arguments and forged answers; 300 of them took a
tool out of service. Requests travelled in the response namespace, where every agent may subscribe. Now an announcement is
believed after its sender has proved that it consumes the instance's own topic, in the request namespace.
One forged announcement with a later incarnation silenced a tool, and so did the restart of a named instance on a clock
that was behind. Now incarnations are random, and the one that answers a challenge last is the current one.
One forged ``settled`` with the prefix of a dispatcher's ids ended all its calls for ever. Now an instance changes what it
knows of a dispatcher for that dispatcher's session alone.
A ``reply-to`` that was an instance's own topic or a request topic made an answer run a tool elsewhere (399 runs for 200
requests). Now ``reply-to`` must be a reply topic of the sender, and a reply is no request. Own topics of instances had
ambiguous names: those of ``web-1`` of the service ``search`` and of ``1`` of ``search-web`` were one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from dispatch import Catalog
from dispatch.messaging.wire import instance_topic
from dispatch.transports import Mode
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    Peer,
    Service,
    catalog,
    dispatching,
    serving,
)
from tests.helpers.internals import attempts_of, correlator_of

OTHERS = "non-persistent://tg/response/"


class Listening(MemoryTransport):
    """A connection that shows its topics, and writes down what it publishes."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.topics: set[str] = set()
        self.published: list[tuple[str, bytes, Mapping[str, str]]] = []

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str) -> Any:
        self.topics.add(topic)
        return await super().subscribe(topic, handler, mode=mode, name=name)

    async def publisher(self, topic: str) -> Any:
        connection = self

        class Noting(MemoryPublisher):
            def publish(self, payload: bytes, properties: Mapping[str, str], **more: Any) -> Any:
                connection.published.append((topic, payload, dict(properties)))
                return super().publish(payload, properties, **more)

            def send_packet(self, payload: bytes) -> bool:
                connection.published.append((topic, payload, {}))
                return super().send_packet(payload)

        return Noting(self, topic)


async def forged(forger: Peer, topics: set[str], name: str) -> str:
    """Send forged announcements to every topic in the response namespace, and return the topic on which requests would come,
    as far as an agent may consume it."""
    own = f"{OTHERS}dispatch-control-lab-{name}"
    said = {"here": REQUESTS, "instance": name, "incarnation": "f" * 32, "control": own, "features": "session"}
    for topic in sorted(topics):
        if topic.startswith(OTHERS):
            await forger.send(topic, b"", said)
    return own


@pytest.mark.parametrize("count", [1, 300])
async def test_a_forged_announcement_gets_no_request_and_costs_no_call(count: int) -> None:
    service, connection = Service(lambda _: "genuine"), Listening()
    async with (
        serving(service),
        dispatching(transport=connection) as dispatcher,
        Peer.as_caller(f"{OTHERS}dispatch-control-lab-forger-0") as forger,
    ):
        assert await dispatcher.call("work") == "genuine"
        for number in range(count):
            await forged(forger, connection.topics, f"forger-{number}")
        await advance(0.1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(100)))
        assert [result.text for result in results] == ["genuine"] * 100
        assert forger.arrived.empty(), "it was sent a request"
        assert len(dispatcher.instances("lab")) == 1


async def test_nothing_that_agents_can_read_has_a_request_in_it() -> None:
    connection = Listening()
    async with serving(lambda _: "done"), dispatching(transport=connection) as dispatcher:
        for _ in range(100):
            assert await dispatcher.call("work", {"card": "4111"}) == "done"
    assert len(connection.published) > 100
    in_the_open = [topic for topic, _, _ in connection.published if "/request/" not in topic]
    assert in_the_open == []


async def test_calls_that_come_together_to_one_new_instance_all_succeed() -> None:
    async with serving(lambda _: "done"), dispatching() as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(100)))
        assert [result.text for result in results] == ["done"] * 100


async def test_a_forged_challenge_or_hello_makes_no_instance_speak_to_another_dispatcher() -> None:
    connection = Listening()
    async with (
        serving(lambda _: "done") as server,
        dispatching(transport=connection) as dispatcher,
        Peer.as_caller(RESPONSES) as agent,
    ):
        assert await dispatcher.call("work") == "done"
        (reply_topic,) = (topic for topic in connection.topics if "dispatch-reply-" in topic)
        requests = "non-persistent://tg/request/"
        before = server.counts()["malformed"]
        for topic in (f"{requests}dispatch-hello-lab", f"{requests}dispatch-instance-3-lab-{server.instance}"):
            asked = {"hello": REQUESTS, "challenge": "1", "incarnation": server.incarnation, "reply-to": reply_topic}
            await agent.send(topic, b"", asked)
            await agent.send(topic, b"", asked | {"session": "an agent's own"})
        taken: list[Any] = []
        await agent.transport.subscribe(reply_topic, taken.append, mode=Mode.FANOUT, name="agent")
        await idle()
        assert taken == []
        assert server.counts()["malformed"] == before + 2, "those on the instance's own topic, which are no packets"


async def test_a_forged_later_incarnation_silences_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "genuine", instance="one"), dispatching() as dispatcher, Peer.as_caller() as forger:
        assert await dispatcher.call("work") == "genuine"
        said = {"here": REQUESTS, "instance": "one", "incarnation": "f" * 32, "features": "session"}
        for name in ("hello", "announce"):
            control = "non-persistent://tg/response/dispatch-control-lab-one"
            await forger.send(f"non-persistent://tg/response/dispatch-{name}-lab", b"", said | {"control": control})
        await advance(0.1)
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert [result.text for result in results] == ["genuine"] * 50
    assert "another instance of" in caplog.text


async def test_an_instance_that_restarts_on_a_clock_that_is_behind_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with dispatching() as dispatcher:
        life = serving(lambda _: "former", instance="one")
        former = await life.__aenter__()
        assert await dispatcher.call("work") == "former"
        await former._transport.close()  # killed: it says no goodbye
        now = time.time_ns()
        monkeypatch.setattr(time, "time_ns", lambda: now - 3600 * 10**9)
        async with serving(lambda _: "new", instance="one"):
            await advance(1)
            results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
            assert [result.text for result in results] == ["new"] * 50
        await former.close()


async def test_two_instances_of_one_name_are_told_of_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        serving(lambda _: "a", instance="one"),
        dispatching() as dispatcher,
        serving(lambda _: "b", instance="one"),
    ):
        for _ in range(5):
            await advance(11)  # it asks who is there
            assert (await dispatcher.call("work")) in ("a", "b")
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("two instances" in text and "named one" in text for text in texts), "the dispatcher"
    assert any("another instance" in text and "named one" in text for text in texts), "the instance"


async def test_what_a_drained_instance_has_is_finished_while_its_successor_of_the_same_name_runs() -> None:
    """Neither of the two speaks for the other one."""
    go = asyncio.Event()

    async def work(_: object) -> str:
        await go.wait()
        return "former"

    async with dispatching() as dispatcher, serving(work, instance="one") as former:
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        draining = asyncio.create_task(former.drain())
        async with serving(lambda _: "new", instance="one"):
            await advance(1)
            assert await dispatcher.call("work") == "new"
            await advance(3)
            go.set()
            assert (await call).text == "former"
            await draining


async def test_a_third_party_that_listens_to_announcements_sees_no_secret() -> None:
    async with Peer.as_caller(RESPONSES) as agent:
        seen: list[dict[str, str]] = []
        for name in ("dispatch-announce-lab", "dispatch-hello-lab"):
            await agent.transport.subscribe(
                f"non-persistent://tg/response/{name}",
                lambda message: seen.append(dict(message.properties())),
                mode=Mode.FANOUT,
                name="agent",
            )
        async with serving(lambda _: "done"), dispatching() as dispatcher:
            assert await dispatcher.call("work") == "done"
        assert len(seen) >= 1
        assert all("session" not in each for each in seen)


KEPT = RESPONSES.replace("non-persistent", "persistent")


def own_topics(name: str) -> tuple[str, ...]:
    """Where an agent can send something to the instance: the topics of either layout."""
    return (
        REQUESTS,
        f"non-persistent://tg/response/dispatch-control-lab-{name}",
        f"non-persistent://tg/request/dispatch-instance-3-lab-{name}",
    )


@pytest.mark.parametrize("session", [{}, {"session": "an agent's own"}])
async def test_a_forged_settled_ends_no_call(session: dict[str, str]) -> None:
    async with serving(lambda _: "genuine", instance="one"), dispatching() as dispatcher, Peer.as_caller() as agent:
        result = await dispatcher.execute("work")
        prefix = result.request_id.split("-")[0]
        for topic in own_topics("one"):
            forged = {"id": f"{prefix}-{'f' * 14}", "reply-to": "non-persistent://tg/response/lab", "settled": "f" * 14}
            await agent.send(topic, b'{"config":"{}","arguments":"{}"}', forged | session)
        await idle()
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert [result.text for result in results] == ["genuine"] * 50


@pytest.mark.parametrize("session", [{}, {"session": "an agent's own"}])
async def test_a_forged_cancellation_or_copy_ends_no_call(session: dict[str, str]) -> None:
    go = asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        if "forged" in arguments:
            return "forged"
        await go.wait()
        return "genuine"

    ids: list[str] = []
    # Requests of sessions have no ids: those of the plain exchange, which a persistent topic keeps, have.
    async with (
        serving(work, instance="one", response_queue=KEPT),
        dispatching(catalog(service={"response-queue": KEPT})) as dispatcher,
        Peer.as_caller() as agent,
    ):
        new_id = attempts_of(dispatcher)._new_id
        attempts_of(dispatcher)._new_id = lambda: ids.append(new_id()) or ids[-1]  # type: ignore[func-returns-value] # one expression
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(10)]
        await advance(1)
        assert len(ids) == 10
        for topic in own_topics("one"):
            for id in ids:
                for more in ({"cancel": "1"}, {}):
                    await agent.send(
                        topic, b'{"config":"{}","arguments":"{\\"forged\\":1}"}', {"id": id} | more | session
                    )
        await advance(1)
        assert not any(call.done() for call in calls)
        go.set()
        assert [(await call).text for call in calls] == ["genuine"] * 10


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
