"""Instances with workers and a queue each, calls that come by chance, and a balancer in front. Virtual time, seeded."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dispatch.balancing.balancer import Balancer, Pick
from dispatch.balancing.instances import EjectionRules
from dispatch.errors import Outcome
from dispatch.policy import Balancing

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
        assert isinstance(pick, Pick)
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
