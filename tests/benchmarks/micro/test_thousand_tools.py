"""The benchmark of many tools measures each contender, and reports figures that miss their target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.micro import thousand_tools
from benchmarks.micro.rounds import Costs
from benchmarks.micro.thousand_tools import MANY, ONE, SERVICES, Scrape, cost_table, main, scrape_table


@pytest.fixture(autouse=True)
def freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the objects of other tests collectable."""
    monkeypatch.setattr(thousand_tools.gc, "freeze", lambda: None)
    monkeypatch.setattr(thousand_tools, "BLOCK", 10)


def test_every_contender_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    assert main(["--tools", "3", "--rounds", "2", "--blocks", "1", "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    for costs in (written["costs_us"], written["costs_of_seldom_calls_us"]):
        assert {name: len(rounds) for name, rounds in costs.items()} == dict.fromkeys(
            ("one", "many", "many-services"), 2
        )
    scrapes = written["scrapes"]
    names = {each["contender"] for each in scrapes}
    assert len(scrapes) == 2 * len(names)
    assert {each["contender"] for each in scrapes if not each["bytes"]} == {"no scrape"}
    out = capsys.readouterr().out
    assert all(name in out for name in names)


def test_a_ratio_is_of_the_same_round() -> None:
    found = Costs({ONE: {0: 30.0, 1: 60.0}, MANY: {0: 33.0, 1: 63.0}, SERVICES: {0: 45.0, 1: 90.0}})
    lines = [line.split() for line in cost_table(found, 1_000, "A call").splitlines()]
    assert lines[3][-3:] == ["≤", "1.1", "ok"]
    assert "1.50" in lines[4]


def test_the_table_says_what_was_missed() -> None:
    text = scrape_table([Scrape(thousand_tools.TEXT, 11.0, 100.0, 1_000), Scrape("no scrape", 20.0, 100.0, 0)])
    (line,) = [line for line in text.splitlines() if "MISSED" in line]
    assert line.startswith(thousand_tools.TEXT)
    assert "MISSED" not in scrape_table([Scrape(thousand_tools.TEXT, 9.0, 100.0, 1_000)])


def test_a_place_that_cannot_be_written_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert main(["--json", str(tmp_path / "file" / "figures.json")]) == 2
