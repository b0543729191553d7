"""A user calls without end; and what the act says where it is not limited, or others are."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.time_scale import LEAST_SECONDS
from tests.unit.devtools.demo.scenarios.demo_run import played


async def test_it_gets_its_rate_and_the_others_do_not_notice() -> None:
    act = (await Demo("memory://", LEAST_SECONDS).run()).acts[3]
    assert act.surprises() == []
    users = act.as_dict()["users"]
    assert 5 <= users["hog"]["let_through"] <= 5 + 5 * act.as_dict()["seconds"]
    assert users["hog"]["refused"] > users["hog"]["let_through"]
    for name in ("nora", "otto", "petra"):
        assert users[name]["let_through"] > 0
        assert users[name]["refused"] == 0
    assert "this user may call it only so often" in act.account()


async def test_one_that_is_not_limited_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    surprises = (await played(monkeypatch, "search-service", user_rate=None)).surprises
    assert surprises[0] == "hog was not limited"
    assert "calls of hog were let through" in surprises[1]


async def test_others_that_are_limited_because_of_it_are_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    surprises = (
        await played(monkeypatch, "search-service", user_rate=None, rate={"rate": "5/s", "max-wait": 0.01})
    ).surprises
    assert any("of nora" in surprise for surprise in surprises)
