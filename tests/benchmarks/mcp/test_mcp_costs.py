"""The benchmark of calls over MCP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.mcp.__main__ import main


def test_the_report_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main(["--rounds", "1", "--seconds", "0.2", "--json", str(file)]) == 0
    figures = json.loads(file.read_text("utf-8"))
    assert figures["calls_per_s"]["tools"] > 10
    assert 0 < figures["p50_ms"]["call"] < figures["p50_ms"]["tools"]
    assert figures["processor_ms"]["tools"] > 0
    assert "target: 3 or less" in capsys.readouterr().out
