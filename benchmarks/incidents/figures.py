"""Figures of scenarios, computed from the records of calls. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

RIGHT = "right"
"""The kind of a call that succeeded with the expected answer."""
WRONG = "wrong"
"""The kind of a call that succeeded with another answer: a forged one."""
CIRCUIT_OPEN = "circuit-open"

Value = float | int | str | None


@dataclass(frozen=True)
class Figure:
    """One measured value.

    Attributes:
        name: what was measured; the key by which two runs are compared.
        value: a number, a text, or None when it could not be measured.
        unit: ``%`` shows a share (0 to 1) in percent; any other unit is shown after the number.
        wanted: the value that a correct program has, as a text to read.
        limit: the greatest value that a correct program has; None: the figure is for information.
    """

    name: str
    value: Value
    unit: str = ""
    wanted: str = ""
    limit: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the value is within its limit; one that could not be measured is not."""
        return self.limit is None or (isinstance(self.value, (int, float)) and self.value <= self.limit)

    def as_dict(self) -> dict[str, Any]:
        """The figure as plain values, for ``--json``."""
        return {"name": self.name, "value": self.value, "unit": self.unit, "wanted": self.wanted, "limit": self.limit}


@dataclass(frozen=True)
class Call:
    """One call of the load.

    Attributes:
        began, ended: seconds on the machine's monotonic clock, which all processes share.
        kind: :data:`RIGHT`, :data:`WRONG`, or the ``type`` of the error.
    """

    began: float
    ended: float
    kind: str


AnyCall = TypeVar("AnyCall", bound=Call)


def calls_of(rows: Iterable[Sequence[Any]]) -> list[Call]:
    """Calls as a worker sends them: ``[began, ended, kind]``."""
    return [Call(float(began), float(ended), str(kind)) for began, ended, kind in rows]


def begun(calls: Iterable[AnyCall], since: float, until: float = float("inf")) -> list[AnyCall]:
    """Calls that began within ``[since, until)``."""
    return [call for call in calls if since <= call.began < until]


def share(calls: Sequence[Call], *kinds: str) -> float | None:
    """Share of ``calls`` that are of one of ``kinds``, from 0 to 1; None if there are no calls."""
    return sum(call.kind in kinds for call in calls) / len(calls) if calls else None


def first_right(calls: Iterable[Call], since: float) -> float | None:
    """The end of the first call that began after ``since`` and succeeded; None if none did."""
    return min((call.ended for call in calls if call.began >= since and call.kind == RIGHT), default=None)


def common_failures(calls: Iterable[Call], most: int = 3) -> str:
    """The most frequent kinds of failure, as ``circuit-open 120, timeout 8``; ``none`` if every call was right."""
    counts = Counter(call.kind for call in calls if call.kind != RIGHT)
    return ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common(most)) or "none"


def median(values: Iterable[float | None]) -> float | None:
    """The median of those that were measured; None if none was."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None
