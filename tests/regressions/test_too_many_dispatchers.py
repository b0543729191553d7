"""After 4,096 dispatchers within ten minutes a service refused every new one as `overloaded`, however idle it was. The
session that was idle longest is evicted instead, a closing dispatcher ends its sessions, and nothing that ran for them runs
again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from dispatch import Dispatcher, ToolServer
from dispatch.messaging.wire import Refusal, instance_topic
from dispatch.transports import Message
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, dispatching, serving

TOOLS = catalog(work={"policy": UNGUARDED})
ROOM = 3


@contextlib.asynccontextmanager
async def small(work: Any) -> AsyncIterator[ToolServer]:
    """A service with few sessions."""
    async with serving(work) as server:
        assert server._sessions is not None
        table = server._sessions.table
        table._settings = msgspec.structs.replace(table._settings, max_sessions=ROOM)
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
    """What comes to the instance's inbox."""
    async with Peer.as_caller(inbox_of(server)) as peer:
        packets: list[Message] = []

        async def listen() -> None:
            while True:
                packets.append(await peer.arrived.get())

        task = asyncio.create_task(listen())
        yield peer, packets
        task.cancel()


def inbox_of(server: ToolServer) -> str:
    return instance_topic(server.request_queue, server.instance)


async def again(peer: Peer, server: ToolServer, packets: list[Message]) -> None:
    """Send late copies of all ``packets``."""
    for packet in packets:
        await peer.send(inbox_of(server), packet.data(), {})
    await idle()


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


async def test_late_copies_of_an_evicted_dispatchers_packets_run_nothing() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, packets), dispatching(TOOLS) as dispatcher:
        await dispatcher.execute("work")
        theirs = packets.copy()
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(2 * ROOM):
                other = await stack.enter_async_context(dispatching(TOOLS))
                await other.call("work")
            runs, unknown = work.runs, server.malformed
            await again(peer, server, theirs)
            assert work.runs == runs
            assert server.malformed > unknown
            assert (await dispatcher.execute("work")).ok, "its new requests run"


async def test_a_closing_dispatcher_ends_its_session_and_nothing_of_it_runs_again() -> None:
    work = Counting()
    async with small(work) as server, overhearing(server) as (peer, packets):
        assert server._sessions is not None
        for _ in range(2 * ROOM):
            async with dispatching(TOOLS) as other:
                await other.call("work")
            await idle()
            assert server._sessions.table.sessions == {}
        runs = work.runs
        await again(peer, server, packets.copy())
        assert work.runs == runs
