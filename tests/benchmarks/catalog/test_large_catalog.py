"""The benchmark of a large catalogue: its programme runs, and its report names what is missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.catalog.__main__ import main
from benchmarks.catalog.large_catalog import CHANGES, LargeCatalogFigures, describe_large_catalog


def test_the_programme_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    sizes = ["--tools", "60", "--rounds", "2", "--activations", "8"]
    assert main(["--only", "tools", "--only", "activations", *sizes, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    assert set(written) == {"tools", "activations"}
    tools = written["tools"]
    assert all(len(tools[name]) == 2 for name in ("lookup_ratio", "loading_ms", "loading_block_ms", "kib_per_tool"))
    for name in ("loop_ms", "threads_ms", "latency_ms", "block_ms"):
        assert {kind: len(values) for kind, values in tools[name].items()} == dict.fromkeys(CHANGES, 2)
    assert written["activations"]["activations"] == 8
    assert "60 tools" in capsys.readouterr().out


def test_the_report_says_what_was_missed() -> None:
    figures = LargeCatalogFigures(10_000, lookup_ratio=[1.3], loop_ms={"put": [4.0]})
    lookup, put = describe_large_catalog(figures).splitlines()[2:]
    assert lookup.endswith("MISSED")
    assert put.endswith("ok")


@pytest.mark.parametrize("text", ["3", "0"])
def test_each_quarter_of_the_activations_is_measured(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--activations", text])
    assert "at least" in capsys.readouterr().err
