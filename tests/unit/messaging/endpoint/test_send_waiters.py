"""Streams wait for room, and a closing process for the last acknowledgement."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from dispatch.messaging.endpoint.send_waiters import WRITABLE_BYTES, SendWaiters
from dispatch.protocol import Session
from tests.helpers.clock import idle


class Fake:
    """A session as the waiters read it."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.is_closed = False
        self.is_at_rest = True


def fake(**state: Any) -> Session:
    session = Fake()
    for name, value in state.items():
        setattr(session, name, value)
    return cast(Session, session)


async def test_a_stream_waits_until_its_own_session_has_room() -> None:
    waiters, full, other = SendWaiters(), Fake(), fake()
    full.queued_bytes = WRITABLE_BYTES + 1
    session = cast(Session, full)
    await waiters.writable(other)
    writers = [asyncio.create_task(waiters.writable(session)) for _ in range(2)]
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
    writer = asyncio.create_task(waiters.writable(cast(Session, full)))
    await idle()
    full.is_closed = True
    waiters.release(cast(Session, full))
    await writer
    await waiters.writable(cast(Session, full))


async def test_a_flush_waits_until_every_session_is_at_rest() -> None:
    waiters, busy = SendWaiters(), Fake()
    sessions = [fake(), cast(Session, busy)]
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
    task = asyncio.create_task(waiters.writable(session) if wait == "writable" else waiters.at_rest([session]))
    await idle()
    waiters.close()
    await task
    assert len(waiters) == 0
