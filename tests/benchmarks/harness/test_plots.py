"""The pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import pytest

from benchmarks.harness.plan import Suite
from benchmarks.harness.plots import draw, draw_systems, style_of
from benchmarks.suites.definitions import CLIENTS, FLEETS, SUITES, SYSTEMS
from tests.benchmarks.harness.result_builders import measurement, results


def run_of(*suites: Suite) -> Any:
    """Results of two rounds with losses at 256 in flight."""
    return results(
        *(
            measurement(
                contender.name, level, round, suite.name, p50_ms=float(level + round), lost=level // 256 % 2 * 7
            )
            for suite in suites
            for contender in suite.contenders
            for level in suite.levels
            for round in (1, 2)
        ),
        suites=suites,
    )


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, list[str]]]:
    """Of each figure that is drawn: its panels with lines, and the texts in them."""
    drawn: list[tuple[int, list[str]]] = []
    close = pyplot.close

    def look_and_close(figure: Any) -> None:
        texts = [text.get_text() for axes in figure.axes for text in axes.texts]
        drawn.append((sum(bool(axes.get_lines() or axes.patches) for axes in figure.axes), texts))
        close(figure)

    monkeypatch.setattr(pyplot, "close", look_and_close)
    return drawn


def test_contenders_of_a_suite_differ_without_colours_too() -> None:
    for suite in SUITES:
        styles = [style_of(contender.name) for contender in suite.contenders]
        for values in ("color", "marker"):
            assert len({(style[values], style["linestyle"]) for style in styles}) == len(styles), suite.name


def test_a_row_for_each_suite_but_the_systems(tmp_path: Path, figures: list[tuple[int, list[str]]]) -> None:
    draw(run_of(CLIENTS, SYSTEMS[0], FLEETS), tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    # Four clients at 256 in flight, in three panels; two rounds of seven. The fleets have one level and therefore bars.
    assert figures == [(6, ["14 lost"] * 12)]
    assert not pyplot.get_fignums()


def test_the_systems_by_size_of_the_replies(tmp_path: Path, figures: list[tuple[int, list[str]]]) -> None:
    draw_systems(run_of(CLIENTS, *SYSTEMS[:2]), tmp_path / "systems.png")
    assert (tmp_path / "systems.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    # Throughput, p50 and p99.9 at two sizes; four systems that lose calls at 256 in flight.
    assert figures == [(6, ["14 lost"] * 24)]
    assert not pyplot.get_fignums()


def test_a_missing_figure_is_not_drawn(tmp_path: Path) -> None:
    run = results(
        measurement("bare", 1), measurement("dispatch", 1, p50_ms=None, calls_per_second=0.0, cpu_us_per_call=None)
    )
    draw(run, tmp_path / "some.png")
    assert (tmp_path / "some.png").stat().st_size > 1_000
