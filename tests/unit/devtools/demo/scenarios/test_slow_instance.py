"""The scenario with a slow instance, and its deviations without ejection or retries."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.world import MIN_SECONDS
from tests.unit.devtools.demo.scenarios.demo_run import run_with_policy

EARLY = {"consecutive-failures": 3, "base-ejection-time": 0.5}


async def test_slow_instance_is_ejected_and_returns_and_every_call_succeeds() -> None:
    summary = await Demo("memory://", MIN_SECONDS).run()
    scenario = summary.scenarios[1]
    values = scenario.as_dict()
    assert scenario.find_deviations() == []
    assert values["calls"] == values["succeeded"] > values["results_while_ejected"] > 0
    assert values["retried"] >= 3, "as many as an ejection needs"
    assert "translate-2 became slow: up → ejected → warming → up." in scenario.describe_result()


async def test_missing_ejection_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    never = {"consecutive-failures": None, "slow-start-window": 0.5}
    summary = await run_with_policy(monkeypatch, "translate-service", outlier_detection=never)
    assert "translate-2 was up instead of up → ejected → warming → up" in summary.deviations
    assert "no call of translate succeeded while translate-2 was ejected" in summary.deviations


async def test_missing_slow_start_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(
        monkeypatch,
        "translate-service",
        outlier_detection={**EARLY, "slow-start-window": None},
    )
    assert summary.deviations == ["translate-2 was up → ejected → up instead of up → ejected → warming → up"]


async def test_failed_calls_are_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(monkeypatch, "translate-service", retry=1)
    (deviation,) = summary.deviations
    assert "calls of translate did not succeed" in deviation


async def test_instances_that_never_warm_up_end_the_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(
        monkeypatch,
        "translate-service",
        outlier_detection={**EARLY, "slow-start-window": 3600},
    )
    assert summary.deviations[0] == (
        "the instances of translate-service were not all up but warming → warming → warming"
    )
