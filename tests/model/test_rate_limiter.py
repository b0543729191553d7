"""The rate limiter against a list of what went: any order of calls, turns, leaving and giving back.

Guards against waiters that leak a permit or steal another's, wake-ups that get lost, queues without bounds, and waits that
go on past their time. The model is the rule itself (in no time more than burst and rate), not a second limiter.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.resilience.rate_limit import STEP_S, LeakyBucket, RateLimiter, RatePermit, UserBuckets, Waiter
from tests.helpers.run_profile import examples
from tests.helpers.state_machine_settings import machine

MAX_WAIT = 2.0
QUEUE = 6
USERS = "abc"


class Went:
    """A call that went: whose, and when."""

    def __init__(self, user: str, at: float, permit: RatePermit) -> None:
        self.user, self.at, self.permit = user, at, permit


class Machine(RuleBasedStateMachine):
    @initialize(
        rate=st.sampled_from([None, (4.0, 1.0), (8.0, 4.0)]),
        user_rate=st.sampled_from([None, (1.0, 2.0), (4.0, 1.0)]),
        remembered=st.sampled_from([2, 10]),
    )
    def begin(self, rate: tuple[float, float] | None, user_rate: tuple[float, float] | None, remembered: int) -> None:
        self.now = 100.0
        self.rate, self.user_rate = rate, user_rate
        self.on_earlier = False
        self.due: float | None = None
        users = None
        if user_rate is not None:
            each, most = user_rate
            users = UserBuckets(lambda empty_at: LeakyBucket(most, each, empty_at), remembered)
        self.users = users
        self.limiter = RateLimiter(
            lambda: self.now,
            bucket=None if rate is None else LeakyBucket(rate[1], rate[0]),
            users=None if users is None else users.get,
            max_queue=QUEUE,
            max_wait=MAX_WAIT,
            weights={"c": 2.0},
            on_earlier=self.stir,
        )
        self.went: list[Went] = []
        self.waiting: dict[Waiter, float] = {}
        self.granted = self.returned = self.refused = 0

    def stir(self) -> None:
        self.on_earlier = True

    def settle(self) -> None:
        """What the owner of the limiter does after every step: turn if told to, and look when to turn next."""
        if self.on_earlier:
            self.on_earlier = False
            self.admit_waiters()
        self.due = self.limiter.next_at()

    def admit_waiters(self, *, late: bool = False) -> None:
        order: dict[str, int] = {}
        for waiter in self.limiter.admit_waiters():
            began = self.waiting.pop(waiter)
            if isinstance(waiter.answer, RatePermit):
                number = list(self.numbers).index(waiter)
                assert number > order.get(waiter.user, -1), "a user's calls keep their order"
                order[waiter.user] = number
                earlier = [each for each in self.waiting if each.user == waiter.user and self.numbers[each] < number]
                assert not earlier
                self.record(waiter.user, waiter.answer)
                assert self.now < waiter.deadline
                assert late or self.now - began <= MAX_WAIT + 20 * STEP_S
            else:
                assert isinstance(waiter.answer, Rejection)
                assert waiter.answer.reason == "too-late"
                assert self.now >= waiter.give_up_at
                self.refused += 1

    def record(self, user: str, permit: RatePermit) -> None:
        self.granted += 1
        self.went.append(Went(user, self.now, permit))

    numbers: dict[Waiter, int]

    @initialize()
    def no_numbers(self) -> None:
        self.numbers = {}

    @rule(user=st.sampled_from(USERS), time_left=st.sampled_from([10.0, 10.0, 0.3, 0.0]))
    def call(self, user: str, time_left: float) -> None:
        mine = sum(waiter.user == user for waiter in self.waiting)
        room = mine < QUEUE - len(self.waiting)
        answer = self.limiter.admit(user, self.now + time_left)
        if isinstance(answer, RatePermit):
            assert mine == 0
            self.record(user, answer)
        elif isinstance(answer, Waiter):
            assert room
            assert time_left
            self.numbers[answer] = len(self.numbers)
            self.waiting[answer] = self.now
        else:
            self.refused += 1
            if answer.reason == "queue-full":
                assert not room
            else:
                assert answer.reason == "too-late"
                assert answer.retry_after is not None
                assert answer.retry_after > MAX_WAIT or answer.retry_after >= time_left
        self.settle()

    @rule(seconds=st.sampled_from([0.01, 0.125, 0.25, 1.0, 5.0]))
    def time_passes(self, seconds: float) -> None:
        """Every turn that is due is made when it is."""
        end = self.now + seconds
        turns = 0
        while self.due is not None and self.due <= end:
            self.now = max(self.now, self.due)
            self.admit_waiters()
            self.settle()
            turns += 1
            assert turns < 500, "it turns and turns and nothing happens"
        self.now = end

    @rule(seconds=st.sampled_from([0.3, 3.0]))
    def a_turn_comes_late(self, seconds: float) -> None:
        self.now += seconds
        self.admit_waiters(late=True)
        self.settle()

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 100))
    def leave(self, which: int) -> None:
        waiter = list(self.waiting)[which % len(self.waiting)]
        del self.waiting[waiter]
        self.limiter.leave(waiter)
        self.settle()

    @precondition(lambda self: self.went)
    @rule(which=st.integers(0, 100), how=st.sampled_from(["rejected", "back", "made"]))
    def finish(self, which: int, how: str) -> None:
        call = self.went[which % len(self.went)]
        if how == "made":
            call.permit.finish(Outcome.SUCCESS)
            call.permit.finish(Outcome.REJECTED)
        else:
            self.went.remove(call)
            live = call.permit._limiter is not None
            call.permit.finish(Outcome.REJECTED) if how == "rejected" else call.permit.give_back()
            call.permit.give_back()
            if live:
                self.returned += 1
            else:
                self.went.append(call)
        self.settle()

    @rule()
    def everybody_is_refused(self) -> None:
        refused = self.limiter.refuse_all("closing")
        assert set(refused) == set(self.waiting)
        self.refused += len(refused)
        self.waiting.clear()
        self.settle()

    @invariant()
    def every_call_is_somewhere_exactly_once(self) -> None:
        limiter = self.limiter
        figures = (limiter.granted, limiter.returned, limiter.refused, limiter.waiting)
        assert figures == (self.granted, self.returned, self.refused, len(self.waiting))
        assert self.granted - self.returned == len(self.went)

    @invariant()
    def nothing_is_left_of_those_who_are_gone(self) -> None:
        limiter = self.limiter
        assert limiter._queue.places == len(self.waiting) <= QUEUE
        users = {waiter.user for waiter in self.waiting}
        assert set(limiter._queue._flows) == users
        assert set(limiter._user_queues) == (users if self.users is not None else set())
        for user, line in limiter._user_queues.items():
            assert (line.due is None) == (not line.waiters)
            assert line.placed + len(line.waiters) == sum(waiter.user == user for waiter in self.waiting)
        assert len(limiter._due) == sum(line.due is not None for line in limiter._user_queues.values())
        assert self.users is None or len(self.users) <= 10

    @invariant()
    def somebody_who_waits_will_be_looked_at(self) -> None:
        assert (self.due is None) == (not self.waiting)
        if self.due is not None:
            assert self.due <= min(waiter.give_up_at for waiter in self.waiting)

    @invariant()
    def no_time_saw_more_than_burst_and_rate(self) -> None:
        if self.rate is not None:
            check(self.went, *self.rate, self.now)
        if self.user_rate is not None:
            for user in USERS:
                check([call for call in self.went if call.user == user], *self.user_rate, self.now)


def check(went: list[Went], rate: float, burst: float, now: float) -> None:
    recent = sorted((call for call in went if call.at > now - 20), key=lambda call: call.at)
    for first, begin in enumerate(recent):
        for total, call in enumerate(recent[first:], 1):
            assert total <= burst + rate * (call.at - begin.at) + 1e-6


TestMachine = pytest.mark.costly(Machine.TestCase)
TestMachine.settings = machine(30, 30)


@given(st.lists(st.sampled_from(USERS), max_size=24), st.sampled_from("abcd"))
@hypothesis_settings(max_examples=examples(80))
def test_the_time_that_a_refusal_names_is_exact(calls: list[str], user: str) -> None:
    """Coming back then is soon enough, and a moment sooner is not: others wait for their whole deadline, or guess."""
    now = 100.0
    limiter = RateLimiter(
        lambda: now, bucket=LeakyBucket(2.0, 4.0), max_queue=1000, max_wait=1000.0, weights={"b": 2.0}
    )
    for each in calls:
        limiter.admit(each, 1e9)
    first = limiter.admit(user, now)
    if isinstance(first, RatePermit):
        return
    assert isinstance(first, Rejection)
    assert first.retry_after is not None
    stayed = limiter.admit(user, 1e9)
    assert isinstance(stayed, Waiter)
    while stayed.answer is None:
        due = limiter.next_at()
        assert due is not None
        now = due
        limiter.admit_waiters()
    assert abs(now - (100.0 + first.retry_after)) <= 1e-4
