"""The circuit breaker's own ways: it opens, probes and closes, by behaviour. Its rules, rounds and times are in test_tally,
test_probing and test_opening; what a service asks for in test_breaker_pauses, what an operator does in test_breaker_control.

Guards against results that move a state they do not belong to (all but one breaker in any language), cancelled calls
counted as failures or successes, and a state that is told wrongly."""

from __future__ import annotations

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.breaker import BreakerPermit, State
from tests.helpers.breaker_harness import Bench

FAILURES = (Outcome.TIMEOUT, Outcome.TRANSPORT)
SUCCESSES = (Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS)
NEITHER = (Outcome.THROTTLED, Outcome.CANCELLED, Outcome.REJECTED)


def test_breaker_starts_closed() -> None:
    bench = Bench()
    breaker = bench.breaker
    assert (breaker.state, breaker.epoch, breaker.stale, breaker.lost) == (State.CLOSED, 0, 0, 0)
    assert (breaker.failure_rate, breaker.slow_call_rate, breaker.retry_after) == (None, None, None)
    assert breaker.can_admit()
    assert isinstance(breaker.admit(), BreakerPermit)


def test_the_states_have_the_names_that_operators_see() -> None:
    assert [str(state) for state in State] == [
        *("closed", "open", "half-open"),
        *("forced-open", "disabled", "metrics-only"),
    ]


def test_open_breaker_rejects_with_retry_after() -> None:
    bench = Bench().opened()
    assert bench.told == [("closed", "open", "consecutive-failures")]
    assert bench.breaker.retry_after == 5.0
    assert bench.refusal() == ("open", 5.0)
    bench.now += 4.75
    assert bench.refusal() == ("open", 0.25)
    assert bench.breaker.retry_after == 0.25
    assert bench.breaker.state is State.OPEN
    bench.now += 0.25
    assert bench.breaker.retry_after is None
    assert bench.breaker.can_admit()
    assert bench.breaker.state is State.OPEN, "to look changes nothing: the first probe does"
    bench.permit()
    assert bench.breaker.state is State.HALF_OPEN
    assert bench.told[1:] == [("open", "half-open", "open-time-over")]


@pytest.mark.parametrize("outcome", FAILURES)
def test_timeouts_and_transport_errors_open_the_breaker(outcome: Outcome) -> None:
    bench = Bench()
    for _ in range(9):
        bench.call(outcome)
    assert bench.breaker.state is State.CLOSED
    bench.call(outcome)
    assert bench.breaker.state is State.OPEN


@pytest.mark.parametrize("outcome", SUCCESSES)
def test_answers_are_successes(outcome: Outcome) -> None:
    """A tool's own error is an answer; so is a refusal of arguments."""
    bench = Bench()
    for _ in range(300):
        bench.call(outcome)
    for _ in range(9):
        bench.call(Outcome.TIMEOUT)
    bench.call(outcome)
    for _ in range(9):
        bench.call(Outcome.TIMEOUT)
    assert bench.told == []
    assert bench.breaker.failure_rate == 18 / 100


def test_tool_errors_open_when_the_settings_count_them_and_invalid_arguments_never_do() -> None:
    bench = Bench(count_tool_errors=True)
    for _ in range(20):
        bench.call(Outcome.INVALID_ARGUMENTS)
    assert bench.breaker.failure_rate == 0.0
    for _ in range(10):
        bench.call(Outcome.TOOL_ERROR)
    assert bench.breaker.state is State.OPEN


@pytest.mark.parametrize("outcome", NEITHER)
def test_cancelled_and_rejected_calls_are_not_counted(outcome: Outcome) -> None:
    bench = Bench(slow_call_duration=1.0)
    for _ in range(50):
        bench.call(outcome, took=2.0)
    assert (bench.breaker.failure_rate, bench.breaker.slow_call_rate) == (None, None)
    for _ in range(9):
        bench.call(Outcome.TIMEOUT)
    bench.call(outcome)
    assert bench.breaker.state is State.CLOSED
    bench.call(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN, "nor does it end a run"


def test_failure_rate_of_one_half_opens_the_breaker() -> None:
    bench = Bench()
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
    for _ in range(20):
        bench.call(took=took)
    assert bench.breaker.state is state
    assert bench.breaker.slow_call_rate == (1.0 if state is State.OPEN else 0.0)
    assert [why for *_, why in bench.told] == (["slow-call-rate"] if state is State.OPEN else [])


def test_no_call_is_slow_without_a_slow_call_duration() -> None:
    bench = Bench()
    for _ in range(40):
        bench.call(took=1e6)
    assert (bench.told, bench.breaker.slow_call_rate) == ([], 0.0)


def test_failures_every_half_minute_open_the_breaker() -> None:
    bench = Bench()
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
    for _ in range(100):
        bench.call(outcome)
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
    for _ in range(3):
        bench.call(took=1.0)
    assert bench.told[-1] == ("half-open", "open", "probe-slow")


def test_last_half_open_round_closes_the_breaker_with_empty_windows() -> None:
    bench = Bench().probing()
    for _ in range(21):
        assert bench.breaker.state is not State.CLOSED
        bench.call()
    assert bench.told[-1] == ("half-open", "closed", "recovered")
    assert bench.breaker.failure_rate is None
    for _ in range(9):
        bench.call(Outcome.TIMEOUT)
    assert bench.breaker.state is State.CLOSED
    assert [bench.permit().probe for _ in range(100)] == [0] * 100


def test_open_durations_grow_while_flapping_and_decay_while_closed() -> None:
    """Closing on a few successes and starting at the shortest time again makes flapping worse than an outage."""
    bench = Bench()
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
    for _ in range(20):
        bench.call(Outcome.TOOL_ERROR)
    bench.breaker.disable()
    for _ in range(20):
        bench.call()
        bench.call(Outcome.TIMEOUT)
    assert bench.breaker.failure_rate == 0.0
    assert bench.breaker._failure_rules.pending_successes == 0


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
    for _ in range(5):
        bench.call(took=0.015625)
    assert bench.breaker._failure_rules.pending_successes == 4, (
        "all but the first one, which found its part of the window"
    )


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
    assert isinstance(permit, BreakerPermit)
    assert permit.started == began
    bench.now += 2.0  # later than the call ended
    permit.finish(Outcome.SUCCESS, now=began + 0.5)
    assert bench.breaker.slow_call_rate == 0.0


def test_an_open_breaker_rejects_by_the_given_time() -> None:
    bench = Bench().opened()
    assert bench.breaker.admit(bench.now + 4.0) == Rejection("breaker", "open", 1.0)
    assert isinstance(bench.breaker.admit(bench.now + 5.0), BreakerPermit)
