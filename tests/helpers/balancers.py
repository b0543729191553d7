"""Instances and balancers as tests want them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dispatch.errors import Outcome
from dispatch.policy import Balancing
from dispatch.resilience.balancer import Balancer, Pick
from dispatch.resilience.instances import EjectionRules, InstanceState

START = 1_000.0


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def states(names: str = "ab", **values: Any) -> list[InstanceState]:
    """An instance for each letter; ``values`` are attributes with one value for each."""
    made = [InstanceState(name, 1.0, START) for name in names]
    for place, state in enumerate(made):
        state.place = place
    for key, each in values.items():
        for state, value in zip(made, each, strict=True):
            setattr(state, key, value)
    return made


def in_turn(*numbers: float) -> Iterator[float]:
    """Chance that gives these numbers, and then no more."""
    yield from numbers


class Stand:
    """A balancer with its clock, its changes as they were told, and shorter words for what tests do with it."""

    def __init__(
        self,
        members: Mapping[str, float] | Iterable[str] = "ab",
        strategy: str = "round-robin",
        *,
        warm: bool = True,
        admits: Any = None,
        **health: Any,
    ) -> None:
        self.clock = Clock()
        self.changes: list[tuple[str, str, str]] = []
        if warm:
            health.setdefault("slow_start_window", None)
        self.balancer = Balancer(
            members,
            balancing=Balancing(strategy=strategy),
            outlier_detection=EjectionRules(**health),
            clock=self.clock,
            randomness=random.Random(5).random,
            admits=admits,
            listener=lambda *change: self.changes.append(change),
        )

    def pick(self, *tried: str) -> Pick:
        picked = self.balancer.pick(frozenset(tried))
        assert isinstance(picked, Pick)
        return picked

    def picks(self, count: int) -> str:
        """The instances of the next ``count`` calls; each has ended well before the next begins."""
        names = ""
        for _ in range(count):
            pick = self.pick()
            names += pick.instance
            pick.finish(Outcome.SUCCESS)
        return names

    def state(self, id: str) -> InstanceState:
        return self.balancer._members[id]

    def end(self, id: str, outcome: Outcome = Outcome.TIMEOUT, count: int = 1, **how: Any) -> None:
        """``count`` calls at ``id``, whoever's turn it is, end so."""
        for _ in range(count):
            state = self.state(id)
            pick = Pick(id, self.clock.now, False, self.balancer, state, state.epoch, self.balancer._picks + 1)
            state.in_flight += 1
            pick.finish(outcome, **how)

    def eject(self, id: str) -> None:
        self.end(id, Outcome.TIMEOUT, 5)
        assert self.state(id).ejected_until is not None

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def kinds(self) -> dict[str, str]:
        return {view.id: view.state for view in self.balancer.instances()}
