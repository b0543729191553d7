"""aiolimiter's bucket: it decides; what it has no function for is added; no loop that has ended binds it (limiters made at
import break on the second loop)."""

from __future__ import annotations

import asyncio

import pytest
from aiolimiter import AsyncLimiter
from hypothesis import given
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.resilience.rate_limit import LeakyBucket, RatePermit, Waiter
from tests.helpers.clock import START, VirtualClockLoop, run
from tests.helpers.rate_limits import FAR, figures, limits, now

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.1, 0.125, 0.25, 1.0, 4.0])),
        st.tuples(st.just("take"), st.sampled_from([0.5, 1.0, 2.0])),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([1.0, 2.0, 8.0]), st.sampled_from([0.5, 2.0]))
def test_it_is_aiolimiters_bucket_on_the_callers_time(
    steps: list[tuple[str, float]], burst: float, rate: float
) -> None:
    async def both() -> None:
        ours, theirs = LeakyBucket(burst, rate), AsyncLimiter(burst, burst / rate)
        for step, value in steps:
            if step == "pass":
                await asyncio.sleep(value)
                continue
            fits = theirs.has_capacity(value)
            assert ours.try_add(value, now()) == fits
            if fits:
                await theirs.acquire(value)
            room = burst - ours.level(now())
            assert theirs.has_capacity(max(0.0, room - 1e-9))
            assert not theirs.has_capacity(room + 1e-9)

    run(both)


async def test_aiolimiter_does_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncLimiter, "has_capacity", lambda self, amount: False)
    assert isinstance(limits(burst=4).admit("ann", now()), Rejection)


def test_the_time_is_that_of_the_caller_without_any_loop() -> None:
    bucket = LeakyBucket(2.0, 1.0)
    assert [bucket.try_add(1.0, at) for at in (5.0, 5.0, 5.5, 6.0)] == [True, True, False, True]
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncLimiter(2.0, 2.0).has_capacity(1.0)


async def test_what_aiolimiter_has_no_function_for() -> None:
    """Each of these is a reason for a line of :class:`LeakyBucket`; where one fails, that line can go."""
    functions = {name for name in dir(AsyncLimiter) if not name.startswith("_")}
    assert functions == {"acquire", "has_capacity", "max_rate", "time_period"}, "nothing returns a cost or tells a wait"
    limiter = AsyncLimiter(4, 4.0)
    await limiter.acquire(4)
    served: list[str] = []

    async def wait(name: str, cost: float) -> None:
        await limiter.acquire(cost)
        served.append(name)

    tasks = [asyncio.create_task(wait("large", 4.0)), *(asyncio.create_task(wait("small", 1.0)) for _ in range(3))]
    await asyncio.gather(*tasks)
    assert served == ["small", "small", "small", "large"], "waiters are served by their cost: a large one starves"


def test_limits_made_without_a_loop_work_on_any_and_remember_over_all() -> None:
    made = limits("1/s", "1/s", burst=2)

    async def one() -> None:
        assert isinstance(await made.acquire("ann", FAR), RatePermit)
        assert isinstance(await made.acquire("ann", FAR), RatePermit)

    async def two() -> None:
        assert isinstance(await made.acquire("ann", now() + 0.5), Rejection)
        assert isinstance(await made.acquire("ann", FAR), RatePermit)
        assert now() == pytest.approx(START + 1.0)

    run(one)
    run(two)
    assert figures(made) == (3, 0, 1, 0)


@pytest.mark.parametrize(("before", "after"), [(50.0, 0.0), (0.0, 5.0)])
def test_who_waited_on_a_loop_that_has_ended_is_in_nobodys_way(before: float, after: float) -> None:
    made = limits("1/s")
    ended = VirtualClockLoop()

    async def leave_somebody_behind() -> None:
        await made.acquire("ann", FAR)
        await asyncio.sleep(before)
        await made.acquire("ann", FAR)
        assert isinstance(made.admit("ann", FAR), Waiter)

    ended.run_until_complete(leave_somebody_behind())
    ended.close()
    assert made.limiter.waiting == 1

    async def later() -> None:
        await asyncio.sleep(after)
        if not after:
            assert isinstance(made.admit("ben", now() + 0.9), Rejection)
        assert isinstance(await made.acquire("ben", now() + 1.1), RatePermit)
        assert made.limiter.waiting == 0
        assert isinstance(await made.acquire("ben", now() + 1.1), RatePermit)

    run(later)
    assert figures(made) == (4, 0, 1 if after else 2, 0)
