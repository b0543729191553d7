"""Streams wait for room, and a closing process for the last acknowledgement."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dispatch.messaging.endpoint import CHUNKS_PER_TURN, WRITABLE_BYTES, SendWaiters
from dispatch.protocol import CalleeSession
from tests.helpers.clock import idle


class Fake:
    """A session as the waiters read it."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.without_credit: set[int] = set()
        self.is_closed = False
        self.is_at_rest = True

    def has_credit(self, stream: int) -> bool:
        return stream not in self.without_credit


def fake(**state: Any) -> CalleeSession:
    session = Fake()
    for name, value in state.items():
        setattr(session, name, value)
    return cast(CalleeSession, session)


async def test_a_stream_waits_until_its_own_session_has_room() -> None:
    waiters, full, other = SendWaiters(), Fake(), fake()
    full.queued_bytes = WRITABLE_BYTES + 1
    session = cast(CalleeSession, full)
    await waiters.writable(other, 0)
    writers = [asyncio.create_task(waiters.writable(session, 0)) for _ in range(2)]
    await idle()
    waiters.release(session)
    waiters.release(other)
    await idle()
    assert len(waiters) == 1
    assert not any(writer.done() for writer in writers)
    full.queued_bytes = WRITABLE_BYTES
    writers[0].cancel()
    waiters.release(session)
    await writers[1]
    assert len(waiters) == 0


async def test_a_stream_of_a_session_that_ends_continues() -> None:
    waiters, full = SendWaiters(), Fake()
    full.queued_bytes = WRITABLE_BYTES + 1
    writer = asyncio.create_task(waiters.writable(cast(CalleeSession, full), 0))
    await idle()
    full.is_closed = True
    waiters.release(cast(CalleeSession, full))
    await writer
    await waiters.writable(cast(CalleeSession, full), 0)


async def test_a_stream_waits_for_its_own_credit() -> None:
    waiters, slow = SendWaiters(), Fake()
    session = cast(CalleeSession, slow)
    slow.without_credit = {1, 2}
    await waiters.writable(session, 0)
    writers = [asyncio.create_task(waiters.writable(session, stream)) for stream in (1, 2)]
    await idle()
    slow.without_credit = {2}
    waiters.release(session)
    await writers[0]
    assert len(waiters) == 1
    slow.without_credit = set()
    waiters.release(session)
    await writers[1]
    assert len(waiters) == 0


async def test_a_stream_that_has_lost_its_room_meanwhile_waits_on() -> None:
    """Others of the session were released at the same time, and have filled it."""
    waiters, full = SendWaiters(), Fake()
    session = cast(CalleeSession, full)
    full.queued_bytes = WRITABLE_BYTES + 1
    writer = asyncio.create_task(waiters.writable(session, 0))
    await idle()
    full.queued_bytes = 0
    waiters.release(session)
    full.queued_bytes = WRITABLE_BYTES + 1
    await idle()
    assert not writer.done()
    full.is_closed = True
    waiters.release(session)
    await writer


async def test_other_tasks_run_beside_a_tool_that_never_waits() -> None:
    waiters, ran = SendWaiters(), []
    asyncio.get_running_loop().call_soon(ran.append, True)
    for _ in range(CHUNKS_PER_TURN):
        await waiters.writable(fake(), 0)
    assert ran


async def test_a_flush_waits_until_every_session_is_at_rest() -> None:
    waiters, busy = SendWaiters(), Fake()
    sessions = [fake(), cast(CalleeSession, busy)]
    await waiters.at_rest(sessions)
    busy.is_at_rest = False
    flush = asyncio.create_task(waiters.at_rest(sessions))
    await idle()
    waiters.release_at_rest(sessions)
    await idle()
    assert not flush.done()
    busy.is_at_rest = True
    waiters.release_at_rest(sessions)
    await flush


@pytest.mark.parametrize("wait", ["writable", "at_rest"])
async def test_closing_lets_all_continue(wait: str) -> None:
    waiters = SendWaiters()
    session = fake(queued_bytes=WRITABLE_BYTES + 1, is_at_rest=False)
    task = asyncio.create_task(waiters.writable(session, 0) if wait == "writable" else waiters.at_rest([session]))
    await idle()
    waiters.close()
    await task
    assert len(waiters) == 0
