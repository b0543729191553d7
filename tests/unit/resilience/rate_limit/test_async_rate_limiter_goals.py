"""What rate limits are held to, on virtual time: the rate itself to one part in a hundred and never a call more than burst
and rate allow (G10), and a hog that takes nothing from the others (G11; where waiters are a heap by amount, or one queue for
all, he does)."""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_left
from collections import Counter, defaultdict

import pytest

from dispatch._internal import Rejection
from dispatch.policy import RateLimit
from dispatch.resilience.aio import AsyncRateLimiter
from tests.helpers.clock import START, virtual_loop

SECONDS = 60.0
LIGHT = [f"light{n}" for n in range(9)]


def now() -> float:
    return virtual_loop().time()


async def keep_calling(made: AsyncRateLimiter, user: str, went: list[tuple[float, str]]) -> None:
    """Call again as soon as a call has gone, for a minute."""
    while now() < START + SECONDS:
        answer = await made.acquire(user, math.inf)
        if isinstance(answer, Rejection):
            assert answer.retry_after is not None
            await asyncio.sleep(max(answer.retry_after, 0.001))
        elif now() < START + SECONDS:
            went.append((now(), user))


@pytest.mark.parametrize(
    ("text", "burst"), [("100/s", 1), ("100/s", None), ("100/s", 10), ("5/s", 1), ("30/m", 1), ("33.3/s", 2)]
)
async def test_the_admitted_rate_is_the_rate_and_never_more_than_burst_and_rate(text: str, burst: float | None) -> None:
    """G10: at most 1 % off over 60 s; in no time at all more than burst + rate * t."""
    rate = RateLimit(text, burst=burst, max_wait=10.0)
    made = AsyncRateLimiter(rate)
    went: list[tuple[float, str]] = []
    await asyncio.gather(*(keep_calling(made, f"user{n}", went) for n in range(20)))
    made.close()
    due = rate.capacity + rate.per_second * SECONDS
    assert due * 0.99 - 1 <= len(went) <= due
    times = [at - START for at, _ in went]
    for first, begin in enumerate(times[: len(times) // 2 : 7]):
        index = first * 7
        for end in (begin + 0.001, begin + 0.1, begin + 1.0, begin + 7.0, SECONDS):
            assert bisect_left(times, end) - index <= rate.capacity + rate.per_second * (end - begin) + 1e-6


def jain(shares: list[float]) -> float:
    """1 when all are equal, one by their number when one has everything (Jain, Chiu and Hawe 1984)."""
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


async def offered(
    made: AsyncRateLimiter, loads: dict[str, float], seed: int
) -> tuple[Counter[str], dict[str, list[float]]]:
    """Calls that come at random for a minute, each user's at so many a second: how many went, and how long they waited."""
    went: Counter[str] = Counter()
    waits: dict[str, list[float]] = defaultdict(list)
    tasks: set[asyncio.Task[None]] = set()

    async def call(user: str) -> None:
        began = now()
        answer = await made.acquire(user, math.inf)
        if not isinstance(answer, Rejection):
            went[user] += 1
            waits[user].append(now() - began)

    async def source(user: str, per_second: float) -> None:
        chance = random.Random(f"{seed} {user}")
        while now() < START + SECONDS:
            await asyncio.sleep(chance.expovariate(per_second))
            task = asyncio.create_task(call(user))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    await asyncio.gather(*(source(user, per_second) for user, per_second in loads.items()))
    made.close()
    await asyncio.gather(*tasks)
    return went, waits


def crowded() -> AsyncRateLimiter:
    return AsyncRateLimiter(RateLimit("100/s", burst=1, max_wait=20.0), max_queue=2000)


async def test_a_hog_and_nine_who_want_their_share_get_equal_shares() -> None:
    """G11: everybody wants more than a tenth, one of them a hundred times as much: Jain's index at least 0.99."""
    went, _ = await offered(crowded(), {"hog": 1200.0, **dict.fromkeys(LIGHT, 12.0)}, seed=1)
    assert jain([went[user] for user in ("hog", *LIGHT)]) >= 0.99
    assert sum(went.values()) >= 5940


async def test_who_wants_less_than_his_share_gets_all_of_it_and_waits_no_longer_than_alone() -> None:
    """G11: beside a hog that offers a hundred times as much, the nine wait at most twice as long (p99) as each would alone
    with its tenth of the rate. What they leave is the hog's: weighed by what is due to each, the index is at least 0.99."""
    loads = {"hog": 800.0, **dict.fromkeys(LIGHT, 8.0)}
    went, waits = await offered(crowded(), loads, seed=2)
    solo: list[float] = []
    for user in LIGHT[:3]:
        alone = AsyncRateLimiter(RateLimit("10/s", burst=1, max_wait=20.0), max_queue=2000)
        _, its = await on_its_own(alone, user)
        solo += its[user]
    beside = [wait for user in LIGHT for wait in waits[user]]
    assert p99(beside) <= 2 * p99(solo)
    shares = [went[user] / (8.0 * SECONDS) for user in LIGHT] + [went["hog"] / (28.0 * SECONDS)]
    assert jain(shares) >= 0.99
    assert sum(went.values()) >= 5940


async def on_its_own(made: AsyncRateLimiter, user: str) -> tuple[Counter[str], dict[str, list[float]]]:
    began = now()
    waits: dict[str, list[float]] = defaultdict(list)
    went: Counter[str] = Counter()
    chance = random.Random(f"2 {user}")
    tasks = []

    async def call() -> None:
        arrived = now()
        assert not isinstance(await made.acquire(user, math.inf), Rejection)
        went[user] += 1
        waits[user].append(now() - arrived)

    while now() < began + SECONDS:
        await asyncio.sleep(chance.expovariate(8.0))
        tasks.append(asyncio.create_task(call()))
    await asyncio.gather(*tasks)
    return went, waits


async def test_large_calls_are_not_starved_by_small_ones() -> None:
    """A user whose calls count as five gets as much as one whose calls count as one, not nothing."""
    made = AsyncRateLimiter(RateLimit("100/s", burst=5, max_wait=20.0), max_queue=200)
    went: Counter[str] = Counter()

    async def call(user: str, cost: float) -> None:
        while now() < START + SECONDS:
            if not isinstance(await made.acquire(user, math.inf, cost), Rejection):
                went[user] += int(cost)

    await asyncio.gather(*(call("small", 1.0) for _ in range(20)), *(call("large", 5.0) for _ in range(3)))
    assert went["large"] / went["small"] == pytest.approx(1.0, abs=0.05)
