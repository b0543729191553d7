"""The benchmark of recommendations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.toolkit.__main__ import build_toolkit, main


def test_the_toolkit_has_the_stated_size() -> None:
    toolkit = build_toolkit(0)
    assert toolkit.vertices_count() == 15_000
    assert toolkit.get_graph().number_of_edges() == 50_000


def test_the_report_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main(["--calls", "2", "--json", str(file)]) == 0
    figures = json.loads(file.read_text("utf-8"))
    assert [(each["starts"], each["threshold"]) for each in figures] == [(1, 0.5), (1, 0.0), (3, 0.5), (3, 0.0)]
    assert figures[1]["vertices"] > figures[0]["vertices"] > 1
    assert all(0 < each["p50_ms"] <= each["p95_ms"] <= each["max_ms"] for each in figures)
    assert "≤ 5" in capsys.readouterr().out
