"""The report: one table for each scenario, two runs side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence

from benchmarks.harness.report import aligned, number
from benchmarks.incidents.figures import Figure, Value
from benchmarks.incidents.outcomes import SHOWN

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


def matrix(scenario: str, runs: Runs) -> str:
    """The table of a scenario whose figures are named ``ROW: COLUMN``, in Markdown.

    It has the figures that have a limit in one of the rows, and some more. A value beyond its limit is bold; two runs are
    shown as ``before → after``.
    """
    cells: dict[str, dict[str, list[Figure]]] = {}
    for figures in runs.values():
        for figure in figures.get(scenario, ()):
            row, _, column = figure.name.rpartition(": ")
            cells.setdefault(row, {}).setdefault(column, []).append(figure)
    columns = {
        column: None
        for row in cells.values()
        for column, found in row.items()
        if column in SHOWN or any(figure.limit is not None for figure in found)
    }
    table = [("", "wanted", *columns)]
    for row, found in cells.items():
        wanted = ", ".join(f"{column} {each[0].wanted}" for column, each in found.items() if each[0].limit is not None)
        table.append((row, wanted, *(" → ".join(map(cell, found.get(column, ()))) for column in columns)))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    table.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in table
    )


def cell(figure: Figure) -> str:
    """One value of a table in Markdown."""
    text = shown(figure.value, figure.unit)
    return text if figure.is_met else f"**{text}**"


def report(titles: Mapping[str, str], runs: Runs, matrices: Collection[str] = ()) -> str:
    """Every scenario of ``titles`` that has figures: those of ``matrices`` in Markdown, others as plain aligned text."""
    parts = []
    for scenario, title in titles.items():
        body = rows(scenario, runs)
        if body and scenario in matrices:
            parts.append(f"{scenario}: {title}\n\n{matrix(scenario, runs)}")
        elif body:
            head = ("", "wanted", *runs)
            parts.append(f"{scenario}: {title}\n\n" + textwrap.indent(aligned([head, *body], left=(0,)), "  "))
    return "\n\n".join(parts)
