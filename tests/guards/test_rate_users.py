"""The rate limiter with a bucket for each user: who waits for his own is in nobody's way, and no right to go is saved up
while waiting for the tool's."""

from __future__ import annotations

import itertools

import pytest

from dispatch.guards.bucket import LeakyBucket
from dispatch.guards.rate import STEP_S, RateLimiter, RatePermit, Waiter
from dispatch.guards.users import Users
from tests.guards.rateworld import NEVER, World


def test_no_limit_at_all_lets_everything_through() -> None:
    world = World(rate=None)
    for _ in range(1000):
        world.permit(cost=5.0)


def test_each_user_has_his_own_rate_and_nobody_elses() -> None:
    world = World(rate=None, user_rate=4.0)
    for user in ("ann", "ben"):
        world.permit(user)
        world.permit(user)
        world.waiter(user)
    assert world.refused("ann", deadline=100.0).retry_after == 0.5
    world.waiter("ann")
    world.permit("col")
    assert world.times() == [(0.25, "ann"), (0.25, "ben"), (0.5, "ann")]
    assert world.figures() == (8, 0, 1, 0)


def test_who_waits_for_his_own_bucket_is_in_nobodys_way() -> None:
    world = World(rate=8.0, burst=4.0, user_rate=1.0)
    world.permit("ann", cost=2.0)
    world.waiter("ann")
    world.permit("ben")
    world.permit("ben")
    world.waiter("col")
    assert world.times() == [(0.12, "col"), (1.0, "ann")]


def test_a_user_keeps_the_order_of_his_own_calls() -> None:
    world = World(rate=None, user_rate=1.0)
    world.permit(cost=2.0)
    large, small = world.waiter(cost=2.0), world.waiter(cost=0.5)
    assert world.refused(cost=0.5, deadline=100.0).retry_after == pytest.approx(3.0)
    assert [waiter for _, waiter in world.until()] == [large, small]


def test_both_limits_hold_and_the_estimate_is_the_longer_wait() -> None:
    world = World(rate=4.0, burst=1.0, user_rate=1.0, user_burst=1.0)
    world.permit("ann")
    assert world.refused("ann", deadline=100.0).retry_after == pytest.approx(1.0)
    assert world.refused("ben", deadline=100.0).retry_after == pytest.approx(0.25)
    world.waiter("ann")
    assert world.refused("ann", deadline=100.0).retry_after == pytest.approx(2.0)
    world.waiter("ann")
    world.waiter("ben")
    world.waiter("col")
    assert world.times() == [(0.25, "ben"), (0.5, "col"), (1.0, "ann"), (2.0, "ann")]


def test_what_the_tool_refuses_is_not_taken_from_the_user() -> None:
    world = World(rate=1.0, burst=1.0, user_rate=1.0, queue=0)
    world.permit("ann")
    for _ in range(5):
        world.refused("ben")
    assert world.users is not None
    assert world.users.get("ben", world.now).wait(2.0, world.now) == 0.0


def test_no_burst_is_saved_up_while_waiting_for_the_tool() -> None:
    """Rights to go that were taken from the user's bucket while its tool was busy would all be used at once later."""
    world = World(rate=4.0, burst=1.0, user_rate=2.0, user_burst=1.0)
    world.permit("hog")
    for _ in range(12):
        world.waiter("ann")
    for n in range(12):
        world.waiter(f"other{n}")
    ann = [at for at, user in world.times() if user == "ann"]
    assert len(ann) == 12
    assert min(later - sooner for sooner, later in itertools.pairwise(ann)) >= 0.5


def test_another_tools_call_that_fills_the_users_bucket_sends_back_who_waits() -> None:
    world = World(rate=8.0, burst=1.0, user_rate=1.0, user_burst=1.0)
    world.permit("hog")
    first, second = world.waiter("ann"), world.waiter("ann")
    ben = world.waiter("ben")
    assert world.users is not None
    assert world.users.get("ann", world.now).take(1.0, world.now), "at another tool"
    assert [(round(at - 100, 3), waiter) for at, waiter in world.until()] == [
        (0.125, ben),
        (1.0, first),
        (2.0, second),
    ]
    assert world.limiter._lines == {}
    world = World(rate=8.0, burst=1.0, user_rate=1.0, user_burst=1.0)
    world.permit("hog")
    only = world.waiter("ann")
    assert world.users is not None
    assert world.users.get("ann", world.now).take(1.0, world.now)
    assert [(round(at - 100, 3), waiter) for at, waiter in world.until()] == [(1.0, only)]


def test_who_has_left_or_gone_is_not_counted_any_more() -> None:
    for user_burst in (1.0, 2.0):
        world = World(rate=1.0, burst=2.0, user_rate=0.5, user_burst=user_burst)
        world.permit("ann")
        if user_burst == 2.0:
            world.permit("ben")
        waiters = [world.waiter("ann") for _ in range(3)]
        assert world.refused("ann", deadline=100.0).retry_after == 8.0 - 2.0 * (user_burst - 1.0)
        world.limiter.leave(waiters[1])
        assert world.refused("ann", deadline=100.0).retry_after == 6.0 - 2.0 * (user_burst - 1.0)
        world.limiter.leave(waiters[0])
        assert world.refused("ann", deadline=100.0).retry_after == 4.0 - 2.0 * (user_burst - 1.0)


def test_two_tools_of_one_user_take_turns_at_his_bucket() -> None:
    users = Users(lambda empty_at: LeakyBucket(1.0, 1.0, empty_at))
    now = 100.0
    tools = [RateLimiter(lambda: now, users=users.get, max_wait=100.0) for _ in range(2)]
    assert isinstance(tools[0].admit("ann", NEVER), RatePermit)
    for tool in tools:
        for _ in range(4):
            assert isinstance(tool.admit("ann", NEVER), Waiter)
    order = []
    while any(tool.waiting for tool in tools):
        at, number = min((tool.next_at() or NEVER, n) for n, tool in enumerate(tools))
        now = at
        order += [(number, round(now)) for _ in tools[number].turn()]
    assert [number for number, _ in order] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [at for _, at in order] == list(range(101, 109))


def test_who_leaves_a_users_line_lets_the_next_one_have_his_place() -> None:
    world = World(rate=None, user_rate=1.0, user_burst=2.0)
    world.permit(cost=2.0)
    first, second, third = world.waiter(cost=2.0), world.waiter(), world.waiter()
    world.limiter.leave(first)
    assert world.stirred == 1
    assert world.limiter.next_at() == pytest.approx(101.0)
    world.limiter.leave(third)
    assert [(at, waiter) for at, waiter in world.until()] == [(101.0, second)]
    assert (world.limiter._lines, world.limiter._due, world.limiter._queue.places) == ({}, [], 0)


def test_who_leaves_the_fair_queue_lets_the_next_of_his_line_in() -> None:
    world = World(rate=1.0, burst=1.0, user_rate=0.1, user_burst=1.0)
    world.permit("hog")
    first, second = world.waiter("ann"), world.waiter("ann")
    world.limiter.leave(first)
    assert world.until() == [(101.0, second)]


def test_a_permit_that_comes_back_lets_its_user_go_sooner() -> None:
    world = World(rate=None, user_rate=1.0)
    permit = world.permit()
    world.permit()
    waiter, other = world.waiter(), world.waiter()
    permit.give_back()
    assert world.stirred == 1
    assert world.limiter.turn() == [waiter]
    assert [(round(at, 4), each) for at, each in world.until()] == [(101.0, other)]
    permit = world.permit("ben")
    world.permit("ben")
    waiting = world.waiter("ann")
    permit.give_back()
    assert world.stirred == 2, "somebody waits, if only another user"
    assert world.limiter.turn() == []
    assert [(round(at, 4), each) for at, each in world.until()] == [(102.0, waiting)]


def test_a_user_whose_own_bucket_says_no_after_all_fills_the_tools_with_nothing() -> None:
    class Refusing(LeakyBucket):
        def take(self, cost: float, now: float) -> bool:
            return False

    tool = LeakyBucket(5.0, 1.0)
    limiter = RateLimiter(lambda: 100.0, bucket=tool, users=lambda user, now: Refusing(1.0, 1.0))
    assert isinstance(limiter.admit("ann", NEVER), Waiter)
    assert tool.empty_at == 100.0
    assert limiter.turn() == []
    assert limiter.next_at() == 100.0 + STEP_S
    limiter = RateLimiter(lambda: 100.0, users=lambda user, now: Refusing(1.0, 1.0))
    assert isinstance(limiter.admit("ann", NEVER), Waiter)
    assert limiter.next_at() == 100.0 + STEP_S
