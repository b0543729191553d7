"""After 4,096 dispatchers within ten minutes a service refused every new one as `overloaded`, however idle it was. The
dispatcher that was idle longest is evicted instead, a closing one says goodbye, and nothing that ran for them runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from dispatch import Dispatcher, ToolServer
from dispatch.messaging.wire.properties import Property, Refusal
from dispatch.transports import Message
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, dispatching, serving

TOOLS = catalog(work={"policy": UNGUARDED})
ROOM = 3


@contextlib.asynccontextmanager
async def small(work: Any) -> AsyncIterator[ToolServer]:
    """A service that remembers few dispatchers."""
    async with serving(work) as server:
        assert server._recall is not None
        server._recall.ledger._max_peers = ROOM
        yield server


class Counting:
    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.runs += 1
        number = self.runs
        await asyncio.sleep(arguments.get("seconds", 0))
        return f"run {number}"


@contextlib.asynccontextmanager
async def overhearing(server: ToolServer) -> AsyncIterator[tuple[Peer, list[Message]]]:
    """What comes to the instance's own topic."""
    assert server._replies is not None
    async with Peer.as_caller(server._replies.control) as peer:
        requests: list[Message] = []

        async def listen() -> None:
            while True:
                requests.append(await peer.arrived.get())

        task = asyncio.create_task(listen())
        yield peer, requests
        task.cancel()


async def again(peer: Peer, server: ToolServer, message: Message, **properties: str) -> None:
    assert server._replies is not None
    await peer.send(server._replies.control, message.data(), message.properties() | properties)
    await idle()


def of_request(messages: list[Message], id: str | None) -> Message:
    return next(message for message in messages if message.properties().get("id") == id and message.data())


async def test_more_dispatchers_than_are_remembered_are_all_served() -> None:
    work = Counting()
    async with small(work) as server, contextlib.AsyncExitStack() as stack:
        dispatchers: list[Dispatcher] = []
        for number in range(1, 3 * ROOM + 1):
            dispatchers.append(await stack.enter_async_context(dispatching(TOOLS)))
            assert await dispatchers[-1].call("work") == f"run {number}"
        for number, dispatcher in enumerate(dispatchers, 3 * ROOM + 1):
            assert await dispatcher.call("work") == f"run {number}", "one that was evicted goes on as before"
        assert server.refused[Refusal.OVERLOADED] == server.refused[Refusal.REPLY_EVICTED] == 0


async def test_dispatchers_whose_calls_run_are_not_evicted_and_no_new_one_is_refused() -> None:
    work = Counting()
    async with small(work) as server, contextlib.AsyncExitStack() as stack:
        dispatchers = [await stack.enter_async_context(dispatching(TOOLS)) for _ in range(3 * ROOM)]
        calls = [asyncio.create_task(each.call("work", {"seconds": 20})) for each in dispatchers]
        assert len(set(await asyncio.gather(*calls))) == work.runs == 3 * ROOM
        assert server.refused[Refusal.OVERLOADED] == 0


@pytest.mark.parametrize("copy", [{}, {"transmission": "2"}], ids=["late", "retransmitted"])
async def test_a_late_copy_of_an_evicted_dispatchers_request_does_not_run(copy: Mapping[str, str]) -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, requests), dispatching(TOOLS) as dispatcher:
        first = await dispatcher.execute("work")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2 * ROOM):
                other = await stack.enter_async_context(dispatching(TOOLS))
                await other.call("work")
            runs = work.runs
            await again(peer, server, of_request(requests, first.request_id), **copy)
            assert work.runs == runs
            assert server.refused[Refusal.REPLY_EVICTED] == 1
            assert (await dispatcher.execute("work")).ok, "its new requests run"


async def test_a_closing_dispatcher_says_goodbye_and_costs_no_other_its_answers() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, requests), dispatching(TOOLS) as dispatcher:
        first = await dispatcher.execute("work")
        for _ in range(2 * ROOM):
            async with dispatching(TOOLS) as other:
                await other.call("work")
        await idle()
        assert sum(Property.GOODBYE in message.properties() for message in requests) == 2 * ROOM
        await again(peer, server, of_request(requests, first.request_id), transmission="2")
        assert (server.repeats, server.refused[Refusal.REPLY_EVICTED]) == (1, 0), "its answer was kept"
        runs = work.runs
        theirs = [message for message in requests if message.data()]
        for message in theirs:
            await again(peer, server, message, transmission="2")
        assert work.runs == runs, "nothing of those that left runs again"


async def test_a_goodbye_while_a_request_runs_changes_nothing() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, requests), dispatching(TOOLS) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", {"seconds": 5}))
        await asyncio.sleep(1)
        request = next(message for message in requests if message.data())
        own = request.properties()
        late = f"{own['id'].rpartition('-')[0]}-ff"
        kept = {name: own[name] for name in ("session", "reply-to", "incarnation") if name in own}
        assert server._replies is not None
        await peer.send(server._replies.control, b"", kept | {"id": late, "cancel": "1", "goodbye": "1"})
        await again(peer, server, request, transmission="2")
        assert (work.runs, server.running) == (1, 1)
        assert (await call).text == "run 1"
