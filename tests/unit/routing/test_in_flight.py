"""Calls in flight, and their end."""

from __future__ import annotations

import asyncio

from dispatch.routing.instance import InFlight
from tests.helpers.clock import idle


async def test_every_wait_ends_when_nothing_is_in_flight() -> None:
    calls = InFlight()
    await calls.wait_idle()
    calls.__enter__()
    waiting = [asyncio.create_task(calls.wait_idle()) for _ in range(2)]
    await idle()
    calls.end()
    calls.__enter__()  # the next one, before the waiting tasks run: they wait for that, too
    await idle()
    assert not any(task.done() for task in waiting)
    calls.end()
    await asyncio.gather(*waiting)


async def test_a_cancelled_wait_disturbs_no_other() -> None:
    calls = InFlight()
    with calls:
        waiting = [asyncio.create_task(calls.wait_idle()) for _ in range(2)]
        await idle()
        waiting[0].cancel()
        await idle()
    await waiting[1]
    assert waiting[0].cancelled()


def test_a_callback_is_called_once_at_the_end() -> None:
    calls, ends = InFlight(), []
    assert not calls.await_idle(lambda: ends.append("idle"))
    with calls:
        with calls:
            assert calls.await_idle(lambda: ends.append("first"))
            assert calls.await_idle(lambda: ends.append("second"))
            assert calls.count == 2
        assert ends == []
    assert ends == ["first", "second"]
    with calls:
        pass
    assert ends == ["first", "second"]
