"""What 1,000 tools cost: how long a scrape of their metrics holds the event loop. No broker.
``python -m benchmarks.many_tools``.

A task of the loop sleeps 1 ms again and again; a stall is by how much one of its sleeps was longer. What it is without a
scrape is measured too, and prometheus-client's own ASGI application on the same registry.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, make_asgi_app

from benchmarks.answering import AnsweringTransport
from benchmarks.machine import load
from benchmarks.plan import rotated
from benchmarks.report import aligned, shown
from benchmarks.rounds import positive, promised, writable
from benchmarks.statistics import spread
from dispatch import Catalog, Dispatcher, Telemetry
from dispatch.telemetry.exposition import served

OPEN_METRICS, GZIP = "application/openmetrics-text; version=1.0.0", "gzip"
TICK_S = 0.001
PROMISED = (
    TEXT := "metrics_app, text",
    COMPRESSED := "metrics_app, OpenMetrics, gzip",
    PORT := "--metrics-port, OpenMetrics",
)
STALL_MS = 10.0
"""What is promised of a scrape's longest stall, at most."""
FETCH = """
import sys, urllib.request
for url in sys.stdin:
    request = urllib.request.Request(url.strip(), headers={"Accept": sys.argv[1]})
    print(len(urllib.request.urlopen(request).read()), flush=True)
"""
"""A process that scrapes the addresses that it reads."""


@dataclass(frozen=True)
class Scrape:
    """One scrape.

    Attributes:
        contender: who answered it.
        stall_ms: the loop's longest stall meanwhile.
        total_ms: from request to answer.
        bytes: of the answer.
    """

    contender: str
    stall_ms: float
    total_ms: float
    bytes: int


def catalog(tools: int, services: int = 20) -> Catalog:
    """So many tools of some services, on persistent topics: nothing is paid there for repairing what others lose."""
    made = [
        {
            "id": f"s{at}",
            "request-queue": f"persistent://tg/request/s{at}",
            "response-queue": f"persistent://tg/response/s{at}",
        }
        for at in range(services)
    ]
    named = [
        {"type": "tool-service", "name": f"tool-{at}", "description": "Does nothing.", "service": f"s{at % services}"}
        for at in range(tools)
    ]
    return Catalog.of(made, named)


@contextlib.asynccontextmanager
async def dispatching(tools: int, telemetry: Telemetry) -> AsyncIterator[Dispatcher]:
    """A dispatcher that has called each of its tools twice."""
    async with Dispatcher(AnsweringTransport(), catalog(tools), telemetry=telemetry) as dispatcher:
        for name in [*dispatcher.catalog.tools] * 2:
            await dispatcher.call(name)
        yield dispatcher


class Watcher:
    """Measures the loop's stalls while it is entered.

    Attributes:
        longest_ms: the longest one so far.
    """

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def __aenter__(self) -> Watcher:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(3 * TICK_S)
        self.longest_ms = 0.0
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await asyncio.sleep(3 * TICK_S)
        self._task.cancel()

    async def _watch(self) -> None:
        last = time.perf_counter()
        while True:
            await asyncio.sleep(TICK_S)
            now = time.perf_counter()
            self.longest_ms = max(self.longest_ms, (now - last - TICK_S) * 1e3)
            last = now


async def ask(app: Any, accept: str, encoding: str) -> int:
    """One GET of an ASGI application. Returns the bytes of the body."""
    size = 0

    async def send(message: dict[str, Any]) -> None:
        nonlocal size
        size += len(message.get("body", b""))

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"accept", accept.encode()), (b"accept-encoding", encoding.encode())]
    await app({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}, receive, send)
    return size


@contextlib.asynccontextmanager
async def scraping(port: int, accept: str) -> AsyncIterator[Callable[[], Awaitable[int]]]:
    """Another process that scrapes that port whenever the function is called, which returns the bytes of the body."""
    pipe = subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FETCH, accept, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    answers = process.stdout

    async def fetch() -> int:
        assert process.stdin is not None
        process.stdin.write(f"http://127.0.0.1:{port}/metrics\n".encode())
        return int(await answers.readline())

    try:
        yield fetch
    finally:
        process.stdin.close()
        await process.wait()


async def nothing() -> int:
    """No scrape, for as long as one takes."""
    await asyncio.sleep(0.2)
    return 0


async def scrapes(tools: int, rounds: int) -> list[Scrape]:
    """So many rounds of one scrape of each contender."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry, traces="off")
    async with contextlib.AsyncExitStack() as exits:
        dispatcher = await exits.enter_async_context(dispatching(tools, telemetry))
        port = exits.enter_context(served(telemetry, 0))
        fetch = await exits.enter_async_context(scraping(port, OPEN_METRICS))
        ours, theirs = dispatcher.metrics_app(), make_asgi_app(registry)
        contenders: list[tuple[str, Callable[[], Awaitable[int]]]] = [
            ("no scrape", nothing),
            (TEXT, lambda: ask(ours, "text/plain", "")),
            (COMPRESSED, lambda: ask(ours, OPEN_METRICS, GZIP)),
            (PORT, fetch),
            ("prometheus-client, OpenMetrics, gzip", lambda: ask(theirs, OPEN_METRICS, GZIP)),
        ]
        gc.collect()
        gc.freeze()
        return [await measured(*each) for at in range(rounds) for each in rotated(contenders, at)]


async def measured(name: str, scrape: Callable[[], Awaitable[int]]) -> Scrape:
    """One scrape of a contender."""
    async with Watcher() as watcher:
        began = time.perf_counter()
        size = await scrape()
        total_ms = (time.perf_counter() - began) * 1e3
    return Scrape(name, watcher.longest_ms, total_ms, size)


def scrape_table(found: Sequence[Scrape]) -> str:
    """The figures of the scrapes."""
    rows: list[tuple[str, ...]] = [("", "longest stall, ms", "promised", "", "until the answer, ms", "bytes")]
    for name in dict.fromkeys(each.contender for each in found):
        mine = [each for each in found if each.contender == name]
        stall, total = spread(each.stall_ms for each in mine), spread(each.total_ms for each in mine)
        assert stall is not None
        cells = promised(stall, STALL_MS if name in PROMISED else None)
        rows.append((name, *cells, shown(total), f"{mine[0].bytes:,}" if mine[0].bytes else ""))
    return "A scrape\n" + aligned(rows, left=(0, 3))


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.many_tools",
        description="What many tools cost: how long a scrape of their metrics holds the event loop. No broker.",
    )
    made.add_argument("--tools", type=positive, default=1_000, metavar="N", help="tools (default 1,000)")
    made.add_argument("--rounds", type=positive, default=9, metavar="N", help="rotated rounds (default 9)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write everything there, every round by itself")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    options = parser().parse_args(arguments)
    if not writable(options.json):
        return 2
    print(f"load before: {load()}", file=sys.stderr)
    found = asyncio.run(scrapes(options.tools, options.rounds))
    print(f"{options.tools:,} tools\n\n{scrape_table(found)}", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps({"scrapes": [asdict(each) for each in found]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
