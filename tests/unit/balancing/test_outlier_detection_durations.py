"""Ejection of instances that are much slower than their peers, and of no others."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from math import log

import pytest

from dispatch.balancing.balancer import Balancer, Pick
from dispatch.balancing.instances import EjectionRules
from dispatch.errors import Outcome
from dispatch.policy import Balancing

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
            assert isinstance(pick, Pick)
            number += 1
            self.picks.append((self.now, pick.instance))
            heapq.heappush(self._running, (self.now + self._duration(pick.instance, self._chance), number, pick))

    @property
    def ejected(self) -> list[str]:
        return [name for _, name, change, why in self.changes if change == "ejected" and why == "latency"]


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
