"""Who gets the next call: retries, breakers, panic, and the pick as a permit.

Guards against all instances being ejected with nobody left to ask, against a repeated finish that leaks a place, against
a retry that goes where the first attempt failed.
What balancing and health are for, in seeded simulations on virtual time: G13, G14, G15 and F16 of the goals.

Guards against a slow instance that holds up one call in eight for ever, against failing instances that nobody ejects because
there are too few, against the thundering return of one, and against a service with every instance ejected.
Instances come and go, and what is known of them stays.

Guards against flapping membership that makes an ejection be forgotten, and against books of those that have gone.
Newcomers, and those who come back, get their share bit by bit, whatever the strategy.

Guards against the herd that an idle newcomer draws, and against the neighbour that gets two shares meanwhile.
The least busy of all that are compared, and the weight of a slow instance's calls.
The one that will probably answer sooner.
Each in turn.
Smooth weighted round-robin.
What a person or a metric is told of an instance. Every state of it is in test_balancer.py.
"""

from __future__ import annotations

import heapq
import math
import random
import tracemalloc
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.errors import Outcome
from dispatch.policy import STRATEGIES, Balancing
from dispatch.resilience.balancer import (
    CROWDED,
    FALL,
    MAX_FORMER,
    MAX_INSTANCES,
    MOST_CREDIT,
    MUCH_SLOWER,
    NO_INSTANCE,
    RISE,
    SLACK,
    UNKNOWN,
    Balancer,
    LeastRequest,
    PeakEwma,
    Pick,
    RoundRobin,
    SmoothWeighted,
    make_strategy,
)
from dispatch.resilience.instances import EjectionRules, InstanceView, Learning, view
from tests.helpers.balancers import START, Stand, in_turn, states
from tests.helpers.run_profile import examples

MEAN_S = 0.02
"""What an attempt takes at a healthy instance, in the mean."""
SPREAD = 0.5
"""Of the logarithm: one in a hundred takes 2.8 times the mean."""


@dataclass
class Attempt:
    """One attempt, ended."""

    at: float
    instance: str
    seconds: float
    outcome: Outcome


@dataclass
class Host:
    """One instance. ``slower`` and ``failing`` are asked at each attempt, with the moment."""

    slower: Callable[[float], float] = lambda now: 1.0
    failing: Callable[[float], float] = lambda now: 0.0
    busy: int = 0
    queue: deque[tuple[Pick, int]] = field(default_factory=deque)


class Simulation:
    """``rate`` calls a second for ``seconds``, each tried at most ``attempts`` times, at ``hosts`` of ``workers`` each.

    After :meth:`run`: ``ended`` has every attempt; ``calls`` and ``failed`` count calls.
    """

    def __init__(
        self,
        hosts: dict[str, Host],
        balancing: Balancing,
        *,
        rate: float,
        seconds: float,
        seed: int,
        outlier_detection: EjectionRules | None = None,
        attempts: int = 1,
        workers: int = 4,
    ) -> None:
        self.hosts = hosts
        self.now = 0.0
        self.rate = rate
        self.seconds = seconds
        self.attempts = attempts
        self.workers = workers
        self.chance = random.Random(seed)
        self.changes: list[tuple[float, str, str, str]] = []
        self.balancer = Balancer(
            list(hosts),
            balancing=balancing,
            outlier_detection=outlier_detection or EjectionRules(),
            clock=lambda: self.now,
            randomness=random.Random(seed + 1).random,
            listener=lambda *change: self.changes.append((self.now, *change)),
        )
        self.ended: list[Attempt] = []
        self.calls = self.failed = 0
        self._tried: dict[int, list[str]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0

    def at(self, when: float, what: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (when, self._numbers, what))

    def run(self) -> Simulation:
        self._arrive()
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()
        assert not self._tried
        return self

    def _arrive(self) -> None:
        later = self.now + self.chance.expovariate(self.rate)
        if later < self.seconds:
            self.at(later, self._arrive)
        if self.now > 0:
            self.calls += 1
            self._tried[self.calls] = []
            self._attempt(self.calls)

    def _attempt(self, call: int) -> None:
        pick = self.balancer.pick(frozenset(self._tried[call]))
        self._tried[call].append(pick.instance)
        host = self.hosts[pick.instance]
        if host.busy < self.workers:
            self._work(host, pick, call)
        else:
            host.queue.append((pick, call))

    def _work(self, host: Host, pick: Pick, call: int) -> None:
        host.busy += 1
        failing = self.chance.random() < host.failing(self.now)
        takes = MEAN_S * self.chance.lognormvariate(-SPREAD * SPREAD / 2, SPREAD) * host.slower(self.now)
        self.at(self.now + (0.001 if failing else takes), lambda: self._end(host, pick, call, failing))

    def _end(self, host: Host, pick: Pick, call: int, failing: bool) -> None:
        outcome = Outcome.TRANSPORT if failing else Outcome.SUCCESS
        pick.finish(outcome, in_flight=host.busy + len(host.queue))
        self.ended.append(Attempt(self.now, pick.instance, self.now - pick.started, outcome))
        host.busy -= 1
        if host.queue:
            self._work(host, *host.queue.popleft())
        if failing and len(self._tried[call]) < self.attempts:
            self._attempt(call)
        else:
            self.failed += failing
            del self._tried[call]

    def p99(self, since: float = 0.0) -> float:
        """Seconds that 99 of 100 attempts took at most, of those that ended after ``since``."""
        took = sorted(each.seconds for each in self.ended if each.at >= since)
        return took[int(len(took) * 0.99)]

    def share(self, instance: str, since: float = 0.0, until: float = float("inf")) -> float:
        """The part of the attempts that ended at ``instance`` in that time."""
        names = [each.instance for each in self.ended if since <= each.at < until]
        return names.count(instance) / len(names)


def farm(count: int, **odd: Host) -> dict[str, Host]:
    """``count`` healthy hosts, ``a``, ``b`` …, but for those given."""
    names: Iterable[str] = "abcdefghijklmnop"[:count]
    return {name: odd.get(name) or Host() for name in names}


def test_every_strategy_is_made_with_its_settings() -> None:
    kinds = {name: make_strategy(Balancing(strategy=name, choice_count=3), random.random) for name in STRATEGIES}
    assert {name: type(kind) for name, kind in kinds.items()} == {
        "round-robin": RoundRobin,
        "weighted": SmoothWeighted,
        "least-request": LeastRequest,
        "peak-ewma": PeakEwma,
    }
    assert kinds["least-request"]._choice_count == 3  # type: ignore[attr-defined]
    assert [name for name in STRATEGIES if kinds[name].weighs] == ["weighted", "least-request", "peak-ewma"]
    assert [name for name in STRATEGIES if isinstance(kinds[name], Learning)] == ["least-request", "peak-ewma"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_instance_gets_everything(strategy: str) -> None:
    assert Stand("a", strategy).picks(5) == "aaaaa"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_any_instance_there_is_a_rejection_that_retains_nothing(strategy: str) -> None:
    stand = Stand("", strategy)
    rejected = stand.balancer.pick()
    assert rejected == Rejection(by="balancer", reason="no-instance", retry_after=None)
    assert stand.balancer.pick(frozenset("x")) is rejected is NO_INSTANCE
    tracemalloc.start()
    try:
        stand.balancer.pick()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(1000):
            stand.balancer.pick()
        assert tracemalloc.get_traced_memory()[0] - before < 500
    finally:
        tracemalloc.stop()


def test_the_pick_says_who_and_when() -> None:
    pick = Stand("a").pick()
    assert (pick.instance, pick.started, pick.panic) == ("a", START, False)


@pytest.fixture
def stand() -> Stand:
    return Stand("ab")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_pick_holds_its_place_until_it_is_finished_and_finishing_counts_once(outcome: Outcome, stand: Stand) -> None:
    pick = stand.pick()
    assert stand.state("a").in_flight == 1
    pick.finish(outcome)
    counts = (stand.state("a").good, stand.state("a").bad)
    for _ in range(9):
        pick.finish(outcome)
        pick.finish(Outcome.TIMEOUT)
    assert stand.state("a").in_flight == 0
    assert (stand.state("a").good, stand.state("a").bad) == counts
    assert (stand.changes, stand.balancer.stale) == ([], 0)


def test_how_long_it_took_is_read_off_the_clock() -> None:
    stand = Stand("ab", "peak-ewma")
    pick = stand.pick()
    stand.wait(0.25)
    pick.finish(Outcome.SUCCESS, in_flight=7)
    assert stand.state(pick.instance).cost == 0.25
    assert stand.state(pick.instance).others == 6
    assert {view.id: view.latency for view in stand.balancer.instances()}[pick.instance] == 0.25
    assert None in {view.latency for view in stand.balancer.instances()}


# Retries and hedges
@pytest.mark.costly
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_tried_is_left_out(strategy: str) -> None:
    stand = Stand("abc", strategy)
    for _ in range(20):
        assert stand.pick("a").instance in "bc"
        assert stand.pick("a", "c").instance == "b"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_was_tried_is_used_again_when_there_is_no_other(strategy: str) -> None:
    stand = Stand("ab", strategy)
    assert stand.pick("a", "b").instance in "ab"
    stand.eject("b")
    pick = stand.pick("a")
    assert (pick.instance, pick.panic) == ("a", False), "better than one that is ejected"


def test_a_throttled_one_is_other_enough_but_of_the_tried_ones_it_is_the_last(stand: Stand) -> None:
    stand.end("a", Outcome.THROTTLED, retry_after=10)
    assert stand.pick("b").instance == "a"
    assert [stand.pick("a", "b").instance for _ in range(3)] == ["b"] * 3


# Requests that only some instances can serve
def test_only_capable_instances_are_picked_in_the_order_of_the_strategy() -> None:
    stand = Stand("abcd")
    picks = [stand.balancer.pick(capable=frozenset("bd")) for _ in range(4)]
    assert [pick.instance for pick in picks if isinstance(pick, Pick)] == ["b", "d", "b", "d"]
    assert stand.balancer.pick(capable=frozenset("x")) is NO_INSTANCE
    assert stand.balancer.pick(capable=frozenset()) is NO_INSTANCE


def test_of_the_capable_ones_the_tried_and_the_ejected_come_last() -> None:
    stand = Stand("abcd")
    capable = frozenset("bcd")

    def pick(*tried: str) -> tuple[str, bool]:
        pick = stand.balancer.pick(frozenset(tried), capable)
        return pick.instance, pick.panic

    stand.end("b", Outcome.THROTTLED, retry_after=10)
    stand.eject("c")
    assert {pick() for _ in range(3)} == {("d", False)}
    assert {pick("d") for _ in range(3)} == {("b", False)}
    assert {pick("d", "b") for _ in range(3)} == {("d", False)}
    capable = frozenset("c")
    assert {pick() for _ in range(3)} == {("c", True)}, "although another one is well"


# Other guards
def test_one_that_its_own_breaker_refuses_is_skipped() -> None:
    shut = {"b"}
    stand = Stand("abc", admits=lambda id: id not in shut)
    assert stand.picks(6) == "acacac"
    shut.clear()
    assert sorted(stand.picks(3)) == ["a", "b", "c"]


def test_a_tried_one_is_better_than_one_that_is_refused() -> None:
    pick = Stand("ab", admits=lambda id: id == "a").pick("a")
    assert (pick.instance, pick.panic) == ("a", False)


def test_a_throttled_one_is_better_than_one_that_is_refused() -> None:
    stand = Stand("ab", admits=lambda id: id == "a")
    stand.end("a", Outcome.THROTTLED, retry_after=10)
    pick = stand.pick()
    assert (pick.instance, pick.panic) == ("a", False)
    assert stand.pick("a").instance == "a"


def test_the_only_instance_is_used_although_it_is_refused() -> None:
    pick = Stand("a", admits=lambda id: False).pick()
    assert (pick.instance, pick.panic) == ("a", True)


def test_when_all_are_refused_all_are_used_ejected_ones_too() -> None:
    stand = Stand("abc", admits=lambda id: False)
    stand.eject("c")
    picks = [stand.pick() for _ in range(30)]
    assert {pick.instance for pick in picks} == set("abc")
    assert all(pick.panic for pick in picks)
    assert [[pick.instance for pick in picks].count(name) for name in "abc"] == [10, 10, 10]
    assert {stand.pick("a", "b").instance for _ in range(5)} == {"c"}
    assert {stand.pick("a", "b", "c").instance for _ in range(9)} == set("abc")
    assert stand.pick("a").panic


# Panic
def test_panic_begins_below_its_share_and_not_at_it() -> None:
    stand = Stand("abcd")
    stand.eject("a")
    stand.eject("b")
    assert sorted(stand.picks(4)) == ["c", "c", "d", "d"]
    stand.balancer.remove("d")
    picks = [stand.pick() for _ in range(3)]
    assert sorted(pick.instance for pick in picks) == ["a", "b", "c"]
    assert all(pick.panic for pick in picks)
    assert stand.pick("c").panic


def test_panic_can_be_left_out_but_not_when_nothing_is_left() -> None:
    stand = Stand("abcd", panic_threshold=0)
    stand.eject("a")
    stand.eject("b")
    stand.balancer.remove("d")
    assert stand.picks(3) == "ccc"
    stand.balancer.remove("c")
    assert sorted(stand.pick().instance for _ in range(2)) == ["a", "b"]


def test_when_all_that_are_left_fail_the_ejected_ones_are_asked_too_and_one_that_answers_is_back(stand: Stand) -> None:
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 4)
    assert not stand.pick().panic
    stand.end("b", Outcome.TIMEOUT)
    assert sorted(stand.picks(2)) == ["a", "b"], "both answer"
    assert stand.changes[1:] == [("a", "returned", "answered")]
    assert not stand.pick().panic


def test_one_that_is_well_again_ends_the_panic(stand: Stand) -> None:
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 5)
    assert stand.pick().panic
    stand.end("b", Outcome.SUCCESS)
    assert stand.picks(3) == "bbb"


def test_one_that_is_not_well_but_may_not_go_is_no_reason_for_panic_while_others_are() -> None:
    stand = Stand("abc")
    stand.eject("a")
    stand.end("b", Outcome.TIMEOUT, 5)
    assert sorted(stand.picks(4)) == ["b", "b", "c", "c"]


def test_one_that_was_ejected_for_its_success_rate_comes_back_with_its_first_answer_too() -> None:
    stand = Stand("ab", consecutive_failures=None, success_rate_min_calls=4)
    for outcome in (Outcome.TIMEOUT, Outcome.TIMEOUT, Outcome.TIMEOUT, Outcome.SUCCESS):
        stand.end("a", outcome)
    stand.end("b", Outcome.SUCCESS, 4)
    stand.wait(10)
    stand.pick()
    assert (stand.changes, stand.state("a").failures) == ([("a", "ejected", "success-rate")], 0)
    stand.end("a", Outcome.SUCCESS)
    assert stand.changes[1:] == [("a", "returned", "answered")]


# Settings, views
def test_a_change_of_settings_keeps_what_is_known(stand: Stand) -> None:
    stand.eject("a")
    open_picks = [stand.pick() for _ in range(3)]
    rules = EjectionRules(consecutive_failures=2, slow_start_window=None)
    stand.balancer.configure(Balancing(strategy="least-request"), rules)
    assert isinstance(stand.balancer._strategy, LeastRequest)
    assert stand.picks(3) == "bbb"
    assert stand.state("b").in_flight == 3
    for pick in open_picks:
        pick.finish(Outcome.SUCCESS)
    assert (stand.state("b").in_flight, stand.state("b").good) == (0, 6)
    stand.wait(30)
    stand.pick()
    assert stand.changes[1:] == [("a", "returned", "over")]
    stand.end("a", Outcome.SUCCESS)
    stand.end("a", Outcome.TIMEOUT, 2)
    assert stand.changes[-1] == ("a", "ejected", "failures")


def test_the_same_strategy_goes_on_where_it_was(stand: Stand) -> None:
    strategy = stand.balancer._strategy
    stand.picks(1)
    stand.balancer.configure(Balancing(), EjectionRules(interval=1, slow_start_window=None))
    assert stand.balancer._strategy is strategy
    assert stand.picks(1) == "b"
    assert stand.balancer._detector._judge_at == START + 1
    stand.balancer.configure(Balancing(), EjectionRules(interval=100, slow_start_window=None))
    assert stand.balancer._detector._judge_at == START + 1
    stand.wait(1)
    stand.pick()
    assert stand.balancer._detector._judge_at == START + 101


def test_a_change_of_settings_counts_at_once() -> None:
    stand = Stand("abcd")
    stand.eject("a")
    stand.eject("b")
    stand.picks(1)
    stand.balancer.configure(Balancing(), EjectionRules(panic_threshold=0.6))
    assert stand.pick().panic


def test_each_instance_can_be_looked_at() -> None:
    stand = Stand({"a": 1.0, "b": 2.0, "c": 1.0}, warm=False)
    stand.wait(50)
    stand.balancer.add("d")
    stand.eject("a")
    stand.end("c", Outcome.THROTTLED, retry_after=7)
    stand.end("b", Outcome.TIMEOUT)
    stand.pick()
    stand.wait(2)
    seen = {
        view.id: (view.state, view.weight, view.in_flight, view.seconds_left, view.failures, view.ejections)
        for view in stand.balancer.instances()
    }
    assert seen == {
        "a": ("ejected", 1.0, 0, 28.0, 5, 1),
        "b": ("up", 2.0, 1, None, 1, 0),
        "c": ("paused", 1.0, 0, 5.0, 0, 0),
        "d": ("warming", 1.0, 0, None, 0, 0),
    }
    stand.wait(5)
    assert stand.kinds()["c"] == "up"
    assert {view.latency for view in stand.balancer.instances()} == {None}


def test_nobody_needs_to_listen() -> None:
    settings = {"balancing": Balancing(), "outlier_detection": EjectionRules()}
    balancer = Balancer("ab", **settings, clock=lambda: 1.0, randomness=random.random)
    for _ in range(20):
        pick = balancer.pick()
        pick.finish(Outcome.TIMEOUT if pick.instance == "a" else Outcome.SUCCESS)
    assert [view.state for view in balancer.instances()] == ["ejected", "warming"]


FULL = 8 * 4 / MEAN_S
"""Calls a second that eight healthy hosts of four workers could do at the very most."""


def slow_instance(balancing: Balancing, load: float, seed: int = 3) -> tuple[float, float]:
    """One of eight ten times slower: p99 as a multiple of that when all are healthy, and the slow one's share."""
    rate = FULL * load
    settings = {"rate": rate, "seconds": 5000 / rate, "seed": seed}
    healthy = Simulation(farm(8), balancing, **settings).run()
    slow = Simulation(farm(8, c=Host(slower=lambda now: 10.0)), balancing, **settings).run()
    return slow.p99() / healthy.p99(), slow.share("c")


@pytest.mark.parametrize("load", [0.2, 0.6])
@pytest.mark.parametrize(
    "balancing", [Balancing("least-request"), Balancing("least-request", choice_count=8), Balancing("peak-ewma")]
)
def test_a_slow_instance_hardly_matters(balancing: Balancing, load: float) -> None:
    ratio, share = slow_instance(balancing, load)
    assert ratio <= 1.5
    assert share <= 0.03


def test_for_comparison_in_turn_one_call_in_eight_is_slow() -> None:
    ratio, share = slow_instance(Balancing(), 0.05)
    assert ratio > 4
    assert share == pytest.approx(1 / 8, abs=0.001)


@pytest.mark.parametrize("strategy", ["least-request", "peak-ewma"])
def test_an_instance_that_was_slow_is_found_again_when_it_is_not(strategy: str) -> None:
    hosts = farm(4, c=Host(slower=lambda now: 10.0 if now < 20 else 1.0))
    run = Simulation(hosts, Balancing(strategy=strategy), rate=50, seconds=80, seed=4).run()
    assert run.share("c", 5, 20) < 0.03
    assert run.share("c", 60) > 0.15


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_instance_that_fails_every_call_is_out_within_ten_errors_and_retries_hide_them(
    strategy: str, count: int
) -> None:
    hosts = farm(count, b=Host(failing=lambda now: float(now >= 5)))
    rate = 20.0 * count
    run = Simulation(hosts, Balancing(strategy=strategy), rate=rate, seconds=20, seed=6, attempts=3).run()
    when, *change = run.changes[0]
    assert change == ["b", "ejected", "failures"]
    errors = [each for each in run.ended if each.outcome is Outcome.TRANSPORT]
    assert len([each for each in errors if each.at <= when]) <= 10
    assert len(errors) <= 10, "none after that, until it comes back"
    assert when <= 6
    assert run.failed / run.calls <= 0.001
    assert {change[1] for change in run.changes} == {"b"}


@pytest.mark.parametrize("count", [2, 5, 8])
def test_an_instance_that_fails_most_calls_is_out_at_the_next_look_at_success_rates(count: int) -> None:
    hosts = farm(count, b=Host(failing=lambda now: 0.45))
    rules = EjectionRules(consecutive_failures=None)
    load = {"rate": 20.0 * count, "seconds": 15, "attempts": 3}
    run = Simulation(hosts, Balancing(), **load, seed=2, outlier_detection=rules).run()
    assert [(change[1], change[3]) for change in run.changes] == [("b", "success-rate")]
    assert run.changes[0][0] == pytest.approx(10, abs=0.2)


@pytest.mark.parametrize("seed", range(3))
def test_healthy_instances_with_a_few_failures_each_are_left_alone(seed: int) -> None:
    hosts = {name: Host(failing=lambda now: 0.02) for name in farm(8)}
    assert Simulation(hosts, Balancing(), rate=100, seconds=60, seed=seed).run().changes == []


@pytest.mark.costly
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_that_comes_back_has_its_full_share_after_the_ramp_and_nobody_twice_the_mean_before(strategy: str) -> None:
    hosts = farm(8, b=Host(failing=lambda now: float(5 <= now < 20)))
    rules = EjectionRules(base_ejection_time=20, slow_start_window=10)
    load = {"rate": 200, "seconds": 48, "attempts": 3}
    run = Simulation(hosts, Balancing(strategy=strategy), **load, seed=8, outlier_detection=rules).run()
    (ejected, *_), (returned, *back) = run.changes
    assert back == ["b", "returned", "over"]
    assert returned - ejected == pytest.approx(20, abs=0.1)
    for second in range(int(returned), int(returned) + 10):
        shares = [run.share(name, second, second + 1) for name in hosts]
        assert max(shares) <= 2 / 8
        assert run.share("b", second, second + 1) <= (second + 2 - returned) / 10 / 8 + 0.04
    assert run.share("b", returned, returned + 2) < 0.6 / 8
    after = [run.share(name, returned + 10, 48) for name in hosts]
    assert after[1] == pytest.approx(1 / 8, abs=0.03)
    assert run.failed == 0


@pytest.mark.costly
def test_half_of_all_coming_back_together_does_not_overload_the_others_or_themselves() -> None:
    broken = {name: Host(failing=lambda now: float(5 <= now < 20)) for name in "abcd"}
    run = Simulation(farm(8, **broken), Balancing(), rate=200, seconds=70, seed=9, attempts=3).run()
    assert sum(change[2] == "ejected" for change in run.changes) == 4
    back = [change[0] for change in run.changes if change[2] == "returned"]
    for second in range(int(min(back)), int(max(back)) + 31):
        assert max(run.share(name, second, second + 1) for name in "abcdefgh") <= 2.1 / 8  # 200 calls: chance shows
    assert all(run.share(name, max(back) + 30) == pytest.approx(1 / 8, abs=0.01) for name in "abcdefgh")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_all_fail_half_at_most_is_ejected_and_whoever_recovers_is_found_at_once(strategy: str, count: int) -> None:
    hosts = {
        name: Host(failing=lambda now, up=10 + index: float(now < up))  # one after the other gets well
        for index, name in enumerate(farm(count))
    }
    rules = EjectionRules(slow_start_window=5)
    load = {"rate": 40, "seconds": 60, "attempts": 3}
    run = Simulation(hosts, Balancing(strategy=strategy), **load, seed=10, outlier_detection=rules).run()
    out = 0
    for _, _, change, _ in run.changes:
        out += 1 if change == "ejected" else -1
        assert 0 <= out <= max(count // 2, count >= 3)
    well = [each.at for each in run.ended if each.outcome is Outcome.SUCCESS]
    assert min(well) < 10.5, "the first that is well is found although it may be ejected"
    assert all(each.outcome is Outcome.SUCCESS for each in run.ended if each.at > 10 + count + 5)
    assert all(run.share(name, 50) == pytest.approx(1 / count, abs=0.1) for name in hosts)


def test_instances_come_and_go(stand: Stand) -> None:
    assert stand.balancer.add("c")
    assert (len(stand.balancer), "c" in stand.balancer, "d" in stand.balancer) == (3, True, False)
    assert sorted(stand.picks(3)) == ["a", "b", "c"]
    assert stand.balancer.remove("a")
    assert not stand.balancer.remove("a")
    assert sorted(stand.picks(2)) == ["b", "c"]


def test_replacing_keeps_what_is_known_of_those_that_stay() -> None:
    stand = Stand("abc")
    stand.eject("a")
    kept = stand.pick()
    stand.balancer.replace({"a": 1.0, kept.instance: 2.0, "z": 3.0})
    found = {view.id: (view.state, view.weight) for view in stand.balancer.instances()}
    assert found == {"a": ("ejected", 1.0), kept.instance: ("up", 2.0), "z": ("up", 3.0)}
    assert stand.state(kept.instance).in_flight == 1
    kept.finish(Outcome.SUCCESS)
    assert stand.state(kept.instance).in_flight == 0


@pytest.mark.parametrize("weight", [0, -1, math.nan, math.inf])
def test_a_weight_is_above_0_and_a_wrong_one_changes_nothing(weight: float, stand: Stand) -> None:
    with pytest.raises(ValueError, match="the weight of 'c' must be a number above 0"):
        stand.balancer.add("c", weight)
    with pytest.raises(ValueError, match="the weight of 'c'"):
        stand.balancer.replace({"x": 1.0, "c": weight})
    assert [view.id for view in stand.balancer.instances()] == ["a", "b"]


def test_a_new_weight_is_used_from_the_next_pick_on() -> None:
    stand = Stand({"a": 1.0, "b": 1.0}, "weighted")
    stand.picks(2)
    assert stand.balancer.add("a", 3.0)
    assert sorted(stand.picks(8)) == ["a"] * 6 + ["b"] * 2


def test_there_are_never_more_instances_than_allowed() -> None:
    stand = Stand([f"i{number}" for number in range(MAX_INSTANCES + 5)])
    assert len(stand.balancer) == MAX_INSTANCES
    assert not stand.balancer.add("more")
    assert stand.balancer.add("i0", 5.0), "a known one may change"
    stand.balancer.remove("i0")
    assert stand.balancer.add("more")


def test_one_that_comes_and_goes_stays_ejected() -> None:
    stand = Stand("ab", panic_threshold=0)
    stand.eject("a")
    stand.balancer.remove("a")
    assert stand.balancer._detector.ejected == 0
    stand.wait(10)
    stand.balancer.add("a")
    assert stand.balancer._detector.ejected == 1
    assert stand.picks(3) == "bbb"
    stand.wait(20)
    assert "a" in stand.picks(2)
    assert stand.changes == [("a", "ejected", "failures"), ("a", "returned", "over")]


def test_one_that_comes_back_after_its_ejection_has_ended_returns_in_proper_form(stand: Stand) -> None:
    stand.eject("a")
    stand.balancer.remove("a")
    stand.wait(40)
    stand.balancer.add("a")
    stand.pick()
    assert stand.changes[1:] == [("a", "returned", "over")]
    assert (stand.state("a").times, stand.balancer._detector.ejected) == (1, 0)


def test_one_that_was_gone_for_long_starts_afresh() -> None:
    for gone, remembered in ((599.9, 1), (600, 0)):
        stand = Stand("ab")
        stand.eject("a")
        stand.balancer.remove("a")
        stand.wait(gone)
        stand.balancer.add("a")
        assert stand.state("a").ejections == remembered


def test_what_ends_after_its_instance_has_gone_is_booked_and_ejects_nobody() -> None:
    stand = Stand("abc")
    picks = [stand.pick() for _ in range(18)]
    mine = [pick for pick in picks if pick.instance == "a"]
    state = stand.state("a")
    stand.balancer.remove("a")
    for pick in mine:
        pick.finish(Outcome.TIMEOUT)
    assert (state.in_flight, state.failures, stand.changes) == (0, 6, [])
    stand.balancer.add("a", 2.0)
    assert stand.state("a") is state
    stand.end("a", Outcome.TIMEOUT)
    assert stand.changes == [("a", "ejected", "failures")]


def test_an_answer_of_one_that_was_ejected_and_has_gone_changes_no_books(stand: Stand) -> None:
    stand.eject("a")
    state = stand.state("a")
    late = Pick("a", START, True, stand.balancer, state, state.epoch, 1)
    state.in_flight += 1
    stand.balancer.remove("a")
    late.finish(Outcome.SUCCESS)
    assert (stand.balancer._detector.ejected, state.ejected_until) == (0, START + 30)
    assert len(stand.changes) == 1


def test_former_instances_are_remembered_in_bounds_the_latest_ones(stand: Stand) -> None:
    for number in range(MAX_FORMER + 50):
        stand.balancer.add(f"i{number}")
        stand.balancer.remove(f"i{number}")
    assert list(stand.balancer._former) == [f"i{number}" for number in range(50, MAX_FORMER + 50)]


def test_a_new_life_begins_afresh_and_slowly() -> None:
    stand = Stand("ab", warm=False)
    stand.wait(60.0)
    stand.eject("a")
    late = stand.state("a")
    stand.balancer.reset_instance("a")
    fresh = stand.state("a")
    assert fresh is not late
    assert (fresh.failures, fresh.ejected_until, fresh.ejections) == (0, None, 0)
    assert {each.id: each.state for each in stand.balancer.instances()} == {"a": "warming", "b": "up"}
    stand.balancer.reset_instance("nobody")
    assert set(stand.balancer._members) == {"a", "b"}


def test_one_instance_and_no_other_can_be_asked_for_whoever_is_due(stand: Stand) -> None:
    assert stand.balancer.pick_instance("b").instance == "b"
    assert isinstance(stand.balancer.pick_instance("b"), Pick)
    assert stand.state("b").in_flight == 2
    assert stand.balancer.pick_instance("nobody") is NO_INSTANCE


def test_calls_that_only_one_instance_can_serve_apply_what_is_due_too() -> None:
    stand = Stand("ab", success_rate_min_calls=10, consecutive_failures=None)
    stand.end("a", Outcome.TIMEOUT, 10)
    stand.end("b", Outcome.SUCCESS, 10)
    stand.wait(10)
    stand.balancer.pick_instance("b")
    assert stand.changes == [("a", "ejected", "success-rate")]
    alone = Stand("a", max_ejection_ratio=1.0)
    alone.eject("a")
    alone.wait(30)
    alone.balancer.pick_instance("a")
    assert alone.changes == [("a", "ejected", "failures"), ("a", "returned", "over")]


def test_a_caller_that_knows_the_time_spares_a_reading_of_the_clock(stand: Stand) -> None:
    stand.eject("a")
    for now, is_ejected in ((START + 29.999, True), (START + 30, False)):
        pick = stand.balancer.pick_instance("a", now)
        assert isinstance(pick, Pick)
        assert (pick.started, stand.balancer.is_ejected("a")) == (now, is_ejected)


def test_a_glimpse_says_what_is_and_works_nothing_out() -> None:
    stand = Stand("ab", base_ejection_time=1.0)
    stand.eject("a")
    assert [each.state for each in stand.balancer.peek_instances()] == ["ejected", "up"]
    stand.wait(2.0)
    told = len(stand.changes)
    assert [each.state for each in stand.balancer.peek_instances()] == ["ejected", "up"]
    assert len(stand.changes) == told
    assert [each.state for each in stand.balancer.instances()] == ["up", "up"]


def test_when_nobody_is_admitted_everybody_is_asked_all_the_same() -> None:
    stand = Stand("ab", admits=lambda _: False)
    assert stand.pick("a").instance == "b"
    picked = stand.pick("a", "b")
    assert picked.panic
    assert picked.instance in "ab"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_when_all_are_new_nobody_is_held_back(strategy: str) -> None:
    names = Stand("abcd", strategy, warm=False).picks(400)
    assert all(names.count(name) == pytest.approx(100, abs=35) for name in "abcd")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("waited", [0, 15])
def test_a_newcomer_gets_its_part_of_a_share_and_the_others_share_the_rest_alike(strategy: str, waited: float) -> None:
    stand = Stand("abcd", strategy, warm=False)
    stand.wait(100)
    stand.balancer.add("e")
    stand.wait(waited)
    names = stand.picks(2000)
    part = 0.1 if not waited else 0.5
    assert names.count("e") == pytest.approx(400 * part, abs=3)
    assert all(names.count(name) == pytest.approx((2000 - 400 * part) / 4, rel=0.1) for name in "abcd")
    stand.wait(30)
    names = stand.picks(2000)
    assert all(names.count(name) == pytest.approx(400, rel=0.15) for name in "abcde")


def test_the_part_of_a_newcomer_is_of_its_weight() -> None:
    stand = Stand({"a": 1.0, "b": 2.0}, "weighted", warm=False)
    stand.wait(100)
    stand.balancer.add("c", 5.0)
    assert stand.picks(8000).count("c") == pytest.approx(8000 * 0.1 * 5 / 8, abs=2)
    stand = Stand({"a": 1.0, "b": 2.0}, "round-robin", warm=False)
    stand.wait(100)
    stand.balancer.add("c", 5.0)
    assert stand.picks(3000).count("c") == pytest.approx(100, abs=2)


def test_among_newcomers_the_warmest_is_not_held_back() -> None:
    stand = Stand("a", warm=False, slow_start_window=20)
    stand.wait(10)
    stand.balancer.add("b")
    assert stand.picks(1000).count("b") == pytest.approx(100, abs=1)
    assert (stand.state("a").level, stand.state("b").level) == (0.5, 0.1)


def test_a_retry_that_must_take_a_newcomer_is_booked_and_not_without_end() -> None:
    stand = Stand("a", warm=False)
    stand.wait(100)
    stand.balancer.add("b")
    for _ in range(50):
        retry = stand.pick("a")
        assert retry.instance == "b"
        retry.finish(Outcome.SUCCESS)
    assert stand.state("b").credit == pytest.approx(-MOST_CREDIT, abs=0.06)
    assert stand.picks(59).count("b") == 0
    assert stand.picks(10).count("b") == 1


def test_turns_that_a_newcomer_did_not_take_are_not_saved_without_end() -> None:
    stand = Stand("a", "least-request", warm=False)
    stand.wait(100)
    stand.balancer.add("b")
    stand.state("b").in_flight = 10**6
    stand.picks(500)
    assert stand.state("b").credit == MOST_CREDIT
    stand.state("b").in_flight = 0
    assert stand.picks(20).count("b") in (2, 3)


def test_a_refused_warm_one_makes_way_for_a_newcomer() -> None:
    stand = Stand("a", warm=False, admits=lambda id: id != "a")
    stand.wait(100)
    stand.balancer.add("b")
    assert stand.picks(5) == "bbbbb"


def test_in_panic_nobody_is_held_back() -> None:
    stand = Stand("abcd", warm=False)
    stand.wait(100)
    stand.eject("a")
    stand.eject("b")
    stand.balancer.replace("abe")
    assert sorted(stand.pick().instance for _ in range(3)) == ["a", "b", "e"]


def test_a_new_weight_changes_a_newcomers_part_at_once() -> None:
    stand = Stand({"a": 1.0}, "weighted", warm=False)
    stand.wait(100)
    stand.balancer.add("b", 1.0)
    stand.pick()
    assert stand.state("b").gain == pytest.approx(0.1 / 2)
    stand.balancer.add("b", 3.0)
    stand.pick()
    assert stand.state("b").gain == pytest.approx(0.1 * 3 / 4)


def picked(names: str = "abc", now: float = START, **values: Any) -> str:
    return LeastRequest(in_turn().__next__, 8).pick(states(names, **values), now).id


def test_the_least_busy_of_all_is_picked_wherever_it_stands() -> None:
    assert picked(in_flight=(1, 2, 3)) == "a"
    assert picked(in_flight=(2, 1, 3)) == "b"
    assert picked(in_flight=(3, 2, 1)) == "c"


def test_calls_count_for_the_weight() -> None:
    assert picked(in_flight=(1, 5, 1), weight=(1.0, 4.0, 1.0)) == "b"
    assert picked(in_flight=(1, 5, 1), weight=(5.0, 4.0, 1.0)) == "a"
    assert picked(in_flight=(0, 3, 9), weight=(1.0, 3.0, 1.0)) == "a", "with the next call one per weight, not 4/3"


def test_of_equals_the_one_that_has_waited_longest() -> None:
    assert picked(order=(5, 3, 4)) == "b"
    assert picked(order=(3, 4, 5)) == "a"
    assert picked(order=(5, 4, 3)) == "c"
    assert picked() == "a"


def test_a_much_slower_one_has_to_be_much_less_busy_as_long_as_that_is_fresh() -> None:
    slow: dict[str, Any] = {"in_flight": (0, 1, 2), "brake": (4.0, 1.0, 1.0)}
    assert picked(**slow) == "b"
    assert picked(now=START + 9.99, **slow) == "b"
    assert picked(now=START + 10, **slow) == "a"
    last: dict[str, Any] = {"in_flight": (2, 1, 0), "brake": (1.0, 1.0, 4.0)}
    assert picked(**last) == "b"
    assert picked(now=START + 9.99, **last) == "b"
    assert picked(now=START + 10, **last) == "c"


def test_as_many_choices_as_instances_compare_all_and_fewer_are_drawn() -> None:
    eight = states("abcdefgh", in_flight=(9, 9, 9, 9, 9, 9, 9, 0))
    chance = random.Random(1).random
    assert {LeastRequest(chance, 8).pick(eight, START).id for _ in range(200)} == {"h"}
    assert len({LeastRequest(chance, 7).pick(eight, START).id for _ in range(200)}) > 1


@pytest.mark.parametrize("count", [3, 5])
def test_so_many_different_instances_are_drawn_each_equally_often(count: int) -> None:
    """The least busy of eight is picked exactly as often as it is among those drawn."""
    eight, chance = states("abcdefgh", in_flight=(9, 9, 9, 0, 9, 9, 9, 9)), random.Random(3).random
    drawn = Counter(LeastRequest(chance, count).pick(eight, START).id for _ in range(4_000))
    assert drawn["d"] == pytest.approx(4_000 * count / 8, rel=0.06)
    found = [len({each.id for each in LeastRequest(chance, count)._draw(eight, count)}) for _ in range(50)]
    assert found == [count] * 50


def told(*calls: tuple[int, float]) -> tuple[LeastRequest, list[Any]]:
    """A strategy that was told of answers: which instance, and after how long. All at the same moment, far apart."""
    strategy, made = LeastRequest(random.Random(1).random, 2), states("ab")
    for number, (index, seconds) in enumerate(calls):
        strategy.learn(made[index], Outcome.SUCCESS, seconds, None, START + 1e6 * number)
    return strategy, made


def test_what_is_usual_is_what_the_first_answer_took() -> None:
    strategy, made = told((0, 2.0))
    assert (strategy.usual, made[0].brake) == (2.0, 1.0)


def test_what_is_usual_rises_slowly_and_falls_faster_and_never_passes_what_was_seen() -> None:
    assert told((0, 2.0), (1, 3.0))[0].usual == 2.0 * RISE
    assert told((0, 2.0), (1, 2.01))[0].usual == 2.01
    assert told((0, 2.0), (1, 1.0))[0].usual == 2.0 * FALL
    assert told((0, 2.0), (1, 1.99))[0].usual == 1.99
    assert RISE < 2 - FALL, "it settles where the faster ones are"


def test_one_much_slower_than_usual_is_braked_as_many_times_as_it_is_slower() -> None:
    strategy, made = told((0, 1.0), (1, 10.1))
    assert made[1].brake == pytest.approx(10.1 / RISE)
    strategy.learn(made[1], Outcome.SUCCESS, 1.0, None, START + 1e9)
    assert made[1].brake == 1.0


def test_twice_as_slow_is_not_yet_much_slower() -> None:
    strategy, made = told((0, 1.0))
    strategy.learn(made[1], Outcome.SUCCESS, MUCH_SLOWER * RISE, None, START)
    assert made[1].brake == 1.0
    strategy, made = told((0, 1.0))
    strategy.learn(made[1], Outcome.SUCCESS, MUCH_SLOWER * RISE * 1.001, None, START)
    assert made[1].brake == pytest.approx(2.002)


def test_failures_of_an_instance_of_which_nothing_is_known_teach_nothing() -> None:
    strategy, made = told()
    strategy.learn(made[0], Outcome.TRANSPORT, 1.0, None, START)
    assert (strategy.usual, made[0].brake) == (0.0, 1.0)


def test_of_many_only_two_are_compared() -> None:
    drawn = Counter(
        LeastRequest(random.Random(seed).random, 2).pick(states("abcdefgh", in_flight=range(8)), START).id
        for seed in range(2000)
    )
    assert "h" not in drawn, "the busiest of all loses against anyone"
    assert drawn["a"] == pytest.approx(2000 / 4, rel=0.2), "the least busy one is drawn in a quarter of all pairs"


def load(now: float = START, **values: Any) -> float:
    return PeakEwma(in_turn().__next__).load(states("a", **{key: (value,) for key, value in values.items()})[0], now)


def of_two_peak_ewma(now: float = START, **values: Any) -> str:
    """Who is picked of a and b, in both orders of drawing."""
    found = {PeakEwma(in_turn(number).__next__).pick(states("ab", **values), now).id for number in (0.25, 0.75)}
    assert len(found) == 1
    return found.pop()


def test_the_load_is_how_long_each_call_takes_times_the_calls() -> None:
    assert load(cost=0.2) == pytest.approx(0.2)
    assert load(cost=0.2, in_flight=4) == pytest.approx(1.0)
    assert load(cost=0.2, in_flight=4, weight=2.0) == pytest.approx(0.5)


def test_what_is_known_fades() -> None:
    assert load(START + 10, cost=0.2) == pytest.approx(0.2 / math.e)
    assert load(START + 1e9, cost=0.2) == 0.0


def test_calls_of_others_count_and_fade_too() -> None:
    assert load(cost=0.2, in_flight=1, others=3) == pytest.approx(1.0)
    assert load(START + 10, cost=0.2, others=2, stamp=START + 10) == pytest.approx(0.2 * (1 + 2 / math.e))


def test_of_an_unknown_instance_one_call_is_enough_for_a_start() -> None:
    assert load() == 0.0
    assert load(in_flight=2, weight=5.0) == 2 * UNKNOWN
    assert of_two_peak_ewma(cost=(0.0, 0.1)) == "a"
    assert of_two_peak_ewma(cost=(0.0, 100.0), in_flight=(1, 200)) == "b"


def test_the_one_that_will_answer_sooner_is_picked() -> None:
    assert of_two_peak_ewma(cost=(0.1, 0.3), in_flight=(1, 0), order=(2, 1)) == "a"
    assert of_two_peak_ewma(cost=(0.1, 0.3), in_flight=(3, 0), order=(1, 2)) == "b"


def test_of_equals_the_one_that_has_waited_longer_peak_ewma() -> None:
    assert of_two_peak_ewma(cost=(0.1, 0.1), order=(5, 4)) == "b"
    assert of_two_peak_ewma(cost=(0.1, 0.1), order=(4, 5)) == "a"
    same = states("ab")
    assert PeakEwma(in_turn(0.0).__next__).pick(same, START) is same[0]


def test_it_follows_a_rise_at_once() -> None:
    assert PeakEwma.peaks


def test_each_has_its_turn_from_the_first_on() -> None:
    strategy, candidates = RoundRobin(), states("abc", weight=(1.0, 9.0, 1.0))
    assert "".join(strategy.pick(candidates, START).id for _ in range(7)) == "abcabca"


@pytest.mark.parametrize("taken_back", [False, True])
def test_one_that_is_left_out_again_and_again_gives_its_turns_to_all_others_alike(taken_back: bool) -> None:
    strategy, candidates = RoundRobin(), states("abcd")
    names = ""
    for _ in range(1200):
        picked = strategy.pick(candidates, START)
        if picked.id == "b":
            if taken_back:
                strategy.undo_pick()
            picked = strategy.pick([each for each in candidates if each.id != "b"], START)
        names += picked.id
    assert [names.count(name) for name in "abcd"] == [400, 0, 400, 400]


def test_whoever_comes_back_has_its_turn_where_it_stands() -> None:
    strategy, candidates = RoundRobin(), states("abcd")
    without = [candidates[0], candidates[2], candidates[3]]
    turns = [candidates, without, candidates, without, without, without, candidates, candidates]
    assert "".join(strategy.pick(each, START).id for each in turns) == "acdacdab"


def test_who_is_last_is_followed_by_the_first_of_any_candidates() -> None:
    strategy, candidates = RoundRobin(), states("abc")
    found = [strategy.pick(each, START).id for each in (candidates[1:], candidates[2:], candidates[:2])]
    assert found == ["b", "c", "a"]


def test_a_refused_turn_is_had_by_whoever_comes_after_the_last_that_took_one() -> None:
    strategy, candidates = RoundRobin(), states("abc")
    assert strategy.pick(candidates, START).id == "a"
    assert strategy.pick(candidates, START).id == "b"
    strategy.undo_pick()
    assert strategy.pick(candidates, START).id == "b"
    assert strategy.pick([candidates[0], candidates[2]], START).id == "c"
    strategy.undo_pick()
    assert strategy.pick(candidates, START).id == "c"
    assert strategy.pick(candidates, START).id == "a"


def test_one_whose_calls_do_not_end_gives_its_turns_to_the_others_alike() -> None:
    strategy, candidates = RoundRobin(), states("abcd")
    names = ""
    for _ in range(400):
        picked = strategy.pick(candidates, START)
        names += picked.id
        picked.in_flight += picked.id == "b"
    assert names.count("b") == SLACK + 1
    assert max(names.count(name) for name in "acd") - min(names.count(name) for name in "acd") <= 2


def test_two_kinds_of_calls_that_alternate_do_not_hang_one_by_one_at_one_instance() -> None:
    """Each second call is a write: with strict turns, all writes went to one of two instances, and waited there."""
    strategy, candidates = RoundRobin(), states("ab")
    for number in range(400):
        picked = strategy.pick(candidates, START)
        if number % 2 == 0 and picked.id == "a":
            picked.in_flight += 1
    assert candidates[0].in_flight == SLACK + 1


@pytest.mark.parametrize("others", [0, 3, 50])
def test_turns_are_strict_where_all_instances_have_about_as_many_calls(others: int) -> None:
    strategy, candidates = RoundRobin(), states("ab")
    candidates[0].in_flight, candidates[1].in_flight = CROWDED * others + SLACK, others
    assert "".join(strategy.pick(candidates, START).id for _ in range(6)) == "ababab"


def picked_weighted_round_robin(count: int, *weights: float) -> str:
    strategy, candidates = SmoothWeighted(), states("abcdefgh"[: len(weights)], weight=weights)
    return "".join(strategy.pick(candidates, START).id for _ in range(count))


def test_the_heavy_one_is_mixed_evenly_with_the_light_ones() -> None:
    assert picked_weighted_round_robin(14, 5.0, 1.0, 1.0) == "aabacaa" * 2


def test_equal_weights_take_turns() -> None:
    assert picked_weighted_round_robin(6, 2.0, 2.0, 2.0) == "abcabc"


@given(st.lists(st.integers(1, 9), min_size=2, max_size=8))
@settings(max_examples=examples(20), deadline=None)
def test_in_each_round_everyone_gets_exactly_its_weight(weights: list[int]) -> None:
    total = sum(weights)
    names = picked_weighted_round_robin(2 * total, *map(float, weights))
    assert names[:total] == names[total:]
    assert [names[:total].count(name) for name, _ in zip("abcdefgh", weights, strict=False)] == weights


def test_one_that_is_left_out_for_a_while_does_not_make_up_for_it() -> None:
    strategy, candidates = SmoothWeighted(), states("abc")
    for _ in range(300):
        strategy.pick(candidates[1:], START)
    names = "".join(strategy.pick(candidates, START).id for _ in range(30))
    assert [names.count(name) for name in "abc"] == [10, 10, 10]


def test_a_view_is_a_value_that_stays_as_it_was() -> None:
    state = states("a", cost=(0.5,), ejections=(2,))[0]
    seen = view(state, START)
    assert seen == InstanceView("a", "up", 1.0, 0, None, 0, 2, 0.5)
    state.in_flight = 3
    assert seen.in_flight == 0
    with pytest.raises(AttributeError):
        seen.in_flight = 4  # type: ignore[misc]


def test_a_pause_ends_at_its_moment() -> None:
    state = states("a", paused_until=(START + 1,))[0]
    assert [view(state, START + after).state for after in (0.5, 1.0)] == ["paused", "up"]
    assert view(state, START + 0.5).seconds_left == 0.5


@pytest.mark.costly
@pytest.mark.parametrize(
    ("strategy", "weights", "old", "ejected"),
    [
        ("round-robin", (1, 1), (5, 0), "a"),
        ("round-robin", (1, 1), (4, 0), ""),
        ("round-robin", (1, 1), (9, 1), ""),
        ("round-robin", (1, 1), (10, 1), "a"),
        ("round-robin", (3, 1), (5, 0), "a"),
        ("weighted", (3, 1), (14, 0), ""),
        ("weighted", (3, 1), (15, 0), "a"),
        ("weighted", (3, 1), (0, 5), "b"),
        ("weighted", (3, 1), (60, 20), ""),
    ],
)
def test_an_instance_with_many_old_calls_for_its_share_is_ejected(
    strategy: str, weights: tuple[float, float], old: tuple[int, int], ejected: str
) -> None:
    stand = Stand(dict(zip("ab", weights, strict=True)), strategy)
    stand.balancer.eject_unresponsive(dict(zip("ab", old, strict=True)))
    assert stand.changes == [(each, "ejected", "unresponsive") for each in ejected]
    assert [each for each in "abc" if stand.balancer.is_ejected(each)] == list(ejected)


def test_an_instance_that_has_few_calls_because_it_has_just_returned_condemns_no_other(stand: Stand) -> None:
    stand.state("b").level = 0.1
    stand.balancer.eject_unresponsive({"a": 49, "b": 0})
    assert stand.changes == []


def test_no_instance_is_unresponsive_without_outlier_detection_or_another_one() -> None:
    off = Stand("ab", consecutive_failures=None, success_rate_stdev_factor=None, latency_ratio=None)
    off.balancer.eject_unresponsive({"a": 64, "b": 0})
    alone = Stand("a")
    alone.balancer.eject_unresponsive({"a": 64})
    alone.balancer.eject_unresponsive({})
    assert off.changes == alone.changes == []


def test_an_ejection_by_an_operator_ends_also_for_an_instance_that_has_left() -> None:
    stand = Stand("abc")
    assert not stand.balancer.end_hold("a")
    stand.balancer.hold("a")
    assert set(stand.picks(6)) == {"b", "c"}
    assert stand.balancer.end_hold("a")
    assert set(stand.picks(6)) == {"a", "b", "c"}
    stand.balancer.hold("a")
    stand.balancer.replace("bc")
    assert stand.balancer.end_hold("a")
    stand.balancer.replace("abc")
    assert set(stand.picks(6)) == {"a", "b", "c"}
    assert not stand.balancer.end_hold("a")
    stand.balancer.replace("bc")
    assert not stand.balancer.end_hold("a"), "no operator had ejected it when it left"
    stand.balancer.replace("abc")
    stand.eject("b")
    assert not stand.balancer.end_hold("b"), "no operator has ejected it"
    assert stand.balancer.is_ejected("b")


def held_view(stand: Stand, id: str) -> tuple[str, float | None, bool, int]:
    seen = {each.id: each for each in stand.balancer.instances()}[id]
    return seen.state, seen.seconds_left, seen.is_held, seen.ejections


def test_an_operator_ejects_an_instance_without_an_end_and_admits_it_without_probation(stand: Stand) -> None:
    stand.end("a", Outcome.TIMEOUT, 4)
    stand.balancer.hold("a")
    stand.wait(10_000)
    assert held_view(stand, "a") == ("ejected", None, True, 1)
    stand.end("a", Outcome.SUCCESS)
    assert held_view(stand, "a") == ("ejected", None, True, 1), "an answer does not end it"
    stand.balancer.admit("a")
    assert held_view(stand, "a") == ("up", None, False, 1)
    assert stand.balancer.well_since("a") == START + 10_000
    stand.end("a", Outcome.TIMEOUT, 4)
    assert stand.changes == [("a", "ejected", "operator"), ("a", "returned", "operator")]
    stand.end("a", Outcome.TIMEOUT)
    assert stand.changes[2:] == [("a", "ejected", "failures")]


def test_an_instance_that_an_operator_has_ejected_is_one_of_those_that_may_be_ejected(stand: Stand) -> None:
    pick = stand.balancer.pick_instance("a")
    assert isinstance(pick, Pick)
    stand.balancer.hold("a")
    pick.finish(Outcome.SUCCESS)
    assert stand.balancer.stale == 1, "it was picked before the ejection"
    stand.end("b", Outcome.TIMEOUT, 5)
    assert not stand.balancer.is_ejected("b"), "half of the instances at most"
    stand.balancer.admit("a")
    stand.end("b", Outcome.TIMEOUT)
    assert stand.balancer.is_ejected("b")


def test_an_operator_prolongs_an_ejection_and_ends_any(stand: Stand) -> None:
    stand.eject("a")
    assert held_view(stand, "a") == ("ejected", 30.0, False, 1)
    stand.balancer.hold("a")
    stand.wait(31)
    assert held_view(stand, "a") == ("ejected", None, True, 1)
    stand.balancer.admit("a")
    stand.eject("b")
    stand.balancer.admit("b")
    assert [held_view(stand, id)[0] for id in "ab"] == ["up", "up"]
    changes = [("a", "ejected", "failures"), ("a", "returned", "operator")]
    assert stand.changes == [*changes, ("b", "ejected", "failures"), ("b", "returned", "operator")]
    before = list(stand.changes)
    pick = stand.pick()
    stand.balancer.admit(pick.instance)
    pick.finish(Outcome.SUCCESS)
    assert (stand.changes, stand.balancer.stale) == (before, 0), "an instance that is not ejected stays as it is"


def test_well_since_is_the_end_of_the_last_ejection_or_the_beginning(stand: Stand) -> None:
    assert stand.balancer.well_since("a") == START
    stand.wait(2)
    stand.balancer.add("c")
    stand.eject("a")
    assert [stand.balancer.well_since(id) for id in "abc"] == [START, START, START + 2]
    stand.wait(30)
    stand.picks(1)
    assert [stand.balancer.well_since(id) for id in "abc"] == [START + 32, START, START + 2]
    assert stand.balancer.well_since("unknown") == math.inf


def test_an_instance_has_asked_for_no_pause_from_the_moment_its_pause_ends(stand: Stand) -> None:
    assert stand.balancer.has_unpaused("ab")
    stand.end("a", Outcome.THROTTLED, retry_after=5)
    assert stand.balancer.has_unpaused("ab")
    stand.end("b", Outcome.THROTTLED, retry_after=7)
    found = []
    for _ in range(8):
        found.append("".join(id for id in "ab" if stand.balancer.has_unpaused(id)))
        stand.wait(1)
    assert found == ["", "", "", "", "", "a", "a", "ab"]
    assert not stand.balancer.has_unpaused(("unknown",))
    assert not stand.balancer.has_unpaused(())
    assert stand.balancer.has_unpaused(("unknown", "b"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_outlier_detection_no_instance_is_ejected_or_starts_slowly(strategy: str) -> None:
    stand = Stand("ab", strategy)
    stand.balancer.configure(Balancing(strategy=strategy), None)
    stand.balancer.add("c")
    for id in "ab":
        stand.end(id, Outcome.TIMEOUT, 500, slowness=9.0)
    stand.end("c", Outcome.SUCCESS, 500, slowness=0.0)
    stand.wait(10)
    assert stand.kinds() == {"a": "up", "b": "up", "c": "up"}
    assert stand.changes == []
    assert not stand.pick().panic
