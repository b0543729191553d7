"""The picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import pytest

from benchmarks.harness.plan import BASIC, DELIVERY, GUARDS, SUITES, TELEMETRY
from benchmarks.harness.plots import COLOURS, MARKERS, draw, draw_delivery
from tests.benchmarks.harness.result_builders import measurement, results


def test_contenders_of_a_suite_have_distinct_colours() -> None:
    for suite in SUITES:
        names = [contender.name for contender in suite.contenders]
        assert len({COLOURS[name] for name in names}) == len({MARKERS[name] for name in names}) == len(names)


def test_a_picture_of_everything_with_the_losses_written_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    close = pyplot.close

    def look_and_close(figure: Any) -> None:
        written.extend(text.get_text() for axes in figure.axes for text in axes.texts)
        assert [len(axes.get_lines()) > 0 for axes in figure.axes] == [True] * 10
        close(figure)

    monkeypatch.setattr(pyplot, "close", look_and_close)
    run = results(
        *(
            measurement(contender.name, level, round, suite.name, p50_ms=float(level + round), lost=level // 256 * 7)
            for suite in (*BASIC, GUARDS, TELEMETRY)
            for contender in suite.contenders
            for level in suite.levels
            for round in (1, 2)
        ),
        suites=SUITES,
    )
    draw(run, tmp_path / "all.png")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    # Four clients and two kinds of topic, at 256 in flight, in two panels each; two rounds of seven.
    assert written == ["14 lost"] * 12
    assert not pyplot.get_fignums()


def test_what_has_no_figure_is_left_out(tmp_path: Path) -> None:
    run = results(
        measurement("bare", 1), measurement("dispatch", 1, p50_ms=None, calls_per_second=0.0, cpu_us_per_call=None)
    )
    draw(run, tmp_path / "some.png")
    assert (tmp_path / "some.png").stat().st_size > 1_000


def test_what_was_lost_has_a_picture_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, list[float]]] = []
    close = pyplot.close

    def look_and_close(figure: Any) -> None:
        for axes in figure.axes[::2]:
            drawn.extend((line.get_label(), list(line.get_ydata())) for line in axes.get_lines())
        close(figure)

    monkeypatch.setattr(pyplot, "close", look_and_close)
    suite = DELIVERY[-1]
    run = results(
        *(
            measurement(
                contender.name, level, 1, suite.name, calls=1_000, lost=level if contender.name == "bare" else 0
            )
            for contender in suite.contenders
            for level in suite.levels
        ),
        suites=(*BASIC, suite),
    )
    draw_delivery(run, tmp_path / "lost.png")
    assert (tmp_path / "lost.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [label for label, _ in drawn] == [contender.label for contender in suite.contenders]
    assert drawn[0][1] == pytest.approx([level / 10 for level in suite.levels]), "per cent"
    assert all(shares == [0.0] * len(suite.levels) for _, shares in drawn[1:])
