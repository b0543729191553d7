"""Further paths for large replies: opened, lost with their connection, withdrawn, and not opened."""

from __future__ import annotations

import asyncio

from dispatch.testing import FaultyTransport
from dispatch.transports import Transport
from dispatch.transports.errors import unreachable
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.endpoint_peers import URL, peers


class Recorded(FaultyTransport):
    """Adds its further connections to a list."""

    def __init__(self, inner: Transport, further: list[FaultyTransport]) -> None:
        super().__init__(inner)
        self._further = further

    def another(self) -> FaultyTransport:
        self._further.append(super().another())
        return self._further[-1]


async def test_a_large_reply_uses_the_paths_that_are_opened_for_it() -> None:
    async with peers(URL, has_paths=True) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        for number in range(40):
            await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for _ in range(8)))
        assert len(caller.table.inboxes) == 4
        [callee_session] = callee.table.sessions.values()
        assert len(callee_session.peer_inboxes) == 4
        assert callee_session.peer_inboxes == caller.table.inboxes
        assert all(path.next_number > 0 for path in callee_session._sender.paths)


async def test_large_replies_continue_when_the_connection_of_a_path_is_lost() -> None:
    further: list[FaultyTransport] = []
    async with peers(URL, has_paths=True, wrap=lambda inner: Recorded(inner, further)) as (caller, [callee]):
        session = await caller.connect(callee.inbox)

        async def call_many() -> None:
            for number in range(40):
                await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for _ in range(8)))

        await call_many()
        assert len(further) == 3
        [callee_session] = callee.table.sessions.values()
        first, second, third, fourth = callee_session.peer_inboxes
        further[1].disconnect(30)
        async with asyncio.timeout(5):
            await call_many()
        assert callee_session.peer_inboxes == [first, second, first, fourth]
        await advance(30)
        await call_many()
        assert callee_session.peer_inboxes == [first, second, third, fourth]
        assert not caller.failures


async def test_packets_of_a_path_that_the_caller_has_withdrawn_travel_on_the_first_one() -> None:
    further: list[FaultyTransport] = []
    async with peers(URL, has_paths=True, wrap=lambda inner: Recorded(inner, further)) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        for number in range(40):
            await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for _ in range(8)))
        for connection in further:
            connection.disconnect(60)
        requests = [caller.send(session, b"%d:400000" % number) for number in range(8)]
        await advance(0.01)
        caller.table.replace_inboxes(caller.table.inboxes[:1])
        caller.endpoint.wake(session)
        async with asyncio.timeout(10):
            for request in requests:
                assert isinstance(await request.outcome, bytes)


async def test_small_replies_open_no_path() -> None:
    async with peers(URL, has_paths=True) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        for _ in range(40):
            await asyncio.gather(*(caller.call(session, b"%d:4000" % number) for number in range(64)))
        assert len(caller.table.inboxes) == 1


async def test_a_path_whose_connection_fails_is_not_used_and_tried_later() -> None:
    class OneConnection(MemoryTransport):
        attempts = 0

        def another(self) -> MemoryTransport:
            type(self).attempts += 1
            return MemoryTransport("memory://elsewhere") if self.attempts > 1 else Failing(URL)

    class Failing(MemoryTransport):
        async def start(self) -> None:
            raise unreachable(self.url)

    def wrap(inner: Transport) -> Transport:
        return OneConnection(URL)

    async with peers(URL, has_paths=True, wrap=wrap) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        for _ in range(30):
            await asyncio.gather(*(caller.call(session, b"%d:400000" % number) for number in range(8)))
        assert OneConnection.attempts == 1
        assert len(caller.table.inboxes) == 1
