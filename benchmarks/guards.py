"""What guards cost a call, ours and other libraries', and what they do when it matters: ``python -m benchmarks.guards``.

No broker. A cost is the process's CPU time, because nothing waits here and others on the machine must not count. Contenders
take turns, a block of calls each, and take turns at being first; a round has the fastest of each one's blocks. Ratios and
differences are formed within a round, and the median over the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.behaviours import BEHAVIOURS, Behaviour, Seen
from benchmarks.machine import load
from benchmarks.report import aligned, number, shown
from benchmarks.stacks import INSTALL, STACKS, Absent, Call, Stack, opened
from benchmarks.statistics import Spread, ratios, spread

BLOCK = 250
"""Calls of one block: some milliseconds, so that most blocks are not interrupted."""


@dataclass(frozen=True)
class Ratio:
    """One contender's cost over another's.

    Attributes:
        over, under: names of contenders.
        limit: what is promised of it, at most; None: for the record.
        less: a contender whose cost is taken off both first.
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


@dataclass
class Figures:
    """What was measured.

    Attributes:
        costs: contender → round → µs a call.
        absent: contender → the package that it lacks.
        seen: behaviour → library → what was seen.
    """

    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    seen: dict[str, dict[str, Seen]] = field(default_factory=dict)

    def ratio(self, ratio: Ratio) -> Spread | None:
        """Over the rounds; None if one of its contenders is missing."""
        over, under = self.costs.get(ratio.over, {}), self.costs.get(ratio.under, {})
        if ratio.less is not None:
            less = self.costs.get(ratio.less, {})
            over, under = ({at: each[at] - less[at] for at in each if at in less} for each in (over, under))
        return spread(ratios({**over}, {**under}).values())


async def cost(call: Call) -> float:
    """µs of CPU time that a call takes, over one block."""
    began = time.process_time_ns()
    for _ in range(BLOCK):
        await call()
    return (time.process_time_ns() - began) / 1e3 / BLOCK


async def measure(stacks: Sequence[Stack], rounds: int, blocks: int, figures: Figures) -> None:
    """Fill in ``costs`` and ``absent``."""
    async with AsyncExitStack() as exits:
        there: list[tuple[str, Call]] = []
        for stack in stacks:
            try:
                there.append((stack.name, await opened(stack, exits)))
            except Absent as absent:
                figures.absent[stack.name] = str(absent)
        gc.collect()
        gc.freeze()  # what is there by now need not be looked through for each contender
        for at in range(rounds):
            for block in range(blocks):
                first = (at + block) % len(there)
                for name, call in there[first:] + there[:first]:
                    costs = figures.costs.setdefault(name, {})
                    costs[at] = min(costs.get(at, float("inf")), await cost(call))


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
        rows = [("", "", "µs a call")]
        rows += [
            (stack.name, stack.label, shown(spread(figures.costs.get(stack.name, {}).values()))) for stack in stacks
        ]
        parts.append("Cost (CPU time; median (least … greatest) over the rounds)\n" + aligned(rows, left=(0, 1)))
        rows = [("", "measured", "promised", "")]
        for ratio in RATIOS:
            found = figures.ratio(ratio)
            if found is not None:
                promised = "" if ratio.limit is None else f"≤ {ratio.limit:g}"
                verdict = "" if ratio.limit is None else "ok" if found.median <= ratio.limit else "MISSED"
                rows.append((ratio.text, shown(found), promised, verdict))
        if len(rows) > 1:
            parts.append("Ratios (formed within a round)\n" + aligned(rows, left=(0, 3)))
    for behaviour in behaviours:
        rows = [
            (library, number(seen.value) if seen.value % 1 else f"{seen.value:,.0f}", "ok" if seen.ok else "BAD")
            for library, seen in figures.seen.get(behaviour.name, {}).items()
        ]
        parts.append(f"{behaviour.title}\n{behaviour.wanted}\n{aligned(rows, left=(0, 2))}")
    if figures.absent:
        missing = ", ".join(sorted(set(figures.absent.values())))
        left_out = ", ".join(sorted(figures.absent))
        parts.append(f"Not installed: {missing}; left out: {left_out}. Install them with: {INSTALL}")
    return "\n\n".join(parts)


def as_dict(figures: Figures) -> dict[str, object]:
    """Everything, for ``--json``."""
    found = {ratio.text: (ratio, figures.ratio(ratio)) for ratio in RATIOS}
    return {
        "costs_us": {name: list(rounds.values()) for name, rounds in figures.costs.items()},
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


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.guards",
        description="What guards cost a call (breaker, rate, bulkhead, budget, balancer; in others' stacks timeout and "
        "retry too), and how they behave when it matters, ours beside theirs. No broker; under a minute on a quiet "
        f"machine. Libraries that are not installed are left out; they come with: {INSTALL}",
        epilog="contenders: " + ", ".join(stack.name for stack in STACKS),
    )
    made.add_argument("--rounds", type=_positive, default=9, metavar="N", help="rotated rounds (default 9)")
    made.add_argument("--blocks", type=_positive, default=40, metavar="N", help=f"of {BLOCK} calls each (default 40)")
    made.add_argument("--no-behaviours", action="store_true", help="costs alone")
    made.add_argument("--no-costs", action="store_true", help="behaviours alone")
    made.add_argument("--json", type=Path, metavar="FILE", help="write everything there, every round by itself")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the ratios; 2 the results cannot be written."""
    options = parser().parse_args(arguments)
    if options.json is not None:
        try:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.touch()
        except OSError as error:
            print(f"the results cannot be written: {error}; choose another place with --json", file=sys.stderr)
            return 2
    figures = Figures()
    stacks = () if options.no_costs else STACKS
    behaviours = () if options.no_behaviours else BEHAVIOURS
    print(f"load before: {load()}", file=sys.stderr)
    asyncio.run(_run(stacks, behaviours, options.rounds, options.blocks, figures))
    print(report(figures, stacks, behaviours), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(as_dict(figures), indent=1, ensure_ascii=False) + "\n")
    return 0


async def _run(
    stacks: Sequence[Stack], behaviours: Sequence[Behaviour], rounds: int, blocks: int, figures: Figures
) -> None:
    if stacks:
        await measure(stacks, rounds, blocks, figures)
    await observe(behaviours, figures)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"1 at least, not {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
