"""Cost of 1,000 tools: a call of each in turn, beside calls of one tool, and the time that a scrape of their metrics blocks
the event loop. No broker. ``python -m benchmarks.micro.thousand_tools``.

Costs are CPU time, measured as in :mod:`benchmarks.micro.rounds`. They are measured twice: at full speed, where each tool is
called some twenty times a second, and with a clock that goes 100 times as fast, where each is called every few seconds and
has to move its windows on.

A task of the loop sleeps 1 ms repeatedly; a stall is the excess of one of its sleeps. The stall without a scrape is measured
too, and that of prometheus-client's own ASGI application on the same registry.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import CollectorRegistry, make_asgi_app

from benchmarks.harness.plan import rotated
from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned, shown
from benchmarks.harness.statistics import ratios, spread
from benchmarks.micro.guard_stacks import Call, Stack
from benchmarks.micro.instant_transport import AnsweringTransport
from benchmarks.micro.rounds import Costs, measure, promised
from dispatch import Catalog, Dispatcher, Telemetry

OPEN_METRICS, GZIP = "application/openmetrics-text; version=1.0.0", "gzip"
BLOCK = 1_000
"""Calls of one block: each of 1,000 tools once."""
TICK_S = 0.001
PATIENT = {"timeout": 3_600}
"""Of every tool: a pause of the process is long on a fast clock."""
SPEED = 100
"""Speed-up of the clock on which tools are called seldom."""
RATIO = 1.1
"""Target, at most: cost of a call with many tools of one service over its cost with one tool."""
ONE, MANY, SERVICES = "one", "many", "many-services"

PROMISED = (
    TEXT := "metrics_app, text",
    COMPRESSED := "metrics_app, OpenMetrics, gzip",
)
STALL_MS = 10.0
"""Target, at most: longest stall of a scrape."""


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


class FastClockLoop(asyncio.SelectorEventLoop):
    """A loop whose clock goes :data:`SPEED` times as fast as time."""

    def time(self) -> float:
        return super().time() * SPEED


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
        {
            "type": "tool-service",
            "name": f"tool-{at}",
            "description": "Does nothing.",
            "service": f"s{at % services}",
            "policy": PATIENT,
        }
        for at in range(tools)
    ]
    return Catalog.of(made, named)


@contextlib.asynccontextmanager
async def dispatching(tools: int, telemetry: Telemetry, services: int = 20) -> AsyncIterator[Dispatcher]:
    """A dispatcher that has called each of its tools twice."""
    async with Dispatcher(AnsweringTransport(), catalog(tools, services), telemetry=telemetry) as dispatcher:
        for name in [*dispatcher.catalog.tools] * 2:
            await dispatcher.call(name)
        yield dispatcher


def calling(tools: int, services: int) -> Callable[[], AbstractAsyncContextManager[Call]]:
    """Calls of so many tools in turn."""

    @contextlib.asynccontextmanager
    async def make() -> AsyncIterator[Call]:
        telemetry = Telemetry(registry=CollectorRegistry(), traces="off")
        async with dispatching(tools, telemetry, services) as dispatcher:
            names = itertools.cycle(dispatcher.catalog.tools)

            async def call() -> object:
                return await dispatcher.call(next(names))

            yield call

    return make


def costs(tools: int, rounds: int, blocks: int, *, fast: bool) -> Costs:
    """Measure the cost of a call with one tool and with ``tools``.

    Args:
        fast: on the clock of :class:`FastClockLoop`.
    """
    stacks = (
        Stack(ONE, "1 tool", calling(1, 1)),
        Stack(MANY, f"{tools:,} tools of one service", calling(tools, 1)),
        Stack(SERVICES, f"{tools:,} tools of as many services", calling(tools, tools)),
    )
    found = Costs()
    with asyncio.Runner(loop_factory=FastClockLoop if fast else None) as runner:
        runner.run(measure(stacks, rounds, blocks, found, BLOCK))
    return found


def cost_rows(found: Costs, name: str, title: str) -> tuple[str, ...]:
    """A contender's row."""
    ratio = spread(ratios(found.costs[name], found.costs[ONE]).values())
    assert ratio is not None
    return title, shown(found.of(name)), *promised(ratio, RATIO if name == MANY else None)


def cost_table(found: Costs, tools: int, title: str) -> str:
    """The costs, and their ratios to the cost with one tool."""
    rows: list[tuple[str, ...]] = [("", "µs a call", "ratio", "promised", "")]
    rows.append(cost_rows(found, ONE, "1 tool"))
    rows.append(cost_rows(found, MANY, f"{tools:,} tools of one service"))
    rows.append(cost_rows(found, SERVICES, f"{tools:,} tools of as many services"))
    return f"{title}\n" + aligned(rows, left=(0, 4))


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
        own, reference = dispatcher.metrics_app(), make_asgi_app(registry)
        contenders: list[tuple[str, Callable[[], Awaitable[int]]]] = [
            ("no scrape", nothing),
            (TEXT, lambda: ask(own, "text/plain", "")),
            (COMPRESSED, lambda: ask(own, OPEN_METRICS, GZIP)),
            ("prometheus-client, OpenMetrics, gzip", lambda: ask(reference, OPEN_METRICS, GZIP)),
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
    return "A scrape of their metrics\n" + aligned(rows, left=(0, 3))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    programme = Programme(
        "benchmarks.micro.thousand_tools", "Cost of many tools: a call, and a scrape of their metrics. No broker."
    )
    programme.add_number("--tools", 1_000, "tools")
    programme.add_number("--rounds", 9, "rotated rounds")
    programme.add_number("--blocks", 8, f"of {BLOCK:,} calls each")
    options = programme.begin(arguments)
    tools, rounds = options.tools, options.rounds
    often = costs(tools, rounds, options.blocks, fast=False)
    print(cost_table(often, tools, "A call (CPU time)"), flush=True)
    seldom = costs(tools, rounds, options.blocks, fast=True)
    print(cost_table(seldom, tools, f"\nA call, on a clock that goes {SPEED} times as fast"), flush=True)
    found = asyncio.run(scrapes(tools, rounds))
    print(f"\n{scrape_table(found)}", flush=True)
    measured = {
        "costs_us": often.costs_us(),
        "costs_of_seldom_calls_us": seldom.costs_us(),
        "scrapes": [asdict(each) for each in found],
    }
    write_figures(options.json, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
