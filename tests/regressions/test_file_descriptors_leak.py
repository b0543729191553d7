"""Each connection, and each reconnection after an outage, left 6 file descriptors and a thread behind; at the limit of open
files pulsar-client ended the process. A connection that is closed or replaced leaves nothing behind.

``make test`` makes 16 connections, and cuts the way to the broker once. ``make test-long`` makes 200 connections, and
kills and restarts a broker eight times (some minutes).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.devtools.localbroker import LocalBroker, create_namespaces, find_free_ports
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.echo_service import Echo
from tests.helpers.internals import transport_of
from tests.helpers.lossy_proxy import LossyProxy
from tests.helpers.run_profile import by_profile, is_long_profile

pytestmark = [pytest.mark.pulsar, pytest.mark.slow, pytest.mark.long]

CONNECTS = by_profile(short=16, long=200)
OUTAGES = by_profile(short=1, long=8)
SCHEMES = ("non-persistent", "persistent")
OFTEN_KILLED = (TimeoutError,) if is_long_profile() else ()
"""What calls after an outage may end with. The storage of a standalone broker that is killed again and again sometimes does
not come back, until it is killed once more."""
SLACK = 5
"""File descriptors or threads that may be more than before: fewer than one leaked connection has."""
SETTLED_S = 60
"""Seconds for a replaced client to go. An opening on it, against a broker that is just starting, ends only
up to 33 s later (measured), and until then its thread keeps the client."""
BACK_S = 150
"""Seconds for all clients to be connected again. A client opens four topics at a time, and each may take those 33 s."""


def open_files_and_threads() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


def report(figures: str) -> None:
    if is_long_profile():
        print(f"\n{figures}", flush=True)  # noqa: T201 - for pytest -s: a run that takes minutes


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """What is closed must go at once: the next full collection may be minutes away."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def until(reached: Callable[[], Any], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110 - threads of pulsar-client, and an outage, have no event
            await asyncio.sleep(0.01)


async def settled(before: tuple[int, int]) -> tuple[int, int]:
    """How many file descriptors and threads are more than ``before``, as soon as they are few, or after SETTLED_S."""

    def grown() -> tuple[int, int]:
        files, threads = open_files_and_threads()
        return files - before[0], threads - before[1]

    with contextlib.suppress(TimeoutError):
        await until(lambda: max(grown()) <= SLACK, seconds=SETTLED_S)
    return grown()


@contextlib.asynccontextmanager
async def calling(url: str, scheme: str, topic: str) -> AsyncIterator[tuple[dispatch.ToolServer, dispatch.Dispatcher]]:
    """A service and a dispatcher that have exchanged a call."""
    request_queue, response_queue = f"{scheme}://tg/request/{topic}", f"{scheme}://tg/response/{topic}"
    async with (
        dispatch.ToolServer(Echo(), url, request_queue=request_queue, response_queue=response_queue) as server,
        dispatch.connect(url, catalog_of(topic, scheme=scheme)) as dispatcher,
    ):
        assert await dispatcher.call("echo", {"text": "hello"}, timeout=30) == "hello"
        yield server, dispatcher


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_connections_that_were_closed_leave_nothing_open(pulsar_endpoint: Endpoint, scheme: str) -> None:
    url, topic = pulsar_endpoint.service_url, unique_topic("leak")
    async with calling(url, scheme, topic):
        pass  # what is opened once in a process is open by now
    with without_garbage_collection():
        before = open_files_and_threads()
        for _ in range(CONNECTS // 2 // len(SCHEMES)):  # two connections each time
            async with calling(url, scheme, topic):
                pass
        files, threads = await settled(before)
    report(f"{scheme}, {CONNECTS // len(SCHEMES)} connections: {files:+} file descriptors, {threads:+} threads")
    assert max(files, threads) <= SLACK, f"{files} file descriptors and {threads} threads more"


class Outages:
    """A broker that can go away: a genuine one that is killed and restarted, or the way to the run's broker that is cut."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._stack = contextlib.ExitStack()
        self.replaced = 0
        """Connections that were replaced by new ones."""

    async def __aenter__(self) -> Outages:
        if is_long_profile():
            self._broker = await asyncio.to_thread(LocalBroker.start)
            self._stack.callback(self._broker.stop)
            await asyncio.to_thread(create_namespaces, self._broker.admin())
            self.url = self._broker.service_url
        else:
            (self._port,) = find_free_ports(1)
            self._connect()
            self.url = f"pulsar://127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._stack.close)

    def _connect(self) -> None:
        self._stack.enter_context(LossyProxy.before(self._endpoint.service_url, port=self._port))

    async def one(self, *transports: PulsarTransport) -> None:
        """Be away for so long that ``transports`` need new clients, and come back."""
        replaced = [transport.reconnects for transport in transports]
        if is_long_profile():
            await asyncio.to_thread(self._broker.kill)
            await asyncio.to_thread(self._broker.restart)
        else:
            self._stack.close()
            await until(lambda: not any(transport.connected for transport in transports))
            # pulsar-client itself tries at about 1.5 s and then at 3.1 s: in between, the connection is replaced.
            await asyncio.sleep(1.6)
            self._connect()
        await until(lambda: all(transport.connected for transport in transports), seconds=BACK_S)
        self.replaced += sum(transport.reconnects for transport in transports) - sum(replaced)


async def test_outages_leave_nothing_open(pulsar_endpoint: Endpoint) -> None:
    async with contextlib.AsyncExitStack() as stack:
        outages = await stack.enter_async_context(Outages(pulsar_endpoint))
        pairs = [await stack.enter_async_context(calling(outages.url, s, unique_topic("leak"))) for s in SCHEMES]
        transports = [
            each._transport if isinstance(each, dispatch.ToolServer) else transport_of(each) for each in sum(pairs, ())
        ]
        stack.enter_context(without_garbage_collection())
        before = open_files_and_threads()
        for number in range(OUTAGES):
            await outages.one(*transports)
            for _, dispatcher in pairs:
                with contextlib.suppress(*OFTEN_KILLED):
                    await until_answered(dispatcher)
            files, threads = await settled(before)
            report(f"outage {number + 1}: {files:+} file descriptors, {threads:+} threads")
            assert max(files, threads) <= SLACK, (
                f"{files} file descriptors and {threads} threads more after {number + 1} outages of "
                f"{len(transports)} connections"
            )
        assert outages.replaced >= OUTAGES, "too few connections were replaced to see a leak"


async def until_answered(dispatcher: dispatch.Dispatcher) -> None:
    async with asyncio.timeout(60):
        while not (await dispatcher.execute("echo", {"text": "again"}, timeout=5)).ok:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # a call that fails at once has waited for nothing
