"""Costs of calls in one process, side by side: for the benchmarks that need no broker.

A cost is the process's CPU time, because nothing waits here and the load of other processes must not count. Contenders
alternate by blocks of calls, and the first one rotates; a round has the fastest block of each contender. Ratios and
differences are formed within a round, and the result is the median over the rounds.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from benchmarks.harness.plan import rotated
from benchmarks.harness.programs import Programme
from benchmarks.harness.report import aligned, shown
from benchmarks.harness.statistics import Spread, spread
from benchmarks.micro.guard_stacks import Absent, Call, Stack, opened

BLOCK = 250
"""Calls per block: some milliseconds, so that most blocks are not interrupted."""


@dataclass
class Costs:
    """Costs of calls.

    Attributes:
        costs: contender → round → µs per call.
        absent: contender → the missing package.
        blocks: contender → round → µs per call of each block, in order.
    """

    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def differences(self, over: str, under: str) -> dict[int, float]:
        """µs that a call of ``over`` costs more than one of ``under``, by round: the median over its blocks, each with the
        other's of the same turn, because the difference is far smaller than the drift of a machine."""
        of, less = self.blocks.get(over, {}), self.blocks.get(under, {})
        return {
            at: statistics.median(more - base for more, base in zip(of[at], less[at], strict=True))
            for at in of
            if at in less
        }

    def difference(self, over: str, under: str) -> Spread | None:
        """Likewise, over the rounds. None: one of them was not measured."""
        return spread(self.differences(over, under).values())

    def of(self, contender: str) -> Spread | None:
        """Over the rounds; None if it was not measured."""
        return spread(self.costs.get(contender, {}).values())

    def costs_us(self) -> dict[str, list[float]]:
        """Every round, for ``--json``."""
        return {name: list(rounds.values()) for name, rounds in self.costs.items()}


@dataclass(frozen=True)
class Difference:
    """Additional cost of one contender over another.

    Attributes:
        text: label in tables.
        over, under: names of contenders.
        limit: the target, in µs, at most; None: no target.
    """

    text: str
    over: str
    under: str
    limit: float | None = None


async def cost(call: Call, calls: int, in_flight: int = 1) -> float:
    """µs of CPU time that a call takes, over so many.

    Args:
        calls: a multiple of ``in_flight``.
        in_flight: callers side by side.
    """
    began = time.process_time_ns()
    if in_flight == 1:
        await _repeat(call, calls)
    else:
        async with asyncio.TaskGroup() as callers:
            for _ in range(in_flight):
                callers.create_task(_repeat(call, calls // in_flight))
    return (time.process_time_ns() - began) / 1e3 / calls


async def _repeat(call: Call, calls: int) -> None:
    for _ in range(calls):
        await call()


async def measure(
    stacks: Sequence[Stack], rounds: int, blocks: int, found: Costs, block: int = BLOCK, in_flight: int = 1
) -> None:
    """Fill in ``found``.

    Args:
        blocks: of each contender in each round.
        block: calls of one.
        in_flight: callers side by side.
    """
    async with AsyncExitStack() as exits:
        there: list[tuple[str, Call]] = []
        for stack in stacks:
            try:
                there.append((stack.name, await opened(stack, exits)))
            except Absent as absent:
                found.absent[stack.name] = str(absent)
        gc.collect()
        gc.freeze()  # excludes the contenders' objects from collections during the measurement
        for at in range(rounds):
            for turn in range(blocks):
                for name, call in rotated(there, at + turn):
                    found.blocks.setdefault(name, {}).setdefault(at, []).append(await cost(call, block, in_flight))
    for name, by_round in found.blocks.items():
        found.costs[name] = {at: min(costs) for at, costs in by_round.items()}


def cost_table(found: Costs, stacks: Sequence[Stack]) -> str:
    """The costs of ``stacks``."""
    rows = [("", "", "µs a call")]
    rows += [(stack.name, stack.label, shown(found.of(stack.name))) for stack in stacks]
    return "Cost (CPU time; median (least … greatest) over the rounds)\n" + aligned(rows, left=(0, 1))


def promised(measured: Spread, limit: float | None) -> tuple[str, str, str]:
    """Table cells: the measured value, the target of its median (at most), and the verdict."""
    if limit is None:
        return shown(measured), "", ""
    return shown(measured), f"≤ {limit:g}", "ok" if measured.median <= limit else "MISSED"


def difference_table(found: Costs, differences: Sequence[Difference]) -> str:
    """The table of the differences that were measured."""
    rows: list[tuple[str, ...]] = [("", "", "µs", "promised", "")]
    for each in differences:
        measured = found.difference(each.over, each.under)
        if measured is not None:
            rows.append((each.text, f"{each.over} - {each.under}", *promised(measured, each.limit)))
    return "Differences (of neighbours in time; formed within a round; the median counts)\n" + aligned(
        rows, left=(0, 1, 4)
    )


def left_out(found: Costs, install: str) -> str:
    """Skipped contenders, their missing packages and the command that installs them; empty if none was skipped."""
    if not found.absent:
        return ""
    missing = ", ".join(sorted(set(found.absent.values())))
    names = ", ".join(sorted(found.absent))
    return f"Not installed: {missing}; skipped: {names}. Install them with: {install}"


def add_options(programme: Programme, *, blocks: int, block: int = BLOCK) -> None:
    """Add the common options: ``--rounds``, ``--blocks`` (so many by default, of ``block`` calls each), ``--no-costs``."""
    programme.add_number("--rounds", 9, "rotated rounds")
    programme.add_number("--blocks", blocks, f"of {block:,} calls each")
    programme.add_argument("--no-costs", action="store_true", help="skip the costs")
