"""Recommend on a large toolkit: 5,000 actions, 10,000 tools, 50,000 edges, 3 hops.

``python -m benchmarks.toolkit``; no broker, half a minute. Durations are CPU time, garbage collections included. Before the
measurement the toolkit is excluded from collections (``gc.freeze``), as a service may do after it has loaded;
``--no-freeze`` measures without: a full collection then takes as long as twenty recommendations.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned
from benchmarks.harness.statistics import percentile
from dispatch.toolkit import Action, Tool, Toolkit, ToolkitService

ACTIONS: Final = 5_000
TOOLS: Final = 10_000
NEXT_EDGES: Final = 20_000
CALL_EDGES: Final = 30_000
HOPS: Final = 3
THRESHOLDS: Final = (0.5, 0.0)
STARTS: Final = (1, 3)
"""Given actions of a recommendation."""
LIMIT_MS: Final = 5.0
"""Target of p95, at most, for one given action."""


@dataclass
class Figures:
    """Recommendations with one threshold.

    Attributes:
        starts: given actions.
        vertices: of the results, on average.
        edges: likewise.
        p50_ms, p95_ms, max_ms: CPU time of one recommendation.
    """

    threshold: float
    starts: int
    vertices: float
    edges: float
    p50_ms: float
    p95_ms: float
    max_ms: float


def build_toolkit(seed: int) -> Toolkit:
    """Return a toolkit with random edges, whose scores are uniform in [0, 1]."""
    randomness = random.Random(seed)
    toolkit = Toolkit()
    actions = [f"action-{at}" for at in range(ACTIONS)]
    tools = [f"tool-{at}" for at in range(TOOLS)]
    for id in actions:
        toolkit.add_vertex(id, data=Action(id, id, ""))
    for id in tools:
        toolkit.add_vertex(id, data=Tool(id, "", print, id=id))
    for targets, count in ((actions, NEXT_EDGES), (tools, CALL_EDGES)):
        edges: set[tuple[str, str]] = set()
        while len(edges) < count:
            u, v = randomness.choice(actions), randomness.choice(targets)
            if u != v and (u, v) not in edges:
                edges.add((u, v))
                toolkit.add_edge(u, v)
                toolkit.set_score(u, v, randomness.random())
    return toolkit


def measure(service: ToolkitService, threshold: float, starts: int, calls: int) -> Figures:
    """Recommend ``calls`` times, from other actions each time."""
    randomness = random.Random(starts)
    durations, vertices, edges = [], 0, 0
    for _ in range(calls):
        actions = [service.get_action(f"action-{randomness.randrange(ACTIONS)}") for _ in range(starts)]
        began = time.thread_time()
        found = service.recommend_subgraph(actions, threshold, HOPS)
        durations.append((time.thread_time() - began) * 1e3)
        vertices += found.vertices_count()
        edges += found.get_graph().number_of_edges()
    durations.sort()
    p50, p95 = percentile(durations, 0.5), percentile(durations, 0.95)
    return Figures(threshold, starts, vertices / calls, edges / calls, p50, p95, durations[-1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    programme = Programme("benchmarks.toolkit", __doc__)
    programme.add_number("--calls", 1_000, "of each kind")
    programme.add_argument("--no-freeze", action="store_true", help="collect the toolkit's objects as well")
    options = programme.begin(arguments)
    service = ToolkitService(build_toolkit(0))
    gc.collect()
    if not options.no_freeze:
        gc.freeze()
    try:
        figures = [measure(service, threshold, starts, options.calls) for starts in STARTS for threshold in THRESHOLDS]
    finally:
        gc.unfreeze()
    rows: list[tuple[str, ...]] = [("actions", "threshold", "vertices", "edges", "p50 ms", "p95 ms", "max ms", "p95")]
    for each in figures:
        target = "" if each.starts != 1 else f"≤ {LIMIT_MS:g} " + ("ok" if each.p95_ms <= LIMIT_MS else "MISSED")
        sizes = (f"{each.vertices:,.0f}", f"{each.edges:,.0f}")
        times = (f"{each.p50_ms:.2f}", f"{each.p95_ms:.2f}", f"{each.max_ms:.2f}")
        rows.append((str(each.starts), f"{each.threshold:g}", *sizes, *times, target))
    print(f"Recommend on {ACTIONS:,} actions, {TOOLS:,} tools, {NEXT_EDGES + CALL_EDGES:,} edges, {HOPS} hops")
    print(aligned(rows, left=()))
    write_figures(options.json, [asdict(each) for each in figures])
    return 0


if __name__ == "__main__":
    sys.exit(main())
