"""The scenario with every outcome, and its deviations."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.scenarios import every_outcome
from dispatch.devtools.demo.world import MIN_SECONDS
from dispatch.errors import Outcome
from tests.unit.devtools.demo.scenarios.demo_run import run_with_policy


async def test_unexpected_count_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(every_outcome, "EXPECTED_OUTCOMES", {Outcome.TIMEOUT: 7})
    summary = await Demo("memory://", MIN_SECONDS).run()
    assert summary.deviations == ["timeout: 1 instead of 7"]


async def test_calls_of_other_scenarios_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await Demo("memory://", MIN_SECONDS).run()
    assert summary.board.outcomes[Outcome.THROTTLED] > 2
    assert summary.as_dict()["scenarios"][0]["outcomes"]["throttled"] == 2


async def test_retried_throttled_calls_are_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(monkeypatch, "printer-service", retry=3)
    assert summary.deviations == ["throttled: 0 instead of 2"]
