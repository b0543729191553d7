"""The report: one table for each scenario, two runs side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from benchmarks.harness.report import aligned, number
from benchmarks.incidents.figures import Figure, Value

Runs = Mapping[str, Mapping[str, Sequence[Figure]]]
"""Figures by run (``before``, ``after``), then by scenario."""

COLUMN = 44
"""Characters of a text value in one column; a longer one is cut."""


def shown(value: Value, unit: str = "") -> str:
    """One value as a person reads it."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return textwrap.shorten(value, COLUMN, placeholder=" …")
    if unit == "%":
        return f"{100 * value:.2f} %" if 0 < value < 1 else f"{100 * value:.0f} %"
    text = f"{value:,}" if isinstance(value, int) else number(value)
    return f"{text} {unit}".rstrip()


def rows(scenario: str, runs: Runs) -> list[tuple[str, ...]]:
    """The rows of one scenario: figure, wanted, and a value for each run. A figure that only one run has shows ``-``."""
    found = {run: {figure.name: figure for figure in figures.get(scenario, ())} for run, figures in runs.items()}
    names: dict[str, Figure] = {}
    for figures in found.values():
        for name, figure in figures.items():
            names.setdefault(name, figure)
    return [
        (
            name,
            figure.wanted,
            *(shown(each[name].value, each[name].unit) if name in each else "-" for each in found.values()),
        )
        for name, figure in names.items()
    ]


def report(titles: Mapping[str, str], runs: Runs) -> str:
    """Every scenario of ``titles`` that has figures, as plain aligned text."""
    parts = []
    for scenario, title in titles.items():
        body = rows(scenario, runs)
        if body:
            head = ("", "wanted", *runs)
            parts.append(f"{scenario}: {title}\n\n" + textwrap.indent(aligned([head, *body], left=(0,)), "  "))
    return "\n\n".join(parts)
