"""What was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dispatch.devtools.lossprobe.plan import Plan


class Side(StrEnum):
    """Who exchanges."""

    PLAIN = "without_credit"
    """pulsar-client on both sides, as anyone would use it."""
    CREDIT = "with_credit"
    """Our dispatcher and our ToolServer."""


@dataclass(frozen=True, slots=True)
class Run:
    """One side at one size with so many in flight.

    Attributes:
        calls: made.
        lost: of these, got no answer.
        seconds: from the first request to the last answer.
        errors: calls that were told of a failure, by its type; not lost.
    """

    calls: int
    lost: int
    seconds: float
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Calls that got the answer."""
        return self.calls - self.lost - sum(self.errors.values())

    @property
    def share(self) -> float:
        """Lost ones among the calls, 0 to 1."""
        return self.lost / self.calls if self.calls else 0.0

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for ``--json``."""
        return {
            "calls": self.calls,
            "lost": self.lost,
            "lost_share": self.share,
            "calls_per_second": self.rate,
            "seconds": self.seconds,
            "errors": dict(self.errors),
        }


@dataclass(frozen=True, slots=True)
class Cell:
    """Both sides at one size with so many in flight; None: not measured.

    Attributes:
        size: bytes of an answer.
        in_flight: calls at once.
        plain: without credit.
        credit: with it.
    """

    size: int
    in_flight: int
    plain: Run | None = None
    credit: Run | None = None

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for ``--json``."""
        return {
            "size": self.size,
            "in_flight": self.in_flight,
            str(Side.PLAIN): None if self.plain is None else self.plain.as_dict(),
            str(Side.CREDIT): None if self.credit is None else self.credit.as_dict(),
        }


class Findings:
    """Everything measured so far.

    Args:
        plan: what was to be measured.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._runs: dict[tuple[int, int, Side], Run] = {}

    def add(self, size: int, in_flight: int, side: Side, run: Run) -> None:
        """A run is over."""
        self._runs[size, in_flight, side] = run

    @property
    def complete(self) -> bool:
        """Everything that was planned was measured."""
        return len(self._runs) == 2 * len(self.plan.cells)

    @property
    def cells(self) -> list[Cell]:
        """Those that were measured, in whole or in part, in the plan's order."""
        found = (
            Cell(size, n, self._runs.get((size, n, Side.PLAIN)), self._runs.get((size, n, Side.CREDIT)))
            for size, n in self.plan.cells
        )
        return [cell for cell in found if cell.plain is not None or cell.credit is not None]


def lost_calls(runs: Iterable[Run | None]) -> tuple[int, int]:
    """Lost ones and all, over the runs that there are."""
    there = [run for run in runs if run is not None]
    return sum(run.lost for run in there), sum(run.calls for run in there)


def share_text(lost: int, calls: int) -> str:
    """``4.1 %``: two figures; never 0 % if there was one, never 100 % if one was answered."""
    if lost == 0:
        return "0 %"
    percent = 100 * lost / calls
    for digits, least in ((0, 9.95), (1, 0.995), (2, 0.0995), (3, 0.00995)):
        if percent >= least:
            text = f"{percent:.{digits}f}"
            return "> 99 %" if text == "100" and lost < calls else f"{text} %"
    return "< 0.01 %"
