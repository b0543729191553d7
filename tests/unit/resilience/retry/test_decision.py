"""Decisions about retries. Guards against a retry of what may have run, retry storms (goal: what is sent is at most 1.2
times what is offered, and the floor, while everything fails; without a budget it is thrice), retries in step with each
other, a service's own retry-after passed over, and retries that cannot end in time."""

from __future__ import annotations

import heapq
import math
import random
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.errors import Outcome
from dispatch.policy import DEFAULT_RETRY, Retry
from dispatch.resilience.durations import LatencyHistogram
from dispatch.resilience.retry import (
    NON_RETRYABLE_ERRORS,
    RETRYABLE_OUTCOMES,
    FailedAttempt,
    NoRetryReason,
    RetryBudget,
    RetryDecision,
    RetryPolicy,
    RetryTarget,
    may_have_run,
)

NOW = 1_000.0


class Bench:
    """One tool's retries: ``drawn`` is the next random number, ``now`` the time."""

    def __init__(
        self,
        settings: Retry = DEFAULT_RETRY,
        *,
        repeatable: bool = True,
        drawn: float = 0.5,
        took: float | None = None,
        floor: float = 3.0,
    ) -> None:
        self.now, self.drawn = NOW, drawn
        self.budget = RetryBudget(settings.budget_ratio, floor, lambda: self.now)
        self.durations = LatencyHistogram(lambda: self.now)
        self.retrying = RetryPolicy(
            settings,
            repeatable=repeatable,
            budget=self.budget,
            durations=self.durations,
            randomness=lambda: self.drawn,
        )
        if took is not None:
            for _ in range(10):
                self.durations.record(took)

    def decide(self, outcome: Outcome = Outcome.TRANSPORT, **changes: Any) -> RetryDecision | NoRetryReason:
        state = self.retrying.start()
        state.attempt_number = changes.pop("attempt", 1)
        state.set_result(FailedAttempt(outcome, **{"now": self.now, "deadline": NOW + 30} | changes))
        left = self.budget.remaining
        verdict = self.retrying.decide(state)
        assert left - self.budget.remaining == isinstance(verdict, RetryDecision), "only a retry is paid for"
        return verdict

    def wait(self, outcome: Outcome = Outcome.TRANSPORT, **changes: Any) -> float:
        verdict = self.decide(outcome, **changes)
        assert isinstance(verdict, RetryDecision), verdict
        return verdict.wait


# -- what can get better ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", Outcome)
def test_only_retryable_outcomes_are_retried(outcome: Outcome) -> None:
    verdict = Bench().decide(outcome)
    if outcome in (Outcome.TRANSPORT, Outcome.TIMEOUT, Outcome.THROTTLED):
        assert isinstance(verdict, RetryDecision)
    else:
        assert verdict is NoRetryReason.OUTCOME
    assert (outcome in RETRYABLE_OUTCOMES) == isinstance(verdict, RetryDecision)


@pytest.mark.parametrize("error_type", sorted(NON_RETRYABLE_ERRORS))
def test_permanent_transport_errors_are_not_retried(error_type: str) -> None:
    assert Bench().decide(Outcome.TRANSPORT, error_type=error_type) is NoRetryReason.OUTCOME


def test_other_transport_errors_are_retried() -> None:
    assert isinstance(Bench().decide(Outcome.TRANSPORT, error_type="instance-lost"), RetryDecision)


def test_a_tools_own_error_is_retried_when_the_settings_name_its_type() -> None:
    bench = Bench(Retry(retryable_errors=("locked", "busy")))
    assert isinstance(bench.decide(Outcome.TOOL_ERROR, error_type="busy"), RetryDecision)
    assert bench.decide(Outcome.TOOL_ERROR, error_type="gone") is NoRetryReason.OUTCOME
    assert bench.decide(Outcome.TOOL_ERROR) is NoRetryReason.OUTCOME
    assert bench.decide(Outcome.INVALID_ARGUMENTS, error_type="busy") is NoRetryReason.OUTCOME


@pytest.mark.parametrize(("attempts", "made", "more"), [(3, 1, True), (3, 2, True), (3, 3, False), (1, 1, False)])
def test_max_attempts_limits_attempts(attempts: int, made: int, more: bool) -> None:
    verdict = Bench(Retry(max_attempts=attempts)).decide(attempt=made)
    assert isinstance(verdict, RetryDecision) if more else verdict is NoRetryReason.ATTEMPTS


# -- what may be repeated, and where ------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("remembered", [False, True])
def test_repeatable_tool_is_retried_at_any_instance(keyed: bool, sent: bool, remembered: bool) -> None:
    verdict = Bench(repeatable=True).decide(Outcome.TIMEOUT, may_have_run=sent, keyed=keyed, remembered=remembered)
    assert isinstance(verdict, RetryDecision)
    assert verdict.where is RetryTarget.ANY_INSTANCE


@pytest.mark.parametrize(
    ("keyed", "sent", "remembered", "expected"),
    [
        (False, False, False, RetryTarget.ANY_INSTANCE),
        (False, False, True, RetryTarget.ANY_INSTANCE),
        (False, True, False, NoRetryReason.UNSAFE),
        (False, True, True, NoRetryReason.UNSAFE),
        (True, False, False, RetryTarget.KEY_HOLDER),
        (True, False, True, RetryTarget.KEY_HOLDER),
        (True, True, False, NoRetryReason.UNSAFE),
        (True, True, True, RetryTarget.KEY_HOLDER),
    ],
)
def test_possibly_executed_call_is_retried_only_at_the_key_holder(
    keyed: bool, sent: bool, remembered: bool, expected: RetryTarget | NoRetryReason
) -> None:
    verdict = Bench(repeatable=False).decide(Outcome.TIMEOUT, may_have_run=sent, keyed=keyed, remembered=remembered)
    assert (verdict.where if isinstance(verdict, RetryDecision) else verdict) is expected


def test_remembered_tool_error_is_not_retried() -> None:
    bench = Bench(Retry(retryable_errors=("busy",)), repeatable=False)
    assert bench.decide(Outcome.TOOL_ERROR, error_type="busy") is NoRetryReason.UNSAFE
    assert bench.decide(Outcome.TOOL_ERROR, error_type="busy", keyed=True) is NoRetryReason.UNSAFE
    assert bench.decide(Outcome.TOOL_ERROR, error_type="busy", keyed=True, remembered=True) is NoRetryReason.OUTCOME
    anywhere = Bench(Retry(retryable_errors=("busy",)), repeatable=True).decide(
        Outcome.TOOL_ERROR, error_type="busy", keyed=True
    )
    assert isinstance(anywhere, RetryDecision)
    assert anywhere.where is RetryTarget.ANY_INSTANCE


@pytest.mark.parametrize(("outcome", "sent"), list(product(Outcome, (False, True))))
def test_attempt_may_have_run_unless_unsent_or_rejected(outcome: Outcome, sent: bool) -> None:
    assert may_have_run(outcome, sent=sent) == (sent and outcome not in (Outcome.THROTTLED, Outcome.REJECTED))


# -- how long to wait ---------------------------------------------------------------------------------------------


def test_backoff_is_uniform_up_to_a_doubling_capped_bound() -> None:
    bench = Bench(Retry(max_attempts=10, initial_backoff=0.05, max_backoff=0.3), drawn=0.0)
    assert [bench.wait(attempt=number) for number in range(1, 6)] == [0.0] * 5
    bench.drawn = 0.5
    assert [bench.wait(attempt=number) for number in range(1, 6)] == pytest.approx([0.025, 0.05, 0.1, 0.15, 0.15])


def test_backoff_is_added_to_retry_after() -> None:
    bench = Bench()
    assert bench.wait(Outcome.THROTTLED, retry_after=1.5) == pytest.approx(1.5 + 0.025)
    bench.drawn = 0.0
    assert bench.wait(Outcome.TRANSPORT, retry_after=1.5) == 1.5


@pytest.mark.parametrize("nonsense", [0.0, -5.0, math.nan, None])
def test_invalid_retry_after_is_ignored(nonsense: float | None) -> None:
    assert Bench().wait(retry_after=nonsense) == pytest.approx(0.025)


@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_callers_that_failed_together_do_not_retry_together(retry_after: float | None) -> None:
    """A thousand callers fail in one instant: no twentieth of the time after it gets more than 15 % of them. In step, one
    would get all."""
    chance = random.Random(7)
    bench = Bench(floor=1_000)
    waits = []
    for _ in range(1_000):
        bench.drawn = chance.random()
        waits.append(bench.wait(Outcome.THROTTLED, retry_after=retry_after, attempt=2) - (retry_after or 0.0))
    assert min(waits) >= 0.0
    assert max(waits) < 0.1
    slots = [int(wait / 0.1 * 20) for wait in waits]
    assert max(slots.count(slot) for slot in range(20)) <= 150


# -- what can still be in time ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("left", "begun"), [(0.0, False), (-1.0, False), (0.99, False), (1.1, True)])
def test_retry_that_cannot_finish_in_time_is_not_made(left: float, begun: bool) -> None:
    verdict = Bench(took=1.0).decide(deadline=NOW + left)
    assert isinstance(verdict, RetryDecision) if begun else verdict is NoRetryReason.TOO_LATE


def test_time_of_exactly_the_median_permits_a_retry_without_backoff() -> None:
    bench = Bench(took=1.0, drawn=0.999)
    median = bench.durations.quantile(0.5)
    assert median is not None
    assert bench.wait(now=0.0, deadline=median) == 0.0
    assert bench.decide(now=0.0, deadline=median - 1e-9) is NoRetryReason.TOO_LATE


def test_backoff_leaves_time_for_the_attempt() -> None:
    bench = Bench(Retry(initial_backoff=2.0), took=1.0, drawn=0.5)
    median = bench.durations.quantile(0.5)
    assert median is not None
    assert bench.wait(deadline=NOW + 2) == pytest.approx((2 - median) / 2)
    assert bench.wait(deadline=NOW + 2.5, retry_after=0.5) == pytest.approx(0.5 + (2 - median) / 2)
    assert bench.wait(deadline=NOW + 30) == pytest.approx(1.0)


def test_half_of_the_time_is_reserved_while_the_median_is_unknown() -> None:
    bench = Bench(Retry(initial_backoff=2.0), drawn=0.5)
    assert bench.wait(deadline=NOW + 2) == pytest.approx(0.5)
    assert bench.decide(deadline=NOW) is NoRetryReason.TOO_LATE


@pytest.mark.parametrize("retry_after", [2.0, 3.0, math.inf])
def test_retry_after_beyond_the_deadline_ends_the_call(retry_after: float) -> None:
    assert Bench().decide(Outcome.THROTTLED, retry_after=retry_after, deadline=NOW + 2) is NoRetryReason.TOO_LATE


@given(
    attempt=st.integers(1, 9),
    left=st.floats(-1, 100),
    retry_after=st.one_of(st.none(), st.floats(-1, 100)),
    took=st.one_of(st.none(), st.floats(0.001, 50)),
    drawn=st.floats(0, 1, exclude_max=True),
)
def test_every_backoff_respects_retry_after_and_deadline(
    attempt: int, left: float, retry_after: float | None, took: float | None, drawn: float
) -> None:
    bench = Bench(Retry(max_attempts=10), drawn=drawn, took=took)
    verdict = bench.decide(attempt=attempt, retry_after=retry_after, deadline=NOW + left)
    if isinstance(verdict, RetryDecision):
        asked = max(retry_after or 0.0, 0.0)
        assert asked <= verdict.wait <= asked + min(2.0, 0.05 * 2 ** (attempt - 1))
        assert verdict.wait + (took or 0.0) <= left + 1e-9
    else:
        assert verdict is NoRetryReason.TOO_LATE
        assert left - max(retry_after or 0.0, 0.0) < max((took or 0.0) * 1.05, 1e-9)


# -- what it is paid from -----------------------------------------------------------------------------------------


def test_exhausted_budget_ends_retries() -> None:
    bench = Bench(floor=0.2)
    assert [isinstance(bench.decide(), RetryDecision) for _ in range(3)] == [True, True, False]
    assert bench.decide() is NoRetryReason.BUDGET


def storm(ratio: float, floor: float, *, seconds: int = 60, rate: int = 1_000) -> float:
    """Sent over offered while every attempt fails after 20 ms, in virtual time."""
    chance = random.Random(11)
    bench = Bench(Retry(budget_ratio=ratio), floor=floor)
    offered = [(NOW + number / rate, 1, NOW + number / rate + 30) for number in range(seconds * rate)]
    events: list[tuple[float, int, float]] = list(offered)
    heapq.heapify(events)
    sent = 0
    while events:
        bench.now, attempt, deadline = heapq.heappop(events)
        if bench.now >= NOW + seconds:
            break
        if attempt == 1:
            bench.budget.record_call()
        sent += 1
        bench.drawn = chance.random()
        verdict = bench.decide(attempt=attempt, now=bench.now + 0.02, deadline=deadline)
        if isinstance(verdict, RetryDecision):
            heapq.heappush(events, (bench.now + 0.02 + verdict.wait, attempt + 1, deadline))
    return sent / len(offered)


def test_total_failure_adds_one_fifth_of_load() -> None:
    """1,000 calls a second for a minute, three attempts each: at most 1.2 times as much, and 3 a second."""
    amplification = storm(0.2, 3.0)
    assert 1.15 < amplification <= 1.2 + 3 / 1_000


def test_without_a_budget_load_would_triple() -> None:
    assert storm(1.0, 1_000.0, seconds=5) > 2.8
