"""The benchmark of many tools measures each contender, and says which figure misses what is promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import many_tools
from benchmarks.many_tools import Scrape, main, scrape_table


@pytest.fixture(autouse=True)
def freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests around this one made stays for the collector to look through."""
    monkeypatch.setattr(many_tools.gc, "freeze", lambda: None)


def test_every_contender_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert main(["--tools", "3", "--rounds", "2", "--json", str(path)]) == 0
    scrapes = json.loads(path.read_text())["scrapes"]
    names = {each["contender"] for each in scrapes}
    assert len(scrapes) == 2 * len(names)
    assert {each["contender"] for each in scrapes if not each["bytes"]} == {"no scrape"}
    out = capsys.readouterr().out
    assert all(name in out for name in names)


def test_the_table_says_what_was_missed() -> None:
    text = scrape_table([Scrape(many_tools.TEXT, 11.0, 100.0, 1_000), Scrape("no scrape", 20.0, 100.0, 0)])
    (line,) = [line for line in text.splitlines() if "MISSED" in line]
    assert line.startswith(many_tools.TEXT)
    assert "MISSED" not in scrape_table([Scrape(many_tools.TEXT, 9.0, 100.0, 1_000)])


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["--json", str(tmp_path / "file" / "figures.json")]) == 2
