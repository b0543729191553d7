"""``dispatch check`` and ``dispatch call`` with grants."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run, write_catalog


def grants_file(raw: Any) -> str:
    Path("grants.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return "grants.json"


@pytest.fixture
def tools(tmp_path: Path) -> str:
    return str(write_catalog(tmp_path / "tools", permissions=["tools:jokes", "tools:fun"]))


def test_tools_with_permissions_are_reported_without_grants(run: Run, tools: str) -> None:
    end = run("check", tools, "--plan", "none")
    assert end.code == 0, "grants may be given in code"
    assert end.out.splitlines()[:2] == [
        "warning: catalogue: permissions: every call of tell-joke is refused: requires permissions without grants",
        "  fix: give --grants FILE, and connect(grants=…) in the agent",
    ]


def test_tools_without_permissions_need_no_grants(run: Run, tmp_path: Path) -> None:
    folder = str(write_catalog(tmp_path / "tools"))
    assert "no mistakes" in run("check", folder).out


def test_a_permission_that_no_grant_matches_is_reported(run: Run, tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = grants_file({"users": {"alice": ["tools:jokes", "!tools:fun"]}, "groups": {}, "everyone": []})
    found = run("check", tools, "--grants", file, "--json").json
    assert found["ok"]
    assert [(each["file"], each["severity"], each["problem"]) for each in found["problems"]] == [
        (file, "warning", "no grant matches the permission 'tools:fun', which tell-joke requires")
    ]
    grants_file({"users": {"alice": ["tools:*"]}})
    monkeypatch.setenv("DISPATCH_GRANTS", file)
    assert run("check", tools, "--json").json["problems"] == []


def test_an_invalid_file_is_an_error_with_key_and_fix(run: Run, tools: str) -> None:
    end = run("check", tools, "--grants", grants_file({"users": {"alice": "tools:jokes"}}), "--plan", "none")
    assert end.code == 1
    assert "error: grants.json: users.alice: a text in place of a list" in end.out
    assert "fix: write a list such as" in end.out
    assert run("check", tools, "--grants", "missing.json").code == 1


@pytest.mark.parametrize("raw", ["{", {"user": {}}])
def test_a_call_does_not_begin_with_invalid_grants(run: Run, tools: str, raw: Any) -> None:
    end = run("call", "tell-joke", "--catalog", tools, "--grants", grants_file(raw), "--broker", "pulsar://localhost:1")
    assert end.code == 2
    assert "The grants of 'grants.json' cannot be loaded: 1 mistake." in end.err
