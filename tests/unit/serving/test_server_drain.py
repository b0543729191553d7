"""How a tool server ends: drained, closed at once, by SIGTERM, by cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dispatch import ToolServer, serve
from dispatch.errors import RejectedError, ToolError, TransportError
from dispatch.messaging.wire import Refusal
from dispatch.server import FLUSH_S, LINGER_S
from tests.helpers.clock import START, advance, idle, run
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, Peer, Service, dispatching, serving, stand

ROOT = Path(__file__).parents[3]


async def slowly(arguments: dict[str, Any]) -> str:
    await asyncio.sleep(arguments.get("seconds", 10))
    return "done"


async def test_draining_finishes_what_runs_and_refuses_what_waits() -> None:
    async with stand(slowly, concurrency=2) as (dispatcher, server):
        running = [asyncio.create_task(dispatcher.call("work")) for _ in range(2)]
        await idle()
        waiting = [asyncio.create_task(dispatcher.execute("work", timeout=5)) for _ in range(3)]
        await advance(1)
        drain = asyncio.create_task(server.drain())
        await idle()
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
        assert [(each.properties()["id"], json.loads(each.data())["response"]) for each in answers] == [
            ("1", "done"),
            ("2", "done"),
        ]
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
        call = asyncio.create_task(dispatcher.call("work", {"seconds": 1_000}, timeout=500))
        await idle()
        await server.drain()
        with pytest.raises(ToolError, match="stopped while the tool ran") as caught:
            await call
        assert caught.value.type == "cancelled"
        assert asyncio.get_running_loop().time() == pytest.approx(START + 5, abs=0.01)
        assert server.running == 0


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
            waiting = asyncio.create_task(dispatcher.execute("work", timeout=1))
            await advance(0.1)
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
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
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
    process = subprocess.Popen(
        [sys.executable, "-c", SIGTERM_SCENE], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def test_sigterm_drains(scene: subprocess.Popen[str]) -> None:
    assert scene.stdout is not None
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
