"""Rate limits on a loop: aiolimiter's bucket behind the fair queue. Guards against cancelled waiters that keep a permit,
waits that outlive their deadline, heaps of waiters without a bound, and objects that are bound to a loop that has ended."""

from __future__ import annotations

import asyncio
import random

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import RateLimit
from dispatch.resilience.aio import AsyncRateLimiter, user_buckets
from dispatch.resilience.rate_limit import RatePermit, Waiter
from tests.helpers.clock import START, advance, idle, virtual_loop
from tests.helpers.rate_limits import FAR, figures, limits, now


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
    waiting = asyncio.create_task(made.acquire("ben", FAR))
    await idle()
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
    next_one = asyncio.create_task(made.acquire("ben", FAR))
    await idle()
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
    task = asyncio.create_task(made.acquire("ann", FAR))
    await idle()
    made.close()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
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
    ann = asyncio.create_task(made.acquire("ann", FAR))
    await advance(0.5)
    await made.acquire("ben", FAR)
    ben = asyncio.create_task(made.acquire("ben", now() + 1.25))
    await idle()
    assert [handle.when() for handle in virtual_loop().list_timers()] == [pytest.approx(START + 1.0)]
    await ann
    await made.acquire("col", now() + 9)
    col = asyncio.create_task(made.acquire("col", FAR, 0.25))
    await idle()
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
    tools = [
        AsyncRateLimiter(RateLimit("100/s", burst=4), RateLimit("1/s", burst=2), everywhere=everywhere),
        AsyncRateLimiter(everywhere=everywhere),
    ]

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
    first, second = (
        RateLimit("1/s", burst=1, max_wait=5.0, weights={"ann": 4}),
        RateLimit("1/s", burst=1, max_wait=2.0),
    )
    for made, longest, weights in (
        (AsyncRateLimiter(first, second), 2.0, {"ann": 4.0}),
        (AsyncRateLimiter(first), 5.0, {"ann": 4.0}),
        (AsyncRateLimiter(None, second), 2.0, {}),
        (AsyncRateLimiter(), 1.0, {}),
        (AsyncRateLimiter(everywhere=user_buckets(first)), 1.0, {}),
    ):
        assert made.limiter._queue.max_items == 128
        assert made.limiter._max_wait == longest
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
