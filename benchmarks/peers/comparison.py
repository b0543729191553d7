"""README's table of figures, written from the recorded results: ``python -m benchmarks.peers.comparison``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import ROOT
from benchmarks.harness.programs import write_page
from benchmarks.harness.report import markdown_table, number

SPEED, FAULTS = Path("benchmarks/peers/recorded.json"), Path("benchmarks/faults/recorded.json")
SYSTEMS = {
    "dispatch": "dispatch",
    "trustgraph": "TrustGraph's client and service",
    "trustgraph-client": "TrustGraph's client, dispatch's service",
    "trustgraph-service": "dispatch's client, TrustGraph's service",
    "nats": "NATS, nats-py",
    "grpc": "gRPC, grpc.aio",
    "fastmcp": "FastMCP over HTTP",
}
"""Columns: name in both records, and header."""
MOST_OTHERS = 0.25
"""Processors that other programs may have used for the speed of a run to be quoted."""
LOADS = {
    "killed-instance": "one of two instances is killed: calls that fail",
    "blocked": "an instance's event loop is blocked for 8 s: calls that fail",
    "lost-replies": "replies are lost with reset connections: calls that fail",
    "cut": "the client's connections are cut for 5 s: calls that fail",
    "overload": "three times the capacity for 20 s: calls that are answered",
}


def render(root: Path = ROOT) -> str:
    """Return the table of the recorded results."""
    speed, faults = (json.loads((root / path).read_text()) for path in (SPEED, FAULTS))
    cells = {(each["fault"], each["system"]): each for each in faults["outcomes"]}
    small = speed["peers-120"]
    is_quiet = (speed["other_processors"] or 0.0) <= MOST_OTHERS
    names = [name for name in SYSTEMS if is_quiet or any(system == name for _, system in cells)]

    def row(title: str, cell: Callable[[str], str]) -> list[str]:
        return [title, *(cell(name) for name in names)]

    def fault(name: str) -> Callable[[str], str]:
        return lambda system: _share(cells.get((name, system)), "right" if name == "overload" else "failed")

    speeds = [
        row("calls per second, 64 in flight", lambda name: _number(small[name]["64"]["calls_per_second"])),
        row("one call alone: p50, ms", lambda name: _number(small[name]["1"]["p50_ms"])),
        row("processor time of the client at 64, µs", lambda name: _number(small[name]["64"]["cpu_us_per_call"])),
    ]
    rows = [
        *(speeds if is_quiet else ()),
        *(row(title, fault(name)) for name, title in LOADS.items()),
        row("executed twice, of the calls that must not be", lambda name: _sum(faults["outcomes"], name, "twice")),
        row("no answer 2 s after the deadline", lambda name: _sum(faults["outcomes"], name, "hung")),
    ]
    return markdown_table(["", *(SYSTEMS[name] for name in names)], rows)


def _number(value: float | None) -> str:
    return "no reply" if value is None else number(value)


def _share(outcome: dict[str, Any] | None, figure: str) -> str:
    if outcome is None:
        return "n/a"
    share = 100 * outcome[figure] / outcome["calls"]
    return "0" if not share else f"{share:.2g} %" if share < 10 else f"{share:.0f} %"


def _sum(outcomes: list[dict[str, Any]], system: str, figure: str) -> str:
    found = [each[figure] for each in outcomes if each["system"] == system]
    return f"{sum(found):,}" if found else "n/a"


def main() -> int:
    """Write the table. Return the exit code."""
    write_page(ROOT / "README.md", render())
    return 0


if __name__ == "__main__":
    sys.exit(main())
