"""The circuit breaker's own ways: it opens, probes and closes, by behaviour.

Guards against results that move a state they do not belong to (all but one breaker in any language), cancelled calls
counted as failures or successes, and a state that is told wrongly.
What is done to a breaker from outside: an operator's choice, new settings, a listener.

Guards against a reload that forgets what is open, and against a listener that finds or leaves a state half made.
What a service asks of a breaker: to be left alone for a while, or until an instant.

Guards against refusals for want of quota taken for faults, and against a retry-after that nobody keeps to.
What a breaker is measured by: the goals of docs/explanation/goals.md, by virtual time and by structure.

G4 (nothing retained), G5 (no herd), G6 (stale results), G7 (lost probes), G16 (spread), G19 (memory). G18 is in
test_windows.
The figures of a breaker, and each of its four rules at its exact boundary.

Guards against an outage at low traffic that no share ever sees, against runs of failures that time alone wears away, and
against a quiet night taken for an outage.
Half-open: places, leases and rounds.

Guards against a herd let through by a half-open breaker (200 of 200 callers in five Python libraries), against probes that
are lost and wedge it for ever, and against one lucky success closing it.
How long a circuit stays open: spread, growing, bounded, and forgiven by health.

Guards against breakers that start again at their shortest time after each relapse, and against a herd of dispatchers that
come back at the same moment because all of them use the same fixed time.
Windows over calls: right at every size, at a cost that does not grow with it, in next to no memory.

Guards against windows that are scanned on every call (a Python peer's cost triples from 100 calls to 1,000).
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Breaker
from dispatch.resilience.breaker import (
    FAILED,
    PLAIN,
    PROBE_FAILED,
    PROBE_SLOW,
    RECOVERED,
    SLOTS,
    SLOW,
    BreakerPermit,
    BreakerRules,
    CircuitBreaker,
    CountWindow,
    FailureRules,
    HalfOpenCalls,
    OpenDuration,
    State,
    TimeWindow,
)
from tests.helpers.run_profile import examples


class Bench:
    """A breaker with a clock and a chance to be set by hand, and what its listener was told."""

    def __init__(self, settings: Breaker | None = None, **values: Any) -> None:
        self.now = 1000.0
        self.chance = 0.5
        self.told: list[tuple[str, str, str]] = []
        self.breaker = CircuitBreaker(
            settings or BreakerRules(**values),
            clock=lambda: self.now,
            randomness=lambda: self.chance,
            on_transition=lambda *told: self.told.append(told),
        )

    def permit(self) -> BreakerPermit:
        permit = self.breaker.admit()
        assert isinstance(permit, BreakerPermit), permit
        return permit

    def refusal(self) -> tuple[str, float | None]:
        assert not self.breaker.can_admit()
        rejection = self.breaker.admit()
        assert isinstance(rejection, Rejection), rejection
        assert rejection.by == "breaker"
        return rejection.reason, rejection.retry_after

    def call(
        self, outcome: Outcome = Outcome.SUCCESS, took: float = 0.0, retry_after: float | None = None, times: int = 1
    ) -> None:
        for _ in range(times):
            permit = self.permit()
            self.now += took
            permit.finish(outcome, retry_after=retry_after)

    def opened(self) -> Bench:
        while self.breaker.state is State.CLOSED:
            self.call(Outcome.TIMEOUT)
        return self

    def probing(self) -> Bench:
        self.opened()
        self.now += 5.0
        return self

    def recovered(self) -> Bench:
        self.probing()
        while self.breaker.state is not State.CLOSED:
            self.call()
        return self


FAILURES = (Outcome.TIMEOUT, Outcome.TRANSPORT)
SUCCESSES = (Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS)
NEITHER = (Outcome.THROTTLED, Outcome.CANCELLED, Outcome.REJECTED)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_breaker_starts_closed(bench: Bench) -> None:
    breaker = bench.breaker
    assert (breaker.state, breaker.epoch, breaker.stale, breaker.lost) == (State.CLOSED, 0, 0, 0)
    assert (breaker.failure_rate, breaker.slow_call_rate, breaker.retry_after) == (None, None, None)
    assert breaker.can_admit()
    assert isinstance(breaker.admit(), BreakerPermit)


def test_the_settings_of_a_policy_are_completed_by_constants() -> None:
    bench = Bench(Breaker(consecutive_failures=2))
    assert bench.breaker.settings == BreakerRules(consecutive_failures=2)
    bench.breaker.reconfigure(Breaker(consecutive_failures=3))
    assert bench.breaker.settings == BreakerRules(consecutive_failures=3)


def test_the_states_have_the_names_that_operators_see() -> None:
    found = [str(state) for state in State]
    assert found == [*("closed", "open", "half-open"), *("forced-open", "disabled", "metrics-only")]


def test_open_breaker_rejects_with_retry_after() -> None:
    bench = Bench().opened()
    assert (bench.told, bench.breaker.retry_after) == ([("closed", "open", "consecutive-failures")], 5.0)
    assert bench.refusal() == ("open", 5.0)
    bench.now += 4.75
    assert (bench.refusal(), bench.breaker.retry_after) == (("open", 0.25), 0.25)
    assert bench.breaker.state is State.OPEN
    bench.now += 0.25
    assert bench.breaker.retry_after is None
    assert bench.breaker.can_admit()
    assert bench.breaker.state is State.OPEN, "to look changes nothing: the first probe does"
    bench.permit()
    assert bench.breaker.state is State.HALF_OPEN
    assert bench.told[1:] == [("open", "half-open", "open-time-over")]


@pytest.mark.parametrize("outcome", FAILURES)
def test_timeouts_and_transport_errors_open_the_breaker(outcome: Outcome, bench: Bench) -> None:
    bench.call(outcome, times=9)
    assert bench.breaker.state is State.CLOSED
    bench.call(outcome)
    assert bench.breaker.state is State.OPEN


@pytest.mark.parametrize("outcome", SUCCESSES)
def test_answers_are_successes(outcome: Outcome, bench: Bench) -> None:
    """A tool's own error is an answer; so is a refusal of arguments."""
    bench.call(outcome, times=300)
    bench.call(Outcome.TIMEOUT, times=9)
    bench.call(outcome)
    bench.call(Outcome.TIMEOUT, times=9)
    assert (bench.told, bench.breaker.failure_rate) == ([], 18 / 100)


def test_tool_errors_open_when_the_settings_count_them_and_invalid_arguments_never_do() -> None:
    bench = Bench(count_tool_errors=True)
    bench.call(Outcome.INVALID_ARGUMENTS, times=20)
    assert bench.breaker.failure_rate == 0.0
    bench.call(Outcome.TOOL_ERROR, times=10)
    assert bench.breaker.state is State.OPEN


@pytest.mark.parametrize("outcome", NEITHER)
def test_cancelled_and_rejected_calls_are_not_counted(outcome: Outcome) -> None:
    bench = Bench(slow_call_duration=1.0)
    bench.call(outcome, took=2.0, times=50)
    assert (bench.breaker.failure_rate, bench.breaker.slow_call_rate) == (None, None)
    bench.call(Outcome.TIMEOUT, times=9)
    bench.call(outcome)
    assert bench.breaker.state is State.CLOSED
    bench.call(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN, "nor does it end a run"


def test_failure_rate_of_one_half_opens_the_breaker(bench: Bench) -> None:
    for number in range(20):
        assert bench.breaker.state is State.CLOSED
        bench.call(Outcome.TIMEOUT if number % 2 else Outcome.SUCCESS)
    assert bench.told == [("closed", "open", "failure-rate")]
    assert bench.breaker.failure_rate == 0.5, "what it opened by can still be seen"
    bench.now += 3600.0
    assert bench.breaker.failure_rate == 0.5


@pytest.mark.parametrize(("took", "state"), [(1.999, State.CLOSED), (2.0, State.OPEN)])
def test_slow_successes_open_the_breaker(took: float, state: State) -> None:
    bench = Bench(slow_call_duration=2.0)
    bench.call(took=took, times=20)
    assert bench.breaker.state is state
    assert bench.breaker.slow_call_rate == (1.0 if state is State.OPEN else 0.0)
    assert [why for *_, why in bench.told] == (["slow-call-rate"] if state is State.OPEN else [])


def test_no_call_is_slow_without_a_slow_call_duration(bench: Bench) -> None:
    bench.call(took=1e6, times=40)
    assert (bench.told, bench.breaker.slow_call_rate) == ([], 0.0)


def test_failures_every_half_minute_open_the_breaker(bench: Bench) -> None:
    for _ in range(3):
        assert bench.breaker.state is State.CLOSED
        bench.call(Outcome.TIMEOUT)
        bench.now += 30.0
    assert bench.told == [("closed", "open", "no-success")]


def test_a_permit_counts_once() -> None:
    bench = Bench(consecutive_failures=2)
    permit = bench.permit()
    for _ in range(5):
        permit.finish(Outcome.TIMEOUT)
    assert (bench.breaker.state, bench.breaker.stale) == (State.CLOSED, 0)
    late = bench.permit()
    bench.call(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN
    for _ in range(5):
        permit.finish(Outcome.TIMEOUT)
        late.finish(Outcome.TIMEOUT)
    assert bench.breaker.stale == 1


def test_half_open_breaker_admits_only_its_probes() -> None:
    bench = Bench().probing()
    half_open_calls = [bench.permit() for _ in range(3)]
    assert bench.refusal() == ("probing", None)
    half_open_calls[1].finish(Outcome.SUCCESS)
    assert bench.breaker.can_admit()
    bench.permit()
    assert bench.refusal() == ("probing", None)


@pytest.mark.parametrize("outcome", NEITHER)
def test_cancelled_probe_frees_its_permit(outcome: Outcome) -> None:
    """A cancelled probe must neither close, nor open, nor wedge: three breakers each do one of these."""
    bench = Bench().probing()
    bench.call(outcome, times=100)
    half_open_calls = [bench.permit() for _ in range(3)]
    assert bench.refusal() == ("probing", None)
    half_open_calls[0].finish(outcome)
    bench.permit()
    assert bench.breaker.state is State.HALF_OPEN


def test_failed_probe_opens_the_breaker_for_longer() -> None:
    bench = Bench().probing()
    bench.call()
    bench.call(Outcome.TIMEOUT)
    assert bench.told[-1] == ("half-open", "open", "probe-failed")
    assert bench.refusal() == ("open", 10.0)


def test_slow_probes_open_the_breaker_again() -> None:
    bench = Bench(slow_call_duration=1.0).probing()
    bench.call(took=1.0, times=3)
    assert bench.told[-1] == ("half-open", "open", "probe-slow")


def test_last_half_open_round_closes_the_breaker_with_empty_windows() -> None:
    bench = Bench().probing()
    for _ in range(21):
        assert bench.breaker.state is not State.CLOSED
        bench.call()
    assert bench.told[-1] == ("half-open", "closed", "recovered")
    assert bench.breaker.failure_rate is None
    bench.call(Outcome.TIMEOUT, times=9)
    assert bench.breaker.state is State.CLOSED
    assert [bench.permit().probe for _ in range(100)] == [0] * 100


def test_open_durations_grow_while_flapping_and_decay_while_closed(bench: Bench) -> None:
    """Closing on a few successes and starting at the shortest time again makes flapping worse than an outage."""
    waits = []
    for healthy in (10.0, 10.0, 10.0, 60.0, 1000.0, 0.0):
        bench.opened()
        waits.append(bench.breaker.retry_after or 0.0)
        bench.now += waits[-1]
        while bench.breaker.state is not State.CLOSED:
            bench.call()
        bench.now += healthy
    assert waits == [5.0, 10.0, 20.0, 40.0, 20.0, 5.0]


def test_probes_and_calls_of_one_time_slice_are_kept_apart() -> None:
    """Calls of a closed circuit are counted without a closer look while their part of the window lasts; probes never are."""
    bench = Bench(window_duration=36_000).probing()
    for _ in range(21):
        assert bench.breaker.state is not State.CLOSED
        bench.call()
    assert bench.breaker.state is State.CLOSED
    bench.call(Outcome.TOOL_ERROR, times=20)
    bench.breaker.disable()
    for _ in range(20):
        bench.call()
        bench.call(Outcome.TIMEOUT)
    assert (bench.breaker.failure_rate, bench.breaker._failure_rules.pending_successes) == (0.0, 0)


def test_success_at_the_end_of_a_time_slice_belongs_to_the_next_slice() -> None:
    bench = Bench(window_calls=2, min_calls=2, window_duration=10, failure_rate=0.9)
    for at, outcome in (
        (1000.5, Outcome.SUCCESS),
        (1001.0, Outcome.SUCCESS),
        (1005.0, Outcome.TIMEOUT),
        (1006.0, Outcome.SUCCESS),
        (1006.0, Outcome.SUCCESS),
    ):
        bench.now = at
        bench.call(outcome)
    assert bench.breaker.failure_rate == 1 / 5
    bench.now = 1010.0
    assert bench.breaker.failure_rate == 1 / 4, "the first one has left, and it alone"
    bench.now = 1011.0
    assert bench.breaker.failure_rate == 1 / 3


def test_fast_successes_are_counted_in_batches() -> None:
    bench = Bench(slow_call_duration=1.0)
    bench.call(took=0.015625, times=5)
    # All but the first one, which found its part of the window.
    assert bench.breaker._failure_rules.pending_successes == 4


def test_breaker_that_cannot_reject_skips_further_checks() -> None:
    """What a call costs: once a pause or a recovery is over, the next call ends the closer looks."""
    assert not Bench().breaker._may_reject
    bench = Bench().recovered()
    bench.call()
    assert not bench.breaker._may_reject
    bench.call(Outcome.THROTTLED, retry_after=1.0)
    assert bench.breaker._may_reject
    bench.now += 1.0
    bench.call()
    assert not bench.breaker._may_reject
    for choose in (bench.breaker.disable, bench.breaker.metrics_only):
        choose()
        assert not bench.breaker._may_reject


def test_a_caller_that_knows_the_time_spares_readings_of_the_clock() -> None:
    bench = Bench(slow_call_duration=1.0, min_calls=1)
    began = bench.now
    permit = bench.breaker.admit(began)
    assert permit.started == began
    bench.now += 2.0  # later than the call ended
    permit.finish(Outcome.SUCCESS, now=began + 0.5)
    assert bench.breaker.slow_call_rate == 0.0


def test_an_open_breaker_rejects_by_the_given_time() -> None:
    bench = Bench().opened()
    assert bench.breaker.admit(bench.now + 4.0) == Rejection("breaker", "open", 1.0)
    assert isinstance(bench.breaker.admit(bench.now + 5.0), BreakerPermit)


def test_forced_open_breaker_rejects_every_call(bench: Bench) -> None:
    bench.breaker.force_open()
    bench.now += 1e6
    assert (bench.refusal(), bench.breaker.retry_after) == (("forced-open", None), None)
    bench.breaker.force_open()
    bench.breaker.open_until(bench.now + 50.0)
    assert bench.refusal() == ("forced-open", None)
    assert (bench.told, bench.breaker.epoch) == ([("closed", "forced-open", "forced")], 1)
    bench.breaker.reset()
    assert bench.told[1:] == [("forced-open", "closed", "reset")]
    bench.call()


def test_disabled_breaker_admits_every_call_and_counts_none(bench: Bench) -> None:
    bench.breaker.disable()
    for outcome in Outcome:
        bench.call(outcome, retry_after=60.0, times=50)
    assert (bench.breaker.failure_rate, bench.breaker.stale) == (None, 0)
    bench.breaker.open_until(bench.now + 50.0)
    bench.breaker.disable()
    assert (bench.told, bench.breaker.epoch) == ([("closed", "disabled", "disabled")], 1)


def test_metrics_only_counts_and_never_opens() -> None:
    bench = Bench(slow_call_duration=0.25)
    bench.breaker.metrics_only()
    for number in range(100):
        bench.call(Outcome.TIMEOUT if number % 4 else Outcome.SUCCESS, took=0.25 if number % 2 else 0.0)
        bench.call(Outcome.THROTTLED, retry_after=60.0)
    assert (bench.breaker.failure_rate, bench.breaker.slow_call_rate) == (0.75, 0.5)
    bench.breaker.open_until(bench.now + 50.0)
    bench.breaker.metrics_only()
    assert (bench.told, bench.breaker.epoch) == ([("closed", "metrics-only", "metrics-only")], 1)
    bench.breaker.reset()
    assert bench.breaker.failure_rate is None


def test_rates_are_current_when_read() -> None:
    for bad, rate in (({"outcome": Outcome.TIMEOUT}, "failure_rate"), ({"took": 1.0}, "slow_call_rate")):
        bench = Bench(slow_call_duration=1.0, window_calls=20)
        bench.call(times=20)
        bench.call(**bad, times=4)
        bench.call(times=20)
        assert getattr(bench.breaker, rate) == 4 / 44
        bench.now += 100.0
        assert getattr(bench.breaker, rate) == 0.0


@pytest.mark.parametrize("choose", ["force_open", "disable", "metrics_only", "reset"])
def test_operator_state_ends_pauses_and_open_durations(choose: str) -> None:
    for bench in (Bench(), Bench().opened(), Bench().probing(), Bench().recovered()):
        if bench.breaker.state is State.CLOSED:
            bench.call(Outcome.THROTTLED, retry_after=60.0)
        getattr(bench.breaker, choose)()
        assert bench.breaker.retry_after is None
        assert bench.breaker.can_admit() is (choose != "force_open")
        if choose != "force_open":
            bench.call()


def test_reset_forgets_everything_also_when_closed() -> None:
    bench = Bench().recovered()
    bench.call(Outcome.TIMEOUT, times=9)
    flying = bench.permit()
    bench.told.clear()
    bench.breaker.reset()
    assert bench.told == [], "no transition"
    flying.finish(Outcome.TIMEOUT)
    assert bench.breaker.stale == 1
    bench.call(Outcome.TIMEOUT, times=9)
    assert bench.breaker.state is State.CLOSED
    bench.call(Outcome.TIMEOUT)
    assert bench.refusal() == ("open", 5.0), "former openings are forgotten"


def test_reconfiguration_keeps_the_state(bench: Bench) -> None:
    flying = [bench.permit() for _ in range(4)]
    bench.call(Outcome.TIMEOUT, times=5)
    new = BreakerRules(consecutive_failures=7, open_duration=8, half_open_calls=1)
    bench.breaker.reconfigure(new)
    assert bench.breaker.settings is new
    for permit in flying:
        permit.finish(Outcome.TIMEOUT)
    assert (bench.breaker.state, bench.breaker.stale, bench.refusal()) == (State.OPEN, 2, ("open", 8.0))
    bench.breaker.reconfigure(BreakerRules(open_duration=1))
    assert bench.refusal() == ("open", 8.0)
    bench.now += 8.0
    half_open_calls = [bench.permit() for _ in range(3)]
    bench.breaker.reconfigure(BreakerRules(half_open_calls=1))
    assert bench.refusal() == ("probing", None)
    bench.breaker.reconfigure(BreakerRules(half_open_calls=4))
    half_open_calls.append(bench.permit())
    for permit in half_open_calls:
        permit.finish(Outcome.SUCCESS)
    assert [state for _, state, _ in bench.told] == ["open", "half-open"]
    assert len([bench.permit() for _ in range(8)]) == 8, "the second round of fours"
    assert bench.refusal() == ("probing", None)


def test_new_slow_call_duration_applies_at_once(bench: Bench) -> None:
    bench.call(times=20)
    flying = bench.permit()
    bench.breaker.reconfigure(BreakerRules(slow_call_duration=1.0))
    bench.now += 1.0
    flying.finish(Outcome.SUCCESS)
    assert bench.breaker.slow_call_rate == 1 / 21


def test_listener_is_optional(bench: Bench) -> None:
    bench.breaker.on_transition = None
    bench.recovered()
    assert (bench.told, bench.breaker.epoch) == ([], 3)
    assert CircuitBreaker(BreakerRules(), clock=lambda: 0.0, randomness=lambda: 0.0).on_transition is None


def test_the_listener_sees_the_new_state_in_force(bench: Bench) -> None:
    seen = []
    breaker = bench.breaker
    breaker.on_transition = lambda old, new, why: seen.append((breaker.state is new, breaker.retry_after))
    bench.recovered()
    assert seen == [(True, 5.0), (True, None), (True, None)]


def test_on_recovery_is_called_once_after_the_half_open_rounds_only() -> None:
    bench, recoveries = Bench(), []
    bench.breaker = CircuitBreaker(
        BreakerRules(),
        clock=lambda: bench.now,
        randomness=lambda: 0.5,
        on_recovery=lambda: recoveries.append(bench.breaker.state),
    )
    bench.opened().breaker.reset()
    assert recoveries == []
    bench.recovered()
    assert recoveries == [State.CLOSED]
    bench.call()
    assert len(recoveries) == 1


def test_listener_may_set_another_state() -> None:
    bench = Bench().probing()
    bench.breaker.on_transition = lambda old, new, why: bench.breaker.force_open()
    assert bench.breaker.can_admit()
    assert bench.breaker.admit() == Rejection("breaker", "forced-open")


def test_error_of_a_listener_leaves_the_state_consistent() -> None:
    bench = Bench(half_open_calls=1).opened()
    bench.now += 5.0

    def fail(old: State, new: State, why: str) -> None:
        raise ZeroDivisionError

    bench.breaker.on_transition = fail
    with pytest.raises(ZeroDivisionError):
        bench.breaker.admit()
    probe = bench.permit()
    assert bench.refusal() == ("probing", None)
    with pytest.raises(ZeroDivisionError):
        probe.finish(Outcome.TIMEOUT)
    assert bench.refusal() == ("open", 10.0)


def test_throttling_pauses_without_opening_the_breaker(bench: Bench) -> None:
    """Refusals for want of quota are no faults: taken for such they open, left out altogether they are repeated for ever."""
    bench.call(Outcome.THROTTLED, times=50)
    bench.call(Outcome.THROTTLED, retry_after=2.0)
    assert (bench.breaker.state, bench.refusal()) == (State.CLOSED, ("paused", 2.0))
    assert bench.breaker.retry_after == 2.0
    bench.now += 2.0
    assert bench.breaker.can_admit()
    assert bench.breaker.retry_after is None
    bench.call()
    assert (bench.told, bench.breaker.epoch) == ([], 0)


def test_longest_requested_pause_applies(bench: Bench) -> None:
    for permit, seconds in [(bench.permit(), seconds) for seconds in (2.0, 7.0, 3.0)]:
        permit.finish(Outcome.THROTTLED, retry_after=seconds)
    assert bench.refusal() == ("paused", 7.0)


def test_calls_in_flight_are_counted_during_a_pause(bench: Bench) -> None:
    flying = [bench.permit() for _ in range(10)]
    bench.call(Outcome.THROTTLED, retry_after=60.0)
    for permit in flying:
        permit.finish(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN
    assert bench.refusal() == ("open", 60.0), "what the service asked for goes on"


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan"), float("-inf")])
def test_invalid_retry_after_is_ignored(seconds: float, bench: Bench) -> None:
    bench.call(Outcome.THROTTLED, retry_after=seconds)
    assert bench.breaker.can_admit()
    assert bench.breaker.retry_after is None


def test_retry_after_is_capped() -> None:
    bench = Bench()
    bench.call(Outcome.THROTTLED, retry_after=float("inf"))
    assert bench.refusal() == ("paused", 3600.0)
    bench = Bench(max_retry_after=10)
    bench.call(Outcome.THROTTLED, retry_after=10.5)
    assert bench.refusal() == ("paused", 10.0)


def test_throttled_probe_pauses_and_frees_its_permit() -> None:
    bench = Bench().probing()
    half_open_calls = [bench.permit() for _ in range(3)]
    half_open_calls[0].finish(Outcome.THROTTLED, retry_after=4.0)
    assert (bench.breaker.state, bench.refusal()) == (State.HALF_OPEN, ("paused", 4.0))
    bench.now += 4.0
    bench.permit()
    assert bench.refusal() == ("probing", None)


def test_pause_stays_in_force_after_the_transition_to_closed() -> None:
    bench = Bench(half_open_rounds=1).probing()
    bench.call(times=2)
    flying = [bench.permit(), bench.permit()]
    flying[0].finish(Outcome.THROTTLED, retry_after=1.5)
    assert bench.breaker.state is State.HALF_OPEN
    flying[1].finish(Outcome.SUCCESS)
    assert (bench.breaker.state, bench.refusal()) == (State.CLOSED, ("paused", 1.5))
    bench.now += 1.5
    bench.call()


def test_open_duration_covers_the_requested_retry_after(bench: Bench) -> None:
    bench.call(Outcome.TRANSPORT, retry_after=500.0, times=9)
    assert bench.breaker.can_admit(), "below that it has nothing to lengthen"
    bench.chance = 0.0
    bench.call(Outcome.TRANSPORT, retry_after=60.0)
    assert bench.refusal() == ("open", 60.0)
    bench.now += 60.0
    bench.call(Outcome.TRANSPORT, retry_after=1e9)
    assert bench.refusal() == ("open", 3600.0)


def test_open_until_rejects_calls_until_that_instant(bench: Bench) -> None:
    bench.breaker.open_until(bench.now + 100.0)
    assert (bench.told, bench.refusal()) == ([("closed", "open", "asked")], ("open", 100.0))
    bench.breaker.open_until(bench.now + 40.0)
    assert bench.refusal() == ("open", 100.0), "never shorter"
    bench.breaker.open_until(bench.now + 140.0, "quota")
    assert bench.refusal() == ("open", 140.0)
    assert (len(bench.told), bench.breaker.epoch) == (1, 1)
    bench.now += 140.0
    bench.permit()
    bench.breaker.open_until(bench.now + 1e9, "quota")
    assert bench.told[1:] == [("open", "half-open", "open-time-over"), ("half-open", "open", "quota")]
    assert bench.refusal() == ("open", 3600.0)


def test_open_until_neither_doubles_nor_decays_open_durations() -> None:
    bench = Bench().recovered()
    bench.breaker.open_until(bench.now + 600.0)
    bench.now += 600.0
    bench.call(Outcome.TIMEOUT)
    assert bench.refusal() == ("open", 10.0)


@pytest.mark.parametrize("instant", [0.0, 1000.0, float("nan")])
def test_open_until_ignores_an_instant_in_the_past(instant: float, bench: Bench) -> None:
    bench.breaker.open_until(instant)
    assert (bench.breaker.state, bench.told) == (State.CLOSED, [])


def test_a_sign_of_recovery_ends_the_open_duration_once() -> None:
    bench = Bench().opened()
    assert not bench.breaker.expect_recovery(bench.now - 1), "it happened before"
    bench.now += 1
    assert bench.breaker.expect_recovery(bench.now)
    bench.permit()
    assert bench.breaker.state is State.HALF_OPEN
    assert not bench.breaker.expect_recovery(bench.now)


def test_a_sign_of_recovery_from_before_open_until_is_ignored(bench: Bench) -> None:
    bench.now += 1
    bench.breaker.open_until(bench.now + 60)
    assert not bench.breaker.expect_recovery(bench.now)
    assert bench.refusal() == ("open", 60.0)
    assert bench.breaker.expect_recovery(bench.now + 0.001)
    assert bench.breaker.can_admit()


@pytest.mark.parametrize(
    ("instant", "remaining"), [(1004.0, 4.0), (1005.0, 4.0), (1005.5, 4.5), (1006.0, 5.0), (1030.0, 5.0)]
)
def test_failed_half_open_calls_of_another_dispatcher_delay_by_one_open_duration_at_most(
    instant: float, remaining: float
) -> None:
    bench = Bench().opened()  # until 1005
    bench.now += 1
    assert bench.breaker.delay_half_open(instant, bench.now)
    assert bench.refusal() == ("open", remaining)


def test_half_open_calls_are_delayed_once_for_each_opening() -> None:
    bench = Bench().opened()
    for since in (bench.now - 1, bench.now):
        assert not bench.breaker.delay_half_open(bench.now + 9, since), "those calls failed before the circuit opened"
    bench.now += 3
    assert bench.breaker.delay_half_open(bench.now + 9, bench.now)
    bench.now += 1
    assert not bench.breaker.delay_half_open(bench.now + 9, bench.now)
    assert bench.refusal() == ("open", 4.0)
    bench.now += 4
    bench.call(Outcome.TIMEOUT)
    assert bench.refusal() == ("open", 10.0)
    bench.now += 8
    assert bench.breaker.delay_half_open(bench.now + 9, bench.now)
    assert bench.refusal() == ("open", 5.0)


def test_of_signs_of_recovery_and_failure_the_latest_counts() -> None:
    bench = Bench().opened()
    assert bench.breaker.delay_half_open(1006.0, 1001.0)
    assert bench.breaker.expect_recovery(1001.0)
    assert not bench.breaker.delay_half_open(1007.0, 1002.0), "both were heard at once: the delay has been used"
    assert bench.breaker.expect_recovery(1002.0)
    assert bench.breaker.can_admit()
    assert bench.breaker.delay_half_open(1009.0, 1003.0)
    assert bench.refusal() == ("open", 8.0)


@pytest.mark.parametrize("state", [each for each in State if each is not State.OPEN])
def test_only_an_open_circuit_is_delayed(state: State) -> None:
    bench = Bench().opened()
    brought_to(bench, state)
    assert not bench.breaker.delay_half_open(bench.now + 9, bench.now + 1)
    assert (bench.breaker.state, bench.breaker.retry_after) == (state, None)


def test_half_open_permit_is_ceded_while_another_call_has_one() -> None:
    bench = Bench().probing()
    first, second, third = (bench.permit() for _ in range(3))
    assert bench.refusal() == ("probing", None)
    for hasty in (first, second):
        assert hasty.cede() == Rejection("breaker", "probing")
        hasty.finish(Outcome.TIMEOUT)  # it has no permit any more
    assert third.cede() is None, "it is the only one that can tell whether the service has recovered"
    assert (bench.breaker.state, bench.breaker.stale) == (State.HALF_OPEN, 0)
    for _ in range(2):
        bench.permit()
    assert bench.refusal() == ("probing", None)
    third.finish(Outcome.TIMEOUT)
    assert bench.told[-1] == ("half-open", "open", "probe-failed")


def test_ceded_permit_counts_as_no_result() -> None:
    bench = Bench().probing()
    first, second, third = (bench.permit() for _ in range(3))
    first.cede()
    second.cede()
    third.finish(Outcome.SUCCESS)
    for _ in range(3):
        bench.permit()
    assert bench.refusal() == ("probing", None), "the first round has one result of three"


def test_permit_of_a_closed_circuit_is_never_ceded() -> None:
    bench = Bench(consecutive_failures=5)
    permits = [bench.permit() for _ in range(5)]
    assert [each.cede() for each in permits] == [None] * 5
    for each in permits:
        each.finish(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN


def test_a_circuit_that_an_operator_has_opened_expects_no_recovery(bench: Bench) -> None:
    bench.breaker.force_open()
    assert not bench.breaker.expect_recovery(bench.now + 1)


def test_another_instance_ends_a_pause_that_was_asked_for_before(bench: Bench) -> None:
    assert not bench.breaker.end_pause(bench.now), "there is none"
    bench.call(Outcome.THROTTLED, retry_after=5.0)
    assert not bench.breaker.end_pause(bench.now), "it was known before"
    bench.now += 1
    assert bench.breaker.end_pause(bench.now)
    assert bench.breaker.can_admit()
    bench.call(Outcome.THROTTLED, retry_after=5.0)
    assert not bench.breaker.end_pause(bench.now - 1)
    bench.now += 5
    assert not bench.breaker.end_pause(bench.now), "it is over"


@pytest.mark.parametrize("how", ["force_open", "open_until"])
def test_another_instance_closes_no_circuit_that_was_opened_on_purpose(how: str, bench: Bench) -> None:
    if how == "force_open":
        bench.breaker.force_open()
    else:
        bench.breaker.open_until(bench.now + 60)
    bench.now += 1
    assert not bench.breaker.end_pause(bench.now)
    assert not bench.breaker.can_admit()


WITH_PERMITS = (State.CLOSED, State.HALF_OPEN, State.DISABLED, State.METRICS_ONLY)


def brought_to(bench: Bench, state: State) -> None:
    breaker = bench.breaker
    breaker.reset()
    if state is State.OPEN:
        breaker.open_until(bench.now + 10.0)
    elif state is State.HALF_OPEN:
        breaker.open_until(bench.now + 10.0)
        bench.now += 10.0
        bench.permit()
    elif state is not State.CLOSED:
        {State.FORCED_OPEN: breaker.force_open, State.DISABLED: breaker.disable}.get(state, breaker.metrics_only)()
    assert breaker.state is state


def everything(part: Any) -> Any:
    """All that a breaker knows, to its last part."""
    ours = (CircuitBreaker, FailureRules, OpenDuration, CountWindow, TimeWindow)
    if isinstance(part, ours) or type(part).__name__ == "HalfOpenCalls":
        skipped = ("stale", "settings", "_settings")
        return {name: everything(getattr(part, name)) for name in part.__slots__ if name not in skipped}
    return repr(part)


@pytest.mark.parametrize("outcome", Outcome)
def test_outcome_of_an_earlier_epoch_is_counted_as_stale_and_ignored(outcome: Outcome) -> None:
    """Goal G6, every pair of states, also the same one come again; peers close, open or count by such results."""
    for before, after in itertools.product(WITH_PERMITS, State):
        bench = Bench(
            consecutive_failures=1, slow_call_duration=1.0, min_calls=1, half_open_rounds=1, half_open_calls=2
        )
        brought_to(bench, before)
        permit = bench.permit()
        brought_to(bench, after)
        known, told = everything(bench.breaker), list(bench.told)
        assert known["_failure_rules"]["_by_count"], "the comparison sees what is inside"
        bench.now += 5.0
        permit.finish(outcome, retry_after=60.0)
        assert everything(bench.breaker) == known, (before, after)
        assert (bench.breaker.stale, bench.told) == (1, told)


def herd(seed: int, callers: int) -> int:
    """How many of so many callers reach a sick backend that has just been half-opened, in a schedule drawn from a seed."""
    chance = random.Random(seed)
    bench = Bench().probing()
    reached, flying, failed = 0, list[BreakerPermit](), False
    for _ in range(callers):
        admitted = bench.breaker.admit()
        if isinstance(admitted, BreakerPermit):
            reached += 1
            flying.append(admitted)
        if flying and chance.random() < 0.01:
            flying.pop(chance.randrange(len(flying))).finish(chance.choice((Outcome.TIMEOUT, Outcome.TRANSPORT)))
            failed = True
    for permit in flying:
        permit.finish(Outcome.TIMEOUT)
    assert (bench.breaker.state, bench.breaker.stale) == (State.OPEN, reached - 1 if failed or flying else 0)
    return reached


@pytest.mark.costly
def test_half_open_breaker_admits_no_herd() -> None:
    """Goal G5: a thousand schedules; in five Python breakers all callers get through."""
    assert {herd(seed, 200) for seed in range(1000)} <= {1, 2, 3}
    assert [herd(seed, 10_000) for seed in range(10)] == [3] * 10


def test_cancelled_callers_never_exceed_the_half_open_permits() -> None:
    bench, flying, most = Bench().probing(), list[BreakerPermit](), 0
    chance = random.Random(5)
    for _ in range(10_000):
        admitted = bench.breaker.admit()
        if isinstance(admitted, BreakerPermit):
            flying.append(admitted)
        most = max(most, len(flying))
        if chance.random() < 0.3 and flying:
            flying.pop(0).finish(Outcome.CANCELLED)
    assert (most, bench.breaker.state) == (3, State.HALF_OPEN)


def test_expired_lease_of_a_lost_probe_frees_its_permit() -> None:
    """Goal G7: in six days one lost probe refused 49,607 calls; here a healthy backend is back after the lease."""
    bench = Bench().probing()
    lost = [bench.permit() for _ in range(3)]
    bench.now += 59.999
    assert bench.refusal() == ("probing", None)
    bench.now += 0.001
    assert bench.breaker.can_admit()
    bench.call()
    assert bench.breaker.lost == 3
    for permit in lost:
        permit.finish(Outcome.TIMEOUT)
    assert (bench.breaker.state, bench.breaker.stale) == (State.HALF_OPEN, 3)
    bench.call(times=20)
    assert bench.breaker.state is State.CLOSED
    assert bench.breaker.lost == 3, "a counter, not a state"


def test_probe_that_ends_after_its_lease_is_stale_even_if_its_permit_is_unused() -> None:
    bench = Bench(half_open_calls=1).probing()
    permit = bench.permit()
    bench.now += 60.0
    permit.finish(Outcome.TIMEOUT)
    assert (bench.breaker.state, bench.breaker.stale, bench.breaker.lost) == (State.HALF_OPEN, 1, 1)
    in_time = bench.permit()
    bench.now += 59.999
    in_time.finish(Outcome.TIMEOUT)
    assert (bench.breaker.state, bench.breaker.lost) == (State.OPEN, 1)


def test_dispatchers_that_open_together_do_not_probe_together() -> None:
    """Goal G16: of a hundred, at most fifteen start in any twentieth of the time over which they are spread."""
    for round_of in range(20):
        starts = []
        for number in range(100):
            chance = random.Random(1000 * round_of + number)
            breaker = CircuitBreaker(BreakerRules(), clock=lambda: 0.0, randomness=chance.random)
            for _ in range(10):
                breaker.admit().finish(Outcome.TIMEOUT)
            starts.append(breaker.retry_after or 0.0)
        slots = [sum(2.5 + 0.25 * slot <= start < 2.75 + 0.25 * slot for start in starts) for slot in range(20)]
        assert sum(slots) == 100, "all of them between 2.5 and 7.5 seconds"
        assert max(slots) <= 15, slots


@pytest.mark.costly
@pytest.mark.parametrize("state", [State.OPEN, State.HALF_OPEN, State.FORCED_OPEN])
def test_rejections_retain_no_memory(state: State) -> None:
    """Goal G4: one Python breaker keeps 36 MB of 20,000 refusals. No exception is involved, and no block stays."""
    bench = Bench(half_open_calls=1)
    brought_to(bench, state)
    refuse = bench.breaker.admit

    def refused(times: int) -> bool:
        return all(isinstance(refuse(), Rejection) for _ in itertools.repeat(None, times))

    assert refused(100)
    gc.collect()
    blocks = sys.getallocatedblocks()
    assert refused(1_000_000 if state is State.OPEN else 50_000)
    assert sys.getallocatedblocks() - blocks < 20
    tracemalloc.start()
    try:
        retained = []
        for _ in range(3):  # the smallest counts: other threads of the test process allocate now and then
            assert refused(10)
            before = tracemalloc.get_traced_memory()[0]
            assert refused(20_000)
            retained.append(tracemalloc.get_traced_memory()[0] - before)
        assert min(retained) < 256
    finally:
        tracemalloc.stop()


def test_an_idle_breaker_takes_less_than_two_kibibytes() -> None:
    """Goal G19, of the allocator's own account: one of a thousand that have all they ever need."""
    settings, chance = BreakerRules(), random.Random(1).random

    def used(breaker: CircuitBreaker) -> CircuitBreaker:
        for outcome in (Outcome.TIMEOUT, Outcome.SUCCESS, Outcome.SUCCESS):
            breaker.admit().finish(outcome)
        return breaker

    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = [used(CircuitBreaker(settings, clock=lambda: 1e9, randomness=chance)) for _ in range(1000)]
        each = (tracemalloc.get_traced_memory()[0] - before) / len(kept)
    finally:
        tracemalloc.stop()
    assert each < 2048, each
    assert all(not hasattr(part, "__dict__") for part in (kept[0], kept[0]._failure_rules, kept[0]._open_duration))


def test_a_permit_is_one_object_that_no_collector_tracks() -> None:
    permit = Bench().permit()
    assert not gc.is_tracked(permit)
    assert not hasattr(permit, "__dict__")
    assert not any(isinstance(each, BreakerPermit) for each in gc.get_referents(permit.breaker))


ALL_OFF = {"consecutive_failures": None, "no_success_duration": None}


def feed(rules: FailureRules, pattern: str, now: float = 0.0, gap: float = 0.0) -> list[str | None]:
    """Calls as letters: ``.`` well, ``F`` failed, ``S`` slow, ``B`` both. Returns the verdict after each."""
    verdicts = []
    for each in pattern:
        failed, slow = each in "FB", each in "SB"
        rules.add(failed, slow, now)
        verdicts.append(rules.find_violation(failed, slow, now))
        now += gap
    return verdicts


def test_failure_rate_opens_at_half_of_twenty_calls() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 10 + "F" * 10) == [None] * 19 + ["failure-rate"]
    assert rules.failure_rate() == 0.5
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "." * 11 + "F" * 10) == [None] * 21, "10 of 21"
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "F" * 19) == [None] * 19, "too few to tell"


def test_fast_success_violates_no_rule() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "F" * 19 + ".") == [None] * 20
    assert rules.failure_rate() == 0.95
    assert feed(rules, "S") == [None], "it was slow, but most are not"
    assert feed(rules, "F") == ["failure-rate"]


@pytest.mark.parametrize("rate", [0.07, 0.14, 0.28, 0.29, 0.55, 0.57, 0.58])
def test_failure_rate_threshold_is_exact(rate: float) -> None:
    """Shares such as 0.07 times 100 are not whole numbers in a computer."""
    failures = round(rate * 100)
    rules = FailureRules(BreakerRules(**ALL_OFF, failure_rate=rate, min_calls=100))
    assert feed(rules, "." * (100 - failures) + "F" * failures) == [None] * 99 + ["failure-rate"]


def test_count_window_detects_failures_that_the_time_window_misses() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 1000 + "F" * 50, gap=0.001) == [None] * 1049 + ["failure-rate"]


def test_time_window_detects_failures_that_the_count_window_misses() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 100, gap=1.0) == [None] * 100
    assert feed(rules, "F" * 20, now=200.0, gap=0.1) == [None] * 19 + ["failure-rate"]
    assert rules.failure_rate() == 1.0


def test_window_below_min_calls_is_not_judged() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "." * 100, now=0.0)
    feed(rules, "F" * 19, now=200.0)
    assert rules.failure_rate() == 0.19, "nineteen in thirty seconds are too few, so the last hundred tell"
    rules = FailureRules(BreakerRules(**ALL_OFF, window_calls=5, min_calls=5))
    assert (rules.failure_rate(), rules.slow_call_rate()) == (None, None)
    feed(rules, "....")
    assert (rules.failure_rate(), rules.slow_call_rate()) == (None, None)
    feed(rules, ".")
    assert (rules.failure_rate(), rules.slow_call_rate()) == (0.0, 0.0)


def test_slow_call_rate_opens() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    assert feed(rules, "." * 4 + "S" * 16) == [None] * 19 + ["slow-call-rate"]
    assert rules.slow_call_rate() == 0.8
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "." * 5 + "S" * 16) == [None] * 21
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "S" * 19) == [None] * 19
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "." * 100)
    assert feed(rules, "S" * 20, now=200.0) == [None] * 19 + ["slow-call-rate"], "by time"
    rules = FailureRules(BreakerRules(**ALL_OFF, failure_rate=1))
    assert feed(rules, "." * 4 + "B" * 16)[-1] == "slow-call-rate", "slow failures are slow, too"


def test_fast_call_does_not_violate_the_slow_call_rate() -> None:
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "S" * 19 + ".F") == [None] * 21
    assert feed(FailureRules(BreakerRules(**ALL_OFF)), "S" * 19 + ".FS") == [None] * 21 + ["slow-call-rate"]


def test_rate_is_the_higher_one_of_both_windows() -> None:
    for letter, share in (("F", FailureRules.failure_rate), ("S", FailureRules.slow_call_rate)):
        rules = FailureRules(BreakerRules(**ALL_OFF))
        feed(rules, letter * 19 + "." * 21)
        feed(rules, "." * 20, now=200.0)
        assert share(rules) == 19 / 60, "of the last hundred; none of the last thirty seconds"
        rules = FailureRules(BreakerRules(**ALL_OFF))
        feed(rules, "." * 40)
        feed(rules, letter * 2 + "." * 18, now=200.0)
        assert share(rules) == 2 / 20, "of the last thirty seconds"


def test_consecutive_failures_open_at_any_rate_of_calls() -> None:
    rules = FailureRules(BreakerRules(no_success_duration=None))
    assert feed(rules, "F" * 9 + "." + "F" * 9, gap=3600.0) == [None] * 19
    assert feed(rules, "F") == ["consecutive-failures"]
    assert feed(FailureRules(BreakerRules(consecutive_failures=1)), "F") == ["consecutive-failures"]
    assert feed(FailureRules(BreakerRules(no_success_duration=None)), "FFFFFFFFFS") == [None] * 10
    # Slow is a success, too.
    assert feed(FailureRules(BreakerRules(no_success_duration=None)), "FFFFFFFFFSF") == [None] * 11


def test_only_failures_for_a_minute_open() -> None:
    assert feed(FailureRules(BreakerRules()), "FFF", gap=30.0) == [None, None, "no-success"]
    assert feed(FailureRules(BreakerRules()), "FFF", gap=29.999) == [None, None, None]
    assert feed(FailureRules(BreakerRules()), "FF", gap=300.0) == [None, None], "two may be one hiccup"
    assert feed(FailureRules(BreakerRules()), "FF.FF", gap=300.0) == [None] * 5
    found = feed(FailureRules(BreakerRules(no_success_failures=1, no_success_duration=1)), "FF", gap=1.0)
    assert found == [None, "no-success"]


def test_idle_time_does_not_count_as_time_without_success() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, ".", now=0.0)
    assert feed(rules, "FFFFF", now=40_000.0, gap=1.0) == [None] * 5


def test_plain_successes_count_as_if_added_one_by_one() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    assert rules.slice_end > 0
    rules.pending_successes += 30
    assert feed(rules, "F" * 9) == [None] * 9, "they ended the run"
    assert rules.failure_rate() == 18 / 48
    rules.pending_successes += 100
    rules.refresh(1.0)
    assert (rules.pending_successes, rules.failure_rate()) == (0, 18 / 148)
    rules.refresh(40.0)
    assert rules.failure_rate() == 0.0, "the last hundred; those of the last thirty seconds are too few"


def test_refresh_sets_the_end_of_the_current_slice() -> None:
    rules = FailureRules(BreakerRules())
    rules.refresh(50.0)
    assert rules.slice_end == float("-inf"), "nothing was counted yet"
    feed(rules, "F", now=50.0)
    assert rules.slice_end == 51.0
    rules.refresh(52.0)
    assert rules.slice_end == 54.0


def test_stopped_rules_keep_their_rates_and_count_no_calls() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "F" * 10)
    rules.pending_successes += 10
    rules.stop()
    rules.refresh(1e6)
    assert (rules.slice_end, rules.pending_successes, rules.failure_rate()) == (float("-inf"), 0, 0.5)
    rules.clear()
    assert (rules.slice_end, rules.failure_rate()) == (float("-inf"), None)


def test_cleared_rules_forget_all_calls() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    rules.pending_successes += 5
    rules.clear()
    assert rules.pending_successes == 0
    assert feed(rules, "F" * 9, now=100.0) == [None] * 9
    assert rules.failure_rate() is None


def test_reconfiguration_keeps_windows_of_unchanged_size() -> None:
    rules = FailureRules(BreakerRules())
    assert rules.slow_after == float("inf")
    feed(rules, "F" * 9, now=1.0)
    rules.reconfigure(BreakerRules(slow_call_duration=2, consecutive_failures=11))
    assert (rules.slow_after, rules.slice_end) == (2, 3.0)
    assert feed(rules, "FF", now=1.0) == [None, "consecutive-failures"], "the run goes on"
    rules.pending_successes += 20
    rules.reconfigure(BreakerRules(window_calls=50, slow_call_duration=2))
    assert rules.pending_successes == 0
    assert rules.failure_rate() == 11 / 31, "by time, which is as it was"
    rules.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert (rules.failure_rate(), rules.slice_end, rules.slow_after) == (None, float("-inf"), float("inf"))
    assert feed(rules, "F", now=1.0) == [None]
    assert rules.slice_end == 2.0


def test_a_window_that_stays_as_it_is_keeps_its_calls() -> None:
    rules = FailureRules(BreakerRules(**ALL_OFF))
    feed(rules, "F" * 8 + "." * 32)
    rules.reconfigure(BreakerRules(**ALL_OFF, window_duration=10))
    assert rules.failure_rate() == 0.2
    rules.reconfigure(BreakerRules(**ALL_OFF, window_duration=10, window_calls=30))
    assert rules.failure_rate() is None
    feed(rules, "F" * 5 + "." * 30, gap=10.0)
    assert rules.failure_rate() == 0.0, "five of the last thirty-five, none of the last thirty"


def test_consecutive_failures_survive_new_windows_until_a_success() -> None:
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    rules.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert feed(rules, "F") == ["consecutive-failures"]
    rules = FailureRules(BreakerRules())
    feed(rules, "F" * 9)
    rules.pending_successes += 1
    rules.reconfigure(BreakerRules(window_calls=50, window_duration=10))
    assert feed(rules, "F") == [None]


DEFAULT = BreakerRules(half_open_lease=20)


def start_calls(probing: HalfOpenCalls, now: float = 0.0, settings: BreakerRules = DEFAULT) -> list[int]:
    """As many probes as there is room for."""
    numbers = []
    while probing.has_free_permit(now, settings):
        numbers.append(probing.start_call(now, settings))
        assert len(numbers) < 1_000, "places without end"
    return numbers


def passed(probing: HalfOpenCalls, results: int) -> None:
    for _ in range(results):
        assert probing.judge_result(False, False, DEFAULT) is None


@pytest.fixture
def probing() -> HalfOpenCalls:
    return HalfOpenCalls()


def test_round_limits_calls_in_flight(probing: HalfOpenCalls) -> None:
    assert start_calls(probing) == [1, 2, 3]
    assert probing.end_call(2, 0.0)
    assert start_calls(probing) == [4]
    assert probing.lost == 0


def test_half_open_call_ends_once(probing: HalfOpenCalls) -> None:
    start_calls(probing)
    assert probing.end_call(1, 0.0)
    assert not probing.end_call(1, 0.0)
    assert probing.lost == 0


def test_lease_expires_exactly_at_its_end(probing: HalfOpenCalls) -> None:
    start_calls(probing, 100.0)
    assert not probing.has_free_permit(119.999, DEFAULT)
    assert probing.end_call(1, 119.999)
    assert not probing.end_call(2, 120.0)
    assert probing.lost == 1
    assert start_calls(probing, 120.0) == [4, 5, 6]
    assert probing.lost == 2
    assert not probing.end_call(3, 120.0)
    assert probing.lost == 2, "a probe is lost once"


def test_call_that_ends_after_its_lease_is_lost(probing: HalfOpenCalls) -> None:
    start_calls(probing)
    assert [probing.end_call(number, DEFAULT.half_open_lease) for number in (1, 2, 3)] == [False] * 3
    assert probing.lost == 3


def test_only_expired_leases_free_their_permits(probing: HalfOpenCalls) -> None:
    for start in (0.0, 5.0, 10.0):
        assert probing.has_free_permit(start, DEFAULT)
        probing.start_call(start, DEFAULT)
    assert start_calls(probing, 25.0) == [4, 5]
    assert probing.end_call(3, 25.0)
    assert probing.lost == 2


def test_shorter_lease_applies_at_once(probing: HalfOpenCalls) -> None:
    start_calls(probing, 0.0)
    assert not probing.has_free_permit(6.0, DEFAULT)
    probing.shorten_leases(6.0)
    assert start_calls(probing, 6.0, BreakerRules(half_open_lease=6)) == [4, 5, 6]
    assert probing.lost == 3


def test_longer_lease_applies_to_later_calls_only(probing: HalfOpenCalls) -> None:
    start_calls(probing, 0.0, BreakerRules(half_open_lease=6))
    probing.shorten_leases(9.0)
    assert not probing.end_call(1, 6.0)
    assert probing.end_call(2, 5.999)
    assert start_calls(probing, 6.0, BreakerRules(half_open_lease=9)) == [4, 5, 6]
    assert probing.end_call(4, 14.999)
    assert not probing.end_call(5, 15.0)


def test_rounds_double_and_the_last_one_closes(probing: HalfOpenCalls) -> None:
    sizes = []
    verdict = None
    while verdict is None:
        numbers = start_calls(probing)
        sizes.append(len(numbers))
        for number in numbers:
            assert probing.end_call(number, 0.0)
            assert verdict is None
            verdict = probing.judge_result(False, False, DEFAULT)
    assert (sizes, verdict, probing.round) == ([3, 6, 12], RECOVERED, 2)


def test_single_round_closes() -> None:
    probing, settings = HalfOpenCalls(), BreakerRules(half_open_rounds=1, half_open_calls=1)
    assert start_calls(probing, 0.0, settings) == [1]
    assert probing.judge_result(False, False, settings) == RECOVERED


def test_one_failure_in_the_first_round_opens() -> None:
    for before in range(3):
        probing = HalfOpenCalls()
        passed(probing, before)
        assert probing.judge_result(True, False, DEFAULT) == PROBE_FAILED


def test_failure_rate_decides_in_later_rounds() -> None:
    probing = HalfOpenCalls()
    passed(probing, 3)
    assert probing.judge_result(True, False, DEFAULT) is None
    assert probing.judge_result(True, False, DEFAULT) is None
    assert probing.judge_result(True, False, DEFAULT) == PROBE_FAILED, "three of six"
    probing = HalfOpenCalls()
    passed(probing, 3 + 3)
    assert probing.judge_result(True, False, DEFAULT) is None
    assert probing.judge_result(True, False, DEFAULT) is None
    passed(probing, 1)
    assert probing.round == 2, "four of six were well"
    # Six of twelve.
    assert [probing.judge_result(True, False, DEFAULT) for _ in range(6)] == [None] * 5 + [PROBE_FAILED]


def test_a_last_round_with_some_failures_closes(probing: HalfOpenCalls) -> None:
    passed(probing, 3 + 6 + 6)
    assert [probing.judge_result(True, False, DEFAULT) for _ in range(5)] == [None] * 5
    assert probing.judge_result(False, False, DEFAULT) == RECOVERED


def test_slow_calls_are_judged_by_their_rate_in_every_round() -> None:
    settings = BreakerRules(slow_call_rate=0.6)
    probing = HalfOpenCalls()
    assert probing.judge_result(False, True, settings) is None
    assert probing.judge_result(False, True, settings) == PROBE_SLOW, "two of three"
    exactly = BreakerRules(slow_call_rate=1)
    probing = HalfOpenCalls()
    assert [probing.judge_result(False, True, exactly) for _ in range(3)] == [None, None, PROBE_SLOW]
    probing = HalfOpenCalls()
    assert [probing.judge_result(False, slow, settings) for slow in (True, False, False)] == [None] * 3
    # Four of six.
    assert [probing.judge_result(False, True, settings) for _ in range(4)] == [None, None, None, PROBE_SLOW]
    probing = HalfOpenCalls()
    assert [probing.judge_result(False, False, settings) for _ in range(3)] == [None] * 3
    found = [probing.judge_result(False, slow, settings) for slow in (True, True, True, False, False, False)]
    assert found == [None] * 6
    assert probing.round == 2, "half of them slow is below the rate"


def test_slow_failure_counts_as_failure() -> None:
    assert HalfOpenCalls().judge_result(True, True, BreakerRules(slow_call_rate=0.1)) == PROBE_FAILED


def test_fewer_rounds_close_at_the_end_of_the_current_round(probing: HalfOpenCalls) -> None:
    passed(probing, 3 + 6)
    found = [probing.judge_result(False, False, BreakerRules(half_open_rounds=1)) for _ in range(12)]
    assert found == [None] * 11 + [RECOVERED]


DEFAULT_OPEN_DURATION = BreakerRules()
EXACT = BreakerRules(jitter=0)


def test_open_duration_doubles_up_to_the_maximum() -> None:
    time = OpenDuration(lambda: 0.5)
    assert [time.record_opening(0.0, 0, EXACT) for _ in range(9)] == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert time.doublings == 6


def test_no_doubling_is_counted_at_the_maximum() -> None:
    time, settings = OpenDuration(lambda: 0.5), BreakerRules(jitter=0, open_duration=5, max_open_duration=20)
    assert [time.record_opening(0.0, 0, settings) for _ in range(4)] == [5, 10, 20, 20]
    assert time.doublings == 2


@pytest.mark.costly
@pytest.mark.parametrize(
    ("chance", "times"), [(0.0, (2.5, 5.0, 10.0)), (0.5, (5.0, 10.0, 20.0)), (0.75, (6.25, 12.5, 25.0))]
)
def test_jitter_spans_half_to_one_and_a_half(chance: float, times: tuple[float, ...]) -> None:
    time = OpenDuration(lambda: chance)
    assert tuple(time.record_opening(0.0, 0, DEFAULT_OPEN_DURATION) for _ in range(3)) == times


def test_maximum_open_durations_have_jitter() -> None:
    seen = []
    for seed in range(200):
        time = OpenDuration(random.Random(seed).random)
        for _ in range(12):
            last = time.record_opening(0.0, 0, DEFAULT_OPEN_DURATION)
        seen.append(last)
    assert 100 <= min(seen) < 110
    assert 290 < max(seen) <= 300


def test_each_decay_duration_spent_closed_undoes_one_doubling() -> None:
    time = OpenDuration(lambda: 0.5)
    for _ in range(4):
        time.record_opening(0.0, 0, EXACT)
    assert time.doublings == 4
    time.start_healthy_period(1000.0)
    assert time.record_opening(1029.999, 0, EXACT) == 80, "not a whole while: nothing forgiven"
    time.start_healthy_period(2000.0)
    assert time.record_opening(2030.0, 0, EXACT) == 80, "five, less one"
    time.start_healthy_period(3000.0)
    assert time.record_opening(3090.0, 0, EXACT) == 20, "five, less three"
    time.start_healthy_period(4000.0)
    assert time.record_opening(5000.0, 0, EXACT) == 5, "never below none"
    assert time.doublings == 1


def test_only_time_spent_closed_decays() -> None:
    time = OpenDuration(lambda: 0.5)
    assert time.record_opening(0.0, 0, EXACT) == 5
    assert time.record_opening(1e6, 0, EXACT) == 10, "it was open or probing all the while"
    time.start_healthy_period(1e6)
    time.end_healthy_period(1e6 + 30, EXACT)
    assert time.doublings == 1
    time.end_healthy_period(1e6 + 300, EXACT)
    assert time.record_opening(1e6 + 600, 0, EXACT) == 10, "it was not closed any more"


def test_cleared_open_duration_starts_at_the_shortest() -> None:
    time = OpenDuration(lambda: 0.5)
    time.record_opening(0.0, 0, EXACT)
    time.start_healthy_period(5.0)
    time.clear()
    time.end_healthy_period(1e6, EXACT)
    assert time.doublings == 0
    assert time.record_opening(6.0, 0, EXACT) == 5


def test_requested_retry_after_is_respected_with_jitter() -> None:
    assert OpenDuration(lambda: 0.0).record_opening(0.0, 60, DEFAULT_OPEN_DURATION) == 60
    assert OpenDuration(lambda: 0.5).record_opening(0.0, 60, DEFAULT_OPEN_DURATION) == 61.25
    assert OpenDuration(lambda: 0.5).record_opening(0.0, 60, EXACT) == 60
    # Our own time when that is longer.
    assert OpenDuration(lambda: 0.5).record_opening(0.0, 0.5, DEFAULT_OPEN_DURATION) == 5
    time = OpenDuration(lambda: 0.5)
    time.record_opening(0.0, 60, EXACT)
    assert time.record_opening(0.0, 0, EXACT) == 10, "what it asked for is not doubled"


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1e4), st.floats(0, 1, exclude_max=True)), max_size=60),
    st.floats(0, 0.99),
    st.floats(0.001, 300),
    st.floats(0.001, 300),
)
def test_open_duration_stays_within_its_bounds(
    steps: list[tuple[bool, float, float]], jitter: float, one: float, other: float
) -> None:
    settings = BreakerRules(jitter=jitter, open_duration=min(one, other), max_open_duration=max(one, other))
    chances = [chance for _, _, chance in steps]
    time, now = OpenDuration(lambda: chances.pop(0)), 0.0
    for closed, passed, _ in list(steps):
        now += passed
        seconds = time.record_opening(now, 0, settings)
        base = min(settings.open_duration, settings.max_open_duration / (1 + jitter))
        assert base * (1 - jitter) * 0.999999 <= seconds <= settings.max_open_duration * 1.000001
        assert 0 <= time.doublings <= 20
        if closed:
            time.start_healthy_period(now)


KINDS = st.sampled_from([PLAIN, FAILED, SLOW, FAILED | SLOW])


def figures(window_calls: CountWindow | TimeWindow, at: float | None = None) -> tuple[int, int, int]:
    """Return calls, failures and slow calls; ``at``: when a window of time has advanced to that instant."""
    if at is not None:
        window_calls.advance(at)
    return window_calls.calls, window_calls.failures, window_calls.slow


def totals(kinds: list[int]) -> tuple[int, int, int]:
    return len(kinds), sum(kind in (1, 3) for kind in kinds), sum(kind in (2, 3) for kind in kinds)


def test_windows_count_failures_and_slow_calls_separately() -> None:
    assert (PLAIN, FAILED, SLOW) == (0, 1, 2)


@given(st.integers(1, 12), st.lists(KINDS | st.integers(10, 20)))
@settings(deadline=None, max_examples=examples(80))
def test_count_window_covers_the_last_calls(size: int, steps: list[int]) -> None:
    """A step below 10 is a call of that kind, one from 10 on so many plain ones (less ten) at once."""
    window_calls, calls = CountWindow(size), list[int]()
    for step in steps:
        if step < 10:
            window_calls.add(step)
            calls.append(step)
        else:
            window_calls.add_plain(step - 10)
            calls += [PLAIN] * (step - 10)
        assert figures(window_calls) == totals(calls[-size:])
        assert len(window_calls._ring) == size


def test_a_cleared_count_window_starts_from_nothing() -> None:
    window_calls = CountWindow(3)
    for _ in range(5):
        window_calls.add(FAILED | SLOW)
    window_calls.clear()
    assert figures(window_calls) == (0, 0, 0)
    for _ in range(4):
        window_calls.add(PLAIN)
    assert figures(window_calls) == (3, 0, 0)
    window_calls.clear()
    window_calls.add(FAILED)
    assert figures(window_calls) == (1, 1, 0)


def test_batch_of_plain_calls_wraps_around_the_ring() -> None:
    window_calls = CountWindow(5)
    for kind in (FAILED, SLOW, FAILED | SLOW, FAILED, SLOW, FAILED, PLAIN, PLAIN):
        window_calls.add(kind)  # the ring is F - - F S, and the fourth is the oldest
    assert figures(window_calls) == (5, 2, 1)
    window_calls.add_plain(2)
    assert figures(window_calls) == (5, 1, 0)
    window_calls.add_plain(1)
    assert figures(window_calls) == (5, 0, 0)
    for _ in range(5):
        window_calls.add(PLAIN)
        assert figures(window_calls) == (5, 0, 0), "who has left leaves once"
    window_calls.add(FAILED)
    assert figures(window_calls) == (5, 1, 0)


@pytest.mark.parametrize("size", [0, -1])
def test_count_window_rejects_a_size_below_one(size: int) -> None:
    with pytest.raises(ValueError, match=f"^the window size must be at least 1 call, not {size}$"):
        CountWindow(size)


@given(st.lists(st.tuples(st.integers(0, 40), KINDS)), st.sampled_from([0.0, 1e6, -100.0]))
@settings(deadline=None)
def test_time_window_covers_its_last_ten_slices(steps: list[tuple[int, int]], start: float) -> None:
    """Steps of a quarter of a part, so that every number is exact and each boundary is met."""
    window_calls, calls, now = TimeWindow(5.0), list[tuple[float, int]](), start
    for quarters, kind in steps:
        now += quarters * 0.125
        window_calls.add(kind, now)
        calls.append((now, kind))
        assert window_calls.slice_end > now >= window_calls.slice_end - 0.5
        held = [kind for at, kind in calls if at // 0.5 > now // 0.5 - 10]
        assert figures(window_calls) == totals(held)


def test_a_time_window_covers_nine_tenths_of_its_span_at_least_and_never_more_than_all() -> None:
    for offset in (0.0, 0.25, 0.5, 0.96875):
        window_calls = TimeWindow(10.0)
        window_calls.add(FAILED, 100 + offset)
        assert figures(window_calls, 108.999) == (1, 1, 0)
        assert figures(window_calls, 109.999) == (1, 1, 0)
        assert figures(window_calls, 110.0) == (0, 0, 0)


def test_a_time_window_forgets_everything_after_a_long_time() -> None:
    window_calls = TimeWindow(10.0)
    for second in range(10):
        window_calls.add(FAILED | SLOW, 100.0 + second)
    assert figures(window_calls) == (10, 10, 10)
    assert figures(window_calls, 1e9) == (0, 0, 0)
    window_calls.add(SLOW, 1e9 + 0.5)
    assert figures(window_calls) == (1, 0, 1)


def test_batch_of_plain_calls_belongs_to_the_current_slice() -> None:
    window_calls = TimeWindow(10.0)
    window_calls.advance(100.5)
    assert window_calls.slice_end == 101.0
    window_calls.add_plain(7)
    window_calls.add(FAILED, 101.0)
    assert figures(window_calls) == (8, 1, 0)
    assert figures(window_calls, 109.999) == (8, 1, 0)
    assert figures(window_calls, 110.0) == (1, 1, 0)


def test_plain_calls_of_one_slice_expire_together() -> None:
    window_calls = TimeWindow(10.0)
    window_calls.advance(100.5)
    window_calls.add_plain(7)
    window_calls.add_plain(2)
    assert figures(window_calls, 105.0) == (9, 0, 0)
    assert figures(window_calls, 110.0) == (0, 0, 0)


def test_a_cleared_time_window_starts_from_nothing() -> None:
    window_calls = TimeWindow(10.0)
    window_calls.add(FAILED | SLOW, 5.0)
    window_calls.clear()
    assert figures(window_calls) == (0, 0, 0)
    window_calls.add(FAILED, 6.0)
    assert figures(window_calls, 16.0) == (0, 0, 0)


@pytest.mark.parametrize("span", [0, -1.0, float("nan")])
def test_time_window_rejects_a_span_of_zero(span: float) -> None:
    with pytest.raises(ValueError, match=r"^the span of a window must be above 0 s, not (0|-1\.0|nan)$"):
        TimeWindow(span)


def work(action: Callable[[], None]) -> list[tuple[str, int]]:
    """Every step of the interpreter that an action takes, and every call into C, as (what, where)."""
    steps: list[tuple[str, int]] = []

    def trace(frame: Any, event: str, argument: object) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            steps.append((frame.f_code.co_name, frame.f_lasti))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return [step for step in steps if step[0] in ("add", "advance")]


@pytest.mark.parametrize("kind", [PLAIN, FAILED, SLOW])
def test_a_call_costs_the_same_at_ten_and_at_ten_thousand(kind: int) -> None:
    """Goal G18: interpreter steps are counted, full windows and half full ones, so that no clock is needed to tell."""
    costs = set()
    for size in (10, 100, 10_000):
        for filled in (size // 2, 2 * size + size // 2):
            by_count, by_time = CountWindow(size), TimeWindow(30.0)
            for _ in range(filled):
                by_count.add(FAILED)
                by_time.add(FAILED, 1.0)
            counted = len(work(lambda w=by_count: w.add(kind)))
            timed = len(work(lambda w=by_time: w.add(kind, 1.5)))
            costs.add((filled > size, counted, timed))
    assert len(costs) == 2, "one cost while it fills, one when it is full; neither knows the size"
    assert all(10 < count < 100 and 10 < time < 100 for _, count, time in costs)


def test_a_pause_of_any_length_costs_ten_steps_at_most() -> None:
    costs = []
    for idle in (29.0, 30.0, 1e4, 1e8):
        window_calls = TimeWindow(30.0)
        window_calls.add(FAILED, 0.0)
        costs.append(len(work(lambda w=window_calls, at=idle: w.advance(at))))
    assert max(costs[1:]) < costs[0] < 60 * SLOTS


def test_a_count_window_takes_a_byte_a_call_and_little_more() -> None:
    window_calls = CountWindow(10_000)
    assert sys.getsizeof(window_calls._ring) < 10_000 + 100
    assert not hasattr(window_calls, "__dict__")
    assert not hasattr(TimeWindow(1.0), "__dict__")
