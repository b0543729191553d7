"""A tool server's bounds: what it runs at once, what waits, what is refused, what is stopped.
Threads of synchronous tools: their number, their end when idle, and calls that their tasks have abandoned.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Policy, ToolServer
from dispatch.errors import CallTimeoutError, ThrottledError, ToolError
from dispatch.messaging.wire import Refusal, decode_reply
from dispatch.serving.tool_service import ToolExecutor
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    UNGUARDED,
    Peer,
    Service,
    dispatching,
    serving,
    stand,
)


class Gate:
    """Work that ends when it is let go; counts how much of it runs."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.running = 0
        self.most = 0
        self.begun: list[Any] = []

    async def __call__(self, arguments: dict[str, Any]) -> str:
        self.begun.append(arguments.get("n"))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.open.wait()
        finally:
            self.running -= 1
        return f"done {arguments.get('n')}"


# -- bounds ---------------------------------------------------------------------------------------------------------
async def test_as_many_as_allowed_run_at_once_and_the_others_wait_their_turn() -> None:
    gate = Gate()
    async with stand(gate, concurrency=3, max_queue=10) as (dispatcher, server):
        calls = [asyncio.create_task(dispatcher.call("work", {"n": n})) for n in range(8)]
        await advance(0.1)
        assert (server.running, server.queued, gate.running) == (3, 5, 3)
        gate.open.set()
        assert await asyncio.gather(*calls) == [f"done {n}" for n in range(8)]
        await idle()
        assert gate.most == 3
        assert gate.begun == list(range(8)), "first come, first served"
        assert (server.running, server.queued, server.requests) == (0, 0, 8)


async def test_one_too_many_is_refused_at_once_with_a_time_to_come_back() -> None:
    gate = Gate()
    async with stand(gate, concurrency=2, max_queue=1, policy=Policy(**UNGUARDED)) as (dispatcher, server):
        calls = [asyncio.create_task(dispatcher.call("work", {"n": n})) for n in range(3)]
        await advance(0.1)
        before = asyncio.get_running_loop().time()
        with pytest.raises(ThrottledError) as caught:
            await dispatcher.call("work", {"n": "too many"})
        assert asyncio.get_running_loop().time() == before, "at once"
        assert (caught.value.type, caught.value.retry_after, caught.value.retryable) == ("overloaded", 1.0, True)
        assert caught.value.rejected_by == "service"
        assert server.refused[Refusal.OVERLOADED] == 1
        assert "too many" not in gate.begun
        gate.open.set()
        await asyncio.gather(*calls)
        assert await dispatcher.call("work", {"n": "later"}) == "done later"


async def test_without_a_queue_only_what_can_run_is_taken() -> None:
    gate = Gate()
    async with stand(gate, concurrency=1, max_queue=0) as (dispatcher, _):
        first = asyncio.create_task(dispatcher.call("work"))
        await idle()
        with pytest.raises(ThrottledError):
            await dispatcher.call("work")
        gate.open.set()
        await first


async def test_thousands_of_slow_calls_run_at_once_if_they_may() -> None:
    async def slow(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(2)
        return "done"

    async with stand(slow, concurrency=4_096, policy=Policy(**UNGUARDED)) as (dispatcher, _):
        assert await asyncio.gather(*(dispatcher.call("work") for _ in range(4_096))) == ["done"] * 4_096
        assert asyncio.get_running_loop().time() == pytest.approx(START + 2, abs=0.1)


# -- time -----------------------------------------------------------------------------------------------------------
async def test_a_request_that_has_no_time_left_is_refused_unrun() -> None:
    service = Service(lambda _: "never")
    async with serving(service) as server, Peer.as_caller() as caller:
        await caller.ask(b"{}", id="1", remaining_ms="0")
        message = await caller.arrived.get()
        assert message.properties()["refused"] == Refusal.EXPIRED
        error = decode_reply(message.data()).error
        assert error is not None
        assert (error.type, error.message) == (
            "expired",
            "The tool was not executed: the caller's deadline had passed before it could start.",
        )
        assert server.refused[Refusal.EXPIRED] == 1
        assert not service.requests


async def test_a_request_whose_time_ran_out_in_the_queue_is_refused_unrun() -> None:
    gate = Gate()
    async with serving(gate, concurrency=1) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"arguments": {"n": 1}}', id="1")
        await caller.ask(b'{"arguments": {"n": 2}}', id="2", remaining_ms="2000")
        await caller.ask(b'{"arguments": {"n": 3}}', id="3", remaining_ms="2001")
        await advance(2)
        gate.open.set()
        refused, done = {}, {}
        for _ in range(3):
            message = await caller.arrived.get()
            (refused if "refused" in message.properties() else done)[message.properties()["id"]] = message
        assert refused.keys() == {"2"}
        assert refused["2"].properties()["refused"] == Refusal.EXPIRED
        assert gate.begun == [1, 3]
        assert server.refused[Refusal.EXPIRED] == 1


async def test_the_caller_of_an_expired_request_is_told_that_nothing_ran() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, error=("expired", "too late"), refused=Refusal.EXPIRED)
        error = (await call).error
        assert isinstance(error, CallTimeoutError)
        assert (error.type, error.limit_name) == ("expired", "call")
        assert "was not executed" in error.message


async def test_work_is_stopped_when_its_callers_time_is_over() -> None:
    stopped = asyncio.Event()

    async def work(arguments: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(1_000)
        finally:
            stopped.set()
        return "never"

    async with serving(work) as server, Peer.as_caller() as caller:
        await caller.ask(b"{}", id="1", remaining_ms="2500")
        message = await caller.arrived.get()
        assert asyncio.get_running_loop().time() == pytest.approx(START + 2.5, abs=0.01)
        assert stopped.is_set()
        assert decode_reply(message.data()).error.type == "stopped"  # type: ignore[union-attr]
        await idle()
        assert server.running == 0


async def test_a_timeout_of_the_tools_own_keeps_its_type() -> None:
    async def work(arguments: dict[str, Any]) -> None:
        raise TimeoutError("the database did not answer")

    async with stand(work) as (dispatcher, _):
        with pytest.raises(ToolError, match="the database did not answer") as caught:
            await dispatcher.call("work")
        assert caught.value.type == "TimeoutError"


async def test_without_remaining_time_work_may_take_as_long_as_it_takes() -> None:
    async def work(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(5_000)
        return "done"

    async with serving(work), Peer.as_caller() as caller:
        for properties in ({}, {"remaining_ms": "soon"}, {"remaining_ms": "-1"}):
            await caller.ask(b"{}", id="1", **properties)
            assert decode_reply((await caller.arrived.get()).data()).response == "done"


# -- making one -----------------------------------------------------------------------------------------------------
def make(**options: Any) -> ToolServer:
    return ToolServer(Service(print), BROKER, **options)


async def test_a_services_name_gives_trustgraphs_two_topics() -> None:
    server = make(service="joke")
    assert server.request_queue == "non-persistent://tg/request/joke"
    assert server.response_queue == "non-persistent://tg/response/joke"
    assert server.service == "joke"
    assert server.instance.startswith("joke-")
    assert make(service="joke").instance != server.instance


async def test_whole_topic_names_override_those_of_the_service() -> None:
    server = make(service="joke", request_queue=REQUESTS, instance="one")
    assert (server.request_queue, server.response_queue) == (REQUESTS, "non-persistent://tg/response/joke")
    assert (server.service, server.instance) == ("joke", "one")
    assert make(request_queue=REQUESTS, response_queue=RESPONSES).service == "lab"


@pytest.mark.parametrize("options", [{}, {"request_queue": REQUESTS}, {"response_queue": RESPONSES}])
async def test_without_its_topics_it_cannot_be_made(options: dict[str, str]) -> None:
    with pytest.raises(TypeError, match=r"service='joke', or request_queue= and response_queue="):
        make(**options)


async def test_bounds_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="concurrency must be at least 1, not 0"):
        make(service="joke", concurrency=0)
    with pytest.raises(ValueError, match="max_queue must be at least 0, not -1"):
        make(service="joke", max_queue=-1)


async def test_servers_of_one_service_share_the_requests_and_each_signs_its_answers() -> None:
    async with contextlib.AsyncExitStack() as stack:
        for instance in ("one", "two"):
            await stack.enter_async_context(serving(lambda _: "done", instance=instance))
        dispatcher = await stack.enter_async_context(dispatching())
        results = [await dispatcher.execute("work") for _ in range(10)]
        assert sorted(str(result.instance) for result in results) == ["one"] * 5 + ["two"] * 5


async def test_a_started_transport_is_shared_and_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = MemoryTransport(BROKER)
    await transport.start()
    monkeypatch.setattr(transport, "start", None)
    async with serving(lambda _: "done", broker=transport), dispatching() as dispatcher:
        assert await dispatcher.call("work") == "done"
    assert transport.connected
    await transport.close()


async def test_answers_say_how_much_runs() -> None:
    gate = Gate()
    async with serving(gate), Peer.as_caller() as caller:
        for n in range(3):
            await caller.ask(b"{}", id=str(n))
        await idle()
        gate.open.set()
        loads = [(await caller.arrived.get()).properties()["in-flight"] for _ in range(3)]
        assert loads[0] == "3"
        assert all(1 <= int(load) <= 3 for load in loads)


async def test_an_abandoned_stream_is_stopped_at_once() -> None:
    closed = asyncio.Event()
    told: list[int] = []

    async def stream() -> AsyncIterator[str]:
        try:
            for number in range(10_000):
                told.append(number)
                yield str(number)
                await asyncio.sleep(1)
        finally:
            closed.set()

    async with stand(lambda _: stream()) as (dispatcher, server):
        async with contextlib.aclosing(dispatcher.stream("work", timeout=10)) as chunks:
            async for _ in chunks:
                break
        assert dispatcher.pending_requests == 0
        await idle()
        assert closed.is_set()
        assert len(told) <= 2
        assert (server.running, server.cancelled) == (0, 1)


def count_threads(name: str) -> int:
    return sum(thread.name.startswith(f"{name}-") for thread in threading.enumerate())


async def await_count(name: str, number: int) -> None:
    async with asyncio.timeout(10):
        while count_threads(name) != number:  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.005)


@pytest.mark.wall_clock
async def test_an_idle_thread_ends_after_a_while_and_another_one_starts() -> None:
    threads = ToolExecutor(2, "idle-test", idle_s=0.05)
    assert await threads.run(lambda: threading.current_thread().name) == "idle-test-1"
    await await_count("idle-test", 0)
    assert await threads.run(lambda: "again") == "again"
    threads.close()
    await await_count("idle-test", 0)


@pytest.mark.wall_clock
async def test_calls_that_come_as_threads_end_are_all_served() -> None:
    threads = ToolExecutor(3, "race-test", idle_s=0.001)
    for _ in range(100):
        assert await asyncio.gather(*(threads.run(int, "7") for _ in range(4))) == [7] * 4
        await asyncio.sleep(0.001)
    threads.close()
    await await_count("race-test", 0)


@pytest.mark.wall_clock
async def test_without_a_limit_in_time_idle_threads_stay() -> None:
    threads = ToolExecutor(1, "stay-test")
    await threads.run(time.sleep, 0)
    await asyncio.sleep(0.1)
    assert count_threads("stay-test") == 1
    threads.close()
    await await_count("stay-test", 0)


@pytest.mark.wall_clock
async def test_the_number_of_threads_may_be_raised() -> None:
    release = threading.Event()
    threads = ToolExecutor(1, "raise-test", idle_s=0.05)
    first = asyncio.create_task(threads.run(release.wait, 10))
    await await_count("raise-test", 1)
    threads.max_threads = 2
    assert await threads.run(lambda: "second") == "second"
    release.set()
    assert await first
    threads.close()
    await await_count("raise-test", 0)
