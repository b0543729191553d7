"""The room in front of a publisher: bounded, and one can wait until something has left it."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.flow import queue as waitingroom
from dispatch.messaging.flow.queue import SendQueue
from tests.helpers.clock import idle

TOPIC = "non-persistent://tg/request/work"


@pytest.mark.parametrize(("bound", "value"), [("MAX_QUEUED", 2), ("MAX_QUEUED_BYTES", 25)])
def test_who_finds_it_full_is_told_so(monkeypatch: pytest.MonkeyPatch, bound: str, value: int) -> None:
    monkeypatch.setattr(waitingroom, bound, value)
    room: SendQueue[str] = SendQueue(TOPIC)
    room.enter("a", "one", 10)
    room.enter("a", "two", 10)
    with pytest.raises(TransportError, match=f"2 messages to {TOPIC} wait to be sent already") as full:
        room.enter("b", "three", 10)
    assert (full.value.type, full.value.sent, full.value.retry_after) == ("publish-queue-full", False, 1.0)
    assert len(room) == 2


async def test_each_waits_for_its_own() -> None:
    room: SendQueue[str] = SendQueue(TOPIC)
    for flow in ("a", "b"):
        room.enter(flow, f"{flow} item", 1)
    waiters = {flow: asyncio.create_task(room.wait_empty(flow)) for flow in ("a", "b", None)}
    gone = asyncio.create_task(room.wait_empty("a"))
    await room.wait_empty("nobody's")
    await idle()
    gone.cancel()
    room.wake_waiters()
    await idle()
    assert not any(task.done() for task in waiters.values())
    room.pop()
    room.wake_waiters()
    await idle()
    assert [task.done() for task in waiters.values()] == [True, False, False]
    room.pop()
    room.wake_waiters()
    await idle()
    assert all(task.done() for task in waiters.values())
    await room.wait_empty()
    assert room._waiters == []
