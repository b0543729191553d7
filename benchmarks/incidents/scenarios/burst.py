"""1,000 concurrent calls of a healthy tool."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.incidents.figures import RIGHT, Figure, calls_of, common_failures, median, share
from benchmarks.incidents.lab import Lab, queues, unique
from benchmarks.incidents.scenario import Scenario

CALLS = 1_000
TOOL_S = 0.001


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    broker = lab.brokers.get()
    rounds = 1 if lab.short else 5
    with ExitStack() as stack:
        spec = {"url": broker.service_url, "tool_seconds": TOOL_S, **queues(unique("burst"))}
        lab.start("service", spec, stack)
        lab.progress.step(f"burst: {CALLS:,} concurrent calls of a tool of 1 ms, {rounds} time(s)", 4 * rounds)
        worker = lab.start("burst", spec, stack)
        found = [worker.ask({"calls": CALLS}, 90) for _ in range(rounds)]
    calls = [calls_of(each["calls"]) for each in found]
    return [
        Figure("succeeded, median", median([share(each, RIGHT) for each in calls]), "%", "100 %"),
        Figure("succeeded, worst round", min(share(each, RIGHT) or 0.0 for each in calls), "%", "100 %"),
        Figure("failures, all rounds", common_failures([call for each in calls for call in each]), "", "none"),
        Figure("wall time, median", median([each["wall"] for each in found]), "s"),
    ]


SCENARIO = Scenario(
    "burst", f"{CALLS:,} concurrent calls of a healthy tool, default policy", run, seconds=30, short_seconds=10
)
