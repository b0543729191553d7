"""A dispatcher and a service in one process that lives for the whole run.

They call functions, a stream and an MCP server all the time, with a reload every few seconds. To each command they answer
what they hold and have called. SIGUSR1 and SIGUSR2 step the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from tests.helpers import wall_clock  # isort: skip - before what keeps time.time

import httpx

import dispatch
from benchmarks.workers.channel import Channel
from benchmarks.workers.proc import read_memory
from tests.helpers.catalogs import queues_of, unique_topic

FUNCTIONS = 20


@dataclass
class State:
    """What the resident holds, and its calls so far."""

    in_use_mb: int
    resident_mb: int
    files: int
    threads: int
    sessions: int
    calls: int
    failed: int


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc, in bytes."""

    _fields_ = (
        ("arenas", ctypes.c_size_t * 4),
        ("mapped", ctypes.c_size_t),
        ("unused", ctypes.c_size_t * 2),
        ("allocated", ctypes.c_size_t),
        ("free", ctypes.c_size_t * 2),
    )


def _memory_in_use() -> int:
    """Return the bytes that this process has allocated and not freed: with ``PYTHONMALLOC=malloc`` those of Python, too."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    now = mallinfo2()
    return now.allocated + now.mapped


def _functions() -> list[Any]:
    made = []
    for number in range(FUNCTIONS - 2):

        async def add(a: int, b: int, number: int = number) -> int:
            """Add two numbers."""
            return a + b + number

        add.__name__ = add.__qualname__ = f"add_{number}"
        made.append(dispatch.tool(read_only=True)(add))
    return made


class Stream(dispatch.ToolService):
    """Streams ``chunks`` chunks of ``size`` bytes."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        for _ in range(arguments["chunks"]):
            yield "x" * arguments["size"]


class Resident:
    """A dispatcher and a service that live for the whole run.

    Args:
        url: of the broker.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._topic = unique_topic("resident")
        self._admins: tuple[str | None, ...] = ()
        self._calls = 0
        self._failed = 0

    async def state(self) -> State:
        """Read what this process holds."""
        sessions = 0
        async with httpx.AsyncClient() as client:
            for url in self._admins:
                sessions += len((await client.get(f"{url}/api/sessions")).raise_for_status().json())
        return State(
            round(_memory_in_use() / 1e6),
            round(read_memory(os.getpid()) * 2**20 / 1e6),
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            sessions,
            self._calls,
            self._failed,
        )

    def _catalog(self) -> dispatch.Catalog:
        requests, responses = queues_of(self._topic)
        service = {"id": "resident", "request-queue": requests, "response-queue": responses}
        tool = {
            "type": "tool-service",
            "name": "stream",
            "description": "Streams.",
            "service": "resident",
            "read-only": True,
        }
        return dispatch.Catalog.of([service], [tool])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[dispatch.Dispatcher]:
        """Call all tools, and load the catalogue again, until the block ends."""
        functions, servers = (
            dispatch.Functions(*_functions()),
            dispatch.McpServers(
                {"mcpServers": {"units": {"command": sys.executable, "args": ["examples/agent.py", "--mcp-server"]}}}
            ),
        )
        sources: list[Any] = [self._catalog(), functions, servers]
        async with (
            dispatch.ToolServer(
                Stream(), self._url, service=self._topic, descriptor={"id": "resident"}, admin="127.0.0.1:0"
            ) as server,
            dispatch.connect(self._url, sources, admin="127.0.0.1:0") as dispatcher,
        ):
            self._admins = server.admin_url, dispatcher.admin_url
            tasks = [asyncio.create_task(each) for each in (self._call(dispatcher), self._reload(dispatcher, sources))]
            try:
                yield dispatcher
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, dispatcher: dispatch.Dispatcher) -> None:
        while True:
            for tool in dispatcher.catalog.tools:
                try:
                    if tool == "stream":
                        size = random.choice((10, 10_000, 200_000))
                        async for _ in dispatcher.stream(tool, {"chunks": 5, "size": size}, timeout=30):
                            pass
                    elif tool.startswith("add_"):
                        await dispatcher.call(tool, {"a": 1, "b": 2})
                    else:
                        await dispatcher.call(tool, {"miles": 26.2}, timeout=10)
                except dispatch.DispatchError:
                    self._failed += 1
                self._calls += 1
            await asyncio.sleep(0.01)

    async def _reload(self, dispatcher: dispatch.Dispatcher, sources: list[Any]) -> None:
        while True:
            await asyncio.sleep(5)
            await dispatcher.reload([self._catalog(), *sources[1:]])


async def main() -> None:
    """Answer each command with the state."""
    wall_clock.step_on_signals()
    channel = Channel()
    resident = Resident(channel.first()["url"])
    async with resident.running():
        # All threads of the loop's pool start, so that none counts as one more later.
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.1) for _ in range((os.cpu_count() or 1) + 4)))
        channel.ready()
        async for _ in channel.commands():
            channel.say(asdict(await resident.state()))


if __name__ == "__main__":
    asyncio.run(main())
