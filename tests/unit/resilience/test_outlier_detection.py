"""Which instances are well, as outcomes tell: runs of failures, pauses, slow start.

Guards against rules that eject nobody in a small cluster, against results from before an ejection that change what is after
it, and against cancelled calls that count as failures.
Ejection of instances that are much slower than their peers, and of no others.
Outliers by success rate.

Guards against percentage rules that eject nobody in a small cluster, against deviations that several bad instances hide in,
and against a bad past that outweighs a good present.
Two drawn at random, never the same twice.

Guards against drawing with replacement, which takes the busier of two instances once in four times.
How long an instance takes, as strategies learn it.

Guards against the black hole: an instance that fails at once looks like the fastest of all and gets every call.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from math import log

import pytest

from dispatch.errors import Outcome
from dispatch.policy import Balancing
from dispatch.resilience.balancer import Balancer, Pick
from dispatch.resilience.instances import (
    LEAST_S,
    MOST_OTHERS,
    NEVER,
    PROBE_GAIN,
    PROBE_LOAD,
    PROBE_S,
    EjectionRules,
    InstanceState,
    Learning,
    draw_two,
    outliers,
)
from tests.helpers.balancers import START, Stand, in_turn, states

FAILURES = [Outcome.TIMEOUT, Outcome.TRANSPORT]
ANSWERS = [Outcome.SUCCESS, Outcome.TOOL_ERROR, Outcome.INVALID_ARGUMENTS]
NOTHING = [Outcome.CANCELLED, Outcome.REJECTED, Outcome.THROTTLED]


@pytest.fixture
def stand() -> Stand:
    return Stand("ab")


@pytest.mark.parametrize("outcome", FAILURES)
def test_five_failures_in_a_row_eject(outcome: Outcome, stand: Stand) -> None:
    stand.end("a", outcome, 4)
    assert stand.state("a").ejected_until is None
    assert "a" in stand.picks(2)
    stand.end("a", outcome, 4)
    stand.end("a", outcome)
    assert stand.state("a").ejected_until == START + 30
    assert stand.changes == [("a", "ejected", "failures")]
    assert stand.picks(6) == "bbbbbb"


@pytest.mark.parametrize("outcome", ANSWERS)
def test_an_answer_ends_the_row(outcome: Outcome, stand: Stand) -> None:
    for _ in range(3):
        stand.end("a", Outcome.TIMEOUT, 4)
        stand.end("a", outcome)
    assert (stand.changes, stand.state("a").failures) == ([], 0)
    assert (stand.state("a").good, stand.state("a").bad) == (3, 12)


@pytest.mark.parametrize("outcome", NOTHING)
def test_what_says_nothing_of_the_instance_neither_fails_nor_ends_the_row(outcome: Outcome, stand: Stand) -> None:
    stand.end("a", Outcome.TIMEOUT, 4)
    stand.end("a", outcome, 50)
    assert (stand.state("a").failures, stand.state("a").bad, stand.state("a").good) == (4, 4, 0)
    assert stand.changes == []
    stand.end("a", Outcome.TIMEOUT)
    assert stand.changes == [("a", "ejected", "failures")]


def test_five_in_a_row_that_were_outpaced_eject(stand: Stand) -> None:
    stand.end("a", Outcome.CANCELLED, 4, outpaced=True)
    stand.end("a", Outcome.SUCCESS)
    stand.end("a", Outcome.CANCELLED, 2, outpaced=True)
    stand.end("a", Outcome.TIMEOUT, 2)
    assert stand.changes == []
    stand.end("a", Outcome.CANCELLED, outpaced=True)
    assert stand.changes == [("a", "ejected", "failures")]


def test_success_rates_leave_out_what_was_outpaced() -> None:
    stand = Stand("ab", consecutive_failures=None)
    stand.end("a", Outcome.CANCELLED, 500, outpaced=True)
    assert (stand.state("a").good, stand.state("a").bad) == (0, 0)
    assert stand.changes == []


def test_what_was_outpaced_in_an_earlier_epoch_says_nothing(stand: Stand) -> None:
    pick = stand.balancer.pick_instance("a")
    assert isinstance(pick, Pick)
    stand.eject("a")
    stand.wait(30)
    stand.pick()
    pick.finish(Outcome.CANCELLED, outpaced=True)
    assert stand.state("a").ejected_until is None
    assert stand.balancer.stale == 1


def test_a_tools_own_error_is_a_failure_only_if_the_settings_say_so() -> None:
    stand = Stand("ab", count_tool_errors=True)
    stand.end("a", Outcome.TOOL_ERROR, 5)
    assert stand.changes == [("a", "ejected", "failures")]


def test_the_row_can_be_left_out() -> None:
    stand = Stand("ab", consecutive_failures=None)
    stand.end("a", Outcome.TIMEOUT, 500)
    assert stand.changes == []


def test_an_ejection_ends_on_time(stand: Stand) -> None:
    stand.eject("a")
    stand.wait(29.999)
    assert stand.picks(4) == "bbbb"
    stand.wait(0.001)
    assert sorted(stand.picks(4)) == ["a", "a", "b", "b"]
    assert stand.changes[1:] == [("a", "returned", "over")]
    assert stand.state("a").well_since == START + 30


def test_who_comes_back_is_on_probation_until_it_answers(stand: Stand) -> None:
    stand.eject("a")
    stand.wait(30)
    stand.pick()
    assert stand.state("a").failures == 4, "one fewer than eject"
    stand.end("a")
    assert stand.state("a").ejected_until == stand.clock.now + 60
    stand.wait(60)
    stand.pick()
    stand.end("a", Outcome.SUCCESS)
    stand.end("a", Outcome.TIMEOUT, 4)
    assert stand.state("a").ejected_until is None


def test_without_the_row_there_is_no_probation() -> None:
    stand = Stand("ab", consecutive_failures=None, success_rate_min_calls=10)
    stand.end("a", Outcome.TIMEOUT, 10)
    stand.end("b", Outcome.SUCCESS, 10)
    stand.wait(10)
    stand.picks(1)
    stand.wait(30)
    assert stand.kinds() == {"a": "up", "b": "up"}
    assert stand.changes == [("a", "ejected", "success-rate"), ("a", "returned", "over")]
    assert stand.state("a").failures == 0


def test_each_ejection_is_longer_up_to_the_longest_and_more_are_not_remembered() -> None:
    stand = Stand("ab", base_ejection_time=30, max_ejection_time=100)
    lasted = []
    for _ in range(6):
        stand.end("a", Outcome.TIMEOUT, 5)
        until = stand.state("a").ejected_until
        lasted.append(until - stand.clock.now)
        stand.clock.now = until
        stand.pick()
    assert lasted == [30, 60, 90, 100, 100, 100]
    assert (stand.state("a").times, stand.state("a").ejections) == (4, 6)


def test_time_without_ejection_makes_the_next_one_shorter() -> None:
    stand = Stand("ab", base_ejection_time=30, max_ejection_time=100, interval=10)
    stand.eject("a")
    for well, lasts in ((0, 60), (9.99, 90), (10, 90), (20, 60), (1000, 30)):
        stand.clock.now = stand.state("a").ejected_until
        stand.pick()
        stand.wait(well)
        stand.end("a")
        assert stand.state("a").ejected_until == stand.clock.now + lasts, well


@pytest.mark.parametrize(
    ("count", "share", "allowed"),
    [
        *[(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (8, 0.5, 4), (9, 0.5, 4), (100, 0.29, 29)],
        *[(1, 1.0, 1), (2, 0.1, 0), (3, 0.1, 1), (20, 0.1, 2), (2, 0.49, 0)],
    ],
)
def test_no_more_are_ejected_than_may_be_and_one_always_may_if_two_stay(count: int, share: float, allowed: int) -> None:
    names = [f"i{number}" for number in range(count)]
    stand = Stand(names, max_ejection_ratio=share)
    for name in names:
        stand.end(name, Outcome.TIMEOUT, 7)
    assert [change[1] for change in stand.changes] == ["ejected"] * allowed
    assert stand.balancer._detector.ejected == allowed


def test_when_one_comes_back_another_that_still_fails_goes_at_once() -> None:
    stand = Stand("ab", panic_threshold=0)
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 9)
    stand.wait(30)
    stand.pick()
    stand.end("b", Outcome.TIMEOUT)
    assert stand.changes[-1] == ("b", "ejected", "failures")


def test_what_was_picked_before_an_ejection_says_nothing_during_and_after_it(stand: Stand) -> None:
    early = [pick for pick in (stand.pick() for _ in range(24)) if pick.instance == "a"]
    stand.eject("a")
    early.pop().finish(Outcome.SUCCESS)
    early.pop().finish(Outcome.TIMEOUT)
    assert stand.state("a").ejected_until is not None
    stand.wait(30)
    stand.picks(2)
    stand.end("a", Outcome.SUCCESS)
    for pick in early:
        pick.finish(Outcome.TIMEOUT)
    assert (stand.state("a").ejected_until, stand.state("a").failures) == (None, 0)
    assert stand.balancer.stale == 12
    assert stand.state("a").in_flight == 0


def test_one_that_is_ejected_and_answers_all_the_same_is_back(stand: Stand) -> None:
    stand.eject("a")
    stand.end("a", Outcome.TIMEOUT, 3)
    stand.end("a", Outcome.CANCELLED, 3)
    assert len(stand.changes) == 1
    stand.end("a", Outcome.SUCCESS)
    assert stand.changes[1:] == [("a", "returned", "answered")]
    assert stand.state("a").failures == 0
    assert "a" in stand.picks(2)


def test_a_timeout_of_a_call_that_is_older_than_the_last_answer_is_none_of_the_row(stand: Stand) -> None:
    waiting = [stand.balancer.pick_instance("a") for _ in range(8)]
    stand.end("a", Outcome.SUCCESS)
    for each in waiting:
        each.finish(Outcome.TIMEOUT)
    assert (stand.state("a").failures, stand.state("a").bad) == (0, 8)
    stand.end("a", Outcome.TIMEOUT, 5)
    assert stand.changes == [("a", "ejected", "failures")]


def busy(stand: Stand, id: str, count: int = PROBE_LOAD) -> list[Pick]:
    picks = [stand.balancer.pick_instance(id) for _ in range(count)]
    return [each for each in picks if isinstance(each, Pick)]


def test_an_idle_ejected_instance_is_probed_while_the_others_are_busy() -> None:
    stand = Stand("ab", warm=False)
    stand.eject("a")
    busy(stand, "b", PROBE_LOAD - 1)
    stand.wait(PROBE_S)
    assert stand.pick().instance == "b", "the other one is not busy"
    stand.wait(PROBE_S)
    probe = stand.pick()
    assert (probe.instance, probe.is_probe, probe.panic) == ("a", True, False)
    assert {stand.pick().instance for _ in range(9)} == {"b"}
    stand.wait(PROBE_S)
    assert stand.pick().instance == "b", "the first probe has not ended"
    probe.finish(Outcome.SUCCESS, slowness=-log(PROBE_GAIN) + 0.01)
    assert stand.kinds()["a"] == "ejected", "it is no faster than the others"
    stand.wait(PROBE_S)
    probe = stand.pick()
    assert probe.is_probe
    probe.finish(Outcome.SUCCESS, slowness=-log(PROBE_GAIN))
    assert stand.changes[1:] == [("a", "returned", "answered")]
    assert stand.state("a").level == stand.state("b").level, "with its full share"
    assert stand.state("a").failures == 0, "and without probation"
    assert stand.state("a").times == 0
    stand.eject("a")
    assert stand.state("a").ejected_until == stand.clock.now + 30, "the wrong ejection makes the next one no longer"


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.CANCELLED, Outcome.REJECTED])
def test_a_probe_that_fails_is_the_last(outcome: Outcome, stand: Stand) -> None:
    stand.eject("a")
    busy(stand, "b")
    stand.wait(PROBE_S)
    stand.pick().finish(outcome)
    for _ in range(20):
        stand.wait(PROBE_S)
        assert stand.pick().instance == "b"
    assert len(stand.changes) == 1


def test_what_failed_at_once_and_what_an_operator_ejected_is_not_probed() -> None:
    stand = Stand("abcd")
    stand.end("a", Outcome.TRANSPORT, 5)
    stand.balancer.hold("b")
    for id in "cd":
        busy(stand, id)
    for _ in range(20):
        stand.wait(PROBE_S)
        assert stand.pick().instance in "cd"


def test_an_ejection_clears_the_counts(stand: Stand) -> None:
    stand.eject("a")
    assert (stand.state("a").good, stand.state("a").bad) == (0, 0)


# Throttled
@pytest.mark.parametrize(("retry_after", "lasts"), [(None, 1.0), (2.5, 2.5), (1e9, 300), (math.inf, 300)])
def test_a_throttled_instance_gets_less_work_for_as_long_as_it_asked(retry_after: float | None, lasts: float) -> None:
    stand = Stand("ab")
    stand.end("a", Outcome.THROTTLED, retry_after=retry_after)
    stand.wait(lasts - 0.001)
    assert stand.picks(3) == "bbb"
    stand.wait(0.001)
    assert "a" in stand.picks(2)


@pytest.mark.parametrize("retry_after", [0, -1, math.nan])
def test_a_pause_of_no_time_is_none(retry_after: float, stand: Stand) -> None:
    stand.end("a", Outcome.THROTTLED, retry_after=retry_after)
    assert "a" in stand.picks(2)


def test_a_shorter_pause_does_not_end_a_longer_one(stand: Stand) -> None:
    stand.end("a", Outcome.THROTTLED, retry_after=10)
    stand.end("a", Outcome.THROTTLED, retry_after=1)
    stand.wait(9)
    assert stand.picks(3) == "bbb"


def test_when_all_are_throttled_all_are_used(stand: Stand) -> None:
    for name in "ab":
        stand.end(name, Outcome.THROTTLED, retry_after=10)
    assert sorted(stand.picks(4)) == ["a", "a", "b", "b"]
    assert not stand.pick().panic


# Slow start
def levels(stand: Stand, id: str, *moments: float) -> list[float]:
    found = []
    for moment in moments:
        stand.clock.now = START + moment
        stand.balancer.instances()
        found.append(stand.state(id).level)
    return found


def test_the_share_of_a_new_instance_grows_in_steps() -> None:
    stand = Stand("ab", warm=False, slow_start_window=20)
    moments = (0, 2.99, 3, 3.99, 4, 10, 19.9, 20, 1000)
    assert levels(stand, "a", *moments) == [0.1, 0.1, 0.15, 0.15, 0.2, 0.5, 0.95, 1.0, 1.0]


def test_a_slow_start_can_begin_higher_or_be_left_out() -> None:
    found = levels(Stand("ab", warm=False, slow_start_window=20, slow_start_from=0.5), "a", 0, 10, 11)
    assert found == [0.5, 0.5, 0.55]
    assert levels(Stand("ab", warm=False, slow_start_window=None), "a", 0) == [1.0]


def test_who_comes_back_starts_slowly() -> None:
    stand = Stand("ab", warm=False, slow_start_window=20)
    stand.wait(100)
    stand.eject("a")
    assert levels(stand, "a", 130, 135) == [0.1, 0.25]
    assert stand.kinds() == {"a": "warming", "b": "up"}


def test_who_comes_back_has_no_turns_saved_up_and_no_suspicion_left() -> None:
    stand = Stand("ab", warm=False)
    state = stand.state("a")
    stand.eject("a")
    assert not state.sick
    state.sick, state.credit = True, 2.0
    stand.wait(30)
    stand.balancer.instances()
    assert (stand.kinds()["a"], state.sick, state.credit) == ("warming", False, 0.0)
    state.sick, state.credit = True, 2.0
    stand.balancer.remove("a")
    stand.balancer.add("a")
    assert (stand.state("a"), state.sick, state.credit) == (state, False, 0.0)


def test_when_the_service_is_well_again_the_ejected_return_at_once_and_on_probation() -> None:
    """Against a fault that all instances had: half of them would stay ejected, and the others could not carry the load."""
    stand = Stand("abcd", warm=False, slow_start_window=30)
    stand.wait(100)
    stand.eject("a")
    stand.eject("b")
    stand.balancer.end_ejections()
    assert stand.changes[2:] == [("a", "returned", "service-recovered"), ("b", "returned", "service-recovered")]
    assert stand.kinds() == dict.fromkeys("abcd", "up"), "no slow start: it was no fault of theirs"
    assert stand.picks(8) == "abcdabcd"
    stand.end("a", Outcome.TIMEOUT, 5)
    assert stand.state("a").ejected_until == stand.clock.now + 30, "and no longer than the first time"
    before = list(stand.changes)
    stand.wait(30)
    assert stand.kinds()["a"] == "warming"
    stand.balancer.end_ejections()
    assert stand.changes == [*before, ("a", "returned", "over")], "who is not ejected needs no pardon"
    assert stand.kinds()["a"] == "up", "but no slow start either"
    stand.balancer.add("e")
    stand.balancer.end_ejections()
    assert stand.kinds()["e"] == "warming", "who is new is"


def test_of_several_ejections_the_last_is_forgotten_when_the_service_is_well_again(stand: Stand) -> None:
    stand.eject("a")
    stand.wait(30)
    stand.pick()
    stand.end("a")
    stand.balancer.end_ejections()
    stand.end("a")
    assert stand.state("a").ejected_until == stand.clock.now + 60, "as the second time, not the third"


def test_an_instance_that_an_operator_has_ejected_stays_so_when_the_service_is_well_again(stand: Stand) -> None:
    stand.eject("a")
    stand.balancer.hold("a")
    stand.balancer.end_ejections()
    assert stand.changes == [("a", "ejected", "failures")]
    assert stand.kinds() == {"a": "ejected", "b": "up"}


NAMES = ("a", "b", "c", "d")
Duration = Callable[[str, random.Random], float]


class Fleet:
    """Calls at ``rate`` a second in turn over the instances, in virtual time; ``duration`` returns seconds."""

    def __init__(self, duration: Duration, *, rate: float, names: tuple[str, ...] = NAMES, seed: int = 0) -> None:
        self.now = 0.0
        self.changes: list[tuple[float, str, str, str]] = []
        self.picks: list[tuple[float, str]] = []
        self._duration = duration
        self._rate = rate
        self._chance = random.Random(seed)
        self._running: list[tuple[float, int, Pick]] = []
        self.balancer = Balancer(
            names,
            balancing=Balancing(),
            outlier_detection=EjectionRules(),
            clock=lambda: self.now,
            randomness=self._chance.random,
            listener=lambda *change: self.changes.append((self.now, *change)),
        )

    def run(self, seconds: float) -> None:
        end, number = self.now + seconds, 0
        while self.now < end:
            self.now += self._chance.expovariate(self._rate)
            while self._running and self._running[0][0] <= self.now:
                at, _, pick = heapq.heappop(self._running)
                pick.finish(Outcome.SUCCESS, slowness=log(at - pick.started))
            pick = self.balancer.pick()
            number += 1
            self.picks.append((self.now, pick.instance))
            heapq.heappush(self._running, (self.now + self._duration(pick.instance, self._chance), number, pick))

    @property
    def ejected(self) -> list[str]:
        return [name for _, name, change, why in self.changes if change == "ejected" and why == "latency"]


@pytest.mark.parametrize("seed", range(5))
def test_overload_keeps_no_instance_ejected(seed: int, stand: Stand) -> None:
    """Two instances of four places; the caller has 128 calls in flight, and each end of one begins the next, so that each
    instance has a queue. The second one answers nothing for four seconds."""
    chance = random.Random(seed)
    free, queues = {"a": [0.0] * 4, "b": [0.0] * 4}, {"a": 0.0, "b": 4.0}
    ends: list[tuple[float, int, Pick]] = []
    served: Counter[str] = Counter()
    usual, number = log(0.1), 0

    def begin() -> None:
        nonlocal number
        number += 1
        pick, now = stand.pick(), stand.clock.now - START
        places = free[pick.instance]
        at = max(now, places[0], queues[pick.instance]) + 0.1 * chance.uniform(0.9, 1.1)
        heapq.heapreplace(places, at)
        heapq.heappush(ends, (at, number, pick))

    for _ in range(128):
        begin()
    while stand.clock.now < START + 60:
        at, _, pick = heapq.heappop(ends)
        stand.clock.now = START + at
        took = at - (pick.started - START)
        if took > 3.5:  # its attempt ended before
            pick.finish(Outcome.TIMEOUT)
        else:
            pick.finish(Outcome.SUCCESS, slowness=log(took) - usual)
            usual += (log(took) - usual) / 100
        served[pick.instance] += at > 10
        begin()
    assert [change for change in stand.changes if change[1] == "ejected"], "the fault was none"
    assert min(served.values()) > 0.9 * 50 * 40, (served, stand.changes)


@pytest.mark.parametrize("usual", [0.005, 0.1])
@pytest.mark.parametrize("names", [NAMES[:2], NAMES])
def test_an_instance_of_twenty_times_the_latency_is_spared_within_five_seconds(
    usual: float, names: tuple[str, ...]
) -> None:
    def duration(name: str, chance: random.Random) -> float:
        return usual * chance.lognormvariate(0.0, 0.5) * (20.0 if name == "b" else 1.0)

    fleet = Fleet(duration, rate=500.0, names=names)
    fleet.run(60)
    assert set(fleet.ejected) == {"b"}
    assert fleet.changes[0][0] < 5.0
    later = Counter(name for at, name in fleet.picks if at >= 5.0)
    assert later["b"] <= 0.02 * later.total()


@pytest.mark.costly
@pytest.mark.parametrize("seed", range(10))
def test_mixed_tools_and_payloads_spare_no_instance(seed: int) -> None:
    """Durations over four orders of magnitude, from two tools and payloads of any size: no comparison by tool."""

    def duration(_name: str, chance: random.Random) -> float:
        tool = 0.005 if chance.random() < 0.9 else 5.0
        return tool * chance.lognormvariate(0.0, 0.5) * min(100.0, chance.paretovariate(1.2))

    fleet = Fleet(duration, rate=100.0, seed=seed)
    fleet.run(300)
    assert fleet.ejected == []


def test_machines_that_differ_by_a_factor_of_two_are_all_used() -> None:
    def duration(name: str, chance: random.Random) -> float:
        return 0.02 * chance.lognormvariate(0.0, 0.3) * (2.0 if name == "b" else 1.0)

    fleet = Fleet(duration, rate=200.0)
    fleet.run(120)
    assert fleet.ejected == []


def test_a_fleet_that_becomes_slow_as_a_whole_keeps_all_instances() -> None:
    fleet = Fleet(lambda _name, chance: fleet_factor[0] * chance.lognormvariate(0.0, 0.3), rate=200.0)
    fleet_factor = [0.01]
    fleet.run(30)
    fleet_factor[0] = 1.0
    fleet.run(60)
    assert fleet.ejected == []


def test_so_many_slow_instances_that_too_few_would_be_left_are_used() -> None:
    fleet = Fleet(lambda name, chance: chance.lognormvariate(0.0, 0.3) * (0.01 if name == "a" else 0.5), rate=200.0)
    fleet.run(20)
    assert len(set(fleet.ejected)) <= 2


def test_a_former_slow_instance_is_used_again_and_ejected_again_after_few_calls() -> None:
    slow = {"b": 20.0}
    fleet = Fleet(lambda name, chance: 0.02 * chance.lognormvariate(0.0, 0.3) * slow.get(name, 1.0), rate=200.0)
    fleet.run(50)
    assert fleet.ejected == ["b", "b"]
    slow.clear()
    fleet.run(200)
    assert fleet.ejected == ["b", "b"]
    assert Counter(name for at, name in fleet.picks if at > 200)["b"] > 0


def test_the_deviation_rule_speaks_from_five_on() -> None:
    alone = EjectionRules(success_rate_pair_gap=1.0)
    for good in range(1, 4):
        assert outliers([1.0] * good + [0.0], alone) == []
    assert outliers([1.0] * 4 + [0.0], alone) == [4]
    assert outliers([1.0, 0.0, 1.0, 1.0, 1.0], alone) == [1]


def test_sigma_and_gap_are_exact() -> None:
    # Mean 0.875, deviation 0.217 (one of four at 0.5): 1.732 deviations below.
    rates = [1.0, 1.0, 1.0, 0.5]
    assert outliers(rates, EjectionRules(success_rate_stdev_factor=1.73, success_rate_pair_gap=1.0)) == [3]
    assert outliers(rates, EjectionRules(success_rate_stdev_factor=1.74, success_rate_pair_gap=1.0)) == []
    assert (
        outliers(rates, EjectionRules(success_rate_stdev_factor=0.1, success_rate_gap=0.375, success_rate_pair_gap=1.0))
        == []
    )
    assert outliers(
        rates, EjectionRules(success_rate_stdev_factor=0.1, success_rate_gap=0.374, success_rate_pair_gap=1.0)
    ) == [3]


def test_one_unlucky_failure_among_perfect_ones_is_no_outlier() -> None:
    assert outliers([1.0] * 9 + [0.98], EjectionRules()) == []


def test_of_two_the_much_worse_one_stands_out() -> None:
    assert outliers([1.0, 0.75], EjectionRules(success_rate_pair_gap=0.25)) == []
    assert outliers([0.74, 1.0], EjectionRules(success_rate_pair_gap=0.25)) == [0]


def test_bad_ones_cannot_hide_each_other() -> None:
    assert outliers([1.0, 0.1, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0], EjectionRules()) == [4, 1]


def test_nobody_stands_out_alone_or_when_all_are_bad_or_when_nobody_looks() -> None:
    assert outliers([], EjectionRules()) == []
    assert outliers([0.0], EjectionRules()) == []
    assert outliers([0.0, 0.0, 0.0], EjectionRules()) == []
    assert outliers([1.0, 0.0], EjectionRules(success_rate_stdev_factor=None)) == []


def flaky(stand: Stand, id: str, good: int, bad: int) -> None:
    """Calls at ``id``, so many of each kind, never five failures in a row."""
    for number in range(good + bad):
        failed = (number + 1) * bad // (good + bad) > number * bad // (good + bad)
        stand.end(id, Outcome.TIMEOUT if failed else Outcome.SUCCESS)


def test_an_instance_that_fails_half_its_calls_is_ejected_at_the_next_look_even_of_two(stand: Stand) -> None:
    flaky(stand, "a", 25, 25)
    flaky(stand, "b", 50, 0)
    stand.wait(9.999)
    stand.pick()
    assert stand.changes == []
    stand.wait(0.001)
    stand.pick()
    assert stand.changes == [("a", "ejected", "success-rate")]
    assert stand.state("a").ejected_until == START + 40


def test_too_few_calls_are_not_judged_and_older_ones_count_half(stand: Stand) -> None:
    for calls, judged in ((49, False), (25, False), (32, True)):  # 49; 25 and 24.5; 32 and 24.75
        flaky(stand, "a", calls - calls // 2, calls // 2)
        flaky(stand, "b", 60, 0)
        stand.wait(10)
        stand.pick()
        assert bool(stand.changes) == judged, calls
    assert stand.changes == [("a", "ejected", "success-rate")]


def test_a_bad_past_that_was_judged_does_not_outweigh_the_present() -> None:
    stand = Stand("ab", consecutive_failures=None)
    flaky(stand, "a", 0, 5000)
    stand.wait(10)
    stand.pick()
    assert stand.changes == [], "nothing to compare it with"
    flaky(stand, "a", 50, 0)
    flaky(stand, "b", 50, 0)
    stand.wait(10)
    stand.pick()
    assert stand.changes == []


def test_the_worst_go_first_and_no_more_than_may() -> None:
    stand = Stand("abcd", max_ejection_ratio=0.25)
    flaky(stand, "a", 24, 26)
    flaky(stand, "b", 22, 28)
    for name in "cd":
        flaky(stand, name, 50, 0)
    stand.wait(10)
    stand.pick()
    assert (stand.changes, stand.balancer._detector.ejected) == ([("b", "ejected", "success-rate")], 1)


def test_ejected_ones_are_not_judged() -> None:
    stand = Stand("abcd")
    for name in "bcd":
        flaky(stand, name, 50, 0)
    stand.eject("a")
    stand.end("a", Outcome.TIMEOUT, 60)
    stand.wait(10)
    stand.pick()
    assert stand.changes == [("a", "ejected", "failures")]


def test_looking_goes_on_every_interval() -> None:
    stand = Stand("ab", interval=5)
    for _ in range(3):
        stand.wait(5)
        stand.pick()
    flaky(stand, "a", 25, 25)
    flaky(stand, "b", 50, 0)
    stand.wait(4.9)
    stand.pick()
    assert stand.changes == []
    stand.wait(0.1)
    stand.pick()
    assert stand.changes == [("a", "ejected", "success-rate")]


def test_every_pair_is_drawn_equally_often_and_none_with_itself() -> None:
    candidates = states("abcd")
    pairs = Counter(
        tuple(each.id for each in draw_two(candidates, in_turn((number + 0.5) / 12).__next__)) for number in range(12)
    )
    assert pairs == {(one, other): 1 for one in "abcd" for other in "abcd" if one != other}


@pytest.mark.parametrize("count", [2, 3, 17, 256])
def test_the_ends_of_chance_are_within(count: int) -> None:
    candidates = states("x" * count)
    for number in (0.0, 1 - 2**-53):
        one, other = draw_two(candidates, in_turn(number).__next__)
        assert one is not other


class Peaks(Learning):
    peaks = True


def test_of_a_new_instance_nothing_is_known() -> None:
    made = InstanceState("a", 2.0, START)
    assert {name: getattr(made, name) for name in InstanceState.__slots__} == {
        **dict.fromkeys(("in_flight", "order", "place", "cost", "others", "current", "failures", "good", "bad"), 0),
        **dict.fromkeys(
            (
                "times",
                "timed",
                "slowness",
                "spread",
                "ejections",
                "epoch",
                "paused_until",
                "gain",
                "credit",
                "answered",
            ),
            0,
        ),
        **dict.fromkeys(("stamp", "others_at", "well_since", "warm_from", "joined"), START),
        "id": "a",
        "weight": 2.0,
        "brake": 1.0,
        "probe_at": NEVER,
        "level": 1.0,
        "ejected_until": None,
        "is_held": False,
        "sick": False,
        "member": True,
    }


def state(cost: float = 0.0) -> InstanceState:
    made = InstanceState("a", 1.0, START)
    made.cost = cost
    return made


@pytest.fixture
def made() -> InstanceState:
    return state()


@pytest.mark.parametrize("how", [Learning, Peaks])
@pytest.mark.parametrize("outcome", [Outcome.SUCCESS, Outcome.TOOL_ERROR])
def test_the_first_answer_says_how_long_it_takes(how: type[Learning], outcome: Outcome, made: InstanceState) -> None:
    how().learn(made, outcome, 0.5, None, START + 3)
    assert (made.cost, made.stamp) == (0.5, START + 3)


@pytest.mark.parametrize("how", [Learning, Peaks])
def test_an_answer_that_took_no_time_is_known_all_the_same(how: type[Learning], made: InstanceState) -> None:
    how().learn(made, Outcome.SUCCESS, 0.0, None, START)
    assert made.cost == LEAST_S
    made.cost = 1.0
    how().learn(made, Outcome.SUCCESS, 0.0, None, START + 1e6)
    assert made.cost == LEAST_S


@pytest.mark.parametrize("how", [Learning, Peaks])
def test_a_fall_is_followed_as_time_passes(how: type[Learning]) -> None:
    made = state(cost=1.0)
    how().learn(made, Outcome.SUCCESS, 0.2, None, START + 10)
    assert (made.cost, made.stamp) == (pytest.approx(1.0 / math.e + 0.2 * (1 - 1 / math.e)), START + 10)


def test_a_rise_is_followed_as_time_passes_by_an_average() -> None:
    made = state(cost=1.0)
    Learning().learn(made, Outcome.SUCCESS, 2.0, None, START + 10)
    assert made.cost == pytest.approx(1.0 / math.e + 2.0 * (1 - 1 / math.e))


def test_a_rise_is_followed_at_once_by_a_peak() -> None:
    made = state(cost=1.0)
    Peaks().learn(made, Outcome.SUCCESS, 2.0, None, START + 5)
    assert (made.cost, made.stamp) == (2.0, START + 5)
    Peaks().learn(made, Outcome.SUCCESS, 2.0, None, START + 7)
    assert (made.cost, made.stamp) == (2.0, START + 7)


@pytest.mark.parametrize("how", [Learning, Peaks])
@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CANCELLED])
def test_what_ended_without_an_answer_took_so_long_at_least(how: type[Learning], outcome: Outcome) -> None:
    made = state(cost=1.0)
    how().learn(made, outcome, 1.0, None, START)
    assert (made.cost, made.stamp) == (1.0, START)
    how().learn(made, outcome, 0.3, None, START + 10)  # 1.0 has faded to 0.37
    assert (made.cost, made.stamp) == (1.0, START)
    how().learn(made, outcome, 0.4, None, START + 10)
    assert (made.cost, made.stamp) == (0.4, START + 10)


@pytest.mark.parametrize("outcome", [Outcome.TRANSPORT, Outcome.THROTTLED, Outcome.REJECTED, Outcome.INVALID_ARGUMENTS])
def test_what_was_refused_says_nothing_of_how_long_an_answer_takes(outcome: Outcome) -> None:
    for cost in (0.0, 1.0):
        made = state(cost=cost)
        Peaks().learn(made, outcome, 5.0, None, START + 10)
        assert (made.cost, made.stamp) == (cost, START)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_any_reply_tells_how_many_calls_the_instance_has_from_others(outcome: Outcome, made: InstanceState) -> None:
    made.in_flight = 2
    Learning().learn(made, outcome, 1.0, 8, START + 1)
    assert (made.others, made.others_at) == (5, START + 1)
    Learning().learn(made, outcome, 1.0, None, START + 2)
    assert (made.others, made.others_at) == (5, START + 1)
    Learning().learn(made, outcome, 1.0, 4, START + 3)
    assert (made.others, made.others_at) == (1, START + 3)
    Learning().learn(made, outcome, 1.0, 1, START + 4)
    assert (made.others, made.others_at) == (0, START + 4)


def test_a_count_that_cannot_be_is_not_believed(made: InstanceState) -> None:
    Learning().learn(made, Outcome.SUCCESS, 1.0, 10**400, START)
    assert made.others == MOST_OTHERS
    Learning().learn(made, Outcome.SUCCESS, 1.0, -5, START)
    assert made.others == 0
