"""The faults, declared: a load, and what happens to instances, connections and the server meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

BEGIN_S = 3.0
"""Seconds of load before a fault."""
AFTER_S = 5.0
"""Seconds of load after it."""

Do = Literal[
    *("kill", "serve", "stop", "pause", "resume", "hang", "slow", "heal", "block"),
    *("cut", "restore", "reset", "kill-server", "restart-server", "cancel", "cancel-none", "rate"),
]


@dataclass(frozen=True)
class Step:
    """One action.

    Attributes:
        at: seconds after the load began.
        do: to an instance: ``kill`` (SIGKILL), ``serve`` (a new process in its place), ``stop`` (gracefully), ``pause`` and
            ``resume`` (SIGSTOP, SIGCONT), ``hang`` (calls do not return), ``slow`` (``value`` times), ``heal`` (end of
            both), ``block`` (its event loop, for ``value`` seconds); to the client's connections: ``cut`` (closed, and
            new ones refused), ``restore``, ``reset`` (closed once); ``kill-server``, ``restart-server``; to the load:
            ``cancel`` (every fourth call after ``value`` seconds), ``cancel-none``, ``rate`` (from then on).
        instance: its place.
        value: a number.
    """

    at: float
    do: Do
    instance: int = 0
    value: float = 0.0


@dataclass(frozen=True)
class Fault:
    """One fault under load.

    Attributes:
        name: for ``--only``.
        title: the row of the table.
        steps: in the order of time.
        over: seconds after the load began until the fault is over; from then on calls should succeed.
        rate: calls per second; every second one must not be repeated.
        work_s: seconds that the tool takes.
        concurrency: calls that an instance executes at once.
        is_relative: the load is a multiple of the capacity: with a part of the load the tool is as much slower.
        needs_server: it exists only in systems with a broker or server.
    """

    name: str
    title: str
    steps: tuple[Step, ...]
    over: float
    rate: float = 200.0
    work_s: float = 0.005
    concurrency: int = 64
    is_relative: bool = False
    needs_server: bool = False

    @property
    def seconds(self) -> float:
        """How long the load lasts."""
        return self.over + AFTER_S


T = BEGIN_S
FAULTS: Sequence[Fault] = (
    Fault("none", "no fault: the load alone", (), T),
    Fault("killed-instance", "one of two instances killed", (Step(T, "kill", 0),), T),
    Fault(
        "killed-all",
        "both instances killed, new ones 2 s later",
        (Step(T, "kill", 0), Step(T, "kill", 1), Step(T + 2, "serve", 0), Step(T + 2, "serve", 1)),
        T + 2,
    ),
    Fault("hang", "one instance's calls hang for 6 s", (Step(T, "hang", 0), Step(T + 6, "heal", 0)), T + 6),
    Fault("slow", "one instance 20 times slower for 6 s", (Step(T, "slow", 0, 20.0), Step(T + 6, "heal", 0)), T + 6),
    Fault("frozen", "one instance frozen for 6 s (SIGSTOP)", (Step(T, "pause", 0), Step(T + 6, "resume", 0)), T + 6),
    Fault("blocked", "one instance's event loop blocked for 8 s", (Step(T, "block", 0, 8.0),), T + 8),
    Fault(
        "lost-replies",
        "replies lost: the client's connections reset 10 times in 5 s",
        tuple(Step(T + 0.5 * number, "reset") for number in range(10)),
        T + 4.5,
        work_s=0.05,
    ),
    Fault("cut", "the client's connections cut for 5 s", (Step(T, "cut"), Step(T + 5, "restore")), T + 5),
    Fault(
        "killed-server",
        "broker or server killed, and started again at once",
        (Step(T, "kill-server"), Step(T, "restart-server")),
        T,
        needs_server=True,
    ),
    Fault(
        "rolling-restart",
        "rolling restart of both instances",
        (Step(T, "stop", 0), Step(T + 0.5, "serve", 0), Step(T + 2, "stop", 1), Step(T + 2.5, "serve", 1)),
        T + 2.5,
    ),
    Fault(
        "cancelled",
        "every fourth call cancelled by its caller after 50 ms",
        (Step(T, "cancel", value=0.05), Step(T + 5, "cancel-none")),
        T + 5,
        work_s=0.2,
    ),
    Fault(
        "overload",
        "three times the capacity for 20 s",
        (Step(T, "rate", value=300.0), Step(T + 20, "rate", value=50.0)),
        T + 20,
        rate=50.0,
        work_s=0.08,
        concurrency=4,
        is_relative=True,
    ),
)
