"""The benchmark of served functions."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.functions.served import main


@pytest.mark.pulsar
def test_the_report_has_both_forms_and_their_ratio(
    pulsar_endpoint: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULSAR_URL", pulsar_endpoint.service_url)
    assert main(["--rounds", "2", "--calls", "1600"]) == 0
    out = capsys.readouterr().out
    assert "hand-written ToolService" in out
    assert "served function" in out
    assert "≤ 1.15" in out
