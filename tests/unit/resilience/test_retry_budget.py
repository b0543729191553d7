"""The retry budget. Guards against retry storms, for which resilience4j, Polly and tenacity have nothing, against budgets
that each layer has for itself, and against quotas that only successes refill, so that a failing tool is never retried."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dispatch.resilience.retry import BUCKET_S, BUCKETS, WINDOW_S, RetryBudget
from tests.helpers.state_machine_settings import machine


class Bench:
    def __init__(self, ratio: float = 0.2, floor: float = 0.0, now: float = 1_000.0) -> None:
        self.now = now
        self.budget = RetryBudget(ratio, floor, lambda: self.now)

    def call(self, times: int) -> None:
        for _ in range(times):
            self.budget.record_call()

    def drain(self) -> int:
        """Withdraw until there is nothing left; how often?"""
        count = 0
        while self.budget.withdraw():
            count += 1
            assert count < 10_000, "a budget that never ends"
        return count

    def pass_by(self, buckets: int) -> int:
        """Time passes and is seen. What is left then?"""
        self.now += buckets * BUCKET_S
        return self.budget.remaining


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_budget_permits_one_repeat_in_five_calls(bench: Bench) -> None:
    bench.call(4)
    assert (bench.budget.remaining, bench.drain()) == (0, 0)
    bench.call(1)
    assert bench.budget.remaining == 1
    assert bench.drain() == 1
    bench.call(95)
    assert bench.drain() == 19
    assert bench.budget.remaining == 0


def test_floor_permits_repeats_without_calls() -> None:
    bench = Bench(ratio=0.2, floor=3.0)
    assert bench.drain() == 30
    bench.call(10)
    assert bench.drain() == 2


def test_zero_ratio_and_floor_permit_no_repeat() -> None:
    bench = Bench(ratio=0.0)
    bench.call(1_000)
    assert bench.drain() == 0


@pytest.mark.parametrize(("ratio", "calls", "repeats"), [(0.29, 100, 29), (0.07, 100, 7), (0.2, 35, 7), (0.1, 30, 3)])
def test_share_is_exact_despite_floating_point(ratio: float, calls: int, repeats: int) -> None:
    bench = Bench(ratio)
    bench.call(calls)
    assert bench.drain() == repeats


def test_refunded_repeat_can_be_withdrawn_again(bench: Bench) -> None:
    bench.call(10)
    assert bench.drain() == 2
    bench.budget.refund()
    assert bench.drain() == 1
    assert bench.budget.remaining == 0


def test_refund_without_withdrawal_does_nothing(bench: Bench) -> None:
    bench.call(10)
    bench.budget.refund()
    assert bench.budget.remaining == 2
    assert bench.drain() == 2


@pytest.mark.parametrize("later", [1, 5, 9])
def test_refund_applies_to_the_bucket_of_the_withdrawal(later: int) -> None:
    """Were the newest bucket credited instead, the same repeat would be given back twice when its own bucket ends."""
    bench = Bench(floor=0.3)
    assert bench.drain() == 3
    bench.now += later * BUCKET_S
    bench.budget.refund()
    assert bench.budget.remaining == 1
    bench.now += (BUCKETS - later) * BUCKET_S
    assert bench.budget.remaining == 3
    assert bench.drain() == 3


def test_refund_after_the_window_does_nothing() -> None:
    bench = Bench(floor=0.3)
    assert bench.drain() == 3
    bench.now += WINDOW_S
    bench.budget.refund()
    assert bench.budget.remaining == 3
    assert bench.drain() == 3


def test_refund_returns_the_newest_withdrawal() -> None:
    bench = Bench(floor=0.2)
    assert bench.budget.withdraw()
    bench.now += BUCKET_S
    assert bench.budget.withdraw()
    bench.now += BUCKET_S
    bench.budget.refund()
    bench.now += (BUCKETS - 2) * BUCKET_S  # the first one has left the window by itself
    assert bench.budget.remaining == 2


def test_refund_finds_a_former_bucket() -> None:
    bench = Bench(floor=0.5)
    for _ in range(3):
        assert bench.budget.withdraw()
    assert bench.pass_by(1) == 2
    bench.budget.refund()
    assert bench.budget.remaining == 3
    assert bench.pass_by(8) == 3
    assert bench.pass_by(1) == 5, "its bucket left with what was still spent in it"
    assert bench.pass_by(BUCKETS) == 5


def test_refund_returns_the_newest_withdrawal_of_former_buckets() -> None:
    bench = Bench(floor=0.5)
    assert bench.budget.withdraw()
    assert bench.pass_by(1) == 4
    assert bench.budget.withdraw()
    assert bench.pass_by(1) == 3
    bench.budget.refund()
    assert bench.budget.remaining == 4
    assert bench.pass_by(BUCKETS - 2) == 5, "what is left was spent in the first bucket, which has gone"


def test_refund_skips_former_buckets_without_a_withdrawal() -> None:
    bench = Bench(floor=0.5)
    assert bench.budget.withdraw()
    assert (bench.pass_by(1), bench.pass_by(1)) == (4, 4)
    bench.budget.refund()
    assert bench.budget.remaining == 5
    assert bench.pass_by(BUCKETS - 2) == 5, "no bucket has a withdrawal"


def test_the_oldest_bucket_of_the_window_is_refunded_too() -> None:
    bench = Bench(floor=0.5)
    assert bench.budget.withdraw()
    assert bench.pass_by(BUCKETS - 1) == 4
    bench.budget.refund()
    assert bench.budget.remaining == 5


def test_buckets_add_up_and_idle_buckets_are_empty(bench: Bench) -> None:
    bench.call(5)
    assert bench.pass_by(1) == 1
    bench.call(5)
    assert bench.pass_by(3) == 2
    bench.call(5)
    assert [bench.pass_by(1) for _ in range(12)] == [3, 3, 3, 3, 3, 2, 1, 1, 1, 0, 0, 0]
    bench.call(5)
    assert bench.budget.remaining == 1


def test_calls_count_for_ten_buckets_and_no_longer(bench: Bench) -> None:
    bench.call(10)
    bench.now += BUCKETS * BUCKET_S - 1 / 64
    assert bench.budget.remaining == 2
    bench.now += 1 / 64
    assert bench.budget.remaining == 0


def test_repeats_count_for_ten_buckets_and_no_longer() -> None:
    bench = Bench(floor=0.5)
    assert bench.drain() == 5
    bench.now += BUCKETS * BUCKET_S - 1 / 64
    assert bench.drain() == 0
    bench.now += 1 / 64
    assert bench.drain() == 5


def test_window_is_empty_after_a_long_idle_time(bench: Bench) -> None:
    bench.call(1_000)
    bench.now += 86_400.0
    bench.call(5)
    assert bench.drain() == 1


def test_call_that_starts_a_bucket_is_counted_in_it() -> None:
    bench = Bench(now=0.0)
    bench.now = BUCKET_S
    bench.call(5)
    bench.now = WINDOW_S
    assert bench.budget.remaining == 1
    bench.now = WINDOW_S + BUCKET_S
    assert bench.budget.remaining == 0


def test_a_policy_that_changes_applies_at_once(bench: Bench) -> None:
    bench.call(100)
    assert bench.drain() == 20
    bench.budget.ratio = 0.1
    assert bench.budget.remaining == 0
    bench.budget.floor = 3.0
    assert bench.budget.remaining == 20


def test_a_hundred_thousand_calls_take_no_more_memory_than_one(bench: Bench) -> None:
    for _ in range(100):
        bench.call(1_000)
        bench.now += BUCKET_S / 2
    assert len(bench.budget._former) < BUCKETS


class BudgetMachine(RuleBasedStateMachine):
    """Against lists of what happened in which bucket, looked through each time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 64.0
        self.ratio, self.floor = 0.25, 0.5
        self.budget = RetryBudget(self.ratio, self.floor, lambda: self.now)
        self.calls: list[int] = []
        self.repeats: list[int] = []

    @property
    def bucket(self) -> int:
        return int((self.now - 64.0) / BUCKET_S)

    def covered(self, events: list[int]) -> list[int]:
        return [each for each in events if each > self.bucket - BUCKETS]

    @property
    def allowed(self) -> int:
        return int(self.ratio * len(self.covered(self.calls)) + self.floor * WINDOW_S)

    @property
    def remaining(self) -> int:
        return max(0, self.allowed - len(self.covered(self.repeats)))

    @rule(count=st.integers(1, 30))
    def call(self, count: int) -> None:
        for _ in range(count):
            self.budget.record_call()
            self.calls.append(self.bucket)

    @rule(times=st.integers(1, 8))
    def withdraw(self, times: int) -> None:
        for _ in range(times):
            possible = self.remaining > 0
            assert self.budget.withdraw() == possible
            if possible:
                self.repeats.append(self.bucket)

    @rule()
    def refund(self) -> None:
        self.budget.refund()
        if self.covered(self.repeats):
            self.repeats.remove(max(self.repeats))

    @rule(ticks=st.one_of(st.integers(0, 64), st.integers(0, 2_000)))
    def wait(self, ticks: int) -> None:
        self.now += ticks / 64

    @rule(ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def change(self, ratio: float) -> None:
        self.budget.ratio = self.ratio = ratio

    @invariant()
    def what_is_left_is_right(self) -> None:
        assert self.budget.remaining == self.remaining


TestBudgetMachine = pytest.mark.costly(BudgetMachine.TestCase)
TestBudgetMachine.settings = machine(50, 40)


def test_calls_are_counted_at_the_given_time(bench: Bench) -> None:
    for _ in range(5):
        bench.budget.record_call(bench.now)
    bench.budget.record_call(bench.now + WINDOW_S / 2)
    bench.now += WINDOW_S
    assert bench.budget.remaining == 0, "one call of six is in the window"
