"""Slices of a deadline. Guards against the first attempt that hangs eating the whole time of the call, so that no second
one can ever be made (a total timeout only), and against shares that cut off a slow tool although there is time.
Calls that are the same share one run: whoever leaves takes nothing from the others, and the last to leave ends it.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.resilience.aio import SingleFlight
from dispatch.resilience.durations import attempt_deadline
from tests.helpers.clock import START, advance, idle

NOW = 1_000.0


DEADLINES: list[tuple[float, dict[str, Any], float, str]] = [
    # A single attempt has the whole time; several share what remains, and a short one leaves more to the others.
    (0, {}, 30, "call"),
    (0, {"attempts_left": 3}, 10, "attempt"),
    (10, {"attempts_left": 2}, 20, "attempt"),
    (20, {"attempts_left": 1}, 30, "call"),
    (2, {"attempts_left": 2}, 16, "attempt"),
    # A limit of the policy replaces the share and never exceeds the deadline.
    (0, {"limit": 4, "attempts_left": 3}, 4, "attempt"),
    (0, {"limit": 20, "attempts_left": 3}, 20, "attempt"),
    (0, {"limit": 4, "attempts_left": 3, "usual": 9}, 4, "attempt"),
    (0, {"limit": 29.5}, 29.5, "attempt"),
    (0, {"limit": 30.0}, 30, "call"),
    (0, {"limit": 30.5}, 30, "call"),
    # A slow tool gets its usual duration.
    (0, {"attempts_left": 3, "usual": 5.0}, 10, "attempt"),
    (0, {"attempts_left": 3, "usual": 6.0}, 12, "attempt"),
    (0, {"attempts_left": 3, "usual": 15.0}, 30, "call"),
    (0, {"attempts_left": 3, "usual": 40.0}, 30, "call"),
    # An unusually long attempt times out while a retry may follow.
    (0, {"attempts_left": 3, "usual": 0.25}, 5, "attempt"),
    (0, {"attempts_left": 3, "usual": 0.001}, 1, "attempt"),
    (0, {"attempts_left": 3, "usual": 0.5}, 10, "attempt"),
    (0, {"attempts_left": 1, "usual": 0.001}, 30, "call"),
]
"""Seconds since the call began, what is known then, when the attempt ends, and whose limit that is; the call has 30 s."""


@pytest.mark.parametrize(("began", "known", "ends", "clock"), DEADLINES)
def test_deadline_of_an_attempt(began: float, known: dict[str, Any], ends: float, clock: str) -> None:
    assert attempt_deadline(NOW + began, NOW + 30, **known) == (NOW + ends, clock)


@given(
    st.floats(0.001, 1_000),
    st.integers(1, 10),
    st.one_of(st.none(), st.floats(0.001, 1_000)),
    st.one_of(st.none(), st.floats(0.001, 1_000)),
)
def test_every_attempt_deadline_is_within_the_call_and_names_its_limit(
    left: float, attempts: int, limit: float | None, usual: float | None
) -> None:
    ends, clock = attempt_deadline(NOW, NOW + left, limit=limit, attempts_left=attempts, usual=usual)
    assert NOW < ends <= NOW + left
    assert (clock == "call") == (ends == NOW + left)


@given(st.floats(0.01, 1_000), st.integers(2, 10))
def test_attempts_that_all_time_out_use_exactly_the_whole_time(timeout: float, attempts: int) -> None:
    now, ends = NOW, 0.0
    for left in range(attempts, 0, -1):
        now, clock = attempt_deadline(now, NOW + timeout, attempts_left=left)
        assert (clock == "call") == (left == 1)
        ends = now
    assert ends == NOW + timeout


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
