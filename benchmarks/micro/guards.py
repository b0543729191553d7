"""Cost and behaviour of guards: dispatch's beside those of other libraries.

``python -m benchmarks.micro.guards``. No broker. Method of measurement: :mod:`benchmarks.micro.rounds`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned, number
from benchmarks.harness.statistics import Spread, ratios, spread
from benchmarks.micro.guard_behaviours import BEHAVIOURS, Behaviour, Seen
from benchmarks.micro.guard_stacks import INSTALL, STACKS, Absent, Stack
from benchmarks.micro.rounds import (
    Costs,
    Difference,
    add_options,
    cost_table,
    difference_table,
    left_out,
    measure,
    promised,
)


@dataclass(frozen=True)
class Ratio:
    """One contender's cost over another's.

    Attributes:
        over, under: names of contenders.
        limit: the target, at most; None: no target.
        less: a contender whose cost is subtracted from both first.
    """

    over: str
    under: str
    limit: float | None = None
    less: str | None = None

    @property
    def text(self) -> str:
        """For tables."""
        if self.less is None:
            return f"{self.over} / {self.under}"
        return f"({self.over} - {self.less}) / ({self.under} - {self.less})"


RATIOS = (
    Ratio("chain", "by-hand", 0.15),
    Ratio("call", "call-by-hand", 0.15, less="call-off"),
    Ratio("chain", "by-hand-loop"),
    Ratio("chain-8", "by-hand"),
    Ratio("chain", "pyresilience"),
    Ratio("chain", "hyx"),
    Ratio("chain", "aioresilience"),
)


DIFFERENCES = (Difference("permissions of the user, cached", "permission", "call", 1.0),)


@dataclass
class Figures(Costs):
    """Results of the benchmark.

    Attributes:
        seen: behaviour → library → observation.
    """

    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)

    def ratio(self, ratio: Ratio) -> Spread | None:
        """Over the rounds; None if one of its contenders is missing."""
        over, under = self.costs.get(ratio.over, {}), self.costs.get(ratio.under, {})
        if ratio.less is not None:
            less = self.costs.get(ratio.less, {})
            over, under = ({at: each[at] - less[at] for at in each if at in less} for each in (over, under))
        return spread(ratios({**over}, {**under}).values())


async def observe(behaviours: Sequence[Behaviour], figures: Figures) -> None:
    """Fill in ``seen``."""
    for behaviour in behaviours:
        seen = figures.seen[behaviour.name] = {}
        for library, look in behaviour.libraries.items():
            try:
                seen[library] = await look()
            except Absent as absent:
                figures.absent[library] = str(absent)


def report(figures: Figures, stacks: Sequence[Stack], behaviours: Sequence[Behaviour]) -> str:
    """The tables."""
    parts: list[str] = []
    rows: list[tuple[str, ...]]
    if figures.costs:
        parts.append(cost_table(figures, stacks))
        parts.append(difference_table(figures, DIFFERENCES))
        rows = [("", "measured", "promised", "")]
        for ratio in RATIOS:
            found = figures.ratio(ratio)
            if found is not None:
                rows.append((ratio.text, *promised(found, ratio.limit)))
        if len(rows) > 1:
            parts.append("Ratios (formed within a round)\n" + aligned(rows, left=(0, 3)))
    for behaviour in behaviours:
        rows = [
            (library, number(seen.value) if seen.value % 1 else f"{seen.value:,.0f}", "ok" if seen.ok else "BAD")
            for library, seen in figures.seen.get(behaviour.name, {}).items()
        ]
        parts.append(f"{behaviour.title}\n{behaviour.wanted}\n{aligned(rows, left=(0, 2))}")
    parts.append(left_out(figures, INSTALL))
    return "\n\n".join(part for part in parts if part)


def as_dict(figures: Figures) -> dict[str, object]:
    """Everything, for ``--json``."""
    found = {ratio.text: (ratio, figures.ratio(ratio)) for ratio in RATIOS}
    return {
        "costs_us": figures.costs_us(),
        "differences_us": [
            {**asdict(each), "rounds": list(rounds.values())}
            for each in DIFFERENCES
            if (rounds := figures.differences(each.over, each.under))
        ],
        "ratios": {
            text: {**asdict(spread), "limit": ratio.limit}
            for text, (ratio, spread) in found.items()
            if spread is not None
        },
        "behaviours": {
            name: {library: asdict(each) for library, each in seen.items()} for name, seen in figures.seen.items()
        },
        "absent": figures.absent,
    }


def parser() -> Programme:
    """The options."""
    made = Programme(
        "benchmarks.micro.guards",
        "Cost of guards for a call (breaker, rate limit, bulkhead, budget, balancer; in other stacks timeout "
        "and retry too) and their behaviour under failures, dispatch beside other libraries. No broker; under a minute on "
        f"an idle machine. Libraries that are not installed are skipped; install them with: {INSTALL}",
        epilog="contenders: " + ", ".join(stack.name for stack in STACKS),
    )
    add_options(made, blocks=40)
    made.add_argument("--no-behaviours", action="store_true", help="skip the behaviours")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return the exit code: 0 for every ratio; 2 if the results cannot be written."""
    options = parser().begin(arguments)
    figures = Figures()
    stacks = () if options.no_costs else STACKS
    behaviours = () if options.no_behaviours else BEHAVIOURS
    asyncio.run(_run(stacks, behaviours, options.rounds, options.blocks, figures))
    print(report(figures, stacks, behaviours), flush=True)
    write_figures(options.json, as_dict(figures))
    return 0


async def _run(
    stacks: Sequence[Stack], behaviours: Sequence[Behaviour], rounds: int, blocks: int, figures: Figures
) -> None:
    if stacks:
        await measure(stacks, rounds, blocks, figures)
    await observe(behaviours, figures)


if __name__ == "__main__":
    sys.exit(main())
