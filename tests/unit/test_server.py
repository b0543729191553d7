"""A tool server's bounds: what it runs at once, what waits, what is refused, what is stopped.
Threads of synchronous tools: their number, their end when idle, and calls that their tasks have abandoned.
How a tool server ends: drained, closed at once, by SIGTERM, by cancellation.
How a service's ``invoke`` is read: every way it may be written, and a clear error for every other, at construction.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dispatch import Policy, ToolServer, ToolService, serve
from dispatch.errors import CallTimeoutError, RejectedError, ThrottledError, ToolError, TransportError
from dispatch.messaging.wire import Refusal, Request, decode_reply
from dispatch.server import FLUSH_S, LINGER_S
from dispatch.serving.tool_service import ToolExecutor, read_invoke
from dispatch.testing import EmbeddedBroker
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import START, advance, cancel_task, idle, run, start_task
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    UNGUARDED,
    Gate,
    Peer,
    Service,
    dispatching,
    serving,
    stand,
)


# -- bounds ---------------------------------------------------------------------------------------------------------
@pytest.fixture
def gate() -> Gate:
    return Gate()


async def test_as_many_as_allowed_run_at_once_and_the_others_wait_their_turn(gate: Gate) -> None:
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


async def test_one_too_many_is_refused_at_once_with_a_time_to_come_back(gate: Gate) -> None:
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


async def test_without_a_queue_only_what_can_run_is_taken(gate: Gate) -> None:
    async with stand(gate, concurrency=1, max_queue=0) as (dispatcher, _):
        first = await start_task(dispatcher.call("work"))
        with pytest.raises(ThrottledError):
            await dispatcher.call("work")
        gate.open.set()
        await first


@pytest.mark.costly
async def test_thousands_of_slow_calls_run_at_once_if_they_may() -> None:
    policy = Policy(**UNGUARDED)
    async with stand(lambda _: asyncio.sleep(2, "done"), concurrency=4_096, policy=policy) as (dispatcher, _):
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
        assert (error.type, error.message) == (
            "expired",
            "The tool was not executed: the caller's deadline had passed before it could start.",
        )
        assert server.refused[Refusal.EXPIRED] == 1
        assert not service.requests


async def test_a_request_whose_time_ran_out_in_the_queue_is_refused_unrun(gate: Gate) -> None:
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
    async with serving(lambda _: asyncio.sleep(5_000, "done")), Peer.as_caller() as caller:
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


async def test_answers_say_how_much_runs(gate: Gate) -> None:
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


ROOT = Path(__file__).parents[2]


async def slowly(arguments: dict[str, Any]) -> str:
    await asyncio.sleep(arguments.get("seconds", 10))
    return "done"


async def test_draining_finishes_what_runs_and_refuses_what_waits() -> None:
    async with stand(slowly, concurrency=2) as (dispatcher, server):
        running = [asyncio.create_task(dispatcher.call("work")) for _ in range(2)]
        await idle()
        waiting = [asyncio.create_task(dispatcher.execute("work", timeout=5)) for _ in range(3)]
        await advance(1)
        drain = await start_task(server.drain())
        assert server.refused[Refusal.DRAINING] == 3, "at once"
        for result in await asyncio.gather(*waiting):
            error = result.error
            assert isinstance(error, RejectedError)
            assert (error.type, error.rejected_by, error.retryable) == ("draining", "service", True)
        assert asyncio.get_running_loop().time() < START + 5, "while a tool could be executed in what remains"
        assert not drain.done()
        assert await asyncio.gather(*running) == ["done"] * 2
        await drain
        assert asyncio.get_running_loop().time() == pytest.approx(START + 10, abs=0.01)
        assert (server.running, server.queued) == (0, 0)


async def test_draining_takes_nothing_new() -> None:
    async with stand(slowly) as (dispatcher, server):
        await server.drain()
        with pytest.raises(RejectedError):
            await dispatcher.call("work", timeout=1)
        assert server.requests == 0


async def test_requests_of_third_parties_are_executed_while_the_server_drains() -> None:
    """Their callers cannot send them to another instance."""
    async with serving(slowly, concurrency=1) as server, Peer.as_caller() as caller:
        await caller.ask(b"{}", id="1")  # in the subscription's queue, not handled yet
        await caller.ask(b"{}", id="2")  # waits for the first one
        await server.drain()
        answers = [await caller.arrived.get() for _ in range(2)]
        replies = [(each.properties()["id"], json.loads(each.data())["response"]) for each in answers]
        assert replies == [("1", "done"), ("2", "done")]
        assert server.refused[Refusal.DRAINING] == 0


async def test_requests_of_third_parties_that_still_wait_at_the_limit_of_a_drain_are_refused() -> None:
    async with serving(slowly, concurrency=1, drain_timeout=5) as server, Peer.as_caller() as caller:
        for id in ("1", "2"):
            await caller.ask(b"{}", id=id)
        await idle()
        await server.drain()
        answers = {(each := await caller.arrived.get()).properties()["id"]: each for _ in range(2)}
        assert json.loads(answers["1"].data())["error"]["type"] == "cancelled"
        assert answers["2"].properties()["refused"] == Refusal.DRAINING


async def test_draining_stops_waiting_after_its_limit_and_tells_the_callers() -> None:
    async with stand(slowly, drain_timeout=5) as (dispatcher, server):
        call = await start_task(dispatcher.call("work", {"seconds": 1_000}, timeout=500))
        await server.drain()
        with pytest.raises(ToolError, match="stopped while the tool ran") as caught:
            await call
        assert caught.value.type == "cancelled"
        assert asyncio.get_running_loop().time() == pytest.approx(START + 5, abs=0.01)
        assert server.running == 0


@pytest.mark.parametrize("stop", ["drain", "close"])
async def test_a_tool_that_ignores_its_cancellation_does_not_keep_a_server_open(
    stop: str, caplog: pytest.LogCaptureFixture
) -> None:
    go_on = asyncio.Event()

    async def work(_arguments: dict[str, Any]) -> str:
        while not go_on.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go_on.wait()
        return "late"

    async with stand(work, drain_timeout=5) as (dispatcher, server):
        call = await start_task(dispatcher.call("work", timeout=500))
        await getattr(server, stop)()
        with pytest.raises(ToolError, match="stopped while the tool ran"):
            await call
        assert asyncio.get_running_loop().time() <= START + 7
        assert "ignore their cancellation, and still run: 1" in caplog.text
        assert server.running == 0
        go_on.set()
        await idle()
        assert server.running == 0


ENDLESS = """
import asyncio, contextlib, dispatch

begun = []

async def endless() -> str:
    \"\"\"Never end.\"\"\"
    begun.append(None)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)

async def main() -> None:
    options = {"functions": [endless], "service": "lab", "drain_timeout": 0.1}
    serving = asyncio.create_task(dispatch.serve(broker="memory://lab", **options))
    async with dispatch.connect("memory://lab", [dispatch.Announced(), dispatch.Functions(endless, namespace="own")]) as it:
        while "endless" not in it.catalog.tools:
            await asyncio.sleep(0.05)
        calls = [asyncio.create_task(it.execute(name)) for name in ("endless", "own-endless")]
        while len(begun) < 2:
            await asyncio.sleep(0.05)
        serving.cancel()
        await asyncio.wait([serving])
    print(*[(await call).error.type for call in calls])

asyncio.run(main())
"""


@pytest.mark.process
def test_asyncio_run_ends_although_tools_ignore_their_cancellation() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["cancelled", "closed"]
    assert "tools of lab that ignore their cancellation, and still run: 1. They are left alone: endless" in ended.stderr
    warning = "1 tools of this process ignore their cancellation and still run. They are left alone: own-end"
    assert warning in ended.stderr


async def test_closing_stops_what_runs_at_once_and_answers_everyone() -> None:
    stopped: list[str] = []

    async def work(arguments: dict[str, Any]) -> str:
        try:
            return await slowly(arguments)
        finally:
            stopped.append("stopped")

    async with dispatching() as dispatcher:
        async with serving(work, concurrency=2) as server:
            running = [asyncio.create_task(dispatcher.execute("work")) for _ in range(2)]
            await advance(0.1)
            waiting = await start_task(dispatcher.execute("work", timeout=1), 0.1)
        assert stopped == ["stopped"] * 2
        assert [result.error.type for result in await asyncio.gather(*running)] == ["cancelled"] * 2  # type: ignore[union-attr]
        assert asyncio.get_running_loop().time() == pytest.approx(START + 0.2 + LINGER_S)
        assert (await waiting).error.type == "draining"  # type: ignore[union-attr]
        assert (server.running, server.queued) == (0, 0)


async def test_what_has_just_arrived_is_answered_even_by_a_server_that_closes() -> None:
    async with Peer.as_caller() as caller:
        async with serving(slowly):
            for n in range(5):
                await caller.ask(b"{}", id=str(n))
        await idle()
        assert sorted([(await caller.arrived.get()).properties()["id"] for _ in range(5)]) == list("01234")


async def test_a_server_that_never_started_can_be_drained_and_closed() -> None:
    server = ToolServer(Service(slowly), BROKER, request_queue=REQUESTS, response_queue=RESPONSES)
    await server.drain()
    await server.close()


async def test_closing_twice_is_closing_once() -> None:
    async with serving(slowly) as server:
        await server.close()


async def test_a_stream_is_closed_with_its_server() -> None:
    closed = asyncio.Event()

    async def stream() -> AsyncIterator[str]:
        try:
            yield "Once"
            await asyncio.sleep(1_000)
        finally:
            closed.set()

    async with dispatching() as dispatcher, serving(lambda _: stream()) as server:
        chunks = dispatcher.stream("work")
        assert await anext(chunks) == "Once"
        await server.close()
        assert closed.is_set()
        with pytest.raises(ToolError) as caught:
            await anext(chunks)
        assert caught.value.type == "cancelled"


# -- serve ----------------------------------------------------------------------------------------------------------


async def test_serve_serves_until_it_is_cancelled() -> None:
    serving = asyncio.create_task(serve(Service(slowly), BROKER, request_queue=REQUESTS, response_queue=RESPONSES))
    async with dispatching() as dispatcher:
        await idle()
        assert await dispatcher.call("work") == "done"
        call = await start_task(dispatcher.execute("work"), 1)
        await cancel_task(serving)
        assert (await call).error.type == "cancelled"  # type: ignore[union-attr]
        assert asyncio.get_running_loop().time() == pytest.approx(START + 11 + LINGER_S, abs=0.01)


async def test_serve_tells_at_once_what_it_cannot_do() -> None:
    with pytest.raises(TypeError, match="no topics"):
        await serve(Service(slowly), BROKER)
    with pytest.raises(TypeError, match="async def invoke"):
        await serve(object(), BROKER, service="joke")
    with pytest.raises(TransportError):
        await serve(Service(slowly), "carrier-pigeon://coop", service="joke")


async def test_a_server_that_cannot_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ToolServer(Service(slowly), BROKER, request_queue=REQUESTS, response_queue=RESPONSES)

    async def refuse(*_args: Any, **_options: Any) -> Any:
        raise TransportError("no-such-namespace", "create it", may_have_run=False)

    monkeypatch.setattr(server._transport, "subscribe", refuse)
    with pytest.raises(TransportError, match="create it"):
        await server.start()
    assert not server._transport.connected


def test_serve_works_in_a_thread_of_its_own_where_no_signals_come() -> None:
    async def scene() -> str:
        task = asyncio.create_task(serve(Service(slowly), BROKER, request_queue=REQUESTS, response_queue=RESPONSES))
        async with dispatching() as dispatcher:
            await idle()
            answer = await dispatcher.call("work")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return answer

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run, scene).result(timeout=30) == "done"


SIGTERM_SCENE = """
import asyncio, json, sys
import dispatch

TOOLS = dispatch.Catalog.of(
    [{"id": "lab", "request-queue": "non-persistent://tg/request/lab", "response-queue": "non-persistent://tg/response/lab"}],
    [{"type": "tool-service", "name": "work", "description": "Works.", "service": "lab"}],
)

class Work(dispatch.ToolService):
    def __init__(self):
        self.release = asyncio.Event()
        self.begun = asyncio.Event()

    async def invoke(self, config, arguments, user=""):
        if arguments.get("quick"):
            return "done"
        self.begun.set()
        await self.release.wait()
        return "done"

async def main():
    work = Work()
    async with dispatch.connect("memory://", TOOLS) as dispatcher:
        serving = asyncio.create_task(dispatch.serve(work, "memory://", service="lab", concurrency=1))
        while not (await dispatcher.execute("work", {"quick": True}, timeout=60)).ok:
            pass  # the server starts
        running = asyncio.create_task(dispatcher.execute("work", timeout=60))
        await work.begun.wait()
        waiting = asyncio.create_task(dispatcher.execute("work", timeout=1))
        await dispatcher._transport.flush()  # private: the request must have reached the server
        print("running", flush=True)
        refused = await waiting  # ends when the signal has come
        print(json.dumps({"waiting": refused.error.type, "drained": serving.done()}), flush=True)
        work.release.set()
        finished = await running
        await serving
        print(json.dumps({"running": finished.text}), flush=True)

asyncio.run(main())
"""


@pytest.fixture
def scene() -> Any:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", SIGTERM_SCENE], cwd=ROOT, text=True, **pipes)
    yield process
    process.kill()
    process.communicate()


def test_sigterm_drains(scene: subprocess.Popen[str]) -> None:
    assert scene.stdout.readline() == "running\n"
    scene.send_signal(signal.SIGTERM)
    out, err = scene.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines == [{"waiting": "draining", "drained": False}, {"running": "done"}], err
    assert (scene.returncode, err) == (0, "")


@pytest.mark.wall_clock
async def test_serve_leaves_the_signal_as_it_found_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    serving = asyncio.create_task(serve(Service(slowly), "memory://signal", service="lab"))
    # Each turn of the loop brings it nearer; on its own connection it needs no more than some of them.
    for _ in range(100):
        await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGTERM) != before
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    assert signal.getsignal(signal.SIGTERM) == before


async def test_a_drain_ends_although_the_last_answers_cannot_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is away: a process that was told to end must end all the same."""
    loop = asyncio.get_running_loop()
    async with stand(slowly) as (_, server):

        async def never() -> None:
            await loop.create_future()

        monkeypatch.setattr(server._transport, "flush", never)
        started = loop.time()
        await server.drain()
        assert loop.time() - started == pytest.approx(FLUSH_S)


@contextlib.asynccontextmanager
async def slow_server() -> AsyncIterator[tuple[EmbeddedBroker, Any, ToolServer]]:
    """An embedded broker, and a server on a connection of its own to it."""
    broker = EmbeddedBroker()
    transport = broker.transport()
    await transport.start()
    async with serving(slowly, broker=transport, drain_timeout=30) as server:
        yield broker, transport, server
    await transport.close()


async def test_a_drain_while_the_broker_is_away_sends_the_replies_when_it_is_back() -> None:
    async with (
        slow_server() as (broker, transport, server),
        dispatching(transport=broker.transport(broker.injector)) as dispatcher,
    ):
        calls = [asyncio.create_task(dispatcher.call("work", {"seconds": seconds}, timeout=60)) for seconds in (1, 5)]
        await advance(0.5)
        transport.disconnect(15)
        broker.injector.disconnect(15)
        await advance(1)  # one reply is ready, and one request runs
        await server.drain()
        await server.close()
        assert await asyncio.gather(*calls) == ["done", "done"]
        assert asyncio.get_running_loop().time() == pytest.approx(START + 15.5, abs=0.5)


async def test_a_drain_does_not_wait_for_a_caller_that_has_died_with_all_its_replies() -> None:
    loop = asyncio.get_running_loop()
    async with (
        slow_server() as (broker, _, server),
        dispatching(transport=broker.transport()) as dispatcher,
        dispatching(transport=broker.transport(broker.injector)) as dead,
    ):
        assert await dead.call("work", {"seconds": 0.1}) == "done"
        await advance(1)
        broker.injector.disconnect(60)
        call = await start_task(dispatcher.call("work", {"seconds": 1}, timeout=60), 0.5)
        started = loop.time()
        await server.drain()
        assert await call == "done"
        assert loop.time() - started == pytest.approx(0.5 + FLUSH_S, abs=0.1)


async def test_a_drain_ends_soon_while_the_broker_is_away_if_no_caller_waits() -> None:
    loop = asyncio.get_running_loop()
    async with slow_server() as (broker, transport, server), dispatching(transport=broker.transport()) as dispatcher:
        await dispatcher.call("work", {"seconds": 1})
        await advance(1)
        transport.disconnect(15)
        started = loop.time()
        await server.drain()
        assert loop.time() - started == pytest.approx(FLUSH_S)


REQUEST = Request({"style": "pun"}, {"topic": "cats"}, "alice")
FULL = ("alice", {"style": "pun"}, {"topic": "cats"})


async def call(service: object) -> Any:
    with contextlib.closing(ToolExecutor(1, "call-test")) as threads:
        return await read_invoke(service, threads.run)(REQUEST)


class Ours(ToolService):
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        return user, config, arguments


class Specification(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        return user, config, arguments


class Published(ToolService):
    async def invoke(self, config: Any, arguments: Any) -> Any:
        return "alice", config, arguments


class ArgumentsOnly(ToolService):
    async def invoke(self, arguments: Any) -> Any:
        return *FULL[:2], arguments


class OtherOrder(ToolService):
    async def invoke(self, arguments: Any, config: Any, user: str) -> Any:
        return user, config, arguments


class KeywordOnly(ToolService):
    async def invoke(self, *, arguments: Any, user: str, config: Any) -> Any:
        return user, config, arguments


class AnyKeyword(ToolService):
    async def invoke(self, **given: Any) -> Any:
        return given["user"], given["config"], given["arguments"]


class RestByKeyword(ToolService):
    async def invoke(self, config: Any, **rest: Any) -> Any:
        return rest["user"], config, rest["arguments"]


class PositionalOnly(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any, /) -> Any:
        return user, config, arguments


class PositionalInOtherOrder(ToolService):
    async def invoke(self, arguments: Any, user: str, /, config: Any) -> Any:
        return user, config, arguments


class PositionalThenKeyword(ToolService):
    async def invoke(self, arguments: Any, /, *, config: Any, user: str = "") -> Any:
        return user, config, arguments


class PositionalThenAnything(ToolService):
    async def invoke(self, config: Any, /, **rest: Any) -> Any:
        return rest["user"], config, rest["arguments"]


class OwnNamesOfTwo(ToolService):
    async def invoke(self, cfg: Any, args: Any) -> Any:
        return "alice", cfg, args


class OwnNamesOfThree(ToolService):
    async def invoke(self, who: str, cfg: Any, args: Any) -> Any:
        return who, cfg, args


class SomeOwnNames(ToolService):
    async def invoke(self, user: str, settings: Any, arguments: Any) -> Any:
        return user, settings, arguments


class FurtherDefault(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any, verbose: bool = False) -> Any:
        assert verbose is False
        return user, config, arguments


class Static(ToolService):
    @staticmethod
    async def invoke(config: Any, arguments: Any, user: str = "") -> Any:  # type: ignore[override]
        return user, config, arguments


class WithoutSuper(ToolService):
    def __init__(self, style: str, *, loud: bool) -> None:
        self.style = style  # and no super().__init__(), as everybody forgets

    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        return user, {"style": self.style}, arguments


class Inherited(Specification):
    pass


class Plain:
    """No subclass of ours: TrustGraph's, or anybody's."""

    async def invoke(self, user: str, config: Any, arguments: Any) -> Any:
        return user, config, arguments


class Threaded(ToolService):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        assert threading.current_thread() is not threading.main_thread()
        return user, config, arguments


class ThreadThenAwait(ToolService):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        async def work() -> Any:
            assert threading.current_thread() is threading.main_thread()
            return user, config, arguments

        return work()


def _decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return inner


class Decorated(ToolService):
    @_decorated
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        return user, config, arguments


ALL_WAYS = [
    Ours, Specification, Published, ArgumentsOnly, OtherOrder, KeywordOnly, AnyKeyword, RestByKeyword, PositionalOnly,
    PositionalInOtherOrder, PositionalThenKeyword, PositionalThenAnything, OwnNamesOfTwo, OwnNamesOfThree, SomeOwnNames,
    FurtherDefault, Static, Inherited, Plain, Threaded, ThreadThenAwait, Decorated,
]  # fmt: skip


@pytest.mark.parametrize("cls", ALL_WAYS, ids=lambda cls: cls.__name__)
async def test_every_way_gets_its_values(cls: type[Any]) -> None:
    assert await call(cls()) == FULL


async def test_a_subclass_need_not_call_our_init() -> None:
    assert await call(WithoutSuper("pun", loud=True)) == FULL


async def test_an_async_generator_is_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(asyncio, "to_thread")  # it needs none

    class Story(ToolService):
        async def invoke(self, config: Any, arguments: Any, user: str = "") -> AsyncIterator[str]:
            yield user
            yield arguments["topic"]

    result = await call(Story())
    assert isinstance(result, AsyncIterator)
    assert [item async for item in result] == ["alice", "cats"]


async def test_a_thread_that_raises_stop_iteration_does_not_hang_its_caller() -> None:
    class First(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
            return next(iter([]))

    with pytest.raises(RuntimeError, match="StopIteration"):
        async with asyncio.timeout(5):
            await call(First())


async def test_a_thread_raises_its_own_exception() -> None:
    class Odd(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
            raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError, match="by zero"):
        await call(Odd())


# -- what cannot be understood --------------------------------------------------------------------------------------


class NoInvoke(ToolService):
    pass


class NotAMethod(ToolService):
    invoke = "a text"  # type: ignore[assignment]


class NoArguments(ToolService):
    async def invoke(self, config: Any, user: str = "") -> Any: ...


class Nothing(ToolService):
    async def invoke(self) -> Any: ...  # type: ignore[override]


class ByPositionOnly(ToolService):
    async def invoke(self, *values: Any) -> Any: ...  # type: ignore[override]


class TooMany(ToolService):
    async def invoke(self, user: str, config: Any, arguments: Any, request_id: str) -> Any: ...


class OneOwnName(ToolService):
    async def invoke(self, query: str) -> Any: ...  # type: ignore[override]


class KnownInTheWrongPlace(ToolService):
    async def invoke(self, arguments: Any, cfg: Any) -> Any: ...  # type: ignore[override]


class ThreeWithTheUserLast(ToolService):
    async def invoke(self, cfg: Any, args: Any, user: str) -> Any: ...  # type: ignore[override]


class OwnNameByKeyword(ToolService):
    async def invoke(self, config: Any, arguments: Any, *, query: str) -> Any: ...  # type: ignore[override]


class PlainGenerator(ToolService):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        yield "a chunk"


WRONG = {
    NoInvoke: "has no invoke method",
    NotAMethod: "has no invoke method",
    NoArguments: "takes no 'arguments'",
    Nothing: "takes no 'arguments'",
    ByPositionOnly: "takes no 'arguments'",
    TooMany: "'request_id'",
    OneOwnName: "'query'",
    KnownInTheWrongPlace: "'cfg'",
    ThreeWithTheUserLast: "'cfg'",
    OwnNameByKeyword: "'query'",
    PlainGenerator: "plain generator; make it a stream with 'async def",
}


@pytest.mark.parametrize(("cls", "problem"), WRONG.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_every_other_way_is_a_clear_error_when_the_service_is_made(cls: type[Any], problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        cls()
    text = str(caught.value)
    assert text.startswith((f"{cls.__name__} ", f"{cls.__name__}.invoke"))
    assert problem in text
    assert "async def invoke" in text, "the message shows how to write it"


def test_anything_without_an_invoke_is_a_clear_error() -> None:
    for service in (object(), Ours):  # the class instead of an instance is the commonest slip
        with pytest.raises(TypeError, match="async def invoke"):
            read_invoke(service)
