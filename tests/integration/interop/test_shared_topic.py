"""Both worlds on one topic: clients of both at once, services of both at once; and what neither may do to the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

import dispatch
from dispatch.messaging.request import Disposition
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from tests.integration.interop.conftest import TheirService
from tests.integration.interop.peers import CLIENTS, TIMEOUT_S, Client, Peer, catalog, request_topic, response_topic
from tests.integration.interop.tool_behaviour import PREFIX

pytestmark = pytest.mark.pulsar


async def many(client: Client, name: str, count: int) -> list[str]:
    calls = (client.call(PREFIX, {"join": f"{name} {n}"}, timeout=TIMEOUT_S) for n in range(count))
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("service_kind", ["theirs", "ours"])
async def test_all_clients_at_once_get_their_own_answers(
    url: str, topic: str, service_kind: str, request: pytest.FixtureRequest
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if service_kind == "theirs":
            topic = request.getfixturevalue("their_service").topic
        else:
            await stack.enter_async_context(dispatch.ToolServer(Peer(), url, service=topic))
        clients = {name: await stack.enter_async_context(make(url, topic)) for name, make in CLIENTS.items()}
        answers = await asyncio.gather(*(many(client, name, 30) for name, client in clients.items()))
        for name, got in zip(clients, answers, strict=True):
            assert got == [f"customers|{name} {n}" for n in range(30)]


async def test_trustgraph_client_reaches_instances_of_both_bases_on_one_topic(
    url: str, their_service: TheirService
) -> None:
    """Instances of one service id share a subscription, whichever base they are written for: the broker distributes."""
    server = dispatch.ToolServer(
        Peer(),
        url,
        service=their_service.id,
        request_queue=request_topic(their_service.topic),
        response_queue=response_topic(their_service.topic),
    )
    async with server, CLIENTS["theirs"](url, their_service.topic) as client:
        replies = Counter([await client.call({}, {"who": True}, timeout=TIMEOUT_S) for _ in range(20)])
    assert replies == {"ours": 10, "theirs": 10}


async def test_dispatcher_sends_all_requests_of_a_shared_topic_to_known_instances(
    url: str, their_service: TheirService
) -> None:
    """A third-party instance beside a known one gets none, hence the separate topics in the next test."""
    server = dispatch.ToolServer(
        Peer(),
        url,
        service=their_service.id,
        request_queue=request_topic(their_service.topic),
        response_queue=response_topic(their_service.topic),
    )
    async with server, dispatch.connect(url, catalog(their_service.topic)) as dispatcher:
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        async with asyncio.timeout(TIMEOUT_S):
            while [each.id for each in dispatcher.instances("peer")] != [server.instance]:
                await client.call({}, {"who": True}, timeout=TIMEOUT_S)
        replies = Counter([await client.call({}, {"who": True}, timeout=TIMEOUT_S) for _ in range(20)])
    assert replies == {"ours": 20}


async def test_dispatcher_balances_over_two_listed_topics_by_weight(
    url: str, topic: str, their_service: TheirService
) -> None:
    """How a service moves from one base to the other: each base has a request topic, and the descriptor lists both."""
    endpoints = [
        {"id": name, "request-queue": request_topic(each), "response-queue": response_topic(each), "weight": weight}
        for name, each, weight in (("old", their_service.topic, 3), ("new", topic, 1))
    ]
    service = {
        "id": "peer",
        "request-queue": request_topic(their_service.topic),
        "response-queue": response_topic(their_service.topic),
        "instances": endpoints,
        "policy": {"balancing": "weighted", "outlier-detection": None},
    }
    async with (
        dispatch.ToolServer(Peer(), url, service=topic) as server,
        dispatch.connect(url, dispatch.Catalog.of([service])) as dispatcher,
    ):
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        async with asyncio.timeout(TIMEOUT_S):
            while {each.id for each in dispatcher.instances("peer")} != {"old", server.instance}:
                await client.call({}, {"who": True}, timeout=TIMEOUT_S)
        replies = Counter([await client.call({}, {"who": True}, timeout=TIMEOUT_S) for _ in range(40)])
    assert replies == {"theirs": 30, "ours": 10}


async def test_answers_to_their_clients_are_not_ours(url: str, topic: str) -> None:
    """On TrustGraph's one response topic for all, others' answers pass us by: counted as unknown, and nothing more."""
    async with (
        dispatch.ToolServer(Peer(), url, service=topic),
        CLIENTS["theirs"](url, topic) as theirs,
        dispatch.connect(url, catalog(topic)) as dispatcher,
    ):
        ours = dispatch.ToolServiceClient(dispatcher, service="peer")
        assert await many(ours, "ours", 5) == [f"customers|ours {n}" for n in range(5)]
        assert await many(theirs, "theirs", 5) == [f"customers|theirs {n}" for n in range(5)]
        async with asyncio.timeout(TIMEOUT_S):
            while dispatcher.reply_counts()[Disposition.UNKNOWN] < 5:  # noqa: ASYNC110 - a count has no event
                await asyncio.sleep(0)
        replies = dispatcher.reply_counts()
        replies[Disposition.DUPLICATE] = 0  # on a busy machine the session sends a reply of ours again
    assert replies == dict.fromkeys(replies, 0) | {Disposition.MATCHED: 5, Disposition.UNKNOWN: 5}


async def test_a_reply_above_the_brokers_limit_is_an_error_only_for_third_party_clients(
    client_kind: str, url: str, topic: str
) -> None:
    async with dispatch.ToolServer(Peer(), url, service=topic), CLIENTS[client_kind](url, topic) as client:
        if client_kind != "ours":
            with pytest.raises(RuntimeError, match=r"too large"):
                await client.call({}, {"fill": MAX_MESSAGE_BYTES}, timeout=TIMEOUT_S)
        else:
            assert len(await client.call({}, {"fill": MAX_MESSAGE_BYTES}, timeout=TIMEOUT_S)) == MAX_MESSAGE_BYTES
        assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"


async def test_our_client_refuses_a_request_too_large_for_the_broker(url: str, their_service: TheirService) -> None:
    async with dispatch.connect(url, catalog(their_service.topic)) as dispatcher:
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        with pytest.raises(dispatch.InvalidArgumentsError, match=r"was not executed") as caught:
            await client.call({}, {"measure": "x" * MAX_MESSAGE_BYTES}, timeout=TIMEOUT_S)
        assert caught.value.type == "request-too-large"
        assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"


@pytest.mark.parametrize("service_kind", ["theirs", "ours"])
async def test_half_a_character_is_an_error_at_once(
    url: str, topic: str, service_kind: str, request: pytest.FixtureRequest
) -> None:
    """A lone surrogate is no text; TrustGraph's JSON lets it pass all the same."""
    async with contextlib.AsyncExitStack() as stack:
        if service_kind == "theirs":
            topic = request.getfixturevalue("their_service").topic
        else:
            await stack.enter_async_context(dispatch.ToolServer(Peer(), url, service=topic))
        dispatcher = await stack.enter_async_context(dispatch.connect(url, catalog(topic)))
        client = dispatch.ToolServiceClient(dispatcher, service="peer")
        with pytest.raises(dispatch.DispatchError) as caught:
            await client.call({}, {"surrogate": True}, timeout=TIMEOUT_S)
        assert caught.value.type == {"theirs": "malformed-reply", "ours": "invalid-result"}[service_kind]
        with pytest.raises(dispatch.InvalidArgumentsError):
            await client.call({}, {"measure": "\ud800"}, timeout=TIMEOUT_S)
        assert await client.call(PREFIX, {"join": "again"}, timeout=TIMEOUT_S) == "customers|again"
