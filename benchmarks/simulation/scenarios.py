"""Scenarios: conditions of the instances and the load over time. Values only; :mod:`benchmarks.simulation.run` runs them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

FAILS_AFTER_S = 0.005
"""Latency of a failure in seconds: shorter than work, which attracts calls to a failing instance."""

THREE = ("unguarded", "naive", "ours")
FOUR = (*THREE, "ours-defaults")


class Condition(NamedTuple):
    """Condition of one instance at one time.

    Attributes:
        slower: factor on the duration of its work.
        errors: share of its requests that it answers with the error ``unavailable``.
        tail: share of its requests that take twenty times as long.
    """

    slower: float = 1.0
    errors: float = 0.0
    tail: float = 0.0


WELL = Condition()


@dataclass(frozen=True)
class Scenario:
    """One scenario. Times are in virtual seconds from its start.

    Attributes:
        name: on the command line and in file names.
        title: the failure in a few words.
        seconds: duration of the load.
        rate: calls per second of all dispatchers together, each value from a time on.
        instances: of the service, each of which does ``concurrency`` requests at a time, in ``work`` seconds each (the
            median; log-normal with a sigma of 0.3).
        dispatchers: calling processes, which share no state.
        in_step: they call at the same times, as pollers do, instead of at random ones (Poisson).
        trouble: start and end of the failure.
        condition: of an instance at a time.
        deaths: instance, when it is killed, when it is started again.
        hedges: the tool's policy has ``"hedging": "p95"``.
        contenders: clients that run it.
        pictured: it has a plot.
    """

    name: str
    title: str
    seconds: float
    rate: Sequence[tuple[float, float]]
    instances: int = 8
    concurrency: int = 8
    work: float = 0.05
    dispatchers: int = 1
    in_step: bool = False
    trouble: tuple[float, float] = (0.0, 0.0)
    condition: Callable[[float, int], Condition] = lambda _now, _instance: WELL
    deaths: Sequence[tuple[int, float, float]] = ()
    hedges: bool = False
    contenders: tuple[str, ...] = THREE
    pictured: bool = True

    @property
    def capacity(self) -> float:
        """Requests per second of the healthy service; the mean of a log-normal is above its median."""
        return self.instances * self.concurrency / (self.work * 1.046)

    def rate_at(self, time: float) -> float:
        """Return the offered calls per second at ``time``."""
        return [rate for since, rate in self.rate if since <= time][-1]

    def arrivals(self, seed: int) -> list[tuple[float, int]]:
        """Return time and dispatcher of each call; the same for every contender."""
        chance = random.Random(f"{self.name} {seed} arrivals")
        found: list[tuple[float, int]] = []
        if self.in_step:
            # All at nearly the same time, like timers that were set by the same event.
            every, time = self.dispatchers / self.rate[0][1], 0.0
            while time < self.seconds:
                found += [(time + 0.02 * chance.random(), each) for each in range(self.dispatchers)]
                time += every
            return sorted(found)
        time = 0.0
        while True:
            time += chance.expovariate(self.rate_at(time))
            if time >= self.seconds:
                return found
            found.append((time, len(found) % self.dispatchers))


def _slow(now: float, instance: int) -> Condition:
    return Condition(slower=10.0) if instance == 0 and 10 <= now < 35 else WELL


def _failing(now: float, instance: int) -> Condition:
    return Condition(errors=1.0) if instance == 0 and 5 <= now < 20 else WELL


def _brown_out(now: float, _instance: int) -> Condition:
    if not 10 <= now < 30:
        return WELL
    return Condition(errors=0.9 * min(1.0, (now - 10) / 8, (30 - now) / 8))


def _storm(now: float, _instance: int) -> Condition:
    return Condition(slower=20.0) if 10 <= now < 15 else WELL


def _outage(now: float, _instance: int) -> Condition:
    return Condition(errors=1.0) if 5 <= now < 15 else WELL


def _tail(_now: float, _instance: int) -> Condition:
    return Condition(tail=0.01)


OVERLOAD = ((0.0, 0.8), (8.0, 2.0), (18.0, 5.0), (28.0, 10.0), (38.0, 0.8))
"""Steps of load: start, and multiple of the capacity."""
OVERLOAD_CAPACITY = 4 * 2 / (0.1 * 1.046)
FLAPS = tuple((0, 5.0 + 10 * n, 10.0 + 10 * n) for n in range(4))

SCENARIOS = (
    Scenario(
        "slow-instance",
        "one of 8 instances takes ten times as long, from 10 s to 35 s",
        50,
        ((0, 100),),
        trouble=(10, 35),
        condition=_slow,
    ),
    Scenario(
        "dead-instance",
        "one of 8 instances is killed at 10 s and started again at 30 s",
        50,
        ((0, 100),),
        trouble=(10, 30),
        deaths=((0, 10.0, 30.0),),
    ),
    Scenario(
        "brown-out",
        "every instance fails: more and more from 10 s, 9 of 10 from 18 s to 22 s, none after 30 s",
        50,
        ((0, 100),),
        trouble=(10, 30),
        condition=_brown_out,
        contenders=FOUR,
    ),
    Scenario(
        "flapping",
        "one of 4 instances is killed and started again, 5 s up and 5 s down, from 5 s to 40 s",
        50,
        ((0, 100),),
        instances=4,
        trouble=(5, 40),
        deaths=FLAPS,
    ),
    Scenario(
        "overload",
        "0.8 times what the service can do, then 2, 5 and 10 times, then 0.8 again",
        54,
        tuple((since, times * OVERLOAD_CAPACITY) for since, times in OVERLOAD),
        instances=4,
        concurrency=2,
        work=0.1,
        trouble=(8, 38),
    ),
    Scenario(
        "retry-storm",
        "at 70 % of what the service can do, it takes 20 times as long for 5 s",
        45,
        ((0, 0.7 * OVERLOAD_CAPACITY),),
        instances=4,
        concurrency=2,
        work=0.1,
        trouble=(10, 15),
        condition=_storm,
        contenders=FOUR,
    ),
    Scenario(
        "herd",
        "100 dispatchers call in step; the service fails from 5 s to 15 s",
        32,
        ((0, 300),),
        dispatchers=100,
        in_step=True,
        instances=4,
        trouble=(5, 15),
        condition=_outage,
        contenders=FOUR,
    ),
)
"""Scenarios with a plot."""

EXTRAS = (
    Scenario(
        "healthy",
        "all is well (what slow-instance is compared with)",
        50,
        ((0, 100),),
        contenders=THREE[2:],
        pictured=False,
    ),
    Scenario(
        "failing-of-two",
        "one of 2 instances fails every request, at once, from 5 s to 20 s",
        25,
        ((0, 100),),
        instances=2,
        trouble=(5, 20),
        condition=_failing,
        pictured=False,
    ),
    Scenario(
        "tail",
        "one request in 100 takes 20 times as long",
        60,
        ((0, 120),),
        condition=_tail,
        contenders=THREE[2:],
        pictured=False,
    ),
    Scenario(
        "tail-hedged",
        "the same, with hedges after the p95",
        60,
        ((0, 120),),
        condition=_tail,
        hedges=True,
        contenders=THREE[2:],
        pictured=False,
    ),
)
"""Scenarios without a plot, which serve the goals only."""

ALL = (*SCENARIOS, *EXTRAS)


def quick(scenario: Scenario) -> Scenario:
    """Return the scenario at half the load, with half the instances where capacity is the limit."""
    halved = tuple((since, rate / 2) for since, rate in scenario.rate)
    if scenario.name in ("overload", "retry-storm"):
        return replace(scenario, rate=halved, instances=scenario.instances // 2)
    if scenario.in_step:
        return replace(scenario, rate=halved, dispatchers=scenario.dispatchers // 2)
    return replace(scenario, rate=halved)


def find(name: str) -> Scenario:
    """Return the scenario of that name.

    Raises:
        KeyError: there is none.
    """
    return {scenario.name: scenario for scenario in ALL}[name]
