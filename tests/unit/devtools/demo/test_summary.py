"""What came of a run, as values."""

from __future__ import annotations

import json

from dispatch.devtools.demo import Demo, Scoreboard, Summary
from dispatch.devtools.demo.time_scale import LEAST_SECONDS


async def test_the_summary_as_plain_values() -> None:
    summary = (await Demo("memory://", LEAST_SECONDS).run()).as_dict()
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
    incidents, instance, circuit, hog = summary["acts"]
    assert incidents["outcomes"]["throttled"] == 2
    assert instance["instances"] == {
        "translate-1": ["up"],
        "translate-2": ["up", "ejected", "warming", "up"],
        "translate-3": ["up"],
    }
    assert circuit["states"] == ["closed", "open", "half-open", "closed"]
    assert list(hog["users"]) == ["hog", "nora", "otto", "petra"]


def test_what_is_left_over_is_a_surprise() -> None:
    summary = Summary("memory://", 1.0, "", Scoreboard(), (), pending=2, replies={})
    assert summary.surprises == ["no call succeeded", "2 calls are left in the table of those that wait"]
