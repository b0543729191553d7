"""``dispatch find``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch.search import search
from tests.unit.cli.conftest import Run
from tests.unit.search.embedders import fail_to_import

TOOLS: dict[str, dict[str, Any]] = {
    "tell-joke": {"description": "Tells a funny story.", "tags": ["fun"]},
    "exchange": {"description": "Converts an amount of dollars into euros.", "category": "finance"},
    "sunrise": {"description": "Tells when the sun rises.", "tags": ["fun", "weather"]},
}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    for kind in ("tool", "tool-service"):
        (tmp_path / "tools" / kind).mkdir(parents=True)
    service = {"id": "lab", "request-queue": "non-persistent://tg/request/lab"}
    service["response-queue"] = "non-persistent://tg/response/lab"
    (tmp_path / "tools/tool-service/lab.json").write_text(json.dumps(service))
    for name, keys in TOOLS.items():
        tool = {"type": "tool-service", "name": name, "service": "lab", **keys}
        (tmp_path / f"tools/tool/{name}.json").write_text(json.dumps(tool))
    return str(tmp_path / "tools")


def test_tools_are_found_by_meaning(run: Run, folder: str) -> None:
    end = run("find", "currency rates of money", "--catalog", folder, "--json", "--limit", "1")
    assert end.code == 0
    (found,) = end.json
    assert (found["name"], found["description"]) == ("exchange", TOOLS["exchange"]["description"])
    assert 0 < found["score"] <= 1
    assert "similar meaning" in found["why"]


def test_the_table(run: Run, folder: str) -> None:
    end = run("find", "a funny joke", "--catalog", folder)
    assert end.code == 0
    heading, first, *_ = end.out.splitlines()
    assert heading.split() == ["TOOL", "SCORE", "WHY", "DESCRIPTION"]
    assert first.startswith("tell-joke  0.")
    assert "common words: " in first
    assert first.endswith("Tells a funny story.")


def test_without_the_extra_words_decide(run: Run, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.ToolSearch.__init__, "__defaults__", (fail_to_import,))
    (found,) = run("find", "funny", "--catalog", folder, "--json").json
    assert found["name"] == "tell-joke"
    assert found["why"] == "common words: funny; searched by words only: the extra 'search' is not installed"


def test_conditions(run: Run, folder: str) -> None:
    assert [each["name"] for each in run("find", "sun", "--catalog", folder, "--tag", "weather", "--json").json] == [
        "sunrise"
    ]
    assert run("find", "sun", "--catalog", folder, "--category", "none").out == "No tool meets these conditions.\n"
    assert run("find", "sun", "--catalog", folder, "--category", "none", "--json").json == []


def test_nothing_found_is_the_list_with_score_zero(run: Run, folder: str) -> None:
    found = run("find", "?", "--catalog", folder, "--json").json
    assert sorted(each["name"] for each in found) == sorted(TOOLS)
    assert {each["score"] for each in found} == {0}


def test_an_unknown_folder_is_reported(run: Run) -> None:
    end = run("find", "sun", "--catalog", "missing")
    assert end.code != 0
    assert "missing" in end.err
