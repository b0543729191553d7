"""Snapshot of the guards' state, displayed beside the counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatch.balancing.snapshot import InstanceView
from dispatch.devtools.demo.scenarios.open_circuit import TOOL as CIRCUIT
from dispatch.devtools.demo.scenarios.slow_instance import SERVICE
from dispatch.devtools.demo.scoreboard import UserScore
from dispatch.dispatcher import Dispatcher
from dispatch.resilience.breaker.breaker import State


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """Circuit breaker of one tool. ``seconds_left``: time until it may admit a call; None: it admits calls, or unknown."""

    tool: str
    state: State
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class GuardSnapshot:
    """State of the guards.

    Attributes:
        instances: instances of the service that has several.
        circuits: circuit breakers that are not closed, and that of the tool whose service hangs.
        closed: number of all other circuit breakers.
        users: counts by user of the tool with a rate limit per user.
    """

    instances: tuple[InstanceView, ...] = ()
    circuits: tuple[BreakerSnapshot, ...] = ()
    closed: int = 0
    users: dict[str, UserScore] = field(default_factory=dict)


def capture_guards(dispatcher: Dispatcher, users: dict[str, UserScore]) -> GuardSnapshot:
    """Capture the current state.

    Args:
        dispatcher: a started dispatcher.
        users: counts by user.
    """
    shown, closed = [], 0
    for tool in dispatcher.catalog.tools:
        breaker = dispatcher.breaker(tool)
        if tool == CIRCUIT or breaker.state is not State.CLOSED:
            shown.append(BreakerSnapshot(tool, breaker.state, breaker.retry_after))
        else:
            closed += 1
    instances = sorted(
        dispatcher.instances(SERVICE), key=lambda view: view.id
    )  # a stable order: discovery reports them in arrival order
    return GuardSnapshot(tuple(instances), tuple(shown), closed, users)
