"""The scenario with a hanging service, and its deviations where the circuit breaker does not open."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.world import MIN_SECONDS
from tests.unit.devtools.demo.scenarios.demo_run import run_with_policy


async def test_breaker_opens_half_opens_closes_and_rejections_name_an_alternative() -> None:
    demo = Demo("memory://", MIN_SECONDS)
    scenario = (await demo.run()).scenarios[2]
    values = scenario.as_dict()
    assert scenario.find_deviations() == []
    assert values["outcomes"]["timeout"] >= 3
    assert values["outcomes"]["rejected"] == values["alternative_results"] > 0
    assert "its circuit breaker is open" in values["rejection"]
    assert "another tool (last-known-rate)" in values["rejection"]
    events = [event.text for event in demo.events]
    for text in (
        "exchange-rate: closed → open for 0.6 s (consecutive failures)",
        "exchange-rate: open → half-open (open time over)",
        "exchange-rate: half-open → closed (recovered)",
    ):
        assert text in events


async def test_breaker_that_stays_closed_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(
        monkeypatch, "rates-service", breaker={"consecutive-failures": None, "min-calls": 100}
    )
    assert summary.deviations == [
        "the circuit breaker of exchange-rate was closed instead of closed → open → half-open → closed",
        "no call of exchange-rate ended with rejected",
    ]


async def test_breaker_that_opens_twice_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    # The open duration is so short that the half-open call is sent while the service still hangs.
    summary = await run_with_policy(
        monkeypatch, "rates-service", breaker={"consecutive-failures": 3, "open-duration": 0.1}
    )
    (deviation,) = summary.deviations
    assert "closed → open → half-open → open" in deviation
