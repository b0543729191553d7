"""Goal G12: a bulkhead in front of a simulated service at two to ten times its capacity.

Guards against congestion collapse: work for cancelled callers, so that goodput falls as load rises.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import Bulkhead
from dispatch.resilience.aio import AsyncBulkhead
from dispatch.resilience.bulkhead import QueueLimits
from tests.helpers.clock import advance, virtual_loop

OK = Outcome.SUCCESS
SERVERS, SERVICE_S, DEADLINE_S, SECONDS = 8, 0.1, 1.0, 12.0
CAPACITY = SERVERS / SERVICE_S


class Service:
    """So many at work, the rest in a line without end; it does not notice that a caller has left."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.line: deque[asyncio.Future[None]] = deque()
        self.busy = 0
        self.longest = 0

    def call(self) -> asyncio.Future[None]:
        answer = virtual_loop().create_future()
        self.line.append(answer)
        self.longest = max(self.longest, len(self.line))
        self._work()
        return answer

    def _work(self) -> None:
        while self.busy < SERVERS and self.line:
            self.busy += 1
            virtual_loop().call_later(SERVICE_S * self.chance.uniform(0.5, 1.5), self._done, self.line.popleft())

    def _done(self, answer: asyncio.Future[None]) -> None:
        self.busy -= 1
        if not answer.done():
            answer.set_result(None)
        self._work()


async def overload(times: int, door: AsyncBulkhead | None, seed: int) -> tuple[Counter[str], Service, int]:
    """``times`` as many calls as the service can do, each with a second: how they ended, and the most that waited."""
    chance = random.Random(seed)
    loop = virtual_loop()
    service = Service(seed)
    ends: Counter[str] = Counter()
    most = 0
    until = loop.time() + SECONDS

    async def call() -> None:
        nonlocal most
        deadline = loop.time() + DEADLINE_S
        permit = None
        if door is not None:
            most = max(most, door.guard.waiting)
            assert len(door.guard._queue._expiries) <= 2 * door.guard.limits.max_length + 17
            permit = await door.acquire(deadline=deadline, priority=chance.choice(["interactive", "batch"]))
            if isinstance(permit, Rejection):
                ends[permit.reason] += 1
                return
        outcome = OK
        try:
            async with asyncio.timeout_at(deadline):
                await service.call()
        except TimeoutError:
            outcome = Outcome.TIMEOUT
        if outcome is not OK or loop.time() <= until:
            ends[outcome] += 1
        if permit is not None:
            permit.finish(outcome)

    tasks = set()
    while loop.time() < until:
        task = asyncio.create_task(call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        await asyncio.sleep(chance.expovariate(times * CAPACITY))
    await asyncio.gather(*tasks)
    await advance(60 if door is None else 1)  # what is left in the service is worked off
    while service.busy:
        await advance(60)
    return ends, service, most


@pytest.mark.parametrize("times", [2, 5, 10])
async def test_goodput_under_overload_stays_near_capacity(times: int) -> None:
    """Goal G12: at least 90 % of what the service can do is answered in time, whatever is asked, in bounded memory."""
    door = AsyncBulkhead(Bulkhead(max_concurrent_calls=SERVERS), QueueLimits(max_length=32))
    ends, service, most = await overload(times, door, seed=times)
    assert ends[OK] / (CAPACITY * SECONDS) >= 0.9
    assert ends[Outcome.TIMEOUT] <= 0.01 * ends[OK], "hardly any work is done for callers who have left"
    assert most <= 32
    assert service.longest <= SERVERS
    assert door.guard.granted == door.guard.released


@pytest.mark.parametrize("times", [2, 10])
async def test_without_a_bulkhead_goodput_collapses(times: int) -> None:
    """So that the goal above is worth something."""
    ends, service, _ = await overload(times, None, seed=times)
    assert ends[OK] / (CAPACITY * SECONDS) <= 0.5
    assert service.longest > 100 * times
