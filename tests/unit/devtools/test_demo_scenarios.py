"""The scenarios: every outcome, a slow instance, a hanging service, a noisy user; and deviations without their guards."""

from __future__ import annotations

import pytest

from dispatch.devtools import demo
from dispatch.errors import Outcome
from tests.unit.devtools.demo_run import run_demo, run_with_policies


@pytest.mark.costly
def test_noisy_user_is_limited_and_other_users_are_not() -> None:
    scenario = run_demo()[1].scenarios[3]
    assert scenario.find_deviations() == []
    users = scenario.as_dict()["users"]
    assert 5 <= users["noisy"]["admitted"] <= 5 + 5 * scenario.as_dict()["seconds"]
    assert users["noisy"]["rejected"] > users["noisy"]["admitted"]
    for name in ("nora", "otto", "petra"):
        assert users[name]["admitted"] > 0
        assert users[name]["rejected"] == 0
    assert "its rate limit for this user is reached" in scenario.describe_result()


@pytest.mark.costly
async def test_noisy_user_whose_calls_take_long_is_limited_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "NOISY_USER_PAUSE_S", 0.15)
    summary = await run_with_policies(monkeypatch)
    assert summary.deviations == []
    assert summary.scenarios[3].as_dict()["users"]["noisy"]["rejected"] == 1


@pytest.mark.costly
def test_breaker_opens_half_opens_closes_and_rejections_name_an_alternative() -> None:
    demo, summary = run_demo()
    scenario = summary.scenarios[2]
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


@pytest.mark.costly
def test_slow_instance_is_ejected_and_returns_and_every_call_succeeds() -> None:
    scenario = run_demo()[1].scenarios[1]
    values = scenario.as_dict()
    assert scenario.find_deviations() == []
    assert values["calls"] == values["succeeded"] > values["results_while_ejected"] > 0
    assert values["retried"] >= 3, "as many as an ejection needs"
    assert "translate-2 became slow: up → ejected → warming → up." in scenario.describe_result()


@pytest.mark.costly
async def test_each_missing_guard_is_a_deviation_of_its_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await run_with_policies(
        monkeypatch,
        printer={"retry": 3},
        translate={"outlier-detection": {"consecutive-failures": None, "slow-start-window": 0.5}},
        rates={"breaker": {"consecutive-failures": None, "min-calls": 100}},
        search={"user-rate-limit": None},
    )
    outcomes, ejection, breaker, noisy = (scenario.find_deviations() for scenario in summary.scenarios)
    assert outcomes == ["throttled: 0 instead of 2"]
    assert "translate-2 was up instead of up → ejected → warming → up" in ejection
    assert "no call of translate succeeded while translate-2 was ejected" in ejection
    assert breaker == [
        "the circuit breaker of exchange-rate was closed instead of closed → open → half-open → closed",
        "no call of exchange-rate ended with rejected",
    ]
    assert noisy[0] == "noisy was not limited"
    assert "calls of noisy were admitted" in noisy[1]
    assert summary.deviations == [*outcomes, *ejection, *breaker, *noisy]


@pytest.mark.costly
async def test_unexpected_counts_failed_calls_and_a_limit_for_all_are_deviations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "EXPECTED_OUTCOMES", {Outcome.TIMEOUT: 7})
    summary = await run_with_policies(
        monkeypatch,
        translate={"retry": 1},
        search={"user-rate-limit": None, "rate-limit": {"rate": "5/s", "max-wait": 0.01}},
    )
    outcomes, ejection, breaker, noisy = (scenario.find_deviations() for scenario in summary.scenarios)
    assert outcomes == ["timeout: 1 instead of 7"]
    (failed,) = ejection
    assert "calls of translate did not succeed" in failed
    assert breaker == []
    assert any("nora: " in deviation for deviation in noisy)
