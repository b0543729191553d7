"""The rate limiter with a bucket for each user: who waits for his own is in nobody's way, and no right to go is saved up
while waiting for the tool's."""

from __future__ import annotations

import itertools

import pytest

from dispatch._internal import Rejection
from dispatch.resilience.rate_limit import STEP_S, LeakyBucket, RateLimiter, RatePermit, UserBuckets, Waiter
from tests.helpers.rate_limiter_harness import NEVER, World


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
    assert world.users.get("ben", world.now).time_until_fits(2.0, world.now) == 0.0


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
    assert world.users.get("ann", world.now).try_add(1.0, world.now), "at another tool"
    assert [(round(at - 100, 3), waiter) for at, waiter in world.until()] == [
        (0.125, ben),
        (1.0, first),
        (2.0, second),
    ]
    assert world.limiter._user_queues == {}
    world = World(rate=8.0, burst=1.0, user_rate=1.0, user_burst=1.0)
    world.permit("hog")
    only = world.waiter("ann")
    assert world.users is not None
    assert world.users.get("ann", world.now).try_add(1.0, world.now)
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


def test_whoever_gives_up_is_told_when_his_own_bucket_has_room_for_all_that_wait() -> None:
    world = World(rate=8.0, user_rate=1.0, user_burst=1.0)
    world.permit()
    late, other = world.waiter(deadline=101.5), world.waiter()
    world.now = 101.0
    assert world.users is not None
    assert world.users.get("ann", world.now).try_add(1.0, world.now), "another tool's call was quicker"
    assert world.until(101.5) == [(101.5, late)]
    assert late.answer == Rejection("user-rate-limit", "too-late", 1.5), (
        "one at 102 goes to who still waits, the next at 103"
    )
    assert [(round(at, 3), waiter) for at, waiter in world.until()] == [(102.0, other)]


def test_whoever_has_been_served_lets_the_users_other_tools_go_first_by_two_steps() -> None:
    world = World(rate=None, user_rate=1.0, user_burst=1.0)
    world.permit()
    first = world.waiter()
    world.waiter()
    assert world.limiter.next_at() == 101.0
    world.now = 101.0
    assert world.limiter.admit_waiters() == [first]
    assert world.limiter.next_at() == pytest.approx(102.0 + 2 * STEP_S, abs=STEP_S / 10)


def test_users_buckets_are_asked_for_at_the_time_it_is() -> None:
    """Who has to make room for a newcomer must know how much the others owe by now."""
    now, asked = 100.0, []
    bucket = LeakyBucket(1.0, 1.0)

    def own(user: str, at: float) -> LeakyBucket:
        asked.append((user, at, now))
        return bucket

    limiter = RateLimiter(lambda: now, bucket=LeakyBucket(1.0, 8.0), users=own)
    assert isinstance(limiter.admit("ann", NEVER), RatePermit)
    waiter = limiter.admit("ann", 101.0 + STEP_S)
    assert isinstance(waiter, Waiter)
    now = 101.0
    assert bucket.try_add(1.0, now)
    assert limiter.admit_waiters() == []
    now = 101.0 + STEP_S
    assert limiter.admit_waiters() == [waiter]
    assert waiter.answer is not None
    waiter = limiter.admit("ann", NEVER)
    assert isinstance(waiter, Waiter)
    now = 103.0
    assert limiter.admit_waiters() == [waiter]
    assert isinstance(waiter.answer, RatePermit)
    assert len(asked) >= 8
    assert all(user == "ann" and at == clock for user, at, clock in asked)


def test_a_permit_that_was_waited_for_goes_back_to_its_user_too() -> None:
    world = World(rate=None, user_rate=1.0, user_burst=1.0)
    world.permit()
    first, second = world.waiter(), world.waiter()
    assert world.until(101.0) == [(101.0, first)]
    assert isinstance(first.answer, RatePermit)
    first.answer.give_back()
    assert world.limiter.admit_waiters() == [second]
    assert isinstance(second.answer, RatePermit)
    second.answer.give_back()
    world.permit()


def test_who_must_wait_for_his_own_bucket_pours_nothing_into_the_tools() -> None:
    class Watched(LeakyBucket):
        poured = 0

        def try_add(self, cost: float, now: float) -> bool:
            self.poured += 1
            return super().try_add(cost, now)

    tool = Watched(5.0, 8.0)
    limiter = RateLimiter(lambda: 100.0, bucket=tool, users=lambda user, now: LeakyBucket(1.0, 2.0, 100.5))
    assert isinstance(limiter.admit("ann", NEVER), Waiter)
    assert tool.poured == 0


def test_no_more_compete_for_the_tool_than_their_user_has_room_for() -> None:
    """Those of one user who stand in his line are ahead of nobody else."""
    world = World(rate=8.0, burst=4.0, user_rate=0.5, user_burst=3.0, ben=0.5)
    world.permit("hog", cost=3.0)
    assert world.bucket is not None
    assert world.bucket.try_add(1.0, 100.0)
    for _ in range(5):
        world.waiter("ann")
    assert world.refused("ben", cost=3.0, deadline=100.0).retry_after == (4 + 3 + 3 - 4) / 8


def test_who_has_gone_makes_room_for_as_many_as_he_cost_and_no_more() -> None:
    world = World(rate=8.0, burst=1.0, user_rate=0.5, user_burst=3.0, ben=0.125)
    world.permit("hog")
    placed = [world.waiter("ann") for _ in range(3)]
    assert world.until(100.125) == [(100.125, placed[0])]
    assert world.refused("ann", deadline=100.0).retry_after == 2.0, "his own bucket: one in it, two that wait"
    late = world.waiter("ann")
    assert world.refused("ben", deadline=100.0).retry_after == 3 / 8, "behind two of his; the third is not there yet"
    assert [(round(at, 3), waiter) for at, waiter in world.until()] == [
        (100.25, placed[1]),
        (100.375, placed[2]),
        (102.125, late),
    ]


def test_two_tools_of_one_user_take_turns_at_his_bucket() -> None:
    users = UserBuckets(lambda empty_at: LeakyBucket(1.0, 1.0, empty_at))
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
        order += [(number, round(now)) for _ in tools[number].admit_waiters()]
    assert [number for number, _ in order] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [at for _, at in order] == list(range(101, 109))


def test_who_leaves_a_users_line_lets_the_next_one_have_his_place() -> None:
    world = World(rate=None, user_rate=1.0, user_burst=2.0)
    world.permit(cost=2.0)
    first, second, third = world.waiter(cost=2.0), world.waiter(), world.waiter()
    world.limiter.leave(first)
    assert world.on_earlier == 1
    assert world.limiter.next_at() == pytest.approx(101.0)
    world.limiter.leave(third)
    assert [(at, waiter) for at, waiter in world.until()] == [(101.0, second)]
    assert (world.limiter._user_queues, world.limiter._due, world.limiter._queue.places) == ({}, [], 0)


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
    assert world.on_earlier == 1
    assert world.limiter.admit_waiters() == [waiter]
    assert [(round(at, 4), each) for at, each in world.until()] == [(101.0, other)]
    permit = world.permit("ben")
    world.permit("ben")
    waiting = world.waiter("ann")
    permit.give_back()
    assert world.on_earlier == 2, "somebody waits, if only another user"
    assert world.limiter.admit_waiters() == []
    assert [(round(at, 4), each) for at, each in world.until()] == [(102.0, waiting)]


def test_a_user_whose_own_bucket_says_no_after_all_fills_the_tools_with_nothing() -> None:
    class Refusing(LeakyBucket):
        def try_add(self, cost: float, now: float) -> bool:
            return False

    tool = LeakyBucket(5.0, 1.0)
    limiter = RateLimiter(lambda: 100.0, bucket=tool, users=lambda user, now: Refusing(1.0, 1.0))
    assert isinstance(limiter.admit("ann", NEVER), Waiter)
    assert tool.empty_at <= 100.0
    assert limiter.admit_waiters() == []
    assert limiter.next_at() == 100.0 + STEP_S
    limiter = RateLimiter(lambda: 100.0, users=lambda user, now: Refusing(1.0, 1.0))
    assert isinstance(limiter.admit("ann", NEVER), Waiter)
    assert limiter.next_at() == 100.0 + STEP_S


def test_who_refuses_is_the_one_whose_room_comes_last() -> None:
    world = World(8.0, 2.0, user_rate=1.0, user_burst=1.0, max_wait=0.5)
    world.permit("ann")
    assert world.refused("ann") == Rejection("user-rate-limit", "too-late", 1.0)
    world = World(1.0, 1.0, user_rate=8.0, user_burst=1.0, max_wait=0.5)
    world.permit("ann")
    assert world.refused("ann") == Rejection("rate-limit", "too-late", 1.0)
    world = World(1.0, 1.0, user_rate=1.0, user_burst=1.0, max_wait=0.5)
    world.permit("ann")
    assert world.refused("ann") == Rejection("rate-limit", "too-late", 1.0), "of both, the one that is everybody's"


def test_who_finds_the_line_full_is_told_whose_rate_it_stands_for() -> None:
    world = World(8.0, 2.0, user_rate=1.0, user_burst=1.0, queue=0)
    world.permit("ann")
    assert world.refused("ann") == Rejection("user-rate-limit", "queue-full", 1.0)


def test_what_just_fits_a_users_bucket_is_too_large_for_the_tools_alone() -> None:
    world = World(8.0, 1.0, user_rate=1.0, user_burst=2.0)
    assert world.refused("ann", cost=2.0) == Rejection("rate-limit", "too-large", None)
    assert world.refused("ann", cost=2.1) == Rejection("user-rate-limit", "too-large", None)
