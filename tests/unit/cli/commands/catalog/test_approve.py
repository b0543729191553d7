"""``dispatch tools approve``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run, write_catalog

OLD = "0" * 64


def write_approvals(folder: Path, *keys: str) -> Path:
    file = folder / "approved.json"
    file.write_text(json.dumps({"approved": {key: [OLD] for key in keys}}))
    return file


def approved(file: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(file.read_text())["approved"]
    return value


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Approvals of another definition of ``tell-joke``, and of a tool that is not there."""
    write_catalog(tmp_path / "tools")
    return write_approvals(tmp_path, "tool/tell-joke", "tool/other")


def test_it_replaces_the_approval_of_the_name_and_nothing_else(run: Run, file: Path) -> None:
    (tool,) = run("tools", "--json").json
    end = run("tools", "approve", "tell-joke", "--approvals", str(file), "--yes")
    assert (end.code, end.err) == (0, "")
    assert f"  - {OLD}\n  + {tool['fingerprint']}\n" in end.out
    assert '"description": "Tell a joke. It is short."' in end.out
    assert end.out.endswith(f"{file}: approved tool/tell-joke.\n")
    assert approved(file) == {"tool/other": [OLD], "tool/tell-joke": [tool["fingerprint"]]}
    again = run("tools", "approve", "tell-joke", "--approvals", str(file), "--yes")
    assert again.code == 2
    assert "'tell-joke' is not held" in again.err


def test_json(run: Run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_APPROVALS", str(file))
    assert run("tools", "approve", "tell-joke", "--json").code == 2
    assert approved(file)["tool/tell-joke"] == [OLD]
    value = run("tools", "approve", "tell-joke", "--json", "--yes").json
    assert value["file"] == str(file)
    (row,) = value["approved"]
    assert (row["kind"], row["name"], row["source"], row["old"]) == ("tool", "tell-joke", "folder:tools", [OLD])
    assert row["new"] == approved(file)["tool/tell-joke"]
    assert row["definitions"][0]["name"] == "tell-joke"


def test_a_changed_service_is_approved_with_its_tool(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    file = write_approvals(tmp_path, "tool/tell-joke", "tool-service/joke-service")
    assert run("tools", "approve", "tell-joke", "--approvals", str(file), "--yes").code == 0
    assert OLD not in {print for prints in approved(file).values() for print in prints}


def test_a_service_alone(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    file = write_approvals(tmp_path, "tool/tell-joke", "tool-service/joke-service")
    assert run("tools", "approve", "joke-service", "--approvals", str(file), "--yes").code == 0
    assert approved(file)["tool/tell-joke"] == [OLD]
    assert approved(file)["tool-service/joke-service"] != [OLD]


def test_a_name_that_is_not_held_is_refused_with_those_that_are(run: Run, file: Path) -> None:
    end = run("tools", "approve", "tell-joke", "sing", "--approvals", str(file), "--yes")
    assert (end.code, end.out) == (2, "")
    assert "'sing' is not held, so nothing was approved; held are tell-joke." in end.err
    assert approved(file)["tool/tell-joke"] == [OLD]


def test_without_a_terminal_it_needs_yes_and_shows_the_change(run: Run, file: Path) -> None:
    end = run("tools", "approve", "tell-joke", "--approvals", str(file))
    assert end.code == 2
    assert f"  - {OLD}" in end.out
    assert "--yes" in end.err
    assert approved(file)["tool/tell-joke"] == [OLD]


def test_without_a_file(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    end = run("tools", "approve", "tell-joke")
    assert end.code == 2
    assert "--approvals FILE" in end.err


def test_a_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    end = run("tools", "approve", "tell-joke", "--approvals", str(tmp_path), "--yes")
    assert end.code == 1
    assert "cannot be read" in end.err


def test_the_help_is_its_own(run: Run) -> None:
    end = run("tools", "approve", "--help")
    assert end.code == 0
    assert "dispatch tools approve" in end.out
    assert "dispatch tools tell-joke" not in end.out
