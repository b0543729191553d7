"""aiolimiter as the bucket: it decides, nobody waits in it, what it cannot do is done beside it, and no loop that has ended
binds it (limiters made at import break on the second loop)."""

from __future__ import annotations

import asyncio

import pytest
from aiolimiter import AsyncLimiter
from hypothesis import given
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.resilience.aio import LimiterBucket, _run_without_wait
from dispatch.resilience.rate_limit import LeakyBucket, RatePermit, Waiter
from tests.helpers.clock import START, VirtualClockLoop, advance, run
from tests.helpers.rate_limits import FAR, figures, limits, now


async def test_the_bucket_is_aiolimiters_and_nobody_waits_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[AsyncLimiter] = []
    filled: list[float] = []

    class Watched(AsyncLimiter):
        def __init__(self, max_rate: float, time_period: float) -> None:
            super().__init__(max_rate, time_period)
            made.append(self)

        async def acquire(self, amount: float = 1) -> None:
            filled.append(amount)
            await super().acquire(amount)
            assert not self._waiters

    monkeypatch.setattr("dispatch.resilience.aio.AsyncLimiter", Watched)
    tested = limits("10/m", burst=4)
    for _ in range(4):
        tested.admit("ann", FAR)
    assert isinstance(tested.admit("ann", now()), Rejection)
    assert filled == [1.0, 1.0, 1.0, 1.0], (
        "it is filled as far as it should be, and asked, once half of the bucket is full"
    )
    assert [(each.max_rate, each.time_period) for each in made] == [(4, 24)]
    assert not made[0].has_capacity(0.001)
    await advance(6.0)
    assert made[0].has_capacity(1)
    assert isinstance(tested.admit("ann", FAR), RatePermit)
    assert filled == [1.0, 1.0, 1.0, 1.0, 1.0]


async def test_while_little_is_in_it_the_reckoning_alone_decides() -> None:
    bucket = LimiterBucket(8.0, 1.0)
    for _ in range(3):
        assert bucket.try_add(1.0, now())
        assert bucket._limiter is None
    assert bucket.try_add(1.0, now())
    assert bucket._limiter is not None
    assert bucket._limiter.has_capacity(4.0)
    assert not bucket._limiter.has_capacity(4.001)
    await advance(2.0)
    assert bucket.try_add(1.0, now())
    assert bucket._limiter is None, "it knows nothing of what is poured in without it"


async def test_aiolimiter_has_the_last_word() -> None:
    bucket = LimiterBucket(2.0, 1.0)
    assert bucket.try_add(1.0, now())
    assert bucket._limiter is not None
    await bucket._limiter.acquire(0.5)
    assert bucket.time_until_fits(1.0, now()) == 0.0
    assert not bucket.try_add(1.0, now())
    assert bucket.level(now()) == 1.0, "and what was not let through does not count"


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


async def test_a_coroutine_that_would_wait_is_an_error_and_is_closed() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            ended.append(True)

    with pytest.raises(RuntimeError, match="aiolimiter waits although it reported capacity"):
        _run_without_wait(waits())
    assert ended == [True]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.125, 0.25, 1.0, 4.0])),
        st.tuples(st.just("take"), st.sampled_from([0.5, 1.0, 2.0])),
        st.tuples(st.just("back"), st.sampled_from([0, 1, 2])),
        st.tuples(st.just("look"), st.just(0.0)),
    ),
    max_size=30,
)


@given(STEPS, st.sampled_from([1.0, 2.0, 8.0]), st.sampled_from([0.5, 2.0]))
def test_it_is_the_bucket_that_the_rules_reckon_with(steps: list[tuple[str, float]], burst: float, rate: float) -> None:
    async def both() -> None:
        real, ideal = LimiterBucket(burst, rate), LeakyBucket(burst, rate)
        added: list[tuple[float, float]] = []
        for step, value in steps:
            if step == "pass":
                await asyncio.sleep(value)
            elif step == "take":
                fits = ideal.try_add(value, now())
                assert real.try_add(value, now()) == fits
                if fits:
                    added.append((value, now()))
            elif step == "look":
                real._limiter = real._limiter or real._filled(now(), 0.0)
            elif added:
                cost, at = added.pop(int(value) % len(added))
                real.give_back(cost, at, now())
                ideal.give_back(cost, at, now())
            room = burst - ideal.level(now())
            assert real.level(now()) == pytest.approx(ideal.level(now()), abs=1e-9)
            if real._limiter is not None:
                assert real._limiter.has_capacity(max(0.0, room - 1e-6))
                assert not real._limiter.has_capacity(room + 1e-6)

    run(both)


async def test_a_clock_that_went_on_between_two_looks_is_no_failure() -> None:
    """Another thread may hold the interpreter between the moment that is told and the one that aiolimiter reads."""
    bucket = LimiterBucket(4.0, 20.0)
    for _ in range(3):
        assert bucket.try_add(1.0, now() - 0.09)
    assert [bucket.try_add(1.0, now()) for _ in range(3)] == [True, False, False]
    assert bucket.level(now()) <= 4.0
