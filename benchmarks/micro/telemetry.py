"""Cost of metrics and traces for a call, and the memory that they retain: ``python -m benchmarks.micro.telemetry``.

No broker; the suite ``telemetry`` of ``python -m benchmarks`` measures the cost on one. Method of measurement:
:mod:`benchmarks.micro.rounds`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.harness.programs import Programme, write_figures
from benchmarks.micro.guard_stacks import Absent, Stack
from benchmarks.micro.memory import CALLS, NAMES, Retained, retained, table
from benchmarks.micro.otel_sdk import INSTALL
from benchmarks.micro.rounds import (
    Costs,
    Difference,
    add_options,
    cost_table,
    difference_table,
    left_out,
    measure,
)
from benchmarks.micro.telemetry_stacks import STACKS

BLOCK = 100
"""Calls of one block: more and shorter ones than elsewhere, since what is looked for is a hundredth of a call's cost."""


DIFFERENCES = (
    Difference("metrics", "metrics", "off", 2.0),
    Difference("a span that is not sampled", "unsampled", "off", 0.3),
    Difference("a sampled span tree", "sampled", "off", 40.0),
    Difference("… cost of the SDK alone for such spans", "sdk-spans", "off"),
    Difference("… the caller's span not sampled", "parent-unsampled", "off-in-trace"),
    Difference("… the caller's span sampled", "parent-sampled", "off-in-trace"),
    Difference("… not sampled by the SDK's own sampler", "sdk-unsampled", "off"),
    Difference("the default: metrics, no SDK", "default", "off"),
    Difference("metrics, 1 % sampled", "1-percent", "off"),
    Difference("metrics with exemplars, all sampled", "everything", "off"),
    Difference("alone: ToolMeter, start and end of a call", "record-call", "bare"),
    Difference("alone: an attempt and a reply", "record-attempt", "bare"),
    Difference("alone: CallTracing.start_call, no SDK", "start-no-sdk", "bare"),
    Difference("alone: CallTracing.start_call, sample=0.0", "start-unsampled", "bare"),
)


@dataclass
class Figures(Costs):
    """Results of the benchmark.

    Attributes:
        kept: retained memory by kind of call.
    """

    kept: dict[str, Retained] = field(default_factory=dict)


def report(figures: Figures, stacks: Sequence[Stack]) -> str:
    """The tables."""
    parts: list[str] = []
    if figures.costs:
        parts.append(cost_table(figures, stacks))
        parts.append(difference_table(figures, DIFFERENCES))
    if figures.kept:
        parts.append(table(figures.kept))
    parts.append(left_out(figures, INSTALL))
    return "\n\n".join(part for part in parts if part)


def as_dict(figures: Figures) -> dict[str, object]:
    """Everything, for ``--json``."""
    found = [(each, figures.differences(each.over, each.under)) for each in DIFFERENCES]
    return {
        "costs_us": figures.costs_us(),
        "differences_us": [{**asdict(each), "rounds": list(rounds.values())} for each, rounds in found if rounds],
        "retained": {name: kept.as_dict() for name, kept in figures.kept.items()},
        "absent": figures.absent,
    }


def parser() -> Programme:
    """The options."""
    made = Programme(
        "benchmarks.micro.telemetry",
        "Cost of metrics and of traces with a genuine OpenTelemetry SDK for a call, and the memory that they "
        "retain. No broker; some minutes, most of them for memory. Without the SDK, contenders that need it are skipped; "
        f"install it with: {INSTALL}",
        epilog="contenders: " + ", ".join(stack.name for stack in STACKS),
    )
    add_options(made, blocks=60, block=BLOCK)
    made.add_number("--calls", CALLS, "calls of a tool, for the memory")
    made.add_number("--names", NAMES, "calls of tools that there are not, each with another name")
    made.add_argument("--no-memory", action="store_true", help="leave the memory out")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    options = parser().begin(arguments)
    figures = Figures()
    stacks = () if options.no_costs else STACKS
    counts = {} if options.no_memory else {"calls": options.calls, "names": options.names}
    asyncio.run(_run(stacks, counts, options.rounds, options.blocks, figures))
    print(report(figures, stacks), flush=True)
    write_figures(options.json, as_dict(figures))
    return 0


async def _run(stacks: Sequence[Stack], counts: Mapping[str, int], rounds: int, blocks: int, figures: Figures) -> None:
    if stacks:
        await measure(stacks, rounds, blocks, figures, BLOCK)
    if counts:
        try:
            figures.kept.update(await retained(**counts))
        except Absent as absent:
            figures.absent["memory"] = str(absent)


if __name__ == "__main__":
    sys.exit(main())
