"""Decisions about hedges: when, how many, and what is learnt. Guards against hedges that double the load when all is slow,
and against a delay that becomes ever shorter because only the fast attempts are seen to their end."""

from __future__ import annotations

import random

import pytest

from dispatch.errors import Outcome
from dispatch.resilience.durations import GROWTH, LatencyHistogram
from dispatch.resilience.retry import ANSWERED, FLOOR, MIN_DELAY_S, Hedging, NoHedgeReason, RetryBudget

FAR = 1e9
DEFAULT = "p95"


class Bench:
    def __init__(
        self, delay: float | str = DEFAULT, *, ratio: float = 0.2, floor: float = 3.0, hedge_ratio: float = 0.05
    ) -> None:
        self.now = 1_000.0
        self.budget = RetryBudget(ratio, floor, lambda: self.now)
        self.durations = LatencyHistogram(lambda: self.now)
        self.hedging = Hedging(
            delay, budget=self.budget, durations=self.durations, clock=lambda: self.now, ratio=hedge_ratio
        )

    def begin(self, deadline: float = FAR) -> float | None:
        return self.hedging.start_first(self.now, deadline)

    def admit(self, deadline: float = FAR, *, others: bool = True) -> NoHedgeReason | None:
        return self.hedging.admit(self.now, deadline, has_other_instance=others)

    def learn(self, *seconds: float, outcome: Outcome = Outcome.SUCCESS) -> None:
        for each in seconds:
            self.hedging.record_first(each, outcome)


def test_percentile_delay_applies_as_soon_as_it_is_known() -> None:
    bench = Bench("p95")
    bench.learn(*[0.1] * 94, *[3.0] * 5)
    assert bench.begin() is None
    bench.learn(0.1)
    assert bench.begin() == pytest.approx(0.1, rel=GROWTH - 1)


def test_percentile_delay_follows_the_tool() -> None:
    bench = Bench("p95")
    bench.learn(*[0.1] * 100)
    assert bench.begin() == pytest.approx(0.1, rel=GROWTH - 1)
    bench.learn(*[0.4] * 50)
    assert bench.begin() == pytest.approx(0.4, rel=GROWTH - 1)
    bench.now += 61
    assert bench.begin() is None


def test_delay_in_seconds_applies_at_once() -> None:
    bench = Bench(0.25)
    assert bench.begin() == 0.25
    bench.learn(*[9.0] * 200)
    assert bench.begin() == 0.25


@pytest.mark.parametrize("delay", [0.0001, "p50"])
def test_delay_has_a_minimum(delay: float | str) -> None:
    bench = Bench(delay)
    bench.learn(*[0.0002] * 100)
    assert bench.begin() == MIN_DELAY_S


def test_no_hedge_after_the_deadline() -> None:
    bench = Bench(0.25)
    assert bench.begin(bench.now + 0.25) is None
    assert bench.begin(bench.now + 0.2501) == 0.25


def test_hedge_requires_another_instance() -> None:
    bench = Bench(0.25)
    left = bench.budget.remaining
    assert bench.admit(others=False) is NoHedgeReason.ALONE
    assert bench.budget.remaining == left
    assert bench.admit() is None
    assert bench.budget.remaining == left - 1


def test_hedge_requires_time_for_an_attempt() -> None:
    bench = Bench(0.25)
    assert bench.admit(bench.now) is NoHedgeReason.TOO_LATE
    assert bench.admit(bench.now + 0.001) is None
    bench.learn(*[1.0] * 10)
    median = bench.durations.quantile(0.5)
    assert median is not None
    bench.now = 0.0
    assert bench.admit(median - 1e-9) is NoHedgeReason.TOO_LATE
    assert bench.admit(median) is None


def test_hedges_have_their_own_budget() -> None:
    bench = Bench(0.25, hedge_ratio=0.05, ratio=1.0, floor=100)
    for _ in range(200):
        bench.begin()
    own = 10 + int(10 * FLOOR)
    assert [bench.admit() for _ in range(own + 1)] == [None] * own + [NoHedgeReason.BUDGET]


def test_hedges_and_retries_share_the_retry_budget() -> None:
    bench = Bench(0.25, hedge_ratio=1.0, ratio=0.2, floor=0.0)
    for _ in range(10):
        bench.begin()
        bench.budget.record_call()
    assert bench.budget.withdraw()  # a retry
    assert [bench.admit() for _ in range(3)] == [None, NoHedgeReason.BUDGET, NoHedgeReason.BUDGET]
    bench.budget.ratio = 1.0
    # Ten calls' worth, the floor, and one spent: had the two refused ones been kept, two fewer.
    allowed = 10 + int(10 * FLOOR) - 1
    bench.budget.floor = 100
    assert [bench.admit() for _ in range(allowed + 1)] == [None] * allowed + [NoHedgeReason.BUDGET]


def test_unsent_hedge_is_refunded_to_both_budgets() -> None:
    bench = Bench(0.25, floor=3.0, ratio=0.0)
    for _ in range(100):
        assert bench.admit() is None
        bench.hedging.refund()
    assert bench.budget.remaining == 30


@pytest.mark.parametrize("outcome", Outcome)
def test_recorded_outcomes(outcome: Outcome) -> None:
    bench = Bench()
    bench.learn(1.0, outcome=outcome)
    expected = outcome in (Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS, Outcome.TIMEOUT)
    assert len(bench.durations) == expected


def test_answered_outcomes() -> None:
    assert frozenset({Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS}) == ANSWERED


def test_cancelled_losers_do_not_shrink_the_delay() -> None:
    """Every first attempt that is hedged is cancelled soon after, so that its whole duration is never seen."""
    chance = random.Random(3)
    bench = Bench("p95")
    hedges = 0
    for number in range(20_000):
        bench.now += 0.01
        takes = chance.lognormvariate(-3, 0.5)
        delay = bench.begin()
        if delay is not None and takes > delay:
            hedges += number >= 10_000
            bench.learn(delay + 0.005, outcome=Outcome.TIMEOUT)
        else:
            bench.learn(takes)
    assert 0.03 <= hedges / 10_000 <= 0.055
    assert bench.begin() == pytest.approx(0.1133, rel=0.1)  # exp(-3 + 1.645 * 0.5)
