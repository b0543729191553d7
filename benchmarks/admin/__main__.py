"""Time of each page of the console, and of the lists of the API, with 1,000 tools of 50 services with 8 instances each. No
broker. ``python -m benchmarks.admin``; the cost of the record of a call is in :mod:`benchmarks.micro.call_path`.

Each page is read :data:`TIMES` times over HTTP, from a thread of the same process: the time has all that a browser waits
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
import urllib.request
from typing import Any

import dispatch
from dispatch import Catalog, Dispatcher, ToolServer, ToolService

SERVICES, TOOLS, INSTANCES, TIMES = 50, 20, 8, 15
PAGES = (
    "/",
    "/tools",
    "/tools/tool-7-3",
    "/instances",
    "/instances/i-7-3",
    "/calls",
    "/catalogue",
    "/users",
    "/api/tools",
)


class Echo(ToolService):
    """A service that answers at once."""

    async def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        return "done"


def create_catalog() -> Catalog:
    """Return the catalogue."""
    services, tools = [], []
    for number in range(SERVICES):
        topics = {"request-queue": f"request:tg:s{number}", "response-queue": f"response:tg:s{number}"}
        services.append({"id": f"service-{number}", **topics})
        tools += [
            {
                "type": "tool-service",
                "name": f"tool-{number}-{each}",
                "description": f"Tool {each} of service {number}",
                "service": f"service-{number}",
            }
            for each in range(TOOLS)
        ]
    return Catalog.of(services, tools)


def read(url: str) -> tuple[float, float]:
    """Return the seconds until a page is read, and the processor time of the process meanwhile."""
    began, used = time.perf_counter(), time.process_time()
    with urllib.request.urlopen(url) as response:
        response.read()
    return time.perf_counter() - began, time.process_time() - used


async def measure_pages() -> None:
    """Print the time of each page."""
    broker = "memory://benchmark"
    async with contextlib.AsyncExitStack() as stack:
        for number in range(SERVICES):
            for each in range(INSTANCES):
                names = {"service": f"s{number}", "instance": f"i-{number}-{each}"}
                await stack.enter_async_context(ToolServer(Echo(), broker, concurrency=1, announce=None, **names))
        dispatcher = await stack.enter_async_context(Dispatcher(broker, create_catalog(), admin="127.0.0.1:0"))
        for name in dispatcher.catalog.tools:
            for number in range(5):
                await dispatcher.call(name, {}, user=f"user-{number}")
        print(f"{SERVICES * TOOLS:,} tools, {INSTANCES} instances of each service\n")
        print("page                   median ms   worst ms   CPU ms")
        for page in PAGES:
            found = [await asyncio.to_thread(read, f"{dispatcher.admin_url}{page}") for _ in range(TIMES)]
            times, used = zip(*found, strict=True)
            row = [statistics.median(times), max(times), statistics.median(used)]
            print(f"{page:22} {row[0] * 1e3:9.1f} {row[1] * 1e3:10.1f} {row[2] * 1e3:8.1f}", flush=True)


if __name__ == "__main__":
    print(f"dispatch {dispatch.__version__}")
    asyncio.run(measure_pages())
