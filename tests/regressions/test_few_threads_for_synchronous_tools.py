"""Synchronous tools ran on the loop's default executor, 6 threads on 2 processors, while `concurrency` said 64; one that
hung kept a thread for ever, unseen, and the process could not exit. A server has `concurrency` threads of its own: one that
outlives its request keeps its place, is counted, and does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatch import Telemetry, ToolService
from dispatch.messaging.wire import Refusal, decode_reply
from tests.helpers.clock import idle, virtual_loop
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, serving, stand

ROOT = Path(__file__).parents[2]


class Blocking(ToolService):
    """A synchronous tool that returns when it is released; at once when the argument ``at-once`` is given, and after
    ``others`` is set when that is given."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.others = threading.Event()
        self.began = asyncio.Semaphore(0)
        self.runs = 0
        self._loop = asyncio.get_running_loop()

    def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        self._loop.call_soon_threadsafe(self._on_begin)
        if "others" in arguments:
            self.others.wait(20)
        elif "at-once" not in arguments:
            self.release.wait(20)
        return "done"

    def _on_begin(self) -> None:
        self.runs += 1
        self.began.release()


AT_ONCE = b'{"arguments": "{\\"at-once\\": true}"}'
OTHERS = b'{"arguments": "{\\"others\\": true}"}'


async def test_as_many_synchronous_tools_run_at_once_as_concurrency_says() -> None:
    together = threading.Barrier(64)

    class Together(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            if "alone" not in arguments:
                together.wait(10)  # until all 64 are here
            return "done"

    async with stand(Together()) as (dispatcher, server):
        assert server.concurrency == 64
        await dispatcher.call("work", {"alone": True})  # one request at a time goes to an unknown instance
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(64)]
        assert await asyncio.gather(*calls) == ["done"] * 64


async def test_threads_are_started_on_first_need_reused_and_ended_with_the_server() -> None:
    class Own(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            threads.append(threading.current_thread())
            return "done"

    threads: list[threading.Thread] = []
    before = set(threading.enumerate())
    async with stand(Own(), service="lab", concurrency=1) as (dispatcher, _):
        assert set(threading.enumerate()) <= before  # those of earlier tests may end
        for _ in range(5):
            assert await dispatcher.call("work") == "done"
        assert {thread.name for thread in threads} == {"dispatch-tool-lab-1"}
    threads[0].join(10)
    assert not threads[0].is_alive()


async def test_context_variables_travel_into_the_thread() -> None:
    user = contextvars.ContextVar[str]("user")

    class Reading(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
            return known.get()

    known = user
    async with serving(Reading()) as server, Peer.as_caller() as caller:
        known.set("alice")
        await caller.ask(b"{}", id="1")  # the embedded broker delivers in its sender's context
        assert decode_reply((await caller.arrived.get()).data()).response == "alice"
        assert server.abandoned_threads == 0


async def test_a_thread_that_outlives_its_request_keeps_its_place_and_is_counted() -> None:
    service, registry = Blocking(), CollectorRegistry()
    telemetry = Telemetry(registry=registry)
    async with serving(service, concurrency=2, telemetry=telemetry) as server, Peer.as_caller() as caller:
        await caller.ask(b"{}", id="1", remaining_ms="1000")
        await service.began.acquire()
        virtual_loop().threads_may_hang = True
        stopped = await caller.arrived.get()
        assert stopped.properties()["refused"] == Refusal.STOPPED
        await idle()
        assert (server.running, server.abandoned_threads) == (0, 1)
        assert registry.get_sample_value("dispatch_service_abandoned_threads", {"service": "lab"}) == 1

        virtual_loop().threads_may_hang = False
        for id in ("2", "3", "4"):
            await caller.ask(OTHERS, id=id)
        await service.began.acquire()
        await idle()
        assert (server.running, server.queued) == (1, 2), "one place is left"
        service.others.set()
        for id in ("2", "3", "4"):
            answer = await caller.arrived.get()
            assert (answer.properties()["id"], decode_reply(answer.data()).response) == (id, "done")
        assert service.runs == 4
        service.release.set()


@pytest.mark.wall_clock
async def test_the_place_is_free_again_when_the_tool_returns() -> None:
    service = Blocking()
    tools = catalog(work={"policy": UNGUARDED})
    async with stand(service, tools, concurrency=1) as (dispatcher, server):
        call = asyncio.create_task(dispatcher.call("work"))
        await service.began.acquire()
        call.cancel()
        refused = await dispatcher.execute("work", {"at-once": True})
        assert refused.error is not None
        assert refused.error.type == "overloaded"
        assert (server.running, server.abandoned_threads, service.runs) == (0, 1, 1)

        (returned,) = server._threads.abandoned.values()
        service.release.set()
        await asyncio.wait([returned])
        assert server.abandoned_threads == 0
        assert await dispatcher.call("work", {"at-once": True}) == "done"
        assert service.runs == 2


async def test_a_thread_whose_caller_left_keeps_its_place_too() -> None:
    service = Blocking()
    async with stand(service) as (dispatcher, server):
        call = asyncio.create_task(dispatcher.call("work"))
        await service.began.acquire()
        virtual_loop().threads_may_hang = True
        call.cancel()
        await idle()
        assert (server.running, server.cancelled, server.abandoned_threads) == (0, 1, 1)
        service.release.set()


async def test_what_waits_for_a_place_is_refused_when_hanging_threads_hold_them_all() -> None:
    service = Blocking()
    async with serving(service, concurrency=2) as server, Peer.as_caller() as caller:
        for id in ("1", "2"):
            await caller.ask(b"{}", id=id, remaining_ms="1000")
            await service.began.acquire()
        virtual_loop().threads_may_hang = True
        for id in ("3", "4"):
            await caller.ask(AT_ONCE, id=id)
        messages = [await caller.arrived.get() for _ in range(4)]
        answers = [message.properties() for message in messages]
        assert sorted((each["id"], each["refused"]) for each in answers) == [
            ("1", Refusal.STOPPED),
            ("2", Refusal.STOPPED),
            ("3", Refusal.OVERLOADED),
            ("4", Refusal.OVERLOADED),
        ]
        assert "held by threads" in messages[-1].data().decode()
        assert (server.running, server.queued, server.abandoned_threads, service.runs) == (0, 0, 2, 2)
        service.release.set()


async def test_a_hanging_thread_holds_up_neither_draining_nor_closing() -> None:
    service = Blocking()
    async with serving(service) as server, Peer.as_caller() as caller:
        await caller.ask(b"{}", id="1", remaining_ms="1000")
        await service.began.acquire()
        virtual_loop().threads_may_hang = True
        await caller.arrived.get()
        await idle()
        before = asyncio.get_running_loop().time()
        await server.drain()
        assert asyncio.get_running_loop().time() == before
        assert (server.running, server.abandoned_threads) == (0, 1)
    service.release.set()


HANGS = """
import asyncio, threading, dispatch
from dispatch import Catalog, ToolServer, ToolService

class Hanging(ToolService):
    def invoke(self, config, arguments, user=""):
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()

async def main():
    global loop, begun
    loop, begun = asyncio.get_running_loop(), asyncio.Event()
    topics = {way + "-queue": "non-persistent://tg/" + way + "/t" for way in ("request", "response")}
    tool = {"type": "tool-service", "name": "t", "description": "Hangs.", "service": "t"}
    catalog = Catalog.of([{"id": "t", **topics}], [tool])
    async with ToolServer(Hanging(), "memory://m", service="t", drain_timeout=0) as server:
        async with dispatch.connect("memory://m", catalog=catalog) as dispatcher:
            call = asyncio.create_task(dispatcher.call("t"))
            await begun.wait()
            call.cancel()
    print(server.abandoned_threads)

asyncio.run(main())
print("closed")
"""


def test_a_process_exits_although_a_tool_hangs_in_its_thread() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=20, cwd=ROOT, check=True
    )
    assert ended.stdout.split() == ["1", "closed"], ended.stderr
