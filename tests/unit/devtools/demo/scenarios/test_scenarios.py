"""The scenario with every outcome, and its deviations.
The scenario with a noisy user, and its deviations without a limit or with a limit for all users.
The scenario with a hanging service, and its deviations where the circuit breaker does not open.
The scenario with a slow instance, and its deviations without ejection or retries.
"""

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


async def test_retried_throttled_calls_are_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(monkeypatch, "printer-service", retry=3)
    assert summary.deviations == ["throttled: 0 instead of 2"]


async def test_noisy_user_is_limited_and_other_users_are_not() -> None:
    scenario = (await Demo("memory://", MIN_SECONDS).run()).scenarios[3]
    assert scenario.find_deviations() == []
    users = scenario.as_dict()["users"]
    assert 5 <= users["noisy"]["admitted"] <= 5 + 5 * scenario.as_dict()["seconds"]
    assert users["noisy"]["rejected"] > users["noisy"]["admitted"]
    for name in ("nora", "otto", "petra"):
        assert users[name]["admitted"] > 0
        assert users[name]["rejected"] == 0
    assert "its rate limit for this user is reached" in scenario.describe_result()


async def test_missing_limit_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    deviations = (await run_with_policy(monkeypatch, "search-service", user_rate_limit=None)).deviations
    assert deviations[0] == "noisy was not limited"
    assert "calls of noisy were admitted" in deviations[1]


async def test_limit_shared_by_all_users_is_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    deviations = (
        await run_with_policy(
            monkeypatch, "search-service", user_rate_limit=None, rate_limit={"rate": "5/s", "max-wait": 0.01}
        )
    ).deviations
    assert any("nora: " in deviation for deviation in deviations)


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


async def test_failed_calls_are_a_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policy(monkeypatch, "translate-service", retry=1)
    (deviation,) = summary.deviations
    assert "calls of translate did not succeed" in deviation
