"""The benchmark of functions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.functions.__main__ import main


def test_the_report_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main(["--rounds", "1", "--blocks", "1", "--json", str(file)]) == 0
    costs = json.loads(file.read_text("utf-8"))["costs_us"]
    assert {"bare", "function", "thread", "service"} <= costs.keys()
    assert 0 < costs["bare"][0] < costs["function"][0]
    assert "≤ 80" in capsys.readouterr().out
