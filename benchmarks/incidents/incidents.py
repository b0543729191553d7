"""The incidents of instances, declared: each is a list of cases by parameters, with what is wanted of a correct program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.incidents.cases import Case, Do, Event, Tool

TIMEOUT = {"timeout": 15.0}
LONG_TIMEOUT = {"timeout": 120.0, "stream_timeout": 900.0}
SAFE = {"twice": 0, "untrue": 0}
"""In every incident: a call that must not be repeated is executed once, and errors say the truth about it."""
REPLACED_S = 0.4
"""Seconds after a kill until another instance starts."""
KINDS = (False, True)


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


def kinds(is_repeatable: bool | None, policy: Mapping[str, Any] | None = None, **arguments: Any) -> tuple[Tool, ...]:
    """A tool with these arguments; None: one that is repeatable and one that is not."""
    names = {True: ("lookup",), False: ("order",), None: ("lookup", "order")}[is_repeatable]
    return tuple(Tool(name, name == "lookup", arguments, policy or {}) for name in names)


def label_of(what: str, is_repeatable: bool | None, *more: str) -> str:
    """The row of a case."""
    kind = {True: "repeatable", False: "not repeatable", None: "both kinds"}[is_repeatable]
    return ", ".join((what, *more, kind))


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
    """Instance 0 is silent from ``at`` on: killed, and replaced after ``length`` seconds; or paused or blocked so long."""
    then: dict[Do, tuple[Event, ...]] = {
        "kill": (Event(at, "kill"), Event(at + length, "serve", instances)),
        "pause": (Event(at, "pause"), Event(at + length, "resume")),
        "block": (Event(at, "block", 0, length), Event(at + length, "note")),
    }
    is_alone = instances == 1
    if failed is None:
        # A killed instance takes what it had with it; a repeatable call is made again.
        failed = 0.0 if is_repeatable and do != "block" else 0.005
    limits = {"from then on": 0.005} if is_alone else {"failed": failed, "bulkhead-full": 0, "elsewhere": 0}
    return Case(
        label_of(f"1 of {instances}", is_repeatable, f"{1e3 * seconds:g} ms at {rate:g}/s"),
        {**limits, **SAFE},
        instances,
        kinds(is_repeatable, seconds=seconds),
        rate,
        seconds=at + watched,
        events=then[do],
        over=1 if is_alone else 0,
        policy=TIMEOUT,
    )


def silences(do: Do, length: float, alone: float) -> Iterator[Case]:
    """All cases of one kind of silence; ``alone``: its length where the instance is the only one."""
    for is_repeatable in KINDS:
        yield silence(do, 1, is_repeatable, length=alone, watched=alone + 6)
        yield silence(do, 2, is_repeatable, length=length)
        for seconds in (0.005, 0.1):
            yield silence(do, 4, is_repeatable, rate=500, seconds=seconds, length=length)


def short_silence(do: Do, length: float) -> Case:
    """Both kinds of tools at once, for a few seconds. A killed or stopped instance may take the requests of one second with
    it, unless they are repeatable."""
    failed = {"kill": 0.2, "pause": 0.1}.get(do, 0.0)
    return silence(do, 2, None, rate=600, at=1, length=length, watched=length + 1.5, failed=failed)


def killing(is_repeatable: bool) -> Case:
    """One of four is killed every five seconds, and replaced."""
    kills = 5
    return Case(
        label_of("1 of 4 every 5 s", is_repeatable, "50 ms at 500/s"),
        {"failed": 0.0 if is_repeatable else 0.005, "bulkhead-full": 0, **SAFE},
        4,
        kinds(is_repeatable, seconds=0.05),
        500,
        seconds=5.0 * kills + 10,
        events=tuple(
            event
            for each in range(kills)
            for event in (
                Event(5.0 * (each + 1), "kill", each),
                Event(5.0 * (each + 1) + REPLACED_S, "serve", each + 4),
            )
        ),
        over=0,
        policy=TIMEOUT,
    )


def gone(do: Do, instances: int, is_repeatable: bool | None, *, at: float = 5.0, length: float = 5.0) -> Case:
    """All instances are drained or killed, and others start ``length`` seconds later.

    Calls wait for them, within their timeout; those that were at a killed instance are lost.
    """
    ends = tuple(Event(at, do, each) for each in range(instances))
    starts = tuple(Event(at + length, "serve", instances + each) for each in range(instances))
    return Case(
        label_of(
            f"{instances}, 0, {instances} instances",
            is_repeatable,
            f"{'drained' if do == 'drain' else 'killed'} for {length:g} s",
        ),
        {
            **({"failed": 0.005} if do == "drain" else {}),
            "back": 1.0,
            "from then on": 0.005,
            "bulkhead-full": 0,
            **SAFE,
        },
        instances,
        kinds(is_repeatable, seconds=0.05),
        100,
        seconds=at + length + min(10.0, 2 * length),
        events=(*ends, *starts),
        over=instances,
        policy=TIMEOUT,
    )


def later(
    delay: float, instances: int, is_repeatable: bool | None, *, is_known: bool = False, watched: float = 4.0
) -> Case:
    """The service starts ``delay`` seconds after the first call; ``is_known``: it is known to be dispatch's own.

    A request that is not repeatable, sent to the shared topic of an unknown service after a second of waiting, is lost.
    """
    is_lossless = is_known or is_repeatable or delay < 1
    return Case(
        label_of(
            f"{delay:g} s, {instances} instance{'s' if instances > 1 else ''}",
            is_repeatable,
            *(("known-instances-only",) if is_known else ()),
        ),
        {
            **({"failed": 0.0, "released": 1.0} if is_lossless else {}),
            "back": 1.0,
            "from then on": 0.005,
            "bulkhead-full": 0,
            **SAFE,
        },
        0,
        kinds(is_repeatable, {"known-instances-only": True} if is_known else None, seconds=0.05),
        100,
        seconds=delay + watched,
        events=tuple(Event(delay, "serve", each) for each in range(instances)),
        over=0,
        policy=TIMEOUT,
    )


def overloaded(is_repeatable: bool | None, *, seconds: float = 40.0) -> Case:
    """One of four has two places and no queue, where its share is five."""
    return Case(
        label_of("1 of 4 has 2 places", is_repeatable, "50 ms at 400/s"),
        {"failed": 0.005, "circuit-open": 0, **SAFE},
        4,
        kinds(is_repeatable, seconds=0.05),
        400,
        seconds=seconds,
        options={0: {"concurrency": 2, "max_queue": 0}},
    )


def slow(is_repeatable: bool | None, *, seconds: float = 30.0) -> Case:
    """One of four takes 20 times as long. Late is a call of half its time."""
    return Case(
        label_of("1 of 4 at 20 x 20 ms", is_repeatable, "at 200/s, from 5 s on"),
        {"late": 0.02, **SAFE},
        4,
        kinds(is_repeatable, seconds=0.02),
        200,
        seconds=seconds,
        events=(Event(5.0, "note"),),
        over=0,
        options={0: {"slowness": 20.0}},
        late_s=0.2,
    )


def cold(instances: int, calls: int, seconds: float, *, warm_up: int = 0) -> Case:
    """Calls at once right after ``connect``, or after some. A fair share is exceeded twice at most."""
    return Case(
        f"{calls} calls of {seconds:g} s at {instances} instances, {'warm' if warm_up else 'cold'}",
        {"failed": 0.0, "busiest": 2 / instances, "wall": 2 * seconds, **SAFE},
        instances,
        # Permits for all: the default's 64 would spread the burst over five rounds.
        kinds(False, {"bulkhead": 512}, seconds=seconds),
        calls=({},) * calls,
        seconds=40,
        warm_up=warm_up,
    )


def hanging(instances: int, *, tools: int = 50, rate: float = 250, seconds: float = 30.0) -> Case:
    """One of the tools of a service never returns."""
    others = tuple(Tool(f"digest-{number}", arguments={"seconds": 0.02}) for number in range(tools - 1))
    return Case(
        f"1 of {tools} tools, {instances} instance{'s' if instances > 1 else ''}, {rate:g}/s",
        {"failed": 0.0, "circuit-open": 0, **SAFE},
        instances,
        (Tool("hanging", arguments={"hang": True}, is_counted=False), *others),
        rate,
        seconds=seconds,
        grace_s=20,
    )


def reading(label: str, *streams: Mapping[str, Any], seconds: float = 600.0) -> Case:
    """Streams side by side. What is sent and not read must not pile up."""
    return Case(
        label,
        {"failed": 0.0, "memory": 100.0, **SAFE},
        1,
        calls=streams,
        seconds=seconds,
        policy=LONG_TIMEOUT,
    )


def abandoned(*, seconds: float = 45.0) -> Case:
    """Readers of 64 streams stop after the first chunk, while the tool has other calls, too: from 3 s on these succeed. Each
    stream has a window of 2 MB."""
    return Case(
        "64 readers stop",
        {"from then on": 0.005, "memory": 200.0, **SAFE},
        1,
        kinds(False, seconds=0.01),
        20,
        calls=({"chunks": 1_000, "bytes": 10_000, "stream": 0, "read": 1},) * 64,
        seconds=seconds,
        events=(Event(3.0, "note"),),
        over=0,
        policy={"timeout": 15.0},
    )


def large(label: str, count: int, instances: int, **arguments: Any) -> Case:
    """Several large payloads at once."""
    return Case(
        f"{label}, {instances} instance{'s' if instances > 1 else ''}",
        {"failed": 0.0, **SAFE},
        instances,
        calls=(arguments,) * count,
        seconds=120,
        policy=LONG_TIMEOUT,
    )


def burst(instances: int, seconds: float, is_repeatable: bool | None, *, calls: int = 300, warm_up: int = 0) -> Case:
    """Calls at once of a tool that takes so long, with the default policy and timeout."""
    return Case(
        label_of(f"{calls:,} calls of {seconds:g} s at {instances} x 64", is_repeatable, "warm" if warm_up else "cold"),
        {"failed": 0.0, **SAFE},
        instances,
        kinds(is_repeatable, seconds=seconds),
        calls=({},) * calls,
        seconds=40,
        warm_up=warm_up,
    )


def stream_of(chunks: int, reader_s: float, pause: float = 0.0) -> dict[str, Any]:
    """Arguments of a stream, and of its reader."""
    return {"chunks": chunks, "stream": reader_s, "pause": pause}


def incident(name: str, title: str, cases: Iterable[Case], short: Iterable[Case]) -> Incident:
    """Make one."""
    return Incident(name, title, tuple(cases), tuple(short))


INCIDENTS = (
    incident(
        "kill",
        f"one instance is killed (SIGKILL), another one starts {REPLACED_S:g} s later",
        silences("kill", REPLACED_S, REPLACED_S),
        [short_silence("kill", REPLACED_S)],
    ),
    incident(
        "stop",
        "one instance is paused (SIGSTOP) for 6 s, the only one for 12 s",
        silences("pause", 6, 12),
        [short_silence("pause", 4)],
    ),
    incident(
        "block",
        "a synchronous call blocks the event loop of one instance for 8 s",
        silences("block", 8, 8),
        [short_silence("block", 4)],
    ),
    incident(
        "killing",
        f"one of four instances is killed every 5 s, another one starts {REPLACED_S:g} s later",
        map(killing, KINDS),
        [],
    ),
    incident(
        "gone",
        "all instances go, and others come",
        (gone(do, count, kind) for do in ("drain", "kill") for count in (1, 2, 4) for kind in KINDS),
        [gone("drain", 2, None, at=1, length=2)],
    ),
    incident(
        "late",
        "the service starts after the first call",
        (
            later(delay, count, is_repeatable, is_known=is_known)
            for delay in (0.3, 1.0, 3.0)
            for count in (1, 2)
            for is_repeatable, is_known in ((True, False), (False, True), (False, False))
        ),
        [later(1.5, 1, True, watched=2), later(1.5, 1, False, is_known=True, watched=2)],
    ),
    incident(
        "overloaded",
        "one of four instances has a small queue",
        map(overloaded, KINDS),
        [overloaded(None, seconds=4)],
    ),
    incident("slow", "one of four instances is slow", map(slow, KINDS), [slow(None, seconds=10)]),
    incident(
        "cold",
        "the first burst",
        (cold(8, 300, 1.0), cold(8, 300, 1.0, warm_up=40), cold(4, 200, 1.0), cold(2, 100, 1.0)),
        [cold(4, 240, 0.3)],
    ),
    incident(
        "hang",
        "one tool hangs",
        (hanging(1), hanging(2)),
        [hanging(1, tools=5, rate=100, seconds=8)],
    ),
    incident(
        "stream",
        "streams whose readers are slower than the tool",
        (
            reading("2,000 chunks, read without a pause", stream_of(2_000, 0.0)),
            reading("5,000 chunks 0.2 ms apart, reader of 1 ms", stream_of(5_000, 0.001, 0.0002)),
            reading(
                "20,000 chunks, readers of 0, 1 and 20 ms", *(stream_of(20_000, each) for each in (0, 0.001, 0.02))
            ),
            abandoned(),
        ),
        [
            reading("3,000 chunks, readers of 0 and 1 ms", stream_of(3_000, 0.0), stream_of(3_000, 0.001)),
            abandoned(seconds=8),
        ],
    ),
    incident(
        "large",
        "several large payloads at once",
        (
            each
            for count in (1, 2)
            for each in (
                large("16 replies of 20 MB", 16, count, bytes=20_000_000),
                large("8 arguments of 30 MB", 8, count, send=30_000_000),
            )
        ),
        [
            large("16 replies of 20 MB", 16, 1, bytes=20_000_000),
            large("8 arguments of 30 MB", 8, 1, send=30_000_000),
        ],
    ),
    incident(
        "burst",
        "calls at once of a healthy tool",
        (
            replace(burst(1, 0.001, False, calls=1_000), label="1,000 calls of 1 ms at 1 x 64, not repeatable"),
            *(
                burst(instances, seconds, kind, warm_up=warm_up)
                for kind in KINDS
                for seconds in (0.1, 1.0, 2.0, 5.0)
                for instances in (1, 4)
                for warm_up in (0, 20)
            ),
        ),
        [burst(1, 1.0, True, warm_up=20), burst(1, 0.5, False), burst(4, 1.0, False, warm_up=20)],
    ),
)
