"""The summary of a run."""

from __future__ import annotations

import json

from dispatch.devtools.demo import Demo, Scoreboard, Summary
from dispatch.devtools.demo.world import MIN_SECONDS


async def test_the_summary_as_plain_values() -> None:
    summary = (await Demo("memory://", MIN_SECONDS).run()).as_dict()
    assert summary["searches"] > 10
    assert json.loads(json.dumps(summary)) == summary
    assert summary["outcomes"]["rejected"]["example"]["tool"] == "tell-jokes"
    assert "example" not in summary["outcomes"]["success"]
    assert summary["tools"]["weather"] == {
        "calls": 2,
        "ok": 0,
        "errors": 2,
        "p50_ms": None,
        "p95_ms": None,
        "chunks": 0,
        "first_chunk_p50_ms": None,
    }
    outcomes, instance, circuit, noisy = summary["scenarios"]
    assert outcomes["outcomes"]["throttled"] == 2
    assert instance["instances"] == {
        "translate-1": ["up"],
        "translate-2": ["up", "ejected", "warming", "up"],
        "translate-3": ["up"],
    }
    assert circuit["states"] == ["closed", "open", "half-open", "closed"]
    assert list(noisy["users"]) == ["noisy", "nora", "otto", "petra"]


def test_pending_requests_are_a_deviation() -> None:
    summary = Summary("memory://", 1.0, "", Scoreboard(), (), pending=2, replies={})
    assert summary.deviations == ["no call succeeded", "2 requests are still pending"]
