"""Sessions of an instance that drains or closes."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.wire import Refusal
from tests.helpers.clock import START, advance, idle, now
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.session_caller import calling
from tests.helpers.waiting_tool import Gate

# -- drain ----------------------------------------------------------------------------------------------------------


async def test_draining_tells_callers_at_once_and_finishes_what_runs() -> None:
    gate = Gate()
    async with serving(gate, concurrency=1) as server, calling(server) as caller:
        running, queued = caller.send({"n": 1}), caller.send({"n": 2})
        await idle()
        drain = asyncio.create_task(server.drain())
        await idle()
        assert caller.is_draining
        assert (await queued.refusal()).reason == Refusal.DRAINING
        assert (await caller.send({"n": 3}).refusal()).reason == Refusal.DRAINING
        assert now() == START
        gate.open.set()
        assert await running.text() == "done 1"
        await drain
        assert gate.begun == [1]


async def test_refusals_of_the_session_itself_are_counted() -> None:
    gate = Gate()
    async with serving(gate, drain_timeout=30, max_payload_bytes=100_000) as server, calling(server) as caller:
        await advance(0.1)
        expired = caller.send(run_for=0.0)
        assert (await expired.refusal()).reason == Refusal.EXPIRED
        too_large = caller.send(payload=b"x" * 100_001)
        assert (await too_large.refusal()).reason == Refusal.TOO_LARGE
        running = caller.send()
        await idle()
        drain = asyncio.create_task(server.drain())
        await idle()
        late = caller.send()
        assert (await late.refusal()).reason == Refusal.DRAINING
        gate.open.set()
        await running.text()
        await drain
        counted = {reason: count for reason, count in server.refused.items() if count}
        assert counted == {Refusal.EXPIRED: 1, Refusal.TOO_LARGE: 1, Refusal.DRAINING: 1}
        assert server.requests == 4


async def test_a_draining_instance_accepts_no_session() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as first:
        running = first.send({"n": 1})
        await idle()
        drain = asyncio.create_task(server.drain())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), calling(server, secret="of another dispatcher"):
                pass
        assert not drain.done()
        gate.open.set()
        assert await running.text() == "done 1"
        await drain


# -- close ----------------------------------------------------------------------------------------------------------


async def test_closing_cancels_what_runs_and_tells_its_caller() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = caller.send({"n": 1})
        await idle()
        await server.close()
        type, message = await sent.error()
        assert type == "cancelled"
        assert "may have been executed" in message


async def test_closing_ends_the_sessions() -> None:
    async with serving(lambda _: "done") as server, calling(server) as caller:
        await caller.send().text()
        await server.close()
        await idle()
        assert caller.session.is_closed
