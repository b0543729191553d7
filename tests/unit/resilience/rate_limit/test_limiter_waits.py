"""How long a call waits at the rate limiter, to the microsecond, and who goes in a turn that comes late."""

from __future__ import annotations

import pytest

from dispatch._internal import Rejection
from dispatch.resilience.rate_limit import STEP_S, RatePermit
from tests.helpers.rate_limiter_harness import World


def test_who_comes_too_late_keeps_nobody_behind_him_waiting() -> None:
    world = World()
    world.permit("hog", cost=2.0)
    gone, long = world.waiter("ann", deadline=105.0), world.waiter("ben")
    world.now = 105.0
    assert world.limiter.admit_waiters() == [gone, long]
    assert isinstance(long.answer, RatePermit)


def test_the_longest_wait_is_exact_to_a_step_and_a_waiter_gives_up_ten_steps_after_it() -> None:
    world = World(rate=4.0, burst=1.0, max_wait=0.25 - STEP_S)
    world.permit()
    waiter = world.waiter()
    assert waiter.give_up_at == pytest.approx(100.25 + 9 * STEP_S, abs=STEP_S / 10)
    assert world.refused() == Rejection("rate-limit", "too-late", 0.5)
    world = World(rate=4.0, burst=1.0, max_wait=0.25 - 2 * STEP_S)
    world.permit()
    assert world.refused() == Rejection("rate-limit", "too-late", 0.25)
