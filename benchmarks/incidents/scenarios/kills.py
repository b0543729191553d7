"""One of several instances is killed under load: what the calls after it come to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks.incidents.figures import (
    CIRCUIT_OPEN,
    RIGHT,
    Call,
    Figure,
    begun,
    calls_of,
    common_failures,
    median,
    p99_ms,
    share,
)
from benchmarks.incidents.lab import REACH_S, Lab, queues, unique
from benchmarks.incidents.scenario import Scenario

TIMEOUT_S = 10.0
FAST_S, SLOW_S = 0.005, 0.1
"""How long the tool takes. A slow one has more requests under way at the instance that is killed."""
POLICY = {"bulkhead": 1_024}
"""The default otherwise. With its 64 places the bulkhead refuses calls of the slow tool before the breaker is asked."""
BEFORE_S = 4.0
"""How long the load runs before the kill."""


@dataclass(frozen=True)
class Round:
    """One kill.

    Attributes:
        calls: those that began after it.
        seconds: for how long they did.
        healthy: those that had ended before it.
    """

    calls: list[Call]
    seconds: float
    healthy: list[Call]


def run(lab: Lab) -> Iterator[Figure]:
    """Measure it."""
    for instances, rate in ((2, 400),) if lab.short else ((2, 400), (4, 500)):
        for seconds in (SLOW_S,) if lab.short else (FAST_S, SLOW_S):
            name = f"1 of {instances}, {rate}/s, {1e3 * seconds:.0f} ms"
            yield from lab.attempt(name, partial(rounds_of, lab, name, instances, rate, seconds))


def rounds_of(lab: Lab, name: str, instances: int, rate: int, tool_seconds: float) -> list[Figure]:
    """The figures of several kills."""
    # Whether the circuit opens depends on what was under way at that moment: more rounds of the slow tool.
    count = 1 if lab.short else 5 if tool_seconds == SLOW_S else 3
    return figures_of(name, [one(lab, instances, rate, tool_seconds) for _ in range(count)], rate)


def one(lab: Lab, instances: int, rate: float, tool_seconds: float) -> Round:
    """Kill one of so many instances of a tool that takes so long."""
    broker = lab.brokers.get()
    watched = 4.0 if lab.short else 10.0
    what = f"one of {instances} instances of a tool of {1e3 * tool_seconds:.0f} ms killed under {rate:g} calls/s"
    lab.progress.step(f"kills: {what}", BEFORE_S + watched + 10)
    with ExitStack() as stack:
        spec = {"url": broker.service_url, "tool_seconds": tool_seconds, "read_only": True, **queues(unique("kills"))}
        services = [lab.start("service", {**spec, "instance": f"web-{n}"}, stack) for n in range(instances)]
        caller = lab.start("caller", {**spec, "policy": POLICY, "timeout": TIMEOUT_S}, stack)
        caller.ask({"do": "reach", "seconds": REACH_S}, REACH_S + 10)
        caller.ask({"do": "begin", "rate": rate}, 10)
        time.sleep(BEFORE_S)
        killed = time.monotonic()
        services[0].kill()
        time.sleep(watched)
        calls = calls_of(caller.ask({"do": "end"}, TIMEOUT_S + 30)["calls"])
    return Round(begun(calls, killed), watched, [call for call in calls if call.ended < killed])


def figures_of(name: str, rounds: list[Round], rate: float) -> list[Figure]:
    """Medians over the rounds."""
    right = [share(each.calls, RIGHT) for each in rounds]
    lost = [None if each is None else 1 - each for each in right]
    return [
        Figure(f"{name}: right before the kill", median([share(each.healthy, RIGHT) for each in rounds]), "%", "100 %"),
        Figure(f"{name}: calls/s after it", median([len(each.calls) / each.seconds for each in rounds]), "", f"{rate}"),
        Figure(f"{name}: failed or refused", median(lost), "%", "≤ 0.5 %"),
        Figure(f"{name}: the worst round", max((each for each in lost if each is not None), default=None), "%"),
        Figure(
            f"{name}: kills that opened the circuit",
            f"{sum(share(each.calls, CIRCUIT_OPEN) not in (None, 0) for each in rounds)} of {len(rounds)}",
            "",
            f"0 of {len(rounds)}",
        ),
        Figure(
            f"{name}: refused, circuit open", median([share(each.calls, CIRCUIT_OPEN) for each in rounds]), "%", "0 %"
        ),
        Figure(f"{name}: failures, all rounds", common_failures([call for each in rounds for call in each.calls])),
        Figure(f"{name}: p99 of the answers", median([p99_ms(each.calls) for each in rounds]), "ms"),
    ]


SCENARIO = Scenario(
    "kills",
    "one of two and one of four instances is killed; read-only tool of 5 and of 100 ms",
    run,
    seconds=380,
    short_seconds=20,
)
