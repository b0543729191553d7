"""How the guards are doing at a moment: what the demonstration shows beside its counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatch.balancing.snapshot import InstanceView
from dispatch.devtools.demo.scenarios.open_circuit import TOOL as CIRCUIT
from dispatch.devtools.demo.scenarios.slow_instance import SERVICE
from dispatch.devtools.demo.scoreboard import UserScore
from dispatch.dispatcher import Dispatcher
from dispatch.resilience.breaker.breaker import State


@dataclass(frozen=True, slots=True)
class Circuit:
    """The circuit of one tool. ``seconds_left``: until a call may go; None: now, or nobody knows."""

    tool: str
    state: State
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Guards:
    """A moment.

    Attributes:
        instances: of the service that has several.
        circuits: of the tool whose service hangs one day, and of all that are not closed.
        closed: how many others there are, all of them closed.
        users: of the tool that has a rate for each.
    """

    instances: tuple[InstanceView, ...] = ()
    circuits: tuple[Circuit, ...] = ()
    closed: int = 0
    users: dict[str, UserScore] = field(default_factory=dict)


def look(dispatcher: Dispatcher, users: dict[str, UserScore]) -> Guards:
    """How they are now.

    Args:
        dispatcher: started.
        users: as they are counted.
    """
    shown, closed = [], 0
    for tool in dispatcher.catalog.tools:
        breaker = dispatcher.breaker(tool)
        if tool == CIRCUIT or breaker.state is not State.CLOSED:
            shown.append(Circuit(tool, breaker.state, breaker.retry_after))
        else:
            closed += 1
    instances = sorted(dispatcher.instances(SERVICE), key=lambda view: view.id)  # else in the order in which they came
    return Guards(tuple(instances), tuple(shown), closed, users)
