"""The figures of a run in the documentation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.processes import ROOT
from benchmarks.suites.definitions import FAN_IN, LOSSES, SYSTEMS
from benchmarks.suites.docs_page import BEGIN, END, PAGE, PICTURE, main, render_figures, replace_figures
from tests.benchmarks.harness.result_builders import measurement, results

RUN = results(
    *(
        measurement(contender.name, level, round, suite.name, calls_per_second=100.0 * level, lost=level // 256)
        for suite in SYSTEMS
        for contender in suite.contenders
        for level in suite.levels
        for round in (1, 2)
    ),
    measurement("dispatch", 64, suite="loss-120", repeated=0, retransmitted=0.051),
    measurement("dispatch", 20, suite="fan-in", p50_ms=None, p99_ms=None, p999_ms=None, lost=1_200),
    suites=(*SYSTEMS, LOSSES[0], FAN_IN),
)


def test_four_systems_in_one_table() -> None:
    lines = render_figures(RUN).splitlines()
    header = next(line for line in lines if line.startswith("| replies, in flight"))
    assert header.split(" | ")[1:3] == ["bare client + service", "TrustGraph client + service"]
    assert "| 10 kB, 64 | " + " | ".join(["6,400 (1.00 / 3.00)"] * 4) + " |" in lines
    assert any(line.startswith("| 1 MB, 256 | 25,600 (1.00 / 3.00; 0.083 % lost) | ") for line in lines)
    assert "| 100 kB | " + " | ".join(["100 + 50.0 + 25.0"] * 4) + " |" in lines


def test_losses_repetitions_and_retransmissions() -> None:
    text = render_figures(RUN)
    assert "| dispatch | 1,000 (1.00 / 2.00 / 3.00) | 0 | 5.1 % |" in text
    assert "| dispatch | 1,000 (no reply; 100 % lost) | - | - |" in text


def test_targets_that_were_measured() -> None:
    text = render_figures(RUN)
    assert "| 120 B, 64 in flight: calls/s, of the bare pair | ≥ 4 | 1.00 | **missed** |" in text
    assert "| 5 % lost each way, 120 B: calls executed again | ≤ 0 | 0.000 | reached |" in text
    assert "with metrics, of the same without" not in text


def test_a_run_without_the_systems_has_no_table_of_them() -> None:
    text = render_figures(replace(RUN, suites=(FAN_IN,)))
    assert "replies, in flight" not in text
    assert "20 instances" in text


def test_the_figures_between_the_marks_are_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_figures(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_figures(replace_figures(page, "newer"), "new") == replace_figures(page, "new")
    with pytest.raises(ValueError, match="does not have the marks"):
        replace_figures("before\nafter\n", "new")


def test_the_page_and_the_picture_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (PAGE, PICTURE):
        (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / PAGE).write_text((ROOT / PAGE).read_text())
    (tmp_path / "run.json").write_text(json.dumps(RUN.as_dict([])))
    assert main([str(tmp_path / "run.json"), "--root", str(tmp_path)]) == 0
    assert "| 10 kB, 64 | 6,400 (1.00 / 3.00) |" in (tmp_path / PAGE).read_text()
    assert (tmp_path / PICTURE).read_bytes().startswith(b"\x89PNG")
    assert "written: " in capsys.readouterr().out
