"""Calls that are the same share one run: whoever leaves takes nothing from the others, and the last to leave ends it."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.resilience.aio import SingleFlight
from tests.helpers.clock import START, advance, idle

LATER = START + 1_000


class Work:
    def __init__(self, error: Exception | None = None) -> None:
        self.begun = 0
        self.cancelled = 0
        self.error = error
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return number


async def test_one_call_runs_per_key() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    calls = [asyncio.create_task(flights.share(key, work, LATER)) for key in ("a", "a", "b", "a")]
    await idle()
    assert (work.begun, len(flights), flights.shared) == (2, 2, 2)
    work.go.set()
    assert await asyncio.gather(*calls) == [1, 1, 2, 1]
    assert len(flights) == 0
    assert await flights.share("a", work, LATER) == 3, "only while it is under way"


async def test_cancelled_caller_does_not_affect_the_others() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    first, second = (asyncio.create_task(flights.share("a", work, LATER)) for _ in range(2))
    await idle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    work.go.set()
    assert await second == 1
    assert (work.begun, work.cancelled) == (1, 0)


async def test_last_cancelled_caller_cancels_the_call() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    calls = [asyncio.create_task(flights.share("a", work, LATER)) for _ in range(2)]
    await idle()
    for call in calls:
        call.cancel()
    for call in calls:
        with pytest.raises(asyncio.CancelledError):
            await call
    assert (work.cancelled, len(flights)) == (1, 0)


async def test_each_caller_waits_until_its_deadline() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work()
    patient = asyncio.create_task(flights.share("a", work, LATER))
    await idle()
    assert await flights.share("a", work, START + 1) is None
    assert asyncio.get_running_loop().time() == START + 1
    assert work.cancelled == 0
    work.go.set()
    assert await patient == 1
    alone = Work()
    assert await flights.share("b", alone, START + 2) is None
    assert (alone.cancelled, len(flights)) == (1, 0)


async def test_exception_is_raised_at_every_caller() -> None:
    flights: SingleFlight[int] = SingleFlight()
    work = Work(ValueError("no"))
    calls = [asyncio.create_task(flights.share("a", work, LATER)) for _ in range(3)]
    await idle()
    work.go.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(result) for result in results] == ["no"] * 3
    await advance(1)
    assert len(flights) == 0
