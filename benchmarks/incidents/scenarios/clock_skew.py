"""A named instance is killed and starts again on a clock that is an hour behind."""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.incidents.figures import RIGHT, Figure, begun, calls_of, common_failures, first_right, share
from benchmarks.incidents.lab import REACH_S, Lab, queues, unique
from benchmarks.incidents.scenario import Scenario

RATE = 20.0
TIMEOUT_S = 2.0
BEHIND_S = 3_600.0


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    broker = lab.brokers.get()
    watched = 5.0 if lab.short else 30.0
    lab.progress.step("clock: a named instance starts again on a clock that is behind", watched + 15)
    with ExitStack() as stack:
        spec = {"url": broker.service_url, "instance": "web-1", **queues(unique("clock"))}
        first = lab.start("service", spec, stack)
        caller = lab.start("caller", {**spec, "timeout": TIMEOUT_S}, stack)
        caller.ask({"do": "reach", "seconds": REACH_S}, REACH_S + 10)
        first.kill()
        lab.start("service", {**spec, "clock_behind": BEHIND_S}, stack)
        caller.ask({"do": "begin", "rate": RATE}, 10)
        began = time.monotonic()
        time.sleep(watched)
        calls = begun(calls_of(caller.ask({"do": "end"}, TIMEOUT_S + 30)["calls"]), began)
    right = first_right(calls, began)
    return [
        Figure("calls", len(calls)),
        Figure("first success after the start", None if right is None else right - began, "s", "≤ 1 s"),
        Figure("right", share(calls, RIGHT), "%", "≥ 99 %"),
        Figure("failures", common_failures(calls), "", "none"),
    ]


SCENARIO = Scenario(
    "clock", "a named instance is killed and starts again with its clock an hour behind", run, 45, short_seconds=15
)
