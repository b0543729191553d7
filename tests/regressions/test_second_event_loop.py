"""A dispatcher that was used from a second event loop hung, or failed with errors of asyncio, and could not be closed
there. Every use is one clear error, and ``close()`` works."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import dispatch
from dispatch.devtools.localbroker import Endpoint
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.dispatcher_and_service import BROKER, catalog, serving
from tests.helpers.echo_service import Echo
from tests.regressions.test_file_descriptors_leak import open_files_and_threads, settled, without_garbage_collection

Use = Callable[[dispatch.Dispatcher], Awaitable[Any]]


async def streamed(dispatcher: dispatch.Dispatcher) -> list[str]:
    return [chunk async for chunk in dispatcher.stream("work")]


USES: dict[str, Use] = {
    "call": lambda dispatcher: dispatcher.call("work"),
    "execute": lambda dispatcher: dispatcher.execute("work"),
    "stream": streamed,
    "tool": lambda dispatcher: dispatcher.tool("work").invoke(),
    "client": lambda dispatcher: dispatch.ToolServiceClient(dispatcher, service="lab").call({}, {}),
}


def made() -> dispatch.Dispatcher:
    return dispatch.Dispatcher(MemoryTransport(BROKER), catalog(), policy=dispatch.Policy(timeout=5))


async def begin(dispatcher: dispatch.Dispatcher) -> None:
    async with serving(lambda _: "done"):
        await dispatcher.start()
        assert await dispatcher.call("work") == "done"


async def misuse(dispatcher: dispatch.Dispatcher, use: Use) -> None:
    with pytest.raises(RuntimeError, match="was started on another event loop"):
        await asyncio.wait_for(use(dispatcher), 5)


async def close_twice(dispatcher: dispatch.Dispatcher) -> None:
    await asyncio.wait_for(dispatcher.close(drain=1), 5)
    await dispatcher.close()


@pytest.mark.parametrize("use", USES)
def test_after_the_first_loop_has_ended(use: str) -> None:
    dispatcher = made()
    asyncio.run(begin(dispatcher))
    asyncio.run(misuse(dispatcher, USES[use]))
    assert dispatcher.is_connected
    asyncio.run(close_twice(dispatcher))
    assert not dispatcher.is_connected


class Branching(MemoryTransport):
    """Remembers its further connections."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.further: list[MemoryTransport] = []

    def another(self) -> MemoryTransport:
        self.further.append(MemoryTransport(BROKER))
        return self.further[-1]


def test_further_connections_are_closed_after_the_first_loop_has_ended() -> None:
    transport = Branching()
    dispatcher = dispatch.Dispatcher(transport, catalog(), policy=dispatch.Policy(timeout=20))

    async def call_many() -> None:
        async with serving(lambda _: "x" * 400_000):
            await dispatcher.start()
            for _ in range(12):
                results = await asyncio.gather(*(dispatcher.execute("work") for _ in range(8)))
                assert all(result.ok for result in results)

    asyncio.run(call_many())
    assert transport.further
    assert all(each.connected for each in transport.further)
    asyncio.run(close_twice(dispatcher))
    assert not any(each.connected for each in transport.further)


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.mark.parametrize("use", USES)
def test_while_the_first_loop_runs_in_another_thread(use: str) -> None:
    dispatcher = made()
    with loop_in_a_thread() as loop:
        asyncio.run_coroutine_threadsafe(begin(dispatcher), loop).result(10)
        asyncio.run(misuse(dispatcher, USES[use]))
        asyncio.run(close_twice(dispatcher))
        assert not dispatcher.is_connected


@pytest.mark.pulsar
@pytest.mark.parametrize("scheme", ["non-persistent", "persistent"])
def test_closing_on_a_second_loop_ends_the_genuine_connection(pulsar_endpoint: Endpoint, scheme: str) -> None:
    url, topic = pulsar_endpoint.service_url, unique_topic("loops")
    request_queue, response_queue = f"{scheme}://tg/request/{topic}", f"{scheme}://tg/response/{topic}"

    async def begin_on_pulsar(dispatcher: dispatch.Dispatcher) -> None:
        async with dispatch.ToolServer(Echo(), url, request_queue=request_queue, response_queue=response_queue):
            await dispatcher.start()
            assert await dispatcher.call("echo", {"text": "hello"}, timeout=30) == "hello"

    def once() -> None:
        dispatcher = dispatch.connect(url, catalog_of(topic, scheme=scheme))
        asyncio.run(begin_on_pulsar(dispatcher))
        asyncio.run(close_twice(dispatcher))
        assert not dispatcher.is_connected

    async def grown(before: tuple[int, int]) -> tuple[int, int]:
        return await settled(before)

    once()  # what is opened once in a process is open by now
    with without_garbage_collection():
        before = open_files_and_threads()
        once()
        assert max(asyncio.run(grown(before))) <= 3
