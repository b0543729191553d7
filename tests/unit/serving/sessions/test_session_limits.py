"""Limits of an instance as its callers see them: concurrency, load, and deadlines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch.messaging.wire import Refusal
from tests.helpers.clock import START, advance, idle, now
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.session_caller import calling
from tests.helpers.waiting_tool import Gate

# -- concurrency ----------------------------------------------------------------------------------------------------


async def test_one_too_many_is_refused_with_a_time_to_come_back() -> None:
    gate = Gate()
    async with serving(gate, concurrency=2, max_queue=1) as server, calling(server) as caller:
        sent = [caller.send({"n": n}) for n in range(3)]
        await idle()
        assert (server.running, server.queued) == (2, 1)
        refusal = await caller.send({"n": "too many"}).refusal()
        assert (refusal.reason, refusal.retry_after) == (Refusal.OVERLOADED, 1.0)
        assert "runs 2 requests and 1 wait" in refusal.message
        gate.open.set()
        assert [await each.text() for each in sent] == ["done 0", "done 1", "done 2"]
        assert caller.session.peer_load <= 2


async def test_a_caller_learns_how_many_requests_run() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        for _ in range(3):
            caller.send()
        await idle()
        await caller.send(payload=b"").refusal()
        assert caller.session.peer_load == 3, "the one that ends with this packet does not count"
        gate.open.set()
        await advance(0.1)
        await caller.send().text()
        assert caller.session.peer_load == 0


# -- deadlines ------------------------------------------------------------------------------------------------------


async def test_a_tool_is_stopped_at_its_callers_deadline() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = caller.send(seconds=60, run_for=2.5)
        refusal = await sent.refusal()
        assert refusal.reason == Refusal.STOPPED
        assert now() == pytest.approx(START + 2.5, abs=0.02)
        assert (gate.cancelled, server.running) == (1, 0)


async def test_one_timer_serves_the_deadlines_of_all_requests() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = [caller.send({"n": n}, seconds=60, run_for=10 - n) for n in range(8)]
        ends = []
        for each in reversed(sent):
            assert (await each.refusal()).reason == Refusal.STOPPED
            ends.append(now() - START)
        assert ends == pytest.approx([3, 4, 5, 6, 7, 8, 9, 10], abs=0.02)
        assert server.refused[Refusal.STOPPED] == 8


async def test_a_request_whose_deadline_passed_in_the_queue_is_refused_unrun() -> None:
    gate = Gate()
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        first = caller.send({"n": 1})
        second = caller.send({"n": 2}, seconds=60, run_for=2)
        await advance(3)
        gate.open.set()
        assert await first.text() == "done 1"
        assert (await second.refusal()).reason == Refusal.EXPIRED
        assert gate.begun == [1]


async def test_a_tool_that_swallows_its_cancellation_still_answers() -> None:
    async def stubborn(_: Any) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"
        return "never"

    async with serving(stubborn) as server, calling(server) as caller:
        assert await caller.send(seconds=60, run_for=1).text() == "saved"
        await idle()
        assert server.running == 0
