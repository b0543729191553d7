"""Results of a measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from dispatch.devtools.lossprobe.plan import Plan


class Variant(StrEnum):
    """The measured exchange."""

    PLAIN = "without_sessions"
    """pulsar-client on both sides, in its ordinary use."""
    SESSION = "with_sessions"
    """Dispatcher and ToolServer."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of one run: one variant, size and number in flight.

    Attributes:
        calls: calls made.
        lost: calls without a reply.
        seconds: from the first request to the last reply.
        errors: calls that failed with an error, by type; they do not count as lost.
    """

    calls: int
    lost: int
    seconds: float
    errors: Mapping[str, int] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Return the number of calls with a correct reply."""
        return self.calls - self.lost - sum(self.errors.values())

    @property
    def share(self) -> float:
        """Return the share of lost calls, 0 to 1."""
        return self.lost / self.calls if self.calls else 0.0

    @property
    def rate(self) -> float:
        """Return replies per second."""
        return self.answered / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {
            "calls": self.calls,
            "lost": self.lost,
            "lost_share": self.share,
            "calls_per_second": self.rate,
            "seconds": self.seconds,
            "errors": dict(self.errors),
        }


@dataclass(frozen=True, slots=True)
class Measurement:
    """Runs of both variants at one size and number in flight; None: not measured.

    Attributes:
        size: reply size in bytes.
        in_flight: concurrent calls.
        plain: run without sessions.
        session: run with sessions.
    """

    size: int
    in_flight: int
    plain: RunResult | None = None
    session: RunResult | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {
            "size": self.size,
            "in_flight": self.in_flight,
            str(Variant.PLAIN): None if self.plain is None else self.plain.as_dict(),
            str(Variant.SESSION): None if self.session is None else self.session.as_dict(),
        }


class ProbeResults:
    """The runs so far.

    Args:
        plan: the plan of the measurement.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._runs: dict[tuple[int, int, Variant], RunResult] = {}

    def add(self, size: int, in_flight: int, variant: Variant, run: RunResult) -> None:
        """Add a run."""
        self._runs[size, in_flight, variant] = run

    @property
    def is_complete(self) -> bool:
        """Return whether every planned run was made."""
        return len(self._runs) == 2 * len(self.plan.loads)

    @property
    def measurements(self) -> list[Measurement]:
        """Return the measurements with at least one run, in the plan's order."""
        found = (
            Measurement(size, n, self._runs.get((size, n, Variant.PLAIN)), self._runs.get((size, n, Variant.SESSION)))
            for size, n in self.plan.loads
        )
        return [cell for cell in found if cell.plain is not None or cell.session is not None]


def count_lost_calls(runs: Iterable[RunResult | None]) -> tuple[int, int]:
    """Count lost calls and all calls over the runs."""
    known = [run for run in runs if run is not None]
    return sum(run.lost for run in known), sum(run.calls for run in known)


def format_share(lost: int, calls: int) -> str:
    """Format a share with two digits, such as ``4.1 %``; never 0 % with a loss, never 100 % with a reply."""
    if lost == 0:
        return "0 %"
    percent = 100 * lost / calls
    for digits, least in ((0, 9.95), (1, 0.995), (2, 0.0995), (3, 0.00995)):
        if percent >= least:
            text = f"{percent:.{digits}f}"
            return "> 99 %" if text == "100" and lost < calls else f"{text} %"
    return "< 0.01 %"
