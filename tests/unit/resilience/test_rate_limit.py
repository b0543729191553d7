"""The rate limiter, by behaviour: at once or a bounded fair wait or a refusal at once. Guards against waiters that leak a
permit when they are cancelled, hogs that starve the others, queues without bounds, and waits that are begun although they
will outlive their deadline.
The rate limiter with a bucket for each user: who waits for his own is in nobody's way, and no right to go is saved up
while waiting for the tool's.
"""

from __future__ import annotations

import itertools
import math

import pytest

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.rate_limit import (
    BY_USER,
    STEP_S,
    Bucket,
    LeakyBucket,
    RateLimiter,
    RatePermit,
    UserBuckets,
    Waiter,
)

NEVER = math.inf


class World:
    """A limiter with a clock that the test moves. Rates are calls a second; None: no such bucket."""

    def __init__(
        self,
        rate: float | None = 8.0,
        burst: float = 2.0,
        *,
        user_rate: float | None = None,
        user_burst: float = 2.0,
        queue: int = 100,
        max_wait: float = 100.0,
        **weights: float,
    ) -> None:
        self.now = 100.0
        self.on_earlier = 0
        self.bucket = None if rate is None else LeakyBucket(burst, rate)
        self.users: UserBuckets[LeakyBucket] | None = None
        if user_rate is not None:
            per_second = user_rate
            self.users = UserBuckets(lambda empty_at: LeakyBucket(user_burst, per_second, empty_at))
        self.limiter = RateLimiter(
            lambda: self.now,
            bucket=self.bucket,
            users=None if self.users is None else self.users.get,
            max_queue=queue,
            max_wait=max_wait,
            weights=weights,
            on_earlier=self.stir,
        )

    def stir(self) -> None:
        self.on_earlier += 1

    def admit(self, user: str = "ann", deadline: float = NEVER) -> RatePermit | Waiter | Rejection:
        return self.limiter.admit(user, deadline)

    def permit(self, user: str = "ann") -> RatePermit:
        answer = self.admit(user)
        assert isinstance(answer, RatePermit)
        return answer

    def fill(self, calls: int, user: str = "ann") -> None:
        for _ in range(calls):
            self.permit(user)

    def waiter(self, user: str = "ann", deadline: float = NEVER) -> Waiter:
        answer = self.admit(user, deadline)
        assert isinstance(answer, Waiter)
        assert (answer.answer, answer.tag) == (None, None)
        return answer

    def refused(self, user: str = "ann", deadline: float = NEVER) -> Rejection:
        answer = self.admit(user, deadline)
        assert isinstance(answer, Rejection)
        return answer

    def until(self, end: float = NEVER) -> list[tuple[float, Waiter]]:
        """Turn whenever it is due, up to ``end``; who was answered when."""
        answered = []
        while (at := self.limiter.next_at()) is not None and at <= end:
            assert at > self.now or self.limiter.next_at() == at
            self.now = max(self.now, at)
            answered += [(self.now, waiter) for waiter in self.limiter.admit_waiters()]
        self.now = max(self.now, end) if end is not NEVER else self.now
        return answered

    def times(self, end: float = NEVER) -> list[tuple[float, str]]:
        """When whose calls went, in seconds from the start and to the hundredth."""
        went = [(at, waiter) for at, waiter in self.until(end) if isinstance(waiter.answer, RatePermit)]
        return [(round(at - 100.0, 2), waiter.user) for at, waiter in went]

    def figures(self) -> tuple[int, int, int, int]:
        limiter = self.limiter
        return limiter.granted, limiter.returned, limiter.refused, limiter.waiting


@pytest.fixture
def world() -> World:
    return World()


def test_there_is_room_and_nobody_waits_so_it_goes_at_once(world: World) -> None:
    world.permit("ann")
    world.permit("ben")
    assert (world.figures(), world.limiter.next_at()) == ((2, 0, 0, 0), None)
    assert world.limiter.admit_waiters() == []


def test_without_room_it_waits_exactly_until_there_is(world: World) -> None:
    world.permit()
    world.permit()
    waiter = world.waiter()
    assert world.limiter.next_at() == 100.125
    world.now = 100.05
    assert world.limiter.admit_waiters() == []
    world.now = world.limiter.next_at() or 0
    assert world.limiter.admit_waiters() == [waiter]
    assert isinstance(waiter.answer, RatePermit)
    assert (world.figures(), world.limiter.next_at()) == ((3, 0, 0, 0), None)


def test_a_newcomer_does_not_overtake_who_waits_though_there_is_room(world: World) -> None:
    world.fill(2)
    first = world.waiter("ann")
    world.now = 100.15
    assert world.bucket.time_until_fits(1.0, world.now) == 0.0
    second = world.waiter("ann")
    assert [waiter for _, waiter in world.until()] == [first, second]


def test_a_hog_takes_turns_with_the_others() -> None:
    world = World(burst=1.0)
    world.permit("hog")
    for _ in range(5):
        world.waiter("hog")
    world.waiter("ann")
    world.waiter("ben")
    assert [user for _, user in world.times()] == ["hog", "ann", "ben", "hog", "hog", "hog", "hog"]


def test_weights_are_shares_of_the_rate() -> None:
    world = World(burst=1.0, ann=3.0)
    world.permit("ann")
    for _ in range(6):
        world.waiter("ann")
        world.waiter("ben")
    assert [user for _, user in world.times()][:8].count("ann") == 6


def test_a_wait_longer_than_allowed_is_refused_at_once_with_the_exact_time() -> None:
    world = World(max_wait=0.25)
    world.fill(2)
    world.waiter()
    world.waiter()
    assert (world.refused(), world.figures()) == (Rejection("rate-limit", "too-late", 0.375), (2, 0, 1, 2))


def test_those_ahead_in_fair_order_count_and_no_others() -> None:
    world = World(burst=1.0, max_wait=0.4)
    world.permit()
    for _ in range(3):
        world.waiter("hog")
    assert world.refused("hog") == Rejection("rate-limit", "too-late", 0.5)
    world.waiter("ann")
    assert world.refused("ben", deadline=100.0) == Rejection("rate-limit", "too-late", 0.375)


def test_a_wait_that_would_outlive_the_deadline_is_refused_at_once(world: World) -> None:
    world.fill(2)
    assert world.refused(deadline=100.124) == Rejection("rate-limit", "too-late", 0.125)
    assert world.refused(deadline=100.125).reason == "too-late", "an answer at the deadline is no use"
    assert world.refused(deadline=50.0).retry_after == 0.125
    waiter = world.waiter(deadline=math.nextafter(100.125, 200))
    assert world.until() == [(100.125, waiter)]
    assert isinstance(waiter.answer, RatePermit)


def test_the_longest_wait_itself_is_allowed() -> None:
    world = World(rate=1.0, burst=1.0, max_wait=1.0)
    world.permit()
    waiter = world.waiter()
    assert world.refused().retry_after == pytest.approx(2.0)
    world.until()
    assert isinstance(waiter.answer, RatePermit)


def test_the_retry_after_of_a_refusal_is_when_it_would_have_gone() -> None:
    world = World(max_wait=0.3)
    world.fill(2)
    for user in ("ann", "ann", "ben"):
        world.admit(user)
    after = world.refused("col", deadline=100.0).retry_after
    world.until(100.0 + after - 0.001)
    assert isinstance(world.admit("col", deadline=world.now), Rejection)
    world.now = 100.0 + after + 1e-9
    world.permit("col")


def test_the_queue_is_bounded_and_one_user_has_half_of_it() -> None:
    world = World(queue=4)
    world.fill(2)
    world.waiter("hog")
    world.waiter("hog")
    assert world.refused("hog") == Rejection("rate-limit", "queue-full", 0.375)
    world.waiter("ann")
    world.waiter("ben")
    assert world.refused("col").reason == "queue-full"
    assert world.limiter.waiting == 4
    world.until(100.125)
    world.waiter("col")


def test_a_second_and_128_calls_when_nothing_else_is_said() -> None:
    limiter = RateLimiter(lambda: 100.0, bucket=LeakyBucket(1.0, 100.0))
    answers = [limiter.admit(f"user{n}", NEVER) for n in range(102)]
    assert [type(answer) for answer in answers] == [RatePermit] + [Waiter] * 100 + [Rejection]
    limiter = RateLimiter(lambda: 100.0, bucket=LeakyBucket(1.0, 1000.0))
    for n in range(129):
        assert not isinstance(limiter.admit(f"user{n}", NEVER), Rejection)
    assert limiter.waiting == 128
    assert isinstance(limiter.admit("one more", NEVER), Rejection)


def test_no_queue_means_that_nobody_waits() -> None:
    world = World(queue=0)
    world.permit()
    world.permit()
    assert (world.refused(), world.figures()) == (Rejection("rate-limit", "queue-full", 0.125), (2, 0, 1, 0))


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.REJECTED])
def test_a_call_that_was_made_counts_however_it_ended(outcome: Outcome) -> None:
    world = World(burst=1.0)
    permit = world.permit()
    permit.finish(outcome, retry_after=5.0)
    permit.finish(Outcome.REJECTED)
    permit.give_back()
    assert world.figures() == (1, 0, 0, 0)
    assert isinstance(world.admit(deadline=100.0), Rejection)


def test_a_permit_of_a_call_that_was_never_made_goes_back_once() -> None:
    for number in range(2):
        world = World(user_rate=5.0)
        permit = world.permit()
        world.permit()
        if number:
            permit.give_back()
        else:
            permit.finish(Outcome.REJECTED, retry_after=3.0)
        assert world.figures() == (2, 1, 0, 0)
        permit.finish(Outcome.REJECTED)
        permit.give_back()
        permit.finish(Outcome.SUCCESS)
        assert world.figures() == (2, 1, 0, 0)
        world.permit()
        assert isinstance(world.admit(deadline=100.0), Rejection)
        assert world.on_earlier == 0


def test_every_permit_that_comes_back_is_counted() -> None:
    world = World(burst=3.0)
    for permit in [world.permit() for _ in range(3)]:
        permit.give_back()
    assert world.figures() == (3, 3, 0, 0)


def test_a_permit_that_comes_back_makes_room_for_one_call() -> None:
    world = World(burst=3.0)
    permit = world.permit()
    world.fill(2)
    permit.give_back()
    world.permit()
    assert world.refused(deadline=100.0).reason == "too-late"


def test_a_permit_that_comes_back_lets_those_who_wait_go_sooner(world: World) -> None:
    permit = world.permit()
    world.permit()
    waiter = world.waiter()
    permit.give_back()
    assert (world.on_earlier, world.limiter.next_at()) == (1, pytest.approx(100.0 + STEP_S))
    assert world.limiter.admit_waiters() == [waiter]


def test_who_leaves_leaves_nothing_and_those_behind_move_up(world: World) -> None:
    world.fill(2)
    first, second, third = world.waiter("ann"), world.waiter("ann"), world.waiter("ben")
    world.limiter.leave(first)
    assert (world.on_earlier, first.answer) == (1, Rejection("rate-limit", "left"))
    world.limiter.leave(first)
    assert (world.on_earlier, world.limiter.waiting) == (1, 2)
    assert [waiter for _, waiter in world.until(100.125)] == [second]
    world.limiter.leave(third)
    assert world.figures() == (3, 0, 0, 0)
    assert world.on_earlier == 1, "nobody is left to go sooner"
    assert world.limiter.next_at() is None
    world.now = 200.0
    world.fill(2)


def test_who_leaves_just_as_he_may_go_gives_the_permit_back(world: World) -> None:
    world.fill(2)
    waiter = world.waiter()
    world.until(100.125)
    assert isinstance(waiter.answer, RatePermit)
    world.limiter.leave(waiter)
    assert world.figures() == (3, 1, 0, 0)
    world.permit()


def test_who_leaves_after_a_refusal_changes_nothing() -> None:
    world = World(max_wait=1.0, rate=1.0, burst=1.0)
    world.permit()
    waiter = world.waiter("hog")
    world.limiter.refuse_all("closing")
    refusal = waiter.answer
    assert refusal == Rejection("rate-limit", "closing", None)
    world.limiter.leave(waiter)
    assert waiter.answer is refusal
    assert world.figures() == (1, 0, 1, 0)


def test_whoever_is_overtaken_for_too_long_is_refused_when_his_time_is_up() -> None:
    world = World(rate=1.0, burst=1.0, max_wait=2.0)
    world.permit("hog")
    world.waiter("hog")
    late = world.waiter("hog")
    newcomers = [world.waiter(user) for user in ("ann",)]
    assert [waiter.user for _, waiter in world.until(101.5)] == ["hog"]
    world.admit("ben")
    answered = world.until()
    assert isinstance(newcomers[0].answer, RatePermit)
    assert (late.answer.reason, late.answer.retry_after) == ("too-late", pytest.approx(1.0, abs=1e-4))
    when = next(at for at, waiter in answered if waiter is late)
    assert when == pytest.approx(102.0, abs=1e-4)
    assert when >= 102.0


def test_a_deadline_ends_a_wait_sooner_than_the_longest_one() -> None:
    world = World(rate=1.0, burst=1.0, max_wait=10.0)
    world.permit("hog")
    world.waiter("ann", deadline=101.5)
    late = world.waiter("hog", deadline=102.5)
    world.waiter("ben")
    world.until()
    assert isinstance(late.answer, RatePermit), "ties go to who came first"
    world = World(rate=1.0, burst=1.0, max_wait=10.0)
    world.permit("hog")
    world.waiter("hog")
    late = world.waiter("hog", deadline=102.5)
    world.waiter("ben")
    assert (102.5, late) in world.until()
    assert late.answer == Rejection("rate-limit", "too-late", 0.5), "ben went at 102, and 103 is too late"


def test_a_turn_that_comes_late_lets_go_who_can_still_use_it() -> None:
    for user_rate in (None, 8.0):
        world = World(max_wait=1.0, user_rate=user_rate)
        world.fill(2, "hog")
        long = world.waiter("ann")
        gone = world.waiter("ben", deadline=105.0)
        world.now = 105.0
        assert world.limiter.admit_waiters() == [long, gone]
        assert isinstance(long.answer, RatePermit)
        assert gone.answer == Rejection("rate-limit", "too-late", 0.0), "there was room, but no time"
        assert world.figures() == (3, 0, 1, 0)


def test_all_who_wait_can_be_refused_and_nothing_stays() -> None:
    world = World(user_rate=1.0)
    world.fill(2)
    waiters = [world.waiter("ann"), world.waiter("ben"), world.waiter("ben"), world.waiter("ann")]
    assert world.limiter.refuse_all("closing") == waiters
    assert {waiter.answer for waiter in waiters} == {Rejection("rate-limit", "closing")}
    assert (world.figures(), world.limiter.next_at()) == ((2, 0, 4, 0), None)
    assert (world.limiter._user_queues, world.limiter._due, world.limiter._queue.places) == ({}, [], 0)
    assert world.limiter.refuse_all("closing") == []


def test_a_rounding_that_keeps_the_head_back_costs_a_microsecond() -> None:
    class Fickle(LeakyBucket):
        noes = 0

        def try_add(self, cost: float, now: float) -> bool:
            self.noes -= 1
            return self.noes < 0 and super().try_add(cost, now)

    now = 100.0
    bucket = Fickle(1.0, 1.0)
    limiter = RateLimiter(lambda: now, bucket=bucket)
    bucket.noes = 2
    waiter = limiter.admit("ann", NEVER)
    assert isinstance(waiter, Waiter)
    assert limiter.next_at() == 100.0 + STEP_S
    now = 100.0 + STEP_S
    assert (limiter.admit_waiters(), limiter.next_at()) == ([], now + STEP_S)
    now += STEP_S
    assert limiter.admit_waiters() == [waiter]


def test_who_comes_too_late_keeps_nobody_behind_him_waiting(world: World) -> None:
    world.fill(2, "hog")
    gone, long = world.waiter("ann", deadline=105.0), world.waiter("ben")
    world.now = 105.0
    assert world.limiter.admit_waiters() == [gone, long]
    assert isinstance(long.answer, RatePermit)


def test_the_longest_wait_is_exact_to_a_step_and_a_waiter_gives_up_ten_steps_after_it() -> None:
    world = World(rate=4.0, burst=1.0, max_wait=0.25 - STEP_S)
    world.permit()
    assert world.waiter().give_up_at == pytest.approx(100.25 + 9 * STEP_S, abs=STEP_S / 10)
    assert world.refused() == Rejection("rate-limit", "too-late", 0.5)
    world = World(rate=4.0, burst=1.0, max_wait=0.25 - 2 * STEP_S)
    world.permit()
    assert world.refused() == Rejection("rate-limit", "too-late", 0.25)


def test_no_limit_at_all_lets_everything_through() -> None:
    World(rate=None).fill(1000)


def test_each_user_has_his_own_rate_and_nobody_elses() -> None:
    world = World(rate=None, user_rate=4.0)
    for user in ("ann", "ben"):
        world.permit(user)
        world.permit(user)
        world.waiter(user)
    assert world.refused("ann", deadline=100.0).retry_after == 0.5
    world.waiter("ann")
    world.permit("col")
    assert (world.times(), world.figures()) == ([(0.25, "ann"), (0.25, "ben"), (0.5, "ann")], (8, 0, 1, 0))


def test_who_waits_for_his_own_bucket_is_in_nobodys_way() -> None:
    world = World(rate=8.0, burst=4.0, user_rate=1.0)
    world.fill(2, "ann")
    world.waiter("ann")
    world.permit("ben")
    world.permit("ben")
    world.waiter("col")
    assert world.times() == [(0.12, "col"), (1.0, "ann")]


def test_a_user_keeps_the_order_of_his_own_calls() -> None:
    world = World(rate=None, user_rate=1.0)
    world.fill(2)
    first, second = world.waiter(), world.waiter()
    assert world.refused(deadline=100.0).retry_after == pytest.approx(3.0)
    assert [waiter for _, waiter in world.until()] == [first, second]


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
    assert world.users.get("ann", world.now).try_add(1.0, world.now), "at another tool"
    assert [(round(at - 100, 3), waiter) for at, waiter in world.until()] == [(0.125, ben), (1.0, first), (2.0, second)]
    assert world.limiter._user_queues == {}
    world = World(rate=8.0, burst=1.0, user_rate=1.0, user_burst=1.0)
    world.permit("hog")
    only = world.waiter("ann")
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
    assert world.users.get("ann", world.now).try_add(1.0, world.now), "another tool's call was quicker"
    assert world.until(101.5) == [(101.5, late)]
    # One at 102 goes to who still waits, the next at 103.
    assert late.answer == Rejection("user-rate-limit", "too-late", 1.5)
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
    world = World(rate=8.0, burst=4.0, user_rate=0.5, user_burst=3.0, ben=0.125)
    world.fill(3, "hog")
    assert world.bucket.try_add(1.0, 100.0)
    for _ in range(5):
        world.waiter("ann")
    assert world.refused("ben", deadline=100.0).retry_after == (4 + 3 + 1 - 4) / 8


def test_who_has_gone_makes_room_for_one_and_no_more() -> None:
    world = World(rate=8.0, burst=1.0, user_rate=0.5, user_burst=3.0, ben=0.125)
    world.permit("hog")
    placed = [world.waiter("ann") for _ in range(3)]
    assert world.until(100.125) == [(100.125, placed[0])]
    assert world.refused("ann", deadline=100.0).retry_after == 2.0, "his own bucket: one in it, two that wait"
    late = world.waiter("ann")
    assert world.refused("ben", deadline=100.0).retry_after == 3 / 8, "behind two of his; the third is not there yet"
    found = [(round(at, 3), waiter) for at, waiter in world.until()]
    assert found == [(100.25, placed[1]), (100.375, placed[2]), (102.125, late)]


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
    world.fill(2)
    first, second, third = world.waiter(), world.waiter(), world.waiter()
    world.limiter.leave(first)
    assert (world.on_earlier, world.limiter.next_at()) == (1, pytest.approx(101.0))
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
    assert (world.on_earlier, world.limiter.admit_waiters()) == (1, [waiter])
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
    assert (limiter.admit_waiters(), limiter.next_at()) == ([], 100.0 + STEP_S)
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


def test_a_limiter_of_another_kind_may_queue_a_call_for_another_wait() -> None:
    asked: list[tuple[float, str, str, Bucket | None]] = []

    class Hopeful(RateLimiter):
        def _adjust(self, estimate: float, by: str, user: str, own: Bucket | None) -> float:
            asked.append((estimate, by, user, own))
            return 0.5

    own = LeakyBucket(1.0, 0.1)
    limiter = Hopeful(lambda: 100.0, bucket=LeakyBucket(1.0, 0.2), users=lambda user, now: own, max_wait=0.5)
    assert isinstance(limiter.admit("ann", NEVER), RatePermit)
    assert limiter.admit("ann", 100.5) == Rejection(BY_USER, "too-late", 10.0)
    assert isinstance(limiter.admit("ann", NEVER), Waiter)
    assert asked == [(10.0, BY_USER, "ann", own)] * 2
