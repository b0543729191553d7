"""What a breaker is measured by: the goals of docs/explanation/goals.md, by virtual time and by structure.

G4 (nothing retained), G5 (no herd), G6 (stale results), G7 (lost probes), G16 (spread), G19 (memory). G18 is in
test_windows."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import tracemalloc
from typing import Any

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.breaker import (
    BreakerPermit,
    BreakerRules,
    CircuitBreaker,
    CountWindow,
    FailureRules,
    OpenDuration,
    State,
    TimeWindow,
)
from tests.helpers.breaker_harness import Bench

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
    bench = Bench().opened()
    bench.now += 5.0
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
    assert bench.breaker.state is State.OPEN
    assert bench.breaker.stale == (reached - 1 if failed or flying else 0)
    return reached


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
    for _ in range(20):
        bench.call()
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
                permit = breaker.admit()
                assert isinstance(permit, BreakerPermit)
                permit.finish(Outcome.TIMEOUT)
            starts.append(breaker.retry_after or 0.0)
        slots = [sum(2.5 + 0.25 * slot <= start < 2.75 + 0.25 * slot for start in starts) for slot in range(20)]
        assert sum(slots) == 100, "all of them between 2.5 and 7.5 seconds"
        assert max(slots) <= 15, slots


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
            permit = breaker.admit()
            assert isinstance(permit, BreakerPermit)
            permit.finish(outcome)
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
