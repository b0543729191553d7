"""An instance turns slow; and what the act says where health, or retries, do not do their work."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.time_scale import LEAST_SECONDS
from tests.unit.devtools.demo.scenarios.demo_run import played


async def test_it_is_ejected_and_comes_back_and_no_call_is_lost() -> None:
    summary = await Demo("memory://", LEAST_SECONDS).run()
    act = summary.acts[1]
    told = act.as_dict()
    assert act.surprises() == []
    assert told["calls"] == told["answered"] > told["answered_while_ejected"] > 0
    assert told["repeated"] >= 3, "as many as it takes to be ejected"
    assert "translate-2 turned slow: up → ejected → warming → up." in act.account()


async def test_one_that_is_never_ejected_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    never = {"consecutive": None, "sigma": None, "slow-start": 0.5}
    summary = await played(monkeypatch, "translate-service", health=never)
    assert "translate-2 was up instead of up → ejected → warming → up" in summary.surprises
    assert "no call of translate was answered while translate-2 was ejected" in summary.surprises


async def test_one_that_comes_back_at_full_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await played(
        monkeypatch, "translate-service", health={"consecutive": 3, "eject-for": 0.5, "slow-start": None}
    )
    assert summary.surprises == ["translate-2 was up → ejected → up instead of up → ejected → warming → up"]


async def test_calls_that_are_lost_are_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await played(monkeypatch, "translate-service", retry=1)
    (surprise,) = summary.surprises
    assert "calls of translate were not answered" in surprise


async def test_instances_that_never_warm_up_end_the_act(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await played(
        monkeypatch, "translate-service", health={"consecutive": 3, "eject-for": 0.5, "slow-start": 3600}
    )
    assert summary.surprises[0] == (
        "the instances of translate-service were not all up, but warming → warming → warming"
    )
