"""The demonstration itself, on virtual time: the same counts every time, and nothing left."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from dispatch import TransportError
from dispatch.demo import Demo
from dispatch.demo.run import EXPECTED
from dispatch.outcome import Outcome
from tests.support.clock import advance


@pytest.mark.parametrize("seconds", [1.0, 10.0])
async def test_every_outcome_occurs_as_planned(seconds: float) -> None:
    demo = Demo("memory://", seconds)
    began = asyncio.get_running_loop().time()
    summary = await demo.run()
    assert summary.surprises == []
    assert {outcome: demo.board.outcomes[outcome] for outcome in EXPECTED} == EXPECTED
    assert set(Outcome) == {Outcome.SUCCESS, *EXPECTED}
    assert demo.board.outcomes[Outcome.SUCCESS] > 20 * seconds
    assert (summary.pending, demo.board.in_flight) == (0, 0)
    assert asyncio.get_running_loop().time() - began < seconds + 5


async def test_each_outcome_has_the_text_that_a_model_would_read() -> None:
    demo = Demo("memory://", 1)
    examples = (await demo.run()).board.examples
    assert "Did you mean 'tell-joke'" in examples[Outcome.REJECTED].message
    assert examples[Outcome.TOOL_ERROR].type == "division-by-zero"
    assert "not before 1 s" in examples[Outcome.THROTTLED].message
    assert "within 0.8 s" in examples[Outcome.TIMEOUT].message
    assert examples[Outcome.TRANSPORT].type == "malformed-reply"
    assert "must be an object" in examples[Outcome.INVALID_ARGUMENTS].message
    assert Outcome.SUCCESS not in examples


async def test_right_answers_come_back() -> None:
    demo = Demo("memory://", 1)
    await demo.run()
    assert demo.board.tools["calculate"].last in ("61.5", "42.0", "0.125")
    assert demo.board.tools["tell-story"].last.startswith("Once a lighthouse keeper")
    assert demo.board.tools["tell-story"].chunks == 16 * demo.board.tools["tell-story"].ok


async def test_two_runs_are_alike() -> None:
    counts = []
    for _ in range(2):
        demo = Demo("memory://", 2)
        counts.append({name: score.calls for name, score in (await demo.run()).board.tools.items()})
    assert counts[0] == counts[1]


async def test_progress_goes_from_0_to_1() -> None:
    demo = Demo("memory://", 4)
    assert demo.progress == 0.0
    running = asyncio.ensure_future(demo.run())
    await advance(3)
    assert 0.3 < demo.progress < 0.8
    await running
    assert demo.progress == 1.0


async def test_cancelled_it_leaves_nothing() -> None:
    demo = Demo("memory://", 60)
    running = asyncio.ensure_future(demo.run())
    await advance(5)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert demo.board.in_flight == 0


async def test_a_broker_out_of_reach_is_an_error_at_once() -> None:
    with pytest.raises(TransportError, match="no broker address"):
        await Demo("nowhere", 1).run()


async def test_the_summary_as_plain_values() -> None:
    summary = (await Demo("memory://", 1).run()).as_dict()
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
