"""The scenario with a noisy user, and its deviations without a limit or with a limit for all users."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.world import MIN_SECONDS
from tests.unit.devtools.demo.scenarios.demo_run import run_with_policy


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
