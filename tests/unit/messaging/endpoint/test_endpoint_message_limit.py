"""A broker that accepts smaller messages than it did when a session was opened: it was started again with another limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dispatch.protocol.events import Failure, RequestFailed
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle
from tests.helpers.endpoint_peers import Callee, Caller, peers

LIMIT = 20_000


@asynccontextmanager
async def limited() -> AsyncIterator[tuple[Caller, Callee]]:
    """A caller and a callee on a broker without a limit so far."""
    async with peers("memory://endpoint") as (caller, [callee]):
        yield caller, callee


def limit_messages(*peers: Caller | Callee) -> None:
    for peer in peers:
        assert isinstance(peer.transport, MemoryTransport)
        peer.transport.max_message_bytes = LIMIT


@pytest.mark.parametrize("size", [50_000, 3_000_000])
async def test_a_request_in_a_packet_that_is_too_large_fails_at_once_and_the_next_session_fits(size: int) -> None:
    async with limited() as (caller, callee):
        session = await caller.connect(callee.inbox)
        await advance(1)
        limit_messages(caller, callee)
        began = asyncio.get_running_loop().time()
        outcome = await caller.send(session, b"1:1".ljust(size)).outcome
        assert asyncio.get_running_loop().time() == began
        assert isinstance(outcome, RequestFailed)
        assert outcome.reason is Failure.BROKER_REFUSED
        await idle()
        assert caller.closed == [("callee-0", "broker-refused")]
        assert callee.closed == [("caller", "broker-refused")]
        assert not callee.runs
        session = await caller.connect(callee.inbox)
        assert await caller.call(session, b"2:%d" % size) == b"2".ljust(size, b".")
        assert (await caller.call(session, b"3:1".ljust(size)))[:1] == b"3"


async def test_a_reply_in_a_packet_that_is_too_large_ends_the_session() -> None:
    async with limited() as (caller, callee):
        session = await caller.connect(callee.inbox)
        await advance(1)
        limit_messages(caller, callee)
        outcome = await caller.send(session, b"1:50000").outcome
        assert isinstance(outcome, RequestFailed)
        assert (outcome.reason, outcome.may_have_run) == (Failure.BROKER_REFUSED, True)
        session = await caller.connect(callee.inbox)
        assert await caller.call(session, b"2:50000") == b"2".ljust(50_000, b".")


async def test_a_session_with_small_packets_continues() -> None:
    async with limited() as (caller, callee):
        session = await caller.connect(callee.inbox)
        limit_messages(caller, callee)
        for number in range(20):
            assert await caller.call(session, b"%d:1000" % number) == (b"%d" % number).ljust(1_000, b".")
        assert caller.closed == callee.closed == []
