"""Rate limits on a loop: aiolimiter's bucket behind the fair queue. Guards against cancelled waiters that keep a permit,
waits that outlive their deadline, heaps of waiters without a bound, and objects that are bound to a loop that has ended.
aiolimiter's bucket: it decides; what it has no function for is added; no loop that has ended binds it (limiters made at
import break on the second loop).
What rate limits are held to, on virtual time: the rate itself to one part in a hundred and never a call more than burst
and rate allow (G10), and a hog that takes nothing from the others (G11; where waiters are a heap by amount, or one queue for
all, he does).
"""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_left
from collections import Counter, defaultdict

import pytest
from aiolimiter import AsyncLimiter
from hypothesis import given
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import RateLimit
from dispatch.resilience.aio import AsyncRateLimiter, user_buckets
from dispatch.resilience.rate_limit import LeakyBucket, RatePermit, Waiter
from tests.helpers.clock import START, advance, cancel_task, idle, run, start_task, virtual_loop
from tests.helpers.run_profile import by_profile

FAR = 1e9


def now() -> float:
    return virtual_loop().time()


def limits(
    rate: str | None = "8/s", user_rate: str | None = None, *, burst: float = 1, max_queue: int = 1000, **more: object
) -> AsyncRateLimiter:
    """Limits with a burst of one and a long queue."""
    settings = {"burst": burst, "max_wait": 100.0, **more}
    return AsyncRateLimiter(
        None if rate is None else RateLimit(rate, **settings),  # type: ignore[arg-type]
        None if user_rate is None else RateLimit(user_rate, **settings),  # type: ignore[arg-type]
        max_queue=max_queue,
    )


def figures(made: AsyncRateLimiter) -> tuple[int, int, int, int]:
    limiter = made.limiter
    return limiter.granted, limiter.returned, limiter.refused, limiter.waiting


async def test_it_goes_at_once_while_there_is_room_and_then_in_turn() -> None:
    made = limits(burst=2)
    went: list[tuple[float, str]] = []

    async def call(user: str) -> None:
        assert isinstance(await made.acquire(user, FAR), RatePermit)
        went.append((round(now() - START, 3), user))

    await asyncio.gather(*(call(user) for user in ("hog", "hog", "hog", "hog", "ann")))
    assert went == [(0.0, "hog"), (0.0, "hog"), (0.125, "hog"), (0.25, "ann"), (0.375, "hog")]
    assert figures(made) == (5, 0, 0, 0)


async def test_what_aiolimiter_cannot_take_back_goes_back_all_the_same() -> None:
    made = limits(burst=4)
    permits = [made.admit("ann", FAR) for _ in range(4)]
    for permit in permits[:2]:
        assert isinstance(permit, RatePermit)
        permit.finish(Outcome.REJECTED)
    assert isinstance(made.admit("ann", FAR), RatePermit)
    assert isinstance(made.admit("ann", FAR), RatePermit)
    assert isinstance(made.admit("ann", now()), Rejection)
    assert figures(made) == (6, 2, 1, 0)


async def test_a_permit_that_comes_back_wakes_who_waits() -> None:
    made = limits("1/s")
    permit = made.admit("ann", FAR)
    assert isinstance(permit, RatePermit)
    waiting = await start_task(made.acquire("ben", FAR))
    permit.give_back()
    assert isinstance(await waiting, RatePermit)
    assert now() == START
    assert figures(made) == (2, 1, 0, 0)


async def test_a_wait_that_would_outlive_the_deadline_is_refused_at_once() -> None:
    made = limits()
    await made.acquire("ann", FAR)
    assert await made.acquire("ann", now() + 0.124) == Rejection("rate-limit", "too-late", 0.125)
    assert now() == START
    assert isinstance(await made.acquire("ann", now() + 0.126), RatePermit)
    assert now() == pytest.approx(START + 0.125)


async def test_the_longest_wait_is_kept_when_others_go_first() -> None:
    made = limits("1/s", max_wait=2.0)
    await made.acquire("hog", FAR)
    late = [asyncio.create_task(made.acquire("hog", FAR)) for _ in range(2)]
    await advance(0.5)
    other = asyncio.create_task(made.acquire("ann", FAR))
    answer = await late[1]
    assert isinstance(answer, Rejection)
    assert answer.reason == "too-late"
    assert now() == pytest.approx(START + 2.0, abs=1e-4)
    assert [type(each) for each in await asyncio.gather(late[0], other)] == [RatePermit] * 2
    assert figures(made) == (3, 0, 1, 0)


@pytest.mark.parametrize("user_rate", [None, "8/s"])
async def test_a_cancelled_waiter_leaves_nothing(user_rate: str | None) -> None:
    made = limits(user_rate=user_rate)
    await made.acquire("ann", FAR)
    tasks = [asyncio.create_task(made.acquire("ann", FAR)) for _ in range(3)]
    await idle()
    assert made.limiter.waiting == 3
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert isinstance(await tasks[1], RatePermit)
    assert now() == pytest.approx(START + 0.125, abs=1e-4)
    tasks[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[2]
    assert figures(made) == (2, 0, 0, 0)
    assert virtual_loop().list_timers() == []


async def test_a_waiter_cancelled_just_as_he_is_let_go_gives_the_permit_back() -> None:
    made = limits()
    await made.acquire("ann", FAR)
    task = asyncio.create_task(made.acquire("ann", FAR))
    next_one = await start_task(made.acquire("ben", FAR))
    seen = []

    def cancel() -> None:
        seen.append(figures(made))
        task.cancel()

    virtual_loop().call_at(virtual_loop().list_timers()[0].when() + 1e-9, cancel)  # in the same turn of the loop
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [(2, 0, 0, 1)], "he had his permit already"
    assert isinstance(await next_one, RatePermit)
    assert now() == pytest.approx(START + 0.125, abs=1e-4)
    assert figures(made) == (3, 1, 0, 0)


async def test_a_waiter_cancelled_after_a_refusal_changes_nothing() -> None:
    made = limits()
    await made.acquire("ann", FAR)
    task = await start_task(made.acquire("ann", FAR))
    made.close()
    await cancel_task(task)
    assert figures(made) == (1, 0, 1, 0)


async def test_a_waiter_cancelled_before_the_turn_is_not_woken_again() -> None:
    made = limits()
    await made.acquire("ann", FAR)
    waiter = made.admit("ann", FAR)
    assert isinstance(waiter, Waiter)
    waiter.tag.cancel()
    await advance(0.2)
    assert isinstance(waiter.answer, RatePermit), "his task has not run yet; wait() gives it back when it does"
    with pytest.raises(asyncio.CancelledError):
        await made.wait(waiter)
    assert figures(made) == (2, 1, 0, 0)


async def test_there_is_one_timer_however_many_wait() -> None:
    made = limits("1/s", max_queue=100)
    await made.acquire("ann", FAR)
    tasks = [asyncio.create_task(made.acquire(f"user{n}", FAR)) for n in range(50)]
    await idle()
    assert len(virtual_loop().list_timers()) == 1
    assert virtual_loop().list_timers()[0].when() == pytest.approx(START + 1.0)
    await asyncio.gather(*tasks)
    assert now() == pytest.approx(START + 50, abs=0.01)


async def test_a_later_waiter_who_can_go_sooner_moves_the_timer() -> None:
    made = limits(None, "1/s")
    await made.acquire("ann", FAR)
    ann = await start_task(made.acquire("ann", FAR), 0.25)
    await made.acquire("col", FAR)
    await advance(0.25)
    await made.acquire("ben", FAR)
    ben = await start_task(made.acquire("ben", now() + 1.25))
    assert [handle.when() for handle in virtual_loop().list_timers()] == [pytest.approx(START + 1.0)]
    await ann
    col = await start_task(made.acquire("col", FAR))
    assert [handle.when() for handle in virtual_loop().list_timers()] == [pytest.approx(START + 1.25)]
    await col
    await ben
    assert now() == pytest.approx(START + 1.5)


async def test_closing_refuses_all_who_wait() -> None:
    made = limits("1/s")
    await made.acquire("ann", FAR)
    tasks = [asyncio.create_task(made.acquire(user, FAR)) for user in ("ann", "ben")]
    await idle()
    made.close()
    assert await asyncio.gather(*tasks) == [Rejection("rate-limit", "closing")] * 2
    assert virtual_loop().list_timers() == []
    made.close("again")
    assert now() == START


async def test_limits_hold_by_tool_by_user_and_by_user_over_all_tools() -> None:
    everywhere = user_buckets(RateLimit("1/s", burst=3))
    limited = AsyncRateLimiter(RateLimit("100/s", burst=4), RateLimit("1/s", burst=2), everywhere=everywhere)
    tools = [limited, AsyncRateLimiter(everywhere=everywhere)]

    def burst(tool: int, user: str) -> int:
        count = 0
        while isinstance(tools[tool].admit(user, now()), RatePermit):
            count += 1
        return count

    assert burst(0, "ann") == 2
    assert burst(1, "ann") == 1
    assert burst(1, "ben") == 3
    assert burst(0, "ben") == 0
    assert burst(0, "col") == 2
    assert burst(0, "dan") == 0, "the tool has had its four"


async def test_settings_are_taken_from_the_tools_rate_then_the_users() -> None:
    first = RateLimit("1/s", burst=1, max_wait=5.0, weights={"ann": 4})
    second = RateLimit("1/s", burst=1, max_wait=2.0)
    for made, longest, weights in (
        (AsyncRateLimiter(first, second), 2.0, {"ann": 4.0}),
        (AsyncRateLimiter(first), 5.0, {"ann": 4.0}),
        (AsyncRateLimiter(None, second), 2.0, {}),
        (AsyncRateLimiter(), 1.0, {}),
        (AsyncRateLimiter(everywhere=user_buckets(first)), 1.0, {}),
    ):
        assert (made.limiter._queue.max_items, made.limiter._max_wait) == (128, longest)
        assert made.limiter._queue._weights == weights
    assert isinstance(AsyncRateLimiter().admit("ann", FAR), RatePermit)


@pytest.mark.parametrize("seed", range(3))
async def test_any_schedule_of_cancellations_leaves_every_permit_accounted_for(seed: int) -> None:
    chance = random.Random(seed)
    made = limits("50/s", "20/s", burst=3, max_queue=40, max_wait=2.0)
    kept = returned = refused = cancelled = 0

    async def caller(user: str) -> None:
        nonlocal kept, returned, refused, cancelled
        await asyncio.sleep(chance.uniform(0, 10))
        try:
            async with asyncio.timeout(chance.choice([None, 0.0, 0.02, 0.1, 1.0])):
                answer = await made.acquire(user, now() + chance.choice([0.05, 1.0, 10.0]))
        except TimeoutError:
            cancelled += 1
            return
        if isinstance(answer, Rejection):
            refused += 1
        elif chance.random() < 0.2:
            await asyncio.sleep(chance.choice([0.0, 0.3]))
            answer.give_back()
            returned += 1
        else:
            kept += 1

    await asyncio.gather(*(caller(chance.choice("abcd")) for _ in range(1500)))
    limiter = made.limiter
    assert limiter.waiting == 0
    assert (limiter._queue.places, limiter._user_queues, limiter._due) == (0, {}, [])
    assert limiter.granted - limiter.returned == kept
    assert limiter.refused == refused
    assert kept + returned + refused + cancelled == 1500
    assert min(kept, returned, refused, cancelled) > 10
    assert virtual_loop().list_timers() == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([0.1, 0.125, 0.25, 1.0, 4.0])),
        st.tuples(st.just("take"), st.sampled_from([0.5, 1.0, 2.0])),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([1.0, 2.0, 8.0]), st.sampled_from([0.5, 2.0]))
def test_it_is_aiolimiters_bucket_on_the_callers_time(
    steps: list[tuple[str, float]], burst: float, rate: float
) -> None:
    async def both() -> None:
        ours, theirs = LeakyBucket(burst, rate), AsyncLimiter(burst, burst / rate)
        for step, value in steps:
            if step == "pass":
                await asyncio.sleep(value)
                continue
            fits = theirs.has_capacity(value)
            assert ours.try_add(value, now()) == fits
            if fits:
                await theirs.acquire(value)
            room = burst - ours.level(now())
            assert theirs.has_capacity(max(0.0, room - 1e-9))
            assert not theirs.has_capacity(room + 1e-9)

    run(both)


async def test_aiolimiter_does_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncLimiter, "has_capacity", lambda self, amount: False)
    assert isinstance(limits(burst=4).admit("ann", now()), Rejection)


def test_the_time_is_that_of_the_caller_without_any_loop() -> None:
    bucket = LeakyBucket(2.0, 1.0)
    assert [bucket.try_add(1.0, at) for at in (5.0, 5.0, 5.5, 6.0)] == [True, True, False, True]
    with pytest.raises(RuntimeError, match="no running event loop"):
        AsyncLimiter(2.0, 2.0).has_capacity(1.0)


async def test_what_aiolimiter_has_no_function_for() -> None:
    """Each of these is a reason for a line of :class:`LeakyBucket`; where one fails, that line can go."""
    functions = {name for name in dir(AsyncLimiter) if not name.startswith("_")}
    assert functions == {"acquire", "has_capacity", "max_rate", "time_period"}, "nothing returns a cost or tells a wait"
    limiter = AsyncLimiter(4, 4.0)
    await limiter.acquire(4)
    served: list[str] = []

    async def wait(name: str, cost: float) -> None:
        await limiter.acquire(cost)
        served.append(name)

    tasks = [asyncio.create_task(wait("large", 4.0)), *(asyncio.create_task(wait("small", 1.0)) for _ in range(3))]
    await asyncio.gather(*tasks)
    assert served == ["small", "small", "small", "large"], "waiters are served by their cost: a large one starves"


SECONDS = by_profile(short=20, long=60)
LIGHT = [f"light{n}" for n in range(9)]


def now_goals() -> float:
    return virtual_loop().time()


async def keep_calling(made: AsyncRateLimiter, user: str, went: list[tuple[float, str]]) -> None:
    """Call again as soon as a call has gone, for a minute."""
    while now_goals() < START + SECONDS:
        answer = await made.acquire(user, math.inf)
        if isinstance(answer, Rejection):
            await asyncio.sleep(max(answer.retry_after, 0.001))
        elif now_goals() < START + SECONDS:
            went.append((now_goals(), user))


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
        began = now_goals()
        answer = await made.acquire(user, math.inf)
        if not isinstance(answer, Rejection):
            went[user] += 1
            waits[user].append(now_goals() - began)

    async def source(user: str, per_second: float) -> None:
        chance = random.Random(f"{seed} {user}")
        while now_goals() < START + SECONDS:
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


@pytest.mark.long
async def test_a_hog_and_nine_who_want_their_share_get_equal_shares() -> None:
    """G11: everybody wants more than a tenth, one of them a hundred times as much: Jain's index at least 0.99."""
    went, _ = await offered(crowded(), {"hog": 1200.0, **dict.fromkeys(LIGHT, 12.0)}, seed=1)
    assert jain([went[user] for user in ("hog", *LIGHT)]) >= 0.99
    assert sum(went.values()) >= 99 * SECONDS


@pytest.mark.long
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
    assert p99([wait for user in LIGHT for wait in waits[user]]) <= 2 * p99(solo)
    shares = [went[user] / (8.0 * SECONDS) for user in LIGHT] + [went["hog"] / (28.0 * SECONDS)]
    assert jain(shares) >= 0.99
    assert sum(went.values()) >= 99 * SECONDS


async def on_its_own(made: AsyncRateLimiter, user: str) -> tuple[Counter[str], dict[str, list[float]]]:
    began = now_goals()
    waits: dict[str, list[float]] = defaultdict(list)
    went: Counter[str] = Counter()
    chance = random.Random(f"2 {user}")
    tasks = []

    async def call() -> None:
        arrived = now_goals()
        assert not isinstance(await made.acquire(user, math.inf), Rejection)
        went[user] += 1
        waits[user].append(now_goals() - arrived)

    while now_goals() < began + SECONDS:
        await asyncio.sleep(chance.expovariate(8.0))
        tasks.append(asyncio.create_task(call()))
    await asyncio.gather(*tasks)
    return went, waits
