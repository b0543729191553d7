"""The learnt limit under lasting overload of a simulated service.

The peers' failure it guards against: a limit that creeps upwards under a modest overload that lasts, because what it takes
for the best duration creeps up with it.
"""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from dispatch.resilience.bulkhead.adaptive_limit import AdaptiveLimit


def simulate(duration: Any, *, servers: int, load: float, seconds: float, seed: int) -> tuple[list[int], float]:
    """A service of so many servers with a line of its own, and callers that leave when the limit is reached.

    Returns:
        The limit at every twentieth of the time, and answers a second.
    """
    chance = random.Random(seed)
    limit = AdaptiveLimit(4, 20, 200, max_limit_factor=2.0, freeze_at=0.1, now=0.0)
    free = [0.0] * servers
    under_way: list[tuple[float, float]] = []
    limits, answers, now = [], 0, 0.0
    while (now := now + chance.expovariate(load)) < seconds:
        while under_way and under_way[0][0] <= now:
            ended, began = heapq.heappop(under_way)
            limit.answered(ended - began, len(under_way) + 1, ended)
            answers += 1
        if len(under_way) < limit.limit:
            ended = max(now, heapq.heappop(free)) + duration(chance)
            heapq.heappush(free, ended)
            heapq.heappush(under_way, (ended, now))
        if now >= seconds / 20 * (len(limits) + 1):
            limits.append(limit.limit)
    return limits, answers / seconds


@pytest.mark.parametrize(
    ("shape", "duration"),
    [
        ("always the same", lambda chance: 0.05),
        ("a bell", lambda chance: 0.05 * max(0.2, chance.gauss(1, 0.2))),
        ("memoryless", lambda chance: 0.05 * chance.expovariate(1)),
        ("a heavy tail", lambda chance: min(1.0, 0.05 / 3 * chance.paretovariate(1.5))),
    ],
)
@pytest.mark.parametrize("times", [2, 5])
def test_under_lasting_overload_it_stays_near_what_the_service_can_do(shape: str, duration: Any, times: int) -> None:
    """Ten servers, up to five times as many calls as they can do, for five minutes: peers' limits creep up meanwhile."""
    chance = random.Random(1)
    mean = sum(duration(chance) for _ in range(20_000)) / 20_000
    capacity = 10 / mean
    limits, answers = simulate(duration, servers=10, load=times * capacity, seconds=150, seed=7)
    assert answers >= 0.9 * capacity
    assert max(limits[5:]) <= 60
    assert sum(limits[15:]) / 5 <= 1.25 * sum(limits[5:10]) / 5 + 3, "no creeping"
