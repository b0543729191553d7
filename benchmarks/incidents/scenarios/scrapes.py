"""One scrape of the metrics of 1,000 tools: how long the event loop stands still."""

from __future__ import annotations

from contextlib import ExitStack

from benchmarks.incidents.figures import Figure, median
from benchmarks.incidents.lab import Lab, queues, unique
from benchmarks.incidents.scenario import Scenario

TOOLS = 1_000


def run(lab: Lab) -> list[Figure]:
    """Measure it."""
    tools = 100 if lab.short else TOOLS
    broker = lab.brokers.get()
    with ExitStack() as stack:
        spec = {"url": broker.service_url, **queues(unique("scrapes"))}
        lab.start("service", spec, stack)
        lab.progress.step(f"scrapes: metrics of {tools:,} tools", 15)
        worker = lab.start("metrics", {**spec, "tools": tools}, stack)
        worker.ask({"do": "call"}, 120)
        found = [worker.ask({"do": "scrape"}, 60) for _ in range(3 if lab.short else 7)]
    return [
        Figure("lines of the answer", found[-1]["lines"]),
        Figure("longest stall of the event loop", median([1e3 * each["stall"] for each in found]), "ms", "≤ 10 ms"),
        Figure("longest stall, worst scrape", max(1e3 * each["stall"] for each in found), "ms"),
        Figure("longest stall without a scrape", median([1e3 * each["idle"] for each in found]), "ms"),
        Figure("processor time of a scrape", median([1e3 * each["processor"] for each in found]), "ms"),
        Figure("whole scrape", median([1e3 * each["took"] for each in found]), "ms"),
    ]


SCENARIO = Scenario("scrapes", f"the metrics of {TOOLS:,} tools are scraped", run, seconds=30, short_seconds=10)
