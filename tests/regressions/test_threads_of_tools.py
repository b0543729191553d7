"""Synchronous tools ran on the loop's default executor, 6 threads on 2 processors, while `concurrency` said 64; one that
hung kept a thread for ever, unseen, and the process could not exit. A server has `concurrency` threads of its own: one that
outlives its request keeps its place, is counted, and does not keep the process alive.
One hanging tool of a service took the other 49 with it: its requests filled the instance's 64 places, the others were
refused as `overloaded`, and their circuits opened.

An instance shares its places, its queue and its threads among tools and callers.
Three places waited for a task of their own in a way that swallowed the cancellation of ``close``: it went on as if it had
not been cancelled. Closing raises its cancellation, and has closed the connection by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import CallResult, Dispatcher, Telemetry, ToolService
from dispatch.messaging.wire import Refusal, decode_reply
from dispatch.routing.discovery import SPREAD_S
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import (
    BROKER,
    REQUESTS,
    RESPONSES,
    UNGUARDED,
    Peer,
    Service,
    catalog,
    dispatching,
    serving,
    stand,
)
from tests.helpers.fake_pulsar import SEEN_S, FakeBroker, connected
from tests.helpers.session import REPLY_TOPIC, from_peer
from tests.unit.transports.pulsar.conftest import broker as broker

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
        await asyncio.sleep(SPREAD_S)  # until then a few calls at once: other instances may announce themselves
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


@pytest.mark.wall_clock
async def test_a_thread_that_has_returned_counts_no_more_among_those_that_hold_all_places() -> None:
    """It did for good: after as many as there are places, no request of the tool waited while one more thread hung."""
    service = Blocking()
    async with stand(service, catalog(work={"policy": UNGUARDED}), concurrency=2) as (dispatcher, server):
        assert await dispatcher.call("work", {"at-once": True}) == "done"
        await service.began.acquire()
        await asyncio.sleep(SPREAD_S)  # until then a few calls at once: other instances may announce themselves
        for has_returned in (True, False):
            call = asyncio.create_task(dispatcher.call("work"))
            await service.began.acquire()
            call.cancel()
            while not server.abandoned_threads:  # noqa: ASYNC110 # the server has no event for it
                await asyncio.sleep(0)
            if has_returned:
                (returned,) = server._threads.abandoned.values()
                service.release.set()
                await asyncio.wait([returned])
                service.release.clear()
        running = asyncio.create_task(dispatcher.call("work", {"others": True}))
        await service.began.acquire()
        waiting = asyncio.create_task(dispatcher.call("work", {"at-once": True}))
        assert await asyncio.wait([waiting], timeout=0.2) == (set(), {waiting}), "it waits for the place of the other"
        service.others.set()
        assert await asyncio.gather(running, waiting) == ["done", "done"]
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


TOOLS, RATE = 50, 250.0


async def work(arguments: Any) -> str:
    await asyncio.sleep(arguments.get("seconds", 0.05))
    return "done"


def kind(result: CallResult) -> str:
    return "success" if result.error is None else result.error.type


@pytest.mark.costly
@pytest.mark.parametrize("hanging", [1, 5])
async def test_other_tools_of_the_service_are_answered(hanging: int) -> None:
    ends: Counter[str] = Counter()
    longest = 0.0
    tools = catalog(**{f"t{number}": {} for number in range(TOOLS)})
    chance = random.Random(hanging)
    async with stand(work, tools) as (dispatcher, server):

        async def call(number: int) -> None:
            nonlocal longest
            is_hanging = number % TOOLS < hanging
            result = await dispatcher.execute(f"t{number % TOOLS}", {"seconds": 3_600} if is_hanging else {})
            if not is_hanging:
                ends[kind(result)] += 1
                longest = max(longest, result.duration)

        calls = []
        for number in range(8 * int(RATE)):
            calls.append(asyncio.create_task(call(number)))
            await asyncio.sleep(chance.expovariate(RATE))
        await advance(1)
        assert ends == {"success": 8 * RATE * (TOOLS - hanging) / TOOLS}
        assert longest <= 0.5
        assert server.running >= 40, "places that the others do not need are used"
        assert server.refused[Refusal.OVERLOADED] == 0
        for each in calls:
            each.cancel()


async def test_caller_with_endless_calls_leaves_places_to_another_caller_of_the_tool() -> None:
    tools = {"work": {"policy": UNGUARDED}}
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serving(work, concurrency=16))
        greedy = await stack.enter_async_context(dispatching(catalog(**tools)))
        modest = await stack.enter_async_context(dispatching(catalog(**tools)))

        async def answered(dispatcher: Dispatcher, seconds: float) -> str:
            return kind(await dispatcher.execute("work", {"seconds": seconds}))

        assert await answered(modest, 0.05) == "success"
        calls = [asyncio.create_task(answered(greedy, 3_600)) for _ in range(100)]
        await advance(1)
        began = virtual_loop().time()
        for _ in range(5):
            assert await answered(modest, 0.05) == "success"
        assert virtual_loop().time() - began == pytest.approx(0.25, abs=0.05)
        for call in calls:
            call.cancel()


async def test_tools_of_third_party_callers_are_told_apart_by_their_config() -> None:
    async def by_config(config: Any, _arguments: Any) -> str:
        await asyncio.sleep(3_600 if config["tool"] == "hangs" else 0.05)
        return "done"

    class Both(ToolService):
        async def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            return await by_config(config, arguments)

    async with serving(Both(), concurrency=8) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{\\"tool\\": \\"well\\"}", "arguments": "{}"}', id="0")
        assert (await caller.arrived.get()).properties()["id"] == "0"
        for number in range(1, 21):
            await caller.ask(b'{"config": "{\\"tool\\": \\"hangs\\"}", "arguments": "{}"}', id=str(number))
        await asyncio.sleep(0.2)  # the first moments of an instance are over
        assert (server.running, server.queued) == (7, 13)
        await caller.ask(b'{"config": "{\\"tool\\": \\"well\\"}", "arguments": "{}"}', id="last")
        assert (await caller.arrived.get()).properties()["id"] == "last"


class BlockingCalls(ToolService):
    """A synchronous tool; with the argument ``hang`` it returns when it is released."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.began = asyncio.Semaphore(0)
        self._loop = asyncio.get_running_loop()

    def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        if "hang" in arguments:
            self._loop.call_soon_threadsafe(self.began.release)
            self.release.wait(20)
        return "done"


@pytest.mark.wall_clock
async def test_threads_are_shared_too() -> None:
    service = BlockingCalls()
    tools = catalog(well={}, hangs={"policy": {"timeout": 0.2}})
    async with stand(service, tools, concurrency=4) as (dispatcher, server):
        assert await dispatcher.call("well") == "done"
        for _ in range(2):
            ends = await asyncio.gather(*(dispatcher.execute("hangs", {"hang": True}) for _ in range(6)))
            assert "success" not in {kind(result) for result in ends}
            assert [kind(await dispatcher.execute("well")) for _ in range(5)] == ["success"] * 5
        assert server.abandoned_threads == 3
        refused = await dispatcher.execute("well")
        assert refused.ok
        service.release.set()


async def test_request_whose_threads_are_all_held_is_refused_at_once() -> None:
    service = BlockingCalls()
    tools = catalog(well={}, hangs={"policy": {**UNGUARDED, "timeout": 1}})
    async with stand(service, tools, concurrency=4) as (dispatcher, server):
        assert await dispatcher.call("well") == "done"
        await asyncio.sleep(0.2)  # the first moments of an instance are over
        hanging = [asyncio.create_task(dispatcher.execute("hangs", {"hang": True})) for _ in range(3)]
        for _ in hanging:
            await service.began.acquire()
        virtual_loop().threads_may_hang = True
        await asyncio.wait(hanging)
        await idle()
        assert server.abandoned_threads == 3
        result = await dispatcher.execute("hangs", {"hang": True})
        virtual_loop().threads_may_hang = False
        assert kind(result) == "overloaded"
        assert result.duration < 0.1
        assert await dispatcher.call("well") == "done"
        service.release.set()


# -- the queue of an instance ---------------------------------------------------------------------------------------
async def test_queued_request_is_refused_at_its_deadline_and_leaves_the_queue() -> None:
    service = Service(work)
    async with serving(service, concurrency=1, max_queue=1) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"arguments": {"seconds": 60}}', id="1")
        await caller.ask(b"{}", id="2", remaining_ms="1000")
        await idle()
        assert server.queued == 1
        began = virtual_loop().time()
        refused = await caller.arrived.get()
        assert (refused.properties()["id"], refused.properties()["refused"]) == ("2", Refusal.EXPIRED)
        assert virtual_loop().time() - began == pytest.approx(1, abs=0.01)
        assert server.queued == 0
        await caller.ask(b"{}", id="3")
        await idle()
        assert server.queued == 1, "the place in the queue is free"
        assert len(service.requests) == 1


async def test_queued_request_that_is_cancelled_leaves_the_queue() -> None:
    tools = catalog(work={"policy": UNGUARDED})
    async with stand(work, tools, concurrency=1, max_queue=1) as (dispatcher, server):
        calls = [asyncio.create_task(dispatcher.execute("work", {"seconds": seconds})) for seconds in (5, 0.05)]
        await advance(0.1)
        assert server.queued == 1
        calls[1].cancel()
        await idle()
        assert server.queued == 0
        assert server.cancelled == 1
        result = await dispatcher.execute("work")
        assert kind(result) == "success"


async def test_overloaded_instance_says_when_its_queue_will_be_served() -> None:
    tools = catalog(work={"policy": UNGUARDED})
    async with stand(work, tools, concurrency=2, max_queue=3) as (dispatcher, _):
        await asyncio.gather(*(dispatcher.execute("work", {"seconds": 4}) for _ in range(2)))
        calls = [asyncio.create_task(dispatcher.execute("work", {"seconds": 4})) for _ in range(5)]
        await advance(0.1)
        refused = await dispatcher.execute("work", {"seconds": 4})
        assert kind(refused) == "overloaded"
        assert refused.error.retry_after == pytest.approx(8, abs=0.1), "three wait and this one, for two places"
        assert [kind(each) for each in await asyncio.gather(*calls)] == ["success"] * 5


async def test_full_queue_makes_room_for_a_tool_that_waits_less() -> None:
    tools = catalog(much={"policy": UNGUARDED}, little={"policy": UNGUARDED})
    async with stand(work, tools, concurrency=1, max_queue=4) as (dispatcher, _):
        await dispatcher.call("little")
        calls = [asyncio.create_task(dispatcher.execute("much", {"seconds": 1})) for _ in range(5)]
        await advance(0.1)
        result = await dispatcher.execute("little")
        assert kind(result) == "success"
        assert result.duration < 2.1, "it waited for its turn, after one call that was queued before"
        assert Counter(kind(each) for each in await asyncio.gather(*calls)) == {"success": 4, "overloaded": 1}


async def cancelled(closing: Awaitable[None]) -> None:
    task = asyncio.ensure_future(closing)
    await advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class Slow:
    """Something that takes 3 s to end when it is cancelled."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def run(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(3)
            raise


async def test_a_dispatcher_whose_further_reply_connection_is_just_being_opened() -> None:
    slow = Slow()

    class Further(MemoryTransport):
        async def start(self) -> None:
            await slow.run()

    class First(MemoryTransport):
        def another(self) -> MemoryTransport:
            return Further(self.url)

    transport = First(BROKER)
    async with serving(lambda _: "x" * 100_000), dispatching(transport=transport) as dispatcher:
        calls = [asyncio.create_task(dispatcher.execute("work")) for _ in range(500)]
        await slow.begun.wait()
        await cancelled(dispatcher.close())
        assert not transport.connected
        assert {each.error is None or each.error.type == "closed" for each in await asyncio.gather(*calls)} == {True}
        await advance(3)


async def test_a_service_whose_reply_topic_is_just_being_opened() -> None:
    slow = Slow()

    class Transport(MemoryTransport):
        async def publisher(self, topic: str) -> MemoryPublisher:
            if topic == REPLY_TOPIC:
                await slow.run()
            return await super().publisher(topic)

    transport = Transport(BROKER)
    server = dispatch.ToolServer(Service(lambda _: "done"), transport, request_queue=REQUESTS, response_queue=RESPONSES)
    await transport.start()
    await server.start()
    async with Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{}", "arguments": "{}"}', **from_peer(1))
        await slow.begun.wait()
        closing = asyncio.create_task(server.close())
        await advance(3)  # it gives the answer 2 s to leave
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await advance(3)
    await transport.close()


async def test_a_connection_whose_supervisor_is_just_looking_for_the_broker(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    async with connected() as transport:
        await transport.publisher(REQUESTS)
        broker.restarts()
        monkeypatch.setattr("dispatch.transports.pulsar.supervisor.shake_hands", lambda *_: slow.run())
        await advance(SEEN_S)
        await slow.begun.wait()
        await cancelled(transport.close())
        assert broker.link.closed
        await advance(3)
