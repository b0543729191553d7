"""A service hangs; and what the act says where the circuit does not open, or nobody is told what to use instead."""

from __future__ import annotations

import pytest

from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.time_scale import LEAST_SECONDS
from tests.unit.devtools.demo.scenarios.demo_run import played


async def test_its_circuit_opens_probes_and_closes_and_refusals_say_what_to_use_instead() -> None:
    demo = Demo("memory://", LEAST_SECONDS)
    act = (await demo.run()).acts[2]
    told = act.as_dict()
    assert act.surprises() == []
    assert told["outcomes"]["timeout"] >= 3
    assert told["outcomes"]["rejected"] == told["answered_instead"] > 0
    assert "its service has failed too often lately" in told["refusal"]
    assert told["refusal"].endswith("Tools like it: last-known-rate.")
    events = [event.text for event in demo.events]
    for text in (
        "exchange-rate: closed → open for 0.6 s (consecutive failures)",
        "exchange-rate: open → half-open (open time over)",
        "exchange-rate: half-open → closed (recovered)",
    ):
        assert text in events


async def test_a_circuit_that_stays_closed_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = await played(
        monkeypatch,
        "rates-service",
        breaker={"consecutive-failures": None, "min-calls": 100},
    )
    assert summary.surprises == [
        "the circuit of exchange-rate was closed instead of closed → open → half-open → closed",
        "no call of exchange-rate ended with rejected",
    ]


async def test_a_circuit_that_opens_twice_is_a_surprise(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its open time is so short that the probe comes while the service still hangs.
    summary = await played(monkeypatch, "rates-service", breaker={"consecutive-failures": 3, "open-duration": 0.1})
    (surprise,) = summary.surprises
    assert "closed → open → half-open → open" in surprise
