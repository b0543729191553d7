"""The demonstration's summary, for people."""

from __future__ import annotations

import pytest

from dispatch.cli.demo import NEXT, show_summary
from dispatch.devtools.demo import Demo
from dispatch.devtools.demo.world import MIN_SECONDS


async def test_it_tells_how_calls_ended_what_guards_did_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    summary = await Demo("memory://", MIN_SECONDS).run()
    show_summary(summary)
    out = capsys.readouterr().out
    flat = " ".join(out.split())
    for scenario in summary.scenarios:
        assert " ".join(scenario.describe_result().split()) in flat
    assert summary.note in flat
    for outcome, count in summary.board.outcomes.items():
        assert f"{outcome} {count:,}" in flat
    for command, why in NEXT:
        assert f"{command} {why}" in flat
    assert max(len(line) for line in out.splitlines() if "last result" not in line) <= 130
