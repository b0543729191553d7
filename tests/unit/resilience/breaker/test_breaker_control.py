"""What is done to a breaker from outside: an operator's choice, new settings, a listener.

Guards against a reload that forgets what is open, and against a listener that finds or leaves a state half made."""

from __future__ import annotations

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.breaker import BreakerRules, CircuitBreaker, State
from tests.helpers.breaker_harness import Bench


def test_forced_open_breaker_rejects_every_call() -> None:
    bench = Bench()
    bench.breaker.force_open()
    bench.now += 1e6
    assert bench.refusal() == ("forced-open", None)
    assert bench.breaker.retry_after is None
    bench.breaker.force_open()
    bench.breaker.open_until(bench.now + 50.0)
    assert bench.refusal() == ("forced-open", None)
    assert (bench.told, bench.breaker.epoch) == ([("closed", "forced-open", "forced")], 1)
    bench.breaker.reset()
    assert bench.told[1:] == [("forced-open", "closed", "reset")]
    bench.call()


def test_disabled_breaker_admits_every_call_and_counts_none() -> None:
    bench = Bench()
    bench.breaker.disable()
    for outcome in Outcome:
        for _ in range(50):
            bench.call(outcome, retry_after=60.0)
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
    bench = Bench(window_calls=20)
    for _ in range(20):
        bench.call()
    for _ in range(4):
        bench.call(Outcome.TIMEOUT)
    for _ in range(20):
        bench.call()
    assert bench.breaker.failure_rate == 4 / 44
    bench.now += 100.0
    assert bench.breaker.failure_rate == 0.0
    bench = Bench(slow_call_duration=1.0, window_calls=20)
    for _ in range(20):
        bench.call(took=0.0)
    for _ in range(4):
        bench.call(took=1.0)
    for _ in range(20):
        bench.call()
    assert bench.breaker.slow_call_rate == 4 / 44
    bench.now += 100.0
    assert bench.breaker.slow_call_rate == 0.0


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
    for _ in range(9):
        bench.call(Outcome.TIMEOUT)
    flying = bench.permit()
    bench.told.clear()
    bench.breaker.reset()
    assert bench.told == [], "no transition"
    flying.finish(Outcome.TIMEOUT)
    assert bench.breaker.stale == 1
    for _ in range(9):
        bench.call(Outcome.TIMEOUT)
    assert bench.breaker.state is State.CLOSED
    bench.call(Outcome.TIMEOUT)
    assert bench.refusal() == ("open", 5.0), "former openings are forgotten"


def test_reconfiguration_keeps_the_state() -> None:
    bench = Bench()
    flying = [bench.permit() for _ in range(4)]
    for _ in range(5):
        bench.call(Outcome.TIMEOUT)
    new = BreakerRules(consecutive_failures=7, open_duration=8, half_open_calls=1)
    bench.breaker.reconfigure(new)
    assert bench.breaker.settings is new
    for permit in flying:
        permit.finish(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN
    assert bench.breaker.stale == 2
    assert bench.refusal() == ("open", 8.0)
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


def test_new_slow_call_duration_applies_at_once() -> None:
    bench = Bench()
    for _ in range(20):
        bench.call()
    flying = bench.permit()
    bench.breaker.reconfigure(BreakerRules(slow_call_duration=1.0))
    bench.now += 1.0
    flying.finish(Outcome.SUCCESS)
    assert bench.breaker.slow_call_rate == 1 / 21


def test_listener_is_optional() -> None:
    bench = Bench()
    bench.breaker.on_transition = None
    bench.recovered()
    assert bench.told == []
    assert bench.breaker.epoch == 3
    assert CircuitBreaker(BreakerRules(), clock=lambda: 0.0, randomness=lambda: 0.0).on_transition is None


def test_the_listener_sees_the_new_state_in_force() -> None:
    bench = Bench()
    seen = []
    bench.breaker.on_transition = lambda old, new, why: seen.append(
        (bench.breaker.state is new, bench.breaker.retry_after)
    )
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
    bench = Bench().opened()
    bench.now += 5.0
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
