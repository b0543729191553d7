"""Definition of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.incidents.figures import Figure
from benchmarks.incidents.lab import Lab


@dataclass(frozen=True)
class Scenario:
    """One incident, measured.

    Attributes:
        name: as ``--only`` takes it.
        title: what happens, in a line.
        run: measures it; what it has given counts even if it fails afterwards.
        seconds: about how long that takes.
        short_seconds: the same with ``--short``.
        is_matrix: its figures are named ``ROW: COLUMN``, and are shown as a table of Markdown.
    """

    name: str
    title: str
    run: Callable[[Lab], Iterable[Figure]]
    seconds: float
    short_seconds: float
    is_matrix: bool = False
