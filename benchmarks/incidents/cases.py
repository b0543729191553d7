"""Cases of incidents, declared: instances, tools, load, events, and the greatest figures that a correct program has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Do = Literal["kill", "pause", "resume", "block", "drain", "serve", "note"]


@dataclass(frozen=True)
class Event:
    """Something that happens to an instance.

    Attributes:
        at: seconds after the load began.
        do: ``kill`` (SIGKILL), ``pause`` (SIGSTOP), ``resume`` (SIGCONT), ``block`` (a call blocks the event loop of the
            instance that executes it), ``drain`` (as SIGTERM does), ``serve`` (an instance starts), or ``note`` (nothing:
            the moment matters).
        instance: its number; instances have numbers from 0 on.
        seconds: how long the loop is blocked.
    """

    at: float
    do: Do
    instance: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Tool:
    """A tool of the service.

    Attributes:
        name: its name.
        is_repeatable: it is declared ``read-only``.
        arguments: what its calls say (see :mod:`benchmarks.incidents.roles.instance`).
        policy: the policy in its descriptor.
        is_counted: its calls count in the figures.
    """

    name: str = "digest"
    is_repeatable: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    is_counted: bool = True


@dataclass(frozen=True)
class Case:
    """One incident, with parameters.

    Attributes:
        label: the row of the table.
        limits: the greatest value that a correct program has, by name of the figure (:mod:`benchmarks.incidents.outcomes`).
        instances: instances at the start; further ones start by events.
        tools: called in turn.
        rate: calls per second, which do not wait for earlier ones.
        calls: calls at once, each with further arguments, instead of or beside a rate.
        seconds: how long the load runs, at most; without a rate, calls that end earlier end it.
        events: what happens, in the order of time.
        over: number of the event with whose end the incident must be over; None: from the beginning of the load on.
        warm_up: calls before the load, one after the other.
        policy: of the dispatcher; the default, some with other timeouts.
        options: settings of instances, by their numbers.
        late_s: seconds above which a call counts as ``late``.
        grace_s: seconds that calls in flight at the end may take.
    """

    label: str
    limits: Mapping[str, float]
    instances: int = 2
    tools: tuple[Tool, ...] = (Tool(),)
    rate: float = 0.0
    calls: tuple[Mapping[str, Any], ...] = ()
    seconds: float = 10.0
    events: tuple[Event, ...] = ()
    over: int | None = None
    warm_up: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    late_s: float = 1.0
    grace_s: float = 32.0

    @property
    def processes(self) -> int:
        """Instances that the case has in all."""
        return max(self.instances, 1 + max((event.instance for event in self.events), default=-1))
