"""The incidents of instances: each is a list of cases, by parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchmarks.incidents.cases import Case, Do, Event, Tool

TIMEOUT = {"timeout": 15.0}
SAFE = {"twice": 0, "untrue": 0}
"""In every incident: a call that must not be repeated is executed once, and errors say the truth about it."""


@dataclass(frozen=True)
class Incident:
    """One incident.

    Attributes:
        name: as ``--only`` takes it.
        title: what happens, in a line.
        cases: all of them.
        short: those of a quick pass.
    """

    name: str
    title: str
    cases: tuple[Case, ...]
    short: tuple[Case, ...]


def kinds(seconds: float, is_repeatable: bool | None) -> tuple[Tool, ...]:
    """A tool that takes so long; None: one that is repeatable and one that is not."""
    tools = {True: ("lookup",), False: ("order",), None: ("lookup", "order")}[is_repeatable]
    return tuple(Tool(name, name == "lookup", {"seconds": seconds}) for name in tools)


def label_of(instances: int, is_repeatable: bool | None, *more: str) -> str:
    """The row of a case."""
    kind = {True: "repeatable", False: "not repeatable", None: "both kinds"}[is_repeatable]
    return ", ".join((f"1 of {instances}", kind, *more))


def silence(
    do: Do,
    instances: int,
    is_repeatable: bool | None,
    *,
    rate: float = 400.0,
    seconds: float = 0.05,
    at: float = 5.0,
    length: float,
    watched: float = 14.0,
    failed: float | None = None,
) -> Case:
    """Instance 0 is silent from ``at`` on.

    Killed: another one starts after ``length`` seconds; paused or blocked: for that long.
    """
    then: dict[Do, tuple[Event, ...]] = {
        "kill": (Event(at, "kill"), Event(at + length, "serve", instances)),
        "pause": (Event(at, "pause"), Event(at + length, "resume")),
        "block": (Event(at, "block", 0, length),),
    }
    alone = instances == 1
    if failed is None:
        # A killed instance takes what it had with it; a repeatable call is made again.
        failed = 0.0 if is_repeatable and do == "kill" else 0.005
    limits = {
        **({"from then on": 0.005} if alone else {"failed": failed, "bulkhead-full": 0, "elsewhere": 0}),
        **SAFE,
    }
    return Case(
        label_of(instances, is_repeatable, f"{rate:g}/s, {1e3 * seconds:g} ms"),
        limits,
        instances,
        kinds(seconds, is_repeatable),
        rate,
        seconds=at + watched,
        events=then[do],
        after=at + length + 1 if alone else at,
        policy=TIMEOUT,
    )


def silences(do: Do, length: float, alone: float) -> Iterator[Case]:
    """All cases of one kind of silence."""
    for is_repeatable in (False, True):
        yield silence(do, 1, is_repeatable, length=alone, watched=alone + 6)
        yield silence(do, 2, is_repeatable, length=length)
        for seconds in (0.005, 0.1):
            yield silence(do, 4, is_repeatable, rate=500, seconds=seconds, length=length)


def short_silences(do: Do, length: float) -> Iterator[Case]:
    """One case with both kinds of tools at once. A killed instance may take the requests of one second with it."""
    yield silence(do, 2, None, rate=200, at=1, length=length, watched=length + 2, failed=0.2 if do == "kill" else 0.0)


def incident(name: str, title: str, cases: Iterable[Case], short: Iterable[Case]) -> Incident:
    """Make one."""
    return Incident(name, title, tuple(cases), tuple(short))


INCIDENTS = (
    incident(
        "kill",
        "one instance is killed (SIGKILL), another one starts 0.4 s later",
        silences("kill", 0.4, 0.4),
        short_silences("kill", 0.4),
    ),
    incident(
        "stop",
        "one instance is paused (SIGSTOP) for 6 s, the only one for 12 s",
        silences("pause", 6, 12),
        short_silences("pause", 3),
    ),
    incident(
        "block",
        "a synchronous call blocks the event loop of one instance for 8 s",
        silences("block", 8, 8),
        short_silences("block", 3),
    ),
)
