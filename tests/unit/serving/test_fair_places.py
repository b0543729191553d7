"""Sharing of an instance's places among tools and callers: max-min fair, with room for those that need little.

Guards against one tool that hangs, and takes every place of its instance from all others.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from dispatch.serving.fair_places import KNOWN_S, MAX_FLOWS, FairPlaces


class Load:
    """Requests in virtual time, by tool and caller; they end after their duration."""

    def __init__(self, places: int, max_waiting: int = 1_024) -> None:
        self.now = 0.0
        self.fair: FairPlaces[int] = FairPlaces(places, max_waiting)
        self.ends: list[tuple[float, int]] = []
        self.arrived: dict[int, float] = {}
        self.flows: dict[int, tuple[str, str, float]] = {}
        self.waits: dict[str, list[float]] = {}
        self.dropped: Counter[str] = Counter()
        self._ids = itertools.count()

    def arrive(self, tool: str, seconds: float, caller: str = "", count: int = 1) -> None:
        for _ in range(count):
            item = next(self._ids)
            self.flows[item] = (tool, caller, seconds)
            self.arrived[item] = self.now
            if self.fair.start(item, tool, caller, self.now):
                self._begin(item)
            else:
                loser = self.fair.wait(item, tool, caller, self.now)
                if loser is not None:
                    self.dropped[self.flows[loser][0]] += 1

    def _begin(self, item: int) -> None:
        tool, _, seconds = self.flows[item]
        self.waits.setdefault(tool, []).append(self.now - self.arrived[item])
        heapq.heappush(self.ends, (self.now + seconds, item))

    def _start_waiting(self) -> None:
        while (item := self.fair.start_next(self.now)) is not None:
            self._begin(item)

    def pass_time(self, seconds: float) -> None:
        """Let time pass; reserved places are looked at every 50 ms, as an instance does."""
        until, step = self.now + seconds, 0.05
        while self.now < until:
            self.now = min(until, self.now + step, self.ends[0][0] if self.ends else until)
            while self.ends and self.ends[0][0] <= self.now:
                self.fair.release(heapq.heappop(self.ends)[1], self.now)
            self._start_waiting()

    def running(self, by: int = 0) -> Mapping[str, int]:
        return Counter(self.flows[item][by] for item in self.fair.occupants)


FOR_EVER = 1e9


@pytest.fixture
def load() -> Load:
    return Load(64)


def test_only_tool_takes_all_places(load: Load) -> None:
    load.arrive("a", 1.0)
    load.pass_time(1.0)
    load.arrive("a", 1.0, count=100)
    assert load.running() == {"a": 64}
    load.pass_time(1.0)
    assert load.running() == {"a": 36}


@pytest.mark.parametrize(("places", "first"), [(1, 1), (3, 3), (4, 2), (16, 8), (17, 9), (64, 32)])
def test_first_burst_of_a_new_instance_takes_half_of_the_places_at_once_and_all_soon(places: int, first: int) -> None:
    load = Load(places)
    load.arrive("a", FOR_EVER, count=2 * places)
    assert load.running() == {"a": first}
    load.pass_time(0.16)
    assert load.running() == {"a": places}


def test_first_burst_takes_all_places_when_a_request_of_it_has_ended(load: Load) -> None:
    load.arrive("a", 0.02)
    load.arrive("a", 1.0, count=100)
    assert load.running() == {"a": 32}
    load.pass_time(0.02)
    assert load.running() == {"a": 64}


def test_first_burst_is_not_refused_where_none_can_wait() -> None:
    load = Load(64, max_waiting=0)
    load.arrive("a", 1.0, count=64)
    assert (load.running(), load.dropped) == ({"a": 64}, {})


@pytest.mark.costly
@pytest.mark.parametrize("at", [0.0, 0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize(("places", "rate"), [(16, 100), (64, 500)])
def test_burst_of_a_hanging_tool_at_a_new_instance_leaves_the_others_what_they_use(
    places: int, rate: float, at: float
) -> None:
    for seed in range(5):
        load = Load(places)
        chance = random.Random(seed)
        count, due = 0, chance.expovariate(rate)
        while load.now < 3:
            if load.now <= at < due:
                load.pass_time(at - load.now)
                load.arrive("hanging", 30.0, count=places)
            load.pass_time(due - load.now)
            load.arrive(f"t{chance.randrange(50)}", chance.expovariate(1 / 0.05))
            count, due = count + 1, due + chance.expovariate(rate)
        load.pass_time(2)
        waits = [wait for name, waits in load.waits.items() if name != "hanging" for wait in waits]
        late = count - sum(wait <= 1 for wait in waits)
        assert late <= 0.05 * count, seed
        assert load.running()["hanging"] >= places // 2, seed


def test_known_tools_leave_places_for_those_that_are_called_seldom(load: Load) -> None:
    load.arrive("b", 0.01)
    load.pass_time(60)
    load.arrive("a", FOR_EVER, count=100)
    assert load.running() == {"a": 60}
    load.arrive("b", 0.01)
    load.arrive("c", 0.01)
    assert load.running() == {"a": 60, "b": 1, "c": 1}


@pytest.mark.parametrize(("places", "spare"), [(1, 0), (3, 0), (4, 1), (31, 1), (32, 2), (64, 4), (256, 16)])
def test_spare_places(places: int, spare: int) -> None:
    load = Load(places)
    load.arrive("b", 0.01)
    load.pass_time(60)
    load.arrive("a", FOR_EVER, count=2 * places)
    assert load.running() == {"a": places - spare}


def test_tool_is_forgotten_after_a_while(load: Load) -> None:
    load.arrive("b", 0.01)
    load.pass_time(1)
    load.arrive("a", 0.1, count=1)
    load.pass_time(KNOWN_S * 1.3)
    load.arrive("a", 0.1)
    load.arrive("a", FOR_EVER, count=100)
    load.pass_time(1)
    assert load.running() == {"a": 64}


@pytest.mark.costly
@pytest.mark.parametrize("hanging", [1, 3, 10])
def test_hanging_tools_leave_the_others_what_they_use(hanging: int, load: Load) -> None:
    """Fifty tools at 5 calls/s and 50 ms each, some of which hang: the others wait for milliseconds, if at all."""
    chance = random.Random(hanging)
    due, tool = 0.0, 0
    while load.now < 40:
        load.pass_time(due - load.now)
        load.arrive(f"t{tool % 50}", 30.0 if tool % 50 < hanging else 0.05)
        tool, due = tool + 1, load.now + chance.expovariate(250)
    healthy = sorted(wait for name, waits in load.waits.items() if int(name[1:]) >= hanging for wait in waits)
    assert len(healthy) > 7_500
    assert healthy[int(0.99 * len(healthy))] <= 0.06
    assert healthy[-1] <= 0.2
    assert sum(load.running()[f"t{number}"] for number in range(hanging)) >= 30, "places that nobody needs are used"


@pytest.mark.parametrize(("places", "used"), [(4, 4), (8, 8), (15, 15), (16, 15)])
def test_few_places_are_all_used_while_two_tools_want_more(places: int, used: int) -> None:
    load = Load(places)
    chance = random.Random(places)
    for _ in range(200):
        for tool in "ab":
            load.arrive(tool, chance.uniform(0.5, 1.0))
    load.pass_time(2.0)
    running = []
    for _ in range(20):
        load.pass_time(0.05)
        running.append(load.fair.running)
    assert sorted(running)[10] == used
    load.arrive("c", 0.1)
    load.pass_time(1.0)
    assert load.waits["c"][0] <= 0.5, "the first one to end makes room"


@pytest.mark.parametrize("places", [4, 8, 15])
def test_of_few_places_a_tool_that_hangs_never_has_all(places: int) -> None:
    load = Load(places)
    load.arrive("well", 0.1)
    load.arrive("hangs", 0.1, count=5)
    load.pass_time(1.0)
    for _ in range(100):
        load.arrive("hangs", 3_600.0, count=2)
        load.arrive("well", 0.05)
        load.pass_time(0.1)
        assert load.fair.running_of("hangs") < places
    assert len(load.waits["well"]) == 101
    assert max(load.waits["well"]) <= 0.05


def test_tools_with_more_than_they_can_have_share_equally(load: Load) -> None:
    for _ in range(200):
        for tool in "abc":
            load.arrive(tool, 1.0, count=4)
        load.pass_time(0.1)
    shares = sorted(load.running().values())
    assert sum(shares) >= 60
    assert shares[0] >= 18, shares


def test_slow_tool_does_not_get_more_than_a_fast_one() -> None:
    """By turns alone, the slow one would have nearly all places."""
    load = Load(16)
    for _ in range(400):
        load.arrive("slow", 5.0, count=2)
        load.arrive("fast", 0.1, count=20)
        load.pass_time(0.1)
    assert load.running()["slow"] <= 9
    assert load.running()["fast"] >= 6


def test_small_demand_is_met_whole_and_the_rest_goes_to_the_others(load: Load) -> None:
    for _ in range(100):
        load.arrive("little", 0.5, count=1)
        load.arrive("much", 1.0, count=20)
        load.arrive("more", 1.0, count=30)
        load.pass_time(0.1)
    assert max(load.waits["little"]) <= 0.3
    assert load.running()["much"] >= 22
    assert load.running()["more"] >= 22


def test_callers_of_a_tool_share_its_places(load: Load) -> None:
    for _ in range(100):
        load.arrive("a", 1.0, "greedy", count=30)
        load.arrive("a", 1.0, "modest", count=1)
        load.pass_time(0.1)
    assert load.running(1)["greedy"] >= 40
    assert max(load.waits["a"]) > 1, "of the greedy one"
    before = len(load.waits["a"])
    load.arrive("a", 0.01, "modest")
    assert load.waits["a"][before:] == [0.0]


def test_waiting_requests_are_served_by_turns_of_tools_and_then_of_callers() -> None:
    load = Load(1)
    load.arrive("x", 1.0)
    for name in ("a1", "a1", "a2", "b1", "b1", "c1"):
        load.arrive(name[0], 1.0, name[1])
    served = []
    for _ in range(6):
        load.pass_time(1.0)
        served += [f"{tool}{caller}" for tool, caller, _ in (load.flows[item] for item in load.fair.occupants)]
    assert served == ["a1", "b1", "c1", "a2", "b1", "a1"]


def test_full_queue_drops_the_newest_of_the_longest() -> None:
    load = Load(1, max_waiting=4)
    load.arrive("x", FOR_EVER)
    load.arrive("a", 1.0, "1", count=3)
    load.arrive("a", 1.0, "2")
    load.arrive("b", 1.0)
    assert load.dropped == {"a": 1}
    assert sorted(load.flows[item][:2] for item in load.fair.waiting) == [("a", "1"), ("a", "1"), ("a", "2"), ("b", "")]
    load.arrive("a", 1.0, "2")
    assert load.dropped == {"a": 2}, "it has as many as the other caller: the newcomer"
    assert len(load.fair.waiting) == 4


def test_queue_of_none_refuses_the_newcomer() -> None:
    load = Load(1, max_waiting=0)
    load.arrive("a", 1.0, count=2)
    assert load.dropped == {"a": 1}


def test_request_that_leaves_is_not_started() -> None:
    fair: FairPlaces[str] = FairPlaces(1, 9)
    assert fair.start("1", "a", "", 0.0)
    assert not fair.start("2", "a", "", 0.0)
    assert fair.wait("2", "a", "", 0.0) is None
    assert fair.wait("3", "a", "", 0.0) is None
    assert not fair.is_blocked
    assert fair.leave("2", 1.0)
    assert not fair.leave("2", 1.0)
    assert not fair.leave("1", 1.0)
    fair.release("1", 1.0)
    fair.release("1", 1.0)
    assert fair.is_blocked, "until it is asked for the next"
    assert [fair.start_next(1.0), fair.start_next(1.0)] == ["3", None]


def test_newcomer_does_not_overtake_those_of_its_own_that_wait() -> None:
    fair: FairPlaces[str] = FairPlaces(1, 9)
    assert fair.start("1", "a", "", 0.0)
    fair.wait("2", "a", "", 0.0)
    fair.release("1", 1.0)
    assert not fair.start("3", "a", "", 1.0)
    assert fair.start_next(1.0) == "2"


def test_tool_whose_places_are_all_held_by_threads_is_stuck() -> None:
    fair: FairPlaces[str] = FairPlaces(4, 9)
    assert fair.start("0", "b", "", 0.0)
    fair.release("0", 0.0)
    held = [item for item in "1234" if fair.start(item, "a", "", 1.0)]
    assert held == ["1", "2", "3"], "one is spared"
    assert not fair.is_stuck("a", 1.0)
    for item in held:
        fair.mark_stuck(item, 1)
    assert fair.is_stuck("a", 1.0)
    assert not fair.is_stuck("b", 1.0)
    assert not fair.is_stuck("unknown", 1.0)
    assert fair.running_of("a") == 3
    fair.mark_stuck("1", -1)
    assert not fair.is_stuck("a", 1.0)


def test_time_until_the_queue_is_served_is_estimated_from_the_tools_durations() -> None:
    load = Load(2)
    assert load.fair.retry_after("a") is None
    load.arrive("a", 4.0, count=2)
    assert load.fair.retry_after("a") is None
    load.pass_time(4.0)
    load.arrive("a", 4.0, count=5)
    assert load.fair.retry_after("a") == pytest.approx(8.0), "three wait, and the next, for two places"
    assert load.fair.retry_after("b") is None


def test_tools_beyond_the_limit_share_one_flow() -> None:
    load = Load(2, max_waiting=10_000)
    for number in range(3 * MAX_FLOWS):
        load.arrive(f"t{number}", 1.0)
    assert len(load.fair._tools.flows) == MAX_FLOWS + 1
    load.pass_time(2_000)
    assert not load.fair.waiting
    load.arrive("new", 1.0)
    assert len(load.fair._tools.flows) <= MAX_FLOWS + 1
