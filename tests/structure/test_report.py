"""``python -m structure``: figures, limits and exit codes."""

from __future__ import annotations

import json

import pytest

import structure.report
from structure.__main__ import describe_figures, main
from structure.report import LIMITS, Figure, Limit


def test_the_report_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["figures"].keys() >= LIMITS.keys()
    assert report["figures"]["layers"]["value"] == 7
    assert report["figures"]["top_level_modules"]["found"] == sorted(report["figures"]["top_level_modules"]["found"])
    assert all(words and min(words.values()) > 0 for words in report["private_words"].values())


def test_findings_are_printed_below_their_figure() -> None:
    figure = Figure("policy_keys", "keys that a policy accepts", 3, ["rate", "retry", "timeout"])
    assert describe_figures([figure], most=2).splitlines()[1:] == [
        "            rate",
        "            retry",
        "            … 1 more (--all)",
    ]


def test_enforced_limits_hold() -> None:
    assert main(["--check"]) == 0


def test_an_exceeded_limit_fails_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(structure.report.LIMITS, "layers", Limit(6))
    assert main(["--check"]) == 1
    assert "error: layers of packages: 7, limit 6" in capsys.readouterr().err
    monkeypatch.setitem(structure.report.LIMITS, "layers", Limit(6, is_enforced=False))
    assert main(["--check"]) == 0
