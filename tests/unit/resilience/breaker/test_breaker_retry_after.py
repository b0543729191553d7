"""What a service asks of a breaker: to be left alone for a while, or until an instant.

Guards against refusals for want of quota taken for faults, and against a retry-after that nobody keeps to."""

from __future__ import annotations

import pytest

from dispatch.errors import Outcome
from dispatch.resilience.breaker import State
from tests.helpers.breaker_harness import Bench


def test_throttling_pauses_without_opening_the_breaker() -> None:
    """Refusals for want of quota are no faults: taken for such they open, left out altogether they are repeated for ever."""
    bench = Bench()
    for _ in range(50):
        bench.call(Outcome.THROTTLED)
    bench.call(Outcome.THROTTLED, retry_after=2.0)
    assert bench.breaker.state is State.CLOSED
    assert bench.refusal() == ("paused", 2.0)
    assert bench.breaker.retry_after == 2.0
    bench.now += 2.0
    assert bench.breaker.can_admit()
    assert bench.breaker.retry_after is None
    bench.call()
    assert (bench.told, bench.breaker.epoch) == ([], 0)


def test_longest_requested_pause_applies() -> None:
    bench = Bench()
    for permit, seconds in [(bench.permit(), seconds) for seconds in (2.0, 7.0, 3.0)]:
        permit.finish(Outcome.THROTTLED, retry_after=seconds)
    assert bench.refusal() == ("paused", 7.0)


def test_calls_in_flight_are_counted_during_a_pause() -> None:
    bench = Bench()
    flying = [bench.permit() for _ in range(10)]
    bench.call(Outcome.THROTTLED, retry_after=60.0)
    for permit in flying:
        permit.finish(Outcome.TIMEOUT)
    assert bench.breaker.state is State.OPEN
    assert bench.refusal() == ("open", 60.0), "what the service asked for goes on"


@pytest.mark.parametrize("seconds", [0.0, -5.0, float("nan"), float("-inf")])
def test_invalid_retry_after_is_ignored(seconds: float) -> None:
    bench = Bench()
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
    assert bench.breaker.state is State.HALF_OPEN
    assert bench.refusal() == ("paused", 4.0)
    bench.now += 4.0
    bench.permit()
    assert bench.refusal() == ("probing", None)


def test_pause_stays_in_force_after_the_transition_to_closed() -> None:
    bench = Bench(half_open_rounds=1).probing()
    for _ in range(2):
        bench.call()
    flying = [bench.permit(), bench.permit()]
    flying[0].finish(Outcome.THROTTLED, retry_after=1.5)
    assert bench.breaker.state is State.HALF_OPEN
    flying[1].finish(Outcome.SUCCESS)
    assert bench.breaker.state is State.CLOSED
    assert bench.refusal() == ("paused", 1.5)
    bench.now += 1.5
    bench.call()


def test_open_duration_covers_the_requested_retry_after() -> None:
    bench = Bench()
    for _ in range(9):
        bench.call(Outcome.TRANSPORT, retry_after=500.0)
    assert bench.breaker.can_admit(), "below that it has nothing to lengthen"
    bench.chance = 0.0
    bench.call(Outcome.TRANSPORT, retry_after=60.0)
    assert bench.refusal() == ("open", 60.0)
    bench.now += 60.0
    bench.call(Outcome.TRANSPORT, retry_after=1e9)
    assert bench.refusal() == ("open", 3600.0)


def test_open_until_rejects_calls_until_that_instant() -> None:
    bench = Bench()
    bench.breaker.open_until(bench.now + 100.0)
    assert bench.told == [("closed", "open", "asked")]
    assert bench.refusal() == ("open", 100.0)
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
def test_open_until_ignores_an_instant_in_the_past(instant: float) -> None:
    bench = Bench()
    bench.breaker.open_until(instant)
    assert (bench.breaker.state, bench.told) == (State.CLOSED, [])


def test_a_sign_of_recovery_ends_the_open_duration_once() -> None:
    bench = Bench().opened()
    opened_at = bench.now
    assert not bench.breaker.expect_recovery(opened_at - 1), "it happened before"
    bench.now += 1
    assert bench.breaker.expect_recovery(bench.now)
    bench.permit()
    assert bench.breaker.state is State.HALF_OPEN
    assert not bench.breaker.expect_recovery(bench.now)


def test_a_circuit_that_an_operator_has_opened_expects_no_recovery() -> None:
    bench = Bench()
    bench.breaker.force_open()
    assert not bench.breaker.expect_recovery(bench.now + 1)


def test_another_instance_ends_a_pause_that_was_asked_for_before() -> None:
    bench = Bench()
    assert not bench.breaker.end_pause(bench.now), "there is none"
    bench.call(Outcome.THROTTLED, retry_after=5.0)
    assert not bench.breaker.end_pause(bench.now - 1), "it was known before"
    bench.now += 1
    assert bench.breaker.end_pause(bench.now)
    assert bench.breaker.can_admit()
    bench.call(Outcome.THROTTLED, retry_after=5.0)
    assert not bench.breaker.end_pause(bench.now - 1)
    bench.now += 6
    assert not bench.breaker.end_pause(bench.now), "it is over"


@pytest.mark.parametrize("how", ["force_open", "open_until"])
def test_another_instance_closes_no_circuit_that_was_opened_on_purpose(how: str) -> None:
    bench = Bench()
    if how == "force_open":
        bench.breaker.force_open()
    else:
        bench.breaker.open_until(bench.now + 60)
    bench.now += 1
    assert not bench.breaker.end_pause(bench.now)
    assert not bench.breaker.can_admit()
