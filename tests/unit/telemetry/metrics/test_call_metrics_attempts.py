"""Metrics of attempts: queue waits, rejections, retries and hedges."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch.errors import Outcome
from dispatch.resilience.bulkhead import QueueLimits
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import UNGUARDED, serving
from tests.helpers.internals import correlator_of
from tests.helpers.telemetry_capture import Board, telling
from tests.unit.telemetry.metrics.test_call_metrics import OK, SENT, deaf, ends, nothing_left, succeeds, work

# -- limits -----------------------------------------------------------------------------------------------------------


async def test_a_rejection_by_the_tools_rate_limit() -> None:
    board = Board()
    policy = {**UNGUARDED, "rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}
    async with serving(lambda _: "done"), telling(board.telemetry(), work(policy=policy)) as dispatcher:
        assert [(await dispatcher.execute("work")).ok for _ in range(3)] == [True, False, False]
        assert board.counted() == {
            **ends("success", SENT, OK),
            "calls_total work throttled": 2,
            "rejections_total work rate-limit": 2,
            "rate_limited_total work tool": 2,
        }
        nothing_left(board)


async def test_a_rejection_by_the_users_rate_limit() -> None:
    board = Board()
    policy = {**UNGUARDED, "user-rate-limit": {"rate": "1/s", "burst": 1, "max-wait": 0}}
    async with serving(lambda _: "done"), telling(board.telemetry(), work(policy=policy)) as dispatcher:
        assert [(await dispatcher.execute("work", user="hog")).ok for _ in range(3)] == [True, False, False]
        assert board.counted() == {
            **ends("success", SENT, OK),
            "calls_total work refused": 2,
            "refused_calls_total hog user-rate-limit": 2,
            "rejections_total work rate-limit": 2,
            "rate_limited_total work user": 2,
        }


async def test_a_retry_that_the_users_rate_limit_rejects_does_not_hide_the_failure_of_its_call() -> None:
    board = Board()
    policy = {"user-rate-limit": {"rate": "1/m", "burst": 1, "max-wait": 0}, "timeout": 9, "attempt-timeout": 1}
    async with deaf(board, read_only=True, policy=policy) as (dispatcher, _):
        assert (await dispatcher.execute("work", user="hog")).outcome is Outcome.TIMEOUT
        counted = board.counted()
        assert (counted["calls_total work timeout"], counted["rejections_total work rate-limit"]) == (1, 1)
        assert "rate_limited_total work user" not in counted


async def test_queue_waits_and_rejections_of_the_bulkhead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.resilience.bulkhead.QUEUE_LIMITS", QueueLimits(max_length=1))
    board, gate = Board(), asyncio.Event()

    async def slow(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    policy = {**UNGUARDED, "bulkhead": {"max-concurrent-calls": 1, "max-wait": 2}}
    async with serving(slow), telling(board.telemetry(), work(policy=policy)) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(3)]
        await advance(1.5)
        now = board.read()
        assert (now["inflight_calls work"], now["queued_calls work"], now["pending_requests"]) == (2, 1, 1)
        gate.set()
        results = await asyncio.gather(*calls)
        assert [result.ok for result in results] == [True, True, False]
        assert board.counted() == {
            "calls_total work success": 2,
            "calls_total work throttled": 1,
            "rejections_total work bulkhead": 1,
            "attempts_total work first": 2,
            "call_duration_seconds_count work ok": 2,
            "queue_wait_seconds_count work": 2,
        }
        assert board["queue_wait_seconds_sum work"] == pytest.approx(1.5 + 0, abs=0.01)
        nothing_left(board)


async def test_calls_that_are_cancelled_in_the_queue() -> None:
    board = Board()
    policy = {**UNGUARDED, "bulkhead": {"max-concurrent-calls": 1, "max-wait": 9}}
    async with deaf(board, policy=policy) as (dispatcher, peer):
        first = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        second = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        await peer.answer(properties, "done")
        await first
        assert board.counted() == {
            **ends("success", SENT, OK),
            "calls_total work cancelled": 1,
            "queue_wait_seconds_count work": 1,
        }
        nothing_left(board)


# -- more than one attempt --------------------------------------------------------------------------------------------


async def test_a_retry_is_counted_as_an_attempt_and_not_as_a_call() -> None:
    board = Board()
    async with deaf(board, policy={}) as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        assert (await call).attempts == 2
        assert board.counted() == {
            **ends("success", SENT, OK, "attempts_total work retry", "rejections_total work service")
        }


async def test_retries_beyond_the_budget_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.calls.guards.MIN_REPEATS_PER_S", 0.1)
    board = Board()
    policy = {"attempt-timeout": 0.5, "breaker": None}
    async with deaf(board, policy=policy, idempotent=True) as (dispatcher, peer):
        results = await asyncio.gather(*(dispatcher.execute("work", timeout=5) for _ in range(50)))
        assert sum(result.attempts for result in results) == 61
        assert board.counted() == {
            "calls_total work timeout": 50,
            "call_duration_seconds_count work error": 50,
            "attempts_total work first": 50,
            "attempts_total work retry": 11,
            "retry_budget_exhausted_total work": 50,
        }
        assert peer.arrived.qsize() == 61


async def test_a_hedge_is_counted_as_an_attempt_and_not_as_a_call() -> None:
    board = Board()
    gate = asyncio.Event()

    async def slow(_: dict[str, Any]) -> str:
        await gate.wait()
        return "slow"

    tool = work(read_only=True, policy={"hedging": 0.2, "balancing": "round-robin"})
    async with (
        serving(slow, instance="a"),
        serving(lambda _: "fast", instance="b"),
        telling(board.telemetry(), tool) as dispatcher,
    ):
        results = [await dispatcher.execute("work") for _ in range(4)]
        assert [result.text for result in results] == ["fast"] * 4
        hedged = sum(result.attempts - 1 for result in results)
        assert hedged == 2
        counted = board.counted()
        assert counted["attempts_total work hedge"] == hedged
        assert counted["attempts_total work first"] == counted["calls_total work success"] == 4
        nothing_left(board)


async def test_hedges_beyond_the_budget_are_counted() -> None:
    board = Board()

    async def slow(_: dict[str, Any]) -> str:
        await asyncio.sleep(1)
        return "done"

    tool = work(read_only=True, policy={"hedging": 0.2})
    async with serving(slow, instance="a"), serving(slow, instance="b"), telling(board.telemetry(), tool) as dispatcher:
        results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(50)))
        hedged = sum(result.attempts - 1 for result in results)
        assert 0 < hedged < 50
        assert board["attempts_total work hedge"] == hedged
        assert board["retry_budget_exhausted_total work"] == 50 - hedged


async def test_an_attempt_that_was_not_sent_is_not_counted() -> None:
    board = Board()
    async with deaf(board) as (dispatcher, peer):
        await succeeds(dispatcher, peer)
        correlator_of(dispatcher)._max_pending = 0
        result = await dispatcher.execute("work")
        assert (result.outcome, result.attempts) == (Outcome.THROTTLED, 0)
        assert board.counted() == {
            **ends("success", SENT, OK),
            "calls_total work throttled": 1,
            "rejections_total work exchange": 1,
        }


async def test_calls_that_share_an_exchange_are_timed_each_by_itself() -> None:
    board, gate = Board(), asyncio.Event()

    async def slow(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    tool = work(read_only=True, policy={"single-flight": True})
    async with serving(slow), telling(board.telemetry(), tool) as dispatcher:
        first = asyncio.create_task(dispatcher.execute("work"))
        await advance(3)
        second = asyncio.create_task(dispatcher.execute("work"))
        left = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        left.cancel()
        gate.set()
        durations = [(await first).duration, (await second).duration]
        assert durations == pytest.approx([4, 1], abs=0.01)
        with pytest.raises(asyncio.CancelledError):
            await left
        assert board["call_duration_seconds_sum work ok"] == pytest.approx(5, abs=0.02)
        assert board.counted() == {
            "calls_total work success": 2,
            "calls_total work cancelled": 1,
            "attempts_total work first": 1,
            "call_duration_seconds_count work ok": 2,
        }
        nothing_left(board)
