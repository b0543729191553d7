"""Every way a call can end, each as often as planned."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.scenarios import incidents
from dispatch.devtools.demo.time_scale import LEAST_SECONDS
from dispatch.errors import Outcome
from tests.unit.devtools.demo.scenarios.demo_run import played


async def test_another_number_than_planned_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incidents, "EXPECTED", {Outcome.TIMEOUT: 7})
    summary = await Demo("memory://", LEAST_SECONDS).run()
    assert summary.surprises == ["timeout: 1 instead of 7"]


async def test_calls_of_other_acts_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await Demo("memory://", LEAST_SECONDS).run()
    assert summary.board.outcomes[Outcome.THROTTLED] > 2
    assert summary.as_dict()["acts"][0]["outcomes"]["throttled"] == 2


async def test_a_printer_that_is_tried_again_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await played(monkeypatch, "printer-service", retry=3)
    assert summary.surprises == ["throttled: 0 instead of 2"]
