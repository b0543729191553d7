"""Goal G8: callers that are cancelled and time out at random moments leave nothing in any guard.

Guards against a bulkhead that is down from four places to none after a few cancelled waiters (aioresilience), one that keeps
places of those who left the line (hyx), and a limiter that keeps entries of callers who are gone.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from dispatch._internal import Rejection
from dispatch.calls.attempt import Admission
from dispatch.calls.guards import ToolGuards, create_rate_limiter
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead, Policy, RateLimit
from dispatch.resilience.aio import user_buckets
from dispatch.resilience.breaker import BreakerRules, State
from dispatch.resilience.bulkhead import QueueLimits
from dispatch.resilience.rate_limit import LeakyBucket, UserBuckets
from tests.helpers.clock import advance, virtual_loop

CALLS = 20_000
POLICY = Policy(
    rate_limit=RateLimit("300/s", burst=5, max_wait=0.3),
    user_rate_limit=RateLimit("120/s", burst=3, max_wait=0.3),
    bulkhead=Bulkhead(max_concurrent_calls=8, max_wait=0.2),
    breaker=BreakerRules(consecutive_failures=8, open_duration=0.2, half_open_lease=1.0),
)
ENDS = (*[Outcome.SUCCESS] * 12, Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.THROTTLED, Outcome.TOOL_ERROR)


class Crowd:
    """Callers of one tool, each as patient as chance has it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = virtual_loop().time
        self.shared: dict[RateLimit, UserBuckets[LeakyBucket]] = {}
        self.guards = ToolGuards(
            POLICY,
            repeatable=True,
            clock=self.clock,
            randomness=self.chance.random,
            rates=lambda policy: create_rate_limiter(
                policy, lambda rate: self.shared.setdefault(rate, user_buckets(rate))
            ),
        )
        self.ends: dict[str, int] = {}

    async def call(self) -> None:
        chance = self.chance
        deadline = self.clock() + chance.choice((0.02, 0.2, 2.0))
        admission, outcome, sent = Admission(self.guards), Outcome.CANCELLED, False
        end = "cancelled"
        try:
            refused = admission.try_acquire(f"user{chance.randrange(5)}", deadline, self.clock())
            if admission.must_wait:
                if chance.random() < 0.05:
                    admission.withdraw()
                    refused = Rejection("test", "gave-up")
                else:
                    refused = await admission.wait(deadline, None)
            if refused is not None:
                outcome, end = Outcome.REJECTED, f"{refused.by} {refused.reason}"
                return
            if chance.random() < 0.05:
                end = "not sent"
                return
            sent = True
            await asyncio.sleep(chance.expovariate(25.0))
            sick = self.clock() % 10.0 > 8.0
            outcome = Outcome.TIMEOUT if sick else chance.choice(ENDS)
            end = str(outcome)
        finally:
            admission.finish(outcome, sent=sent, retry_after=0.01 if outcome is Outcome.THROTTLED else None)
            admission.finish(Outcome.TIMEOUT, sent=False)  # once counts
            self.ends[end] = self.ends.get(end, 0) + 1

    async def come(self, calls: int) -> None:
        loop, chance = virtual_loop(), self.chance
        tasks = []
        for _ in range(calls):
            task = asyncio.ensure_future(self.call())
            tasks.append(task)
            if chance.random() < 0.4:
                loop.call_later(chance.expovariate(20.0), task.cancel)
            if chance.random() < 0.9:
                await asyncio.sleep(chance.expovariate(400.0))
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(3))
async def test_cancelled_callers_leave_no_permit_no_waiter_and_no_timer(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers and tasks that are left fail any test here (tests/helpers/clock.py)."""
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=6))
    crowd = Crowd(seed)
    await crowd.come(CALLS)
    guards = crowd.guards
    assert guards.bulkhead is not None
    assert guards.rates is not None
    assert guards.breaker is not None
    bulkhead, limiter = guards.bulkhead.guard, guards.rates.limiter
    assert (bulkhead.in_flight, bulkhead.waiting) == (0, 0)
    assert bulkhead.granted == bulkhead.released > CALLS / 10
    assert (limiter.waiting, limiter._user_queues, limiter._due) == (0, {}, [])
    assert not limiter._turns
    assert limiter.returned > 100, "permits of calls that were never sent went back"
    met = {"cancelled", "not sent", "success", "timeout", "breaker open", "rate-limit too-late", "bulkhead queue-full"}
    assert met <= set(crowd.ends), met - set(crowd.ends)
    assert sum(crowd.ends.values()) <= CALLS, "who was cancelled before its first step never came"

    # And all of it still works: as many places as before, and a circuit that closes.
    await advance(30)
    while guards.breaker.state is not State.CLOSED:
        admission = Admission(guards)
        assert admission.try_acquire("user", crowd.clock() + 1, crowd.clock()) is None
        admission.finish(Outcome.SUCCESS, sent=True)
        await advance(1)
    limit = bulkhead.limit
    places = [bulkhead.admit() for _ in range(limit + 1)]
    assert [isinstance(place, Rejection) for place in places] == [False] * limit + [True]
