"""Watched folders are edited at random while callers call: every edit comes into force, and no call fails."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from benchmarks.catalog.__main__ import main
from benchmarks.catalog.folder import FolderFigures, describe_figures, measure_folders
from tests.helpers.run_profile import by_profile

EDITS = by_profile(short=60, long=1_000)
CALLERS = 64


@pytest.mark.long
@pytest.mark.slow
def test_every_edit_is_in_force_and_no_call_fails() -> None:
    seed = random.randrange(10**6)
    figures = asyncio.run(measure_folders(EDITS, CALLERS, seed))
    assert (figures.lost, figures.failed_calls) == ([], 0), describe_figures(figures)
    assert len(figures.activations) == EDITS
    assert sum(figures.calls.values()) > CALLERS


def test_the_report_and_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert main(["--only", "folder", "--edits", "3", "--callers", "2", "--seed", "7", "--json", str(path)]) == 0
    written = json.loads(path.read_text())["folder"]
    assert (written["seed"], len(written["activations"]), written["lost"]) == (7, 3, [])
    assert "3 edits in force, 0 lost" in capsys.readouterr().out


def test_the_report_says_what_was_missed() -> None:
    figures = FolderFigures(1, [("delete file", 0.05), ("delete file", 1.5)], [], {"success": 3, "timeout": 2})
    text = describe_figures(figures)
    assert "MISSED" in text
    assert "5 calls meanwhile, 2 failed: 2 timeout" in text
    assert "1500 … 1600 ms  1" in text
    assert "MISSED" not in describe_figures(FolderFigures(1, [("delete file", 0.05)]))
    assert "1 lost: recreate" in describe_figures(FolderFigures(1, [("delete file", 0.05)], ["recreate"]))


def test_a_place_that_cannot_be_written_is_reported_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["--json", str(tmp_path / "file" / "figures.json")]) == 2
