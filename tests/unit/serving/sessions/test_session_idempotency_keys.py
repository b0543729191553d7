"""Idempotency keys of requests over sessions: one execution, and its stored reply for each further request."""

from __future__ import annotations

from typing import Any

from dispatch.errors import ToolError
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Refusal
from dispatch.serving.replies import KEY_AGE_S
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.session_caller import calling
from tests.helpers.waiting_tool import Gate, count


async def test_a_key_runs_once_and_every_request_with_it_gets_the_reply() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        sent = [caller.send({"n": n}, key="order") for n in range(3)]
        await idle()
        gate.open.set()
        assert [await each.text() for each in sent] == ["done 0"] * 3
        assert await caller.send({"n": 4}, key="order").text() == "done 0"
        assert gate.begun == [0]


async def test_a_keyed_request_runs_on_after_its_deadline_and_after_its_caller() -> None:
    gate = Gate()
    async with serving(gate) as server:
        async with calling(server) as caller:
            sent = caller.send({"n": 1}, key="order", seconds=60, run_for=2)
            refusal = await sent.refusal()
            assert refusal.reason == Refusal.STOPPED
            assert "The tool runs on" in refusal.message
        await idle()
        assert (gate.cancelled, server.running) == (0, 1)
        async with calling(server) as caller:
            again = caller.send({"n": 2}, key="order")
            await idle()
            gate.open.set()
            assert await again.text() == "done 1"
        assert gate.begun == [1]


async def test_a_keyed_request_ends_when_its_key_is_too_old() -> None:
    gate = Gate()
    async with serving(gate) as server, calling(server) as caller:
        await caller.send(key="order", seconds=60, run_for=2).refusal()
        await advance(KEY_AGE_S - 3)
        assert server.running == 1
        await advance(3)
        assert (gate.cancelled, server.running) == (1, 0)


async def test_a_stored_stream_and_a_stored_error_are_sent_again() -> None:
    runs = 0

    def work(arguments: dict[str, Any]) -> Any:
        nonlocal runs
        runs += 1
        if arguments.get("fail"):
            raise ToolError("broken", "no more")
        return count(3)

    async with serving(work) as server, calling(server) as caller:
        for _ in range(2):
            sent = caller.send(key="stream")
            assert (await sent.text(), sent.chunks_received) == ("012", ["0", "1", "2"])
            assert await caller.send({"fail": True}, key="error").error() == ("broken", "no more")
        assert runs == 2


async def test_an_oversized_key_is_refused() -> None:
    async with serving(lambda _: "done") as server, calling(server) as caller:
        refusal = await caller.send(key="x" * (MAX_PROPERTY_BYTES + 1)).refusal()
        assert refusal.reason == Refusal.INVALID_REQUEST
        assert await caller.send(key="x" * MAX_PROPERTY_BYTES).text() == "done"
