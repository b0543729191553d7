"""A catalogue of 10,000 tools: lookups, loading, memory, and single changes while it is in force, on the embedded broker.

A change is measured between its request and its activation: the CPU time of the event loop's thread, that of all other
threads of the process, and the elapsed time. The kinds of change alternate within a round. A block of the event loop is the
excess of a sleep of 1 ms over its time: it includes waits for the interpreter lock and garbage collections.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import dispatch
from benchmarks.harness.plan import rotated
from benchmarks.harness.report import aligned
from benchmarks.harness.statistics import spread
from benchmarks.micro.rounds import promised
from benchmarks.micro.thousand_tools import Watcher
from dispatch.calls.resolution import ToolResolver
from dispatch.catalog.items import Item, OnChange
from dispatch.policy import Policy

TOOLS_PER_SERVICE: Final = 100
LOOKUPS: Final = 20_000
"""Lookups of one measurement."""
LOOKUP_RATIO: Final = 1.2
CHANGE_LOOP_MS: Final = 5.0
CHANGE_THREAD_MS: Final = 20.0
BLOCK_MS: Final = 10.0
KIB_PER_TOOL: Final = 4.0
"""Targets, at most."""
CHANGES: Final = ("put", "source", "folder file")


@dataclass
class LargeCatalogFigures:
    """The figures of one run; each list has one value for each round.

    Attributes:
        tools: in the catalogue.
        lookup_ratio: cost of a lookup over its cost with one tool.
        loading_ms: from adding a source with all tools until they are in force.
        loading_block_ms: longest block of the event loop meanwhile.
        kib_per_tool: memory that the tools occupy, with the items of their source.
        loop_ms, threads_ms, latency_ms, block_ms: by kind of change: CPU time of the event loop and of other threads, time
            until the activation, longest block of the event loop.
    """

    tools: int
    lookup_ratio: list[float] = field(default_factory=list)
    loading_ms: list[float] = field(default_factory=list)
    loading_block_ms: list[float] = field(default_factory=list)
    kib_per_tool: list[float] = field(default_factory=list)
    loop_ms: dict[str, list[float]] = field(default_factory=dict)
    threads_ms: dict[str, list[float]] = field(default_factory=dict)
    latency_ms: dict[str, list[float]] = field(default_factory=dict)
    block_ms: dict[str, list[float]] = field(default_factory=dict)


def raw_service(prefix: str, at: int) -> dict[str, Any]:
    """The descriptor of a service."""
    return {
        "id": f"{prefix}-service-{at}",
        "request-queue": f"non-persistent://tg/request/{prefix}-{at}",
        "response-queue": f"non-persistent://tg/response/{prefix}-{at}",
        "config-params": [{"name": "collection"}],
    }


def raw_tool(prefix: str, at: int, description: str = "") -> dict[str, Any]:
    """The descriptor of a tool, as large as those of real ones."""
    return {
        "type": "tool-service",
        "name": f"{prefix}-{at}",
        "description": description
        or f"Find records of the kind {at} by their text, and list the ones that match best.",
        "service": f"{prefix}-service-{at // TOOLS_PER_SERVICE}",
        "collection": f"{prefix}-{at}",
        "category": "search",
        "tags": ["records", "search"],
        "arguments": [
            {"name": "query", "type": "string", "description": "Text to search for"},
            {"name": "limit", "type": "number", "description": "Number of records, 100 at most"},
        ],
    }


def raw_items(prefix: str, tools: int) -> list[Item]:
    """So many tools and their services."""
    services = [raw_service(prefix, at) for at in range(-(-tools // TOOLS_PER_SERVICE))]
    items = [Item(f"tool-service/{raw['id']}", "tool-service", raw["id"], raw) for raw in services]
    raws = [raw_tool(prefix, at) for at in range(tools)]
    return items + [Item(f"tool/{raw['name']}", "tool", raw["name"], raw) for raw in raws]


class ChangedSource:
    """A source whose items change.

    Args:
        id: prefix of its names.
        tools: number of its tools.
    """

    on_change: OnChange = "apply"

    def __init__(self, id: str, tools: int) -> None:
        self.id = id
        self.items = raw_items(id, tools)

    def change(self, description: str) -> None:
        """Change one tool in the middle."""
        at = len(self.items) // 2
        former = self.items[at]
        raw = raw_tool(self.id, int(former.key.rpartition("-")[2]), description)
        self.items = [*self.items[:at], Item(former.origin, former.kind, former.key, raw), *self.items[at + 1 :]]

    async def discover(self) -> Sequence[Item]:
        """Return the items."""
        return self.items

    async def changes(self) -> AsyncIterator[None]:
        """Yield nothing: the source is read on request."""
        await asyncio.get_running_loop().create_future()
        yield


async def measure_large_catalog(tools: int, rounds: int) -> LargeCatalogFigures:
    """Measure everything ``rounds`` times."""
    figures = LargeCatalogFigures(tools)
    for _ in range(rounds):
        figures.lookup_ratio.append(measure_lookups(tools))
        figures.kib_per_tool.append(await measure_memory(tools))
        await measure_loading(tools, figures)
    await measure_changes(tools, rounds, figures)
    return figures


# -- lookups ------------------------------------------------------------------------------------------------------------


def measure_lookups(tools: int) -> float:
    """Return the cost of resolving one of ``tools`` over that of resolving the only one: each the fastest of its blocks."""
    stacks = [_resolver_of(count) for count in (1, tools)]
    best = [float("inf"), float("inf")]
    for _ in range(10):
        for at, (resolver, name) in enumerate(stacks):
            resolve = resolver.tool
            began = time.perf_counter()
            for _ in range(LOOKUPS):
                resolve(name)
            best[at] = min(best[at], time.perf_counter() - began)
    return best[1] / best[0]


def _resolver_of(tools: int) -> tuple[ToolResolver, str]:
    services = [raw_service("a", at) for at in range(-(-tools // TOOLS_PER_SERVICE))]
    catalog = dispatch.Catalog.of(services, [raw_tool("a", at) for at in range(tools)])
    return ToolResolver(catalog, Policy()), f"a-{tools // 2}"


# -- loading ------------------------------------------------------------------------------------------------------------


async def measure_memory(tools: int) -> float:
    """Return KiB for each tool of a source, traced by tracemalloc."""
    async with connect() as dispatcher:
        await dispatcher.registry.put("tool-service", raw_service("warm", 0))
        gc.collect()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            await dispatcher.registry.add_source(ChangedSource("large", tools))
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    return (after - before) / tools / 1024


async def measure_loading(tools: int, figures: LargeCatalogFigures) -> None:
    """Add a source with all tools to a dispatcher without any."""
    source = ChangedSource("large", tools)
    async with connect() as dispatcher, Watcher() as watcher:
        began = time.perf_counter()
        await dispatcher.registry.add_source(source)
        figures.loading_ms.append((time.perf_counter() - began) * 1e3)
        figures.loading_block_ms.append(watcher.longest_ms)
        assert len(dispatcher.catalog.tools) == tools


# -- changes ------------------------------------------------------------------------------------------------------------


async def measure_changes(tools: int, rounds: int, figures: LargeCatalogFigures) -> None:
    """Change one tool, in turn of those that were put, of a source and of a folder, which have one half of the tools each.
    All tools were called, so that each of them has a resolved tool."""
    source = ChangedSource("large", tools // 2)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        await asyncio.to_thread(_write_folder, folder, raw_items("file", tools - tools // 2))
        sources = [source, dispatch.Folder(folder, id="folder")]
        async with connect(sources) as dispatcher:
            registry = dispatcher.registry
            await registry.put("tool-service", raw_service("put", 0))
            for name in dispatcher.catalog.tools:
                dispatcher.tool(name)
            resolve_all(dispatcher)

            async def put(text: str) -> None:
                await registry.put("tool", raw_tool("put", 0, text))

            async def change_source(text: str) -> None:
                source.change(text)
                await registry.refresh(source.id)

            async def change_file(text: str) -> None:
                path = folder / "tool" / "file-0.json"
                path.write_text(json.dumps(raw_tool("file", 0, text)))
                await registry.refresh("folder")

            changes = dict(zip(CHANGES, (put, change_source, change_file), strict=True))
            for at in range(rounds + 1):
                for kind, change in rotated(list(changes.items()), at):
                    await _measure_change(kind, change, f"Change {at} at {random.random()}.", figures, is_first=not at)
                    resolve_all(dispatcher)


def resolve_all(dispatcher: dispatch.Dispatcher) -> None:
    """Resolve every tool, as calls of all tools do."""
    resolver = dispatcher._live.resolver  # the cost of an activation grows with the tools that were called
    for name in dispatcher.catalog.tools:
        resolver.tool(name)


async def _measure_change(
    kind: str, change: Callable[[str], Awaitable[None]], text: str, figures: LargeCatalogFigures, *, is_first: bool
) -> None:
    began, loop, process = time.perf_counter(), time.thread_time(), time.process_time()
    await change(text)
    loop, process = time.thread_time() - loop, time.process_time() - process
    elapsed = time.perf_counter() - began
    async with Watcher() as watcher:  # another change: the watcher itself costs time of the event loop
        await change(f"{text} Again.")
        block = watcher.longest_ms
    if is_first:  # code and files are not in the caches yet
        return
    for figure, value in (
        (figures.loop_ms, loop * 1e3),
        (figures.threads_ms, (process - loop) * 1e3),
        (figures.latency_ms, elapsed * 1e3),
        (figures.block_ms, block),
    ):
        figure.setdefault(kind, []).append(value)


def _write_folder(folder: Path, items: Sequence[Item]) -> None:
    for kind in ("tool-service", "tool"):
        (folder / kind).mkdir()
    for item in items:
        (folder / item.kind / f"{item.key}.json").write_text(json.dumps(item.raw))


@contextlib.asynccontextmanager
async def connect(catalog: Any = None) -> AsyncIterator[dispatch.Dispatcher]:
    """Connect a dispatcher to an embedded broker of its own."""
    async with dispatch.connect(f"memory://large-catalog-{os.urandom(6).hex()}", catalog) as dispatcher:
        yield dispatcher


def describe_large_catalog(figures: LargeCatalogFigures) -> str:
    """Return the report: each figure with its target."""
    rows: list[tuple[str, ...]] = [("", "", "promised", "")]

    def add(text: str, values: Sequence[float], limit: float | None = None) -> None:
        measured = spread(values)
        if measured is not None:
            rows.append((text, *promised(measured, limit)))

    add("lookup: cost over that among 1 tool", figures.lookup_ratio, LOOKUP_RATIO)
    add("memory, KiB per tool", figures.kib_per_tool, KIB_PER_TOOL)
    add("loading all: ms until they are in force", figures.loading_ms)
    add("loading all: longest block of the event loop, ms", figures.loading_block_ms, BLOCK_MS)
    for kind in CHANGES:
        add(f"one change ({kind}): event loop, ms of CPU", figures.loop_ms.get(kind, ()), CHANGE_LOOP_MS)
        add(f"one change ({kind}): other threads, ms of CPU", figures.threads_ms.get(kind, ()), CHANGE_THREAD_MS)
        add(f"one change ({kind}): longest block, ms", figures.block_ms.get(kind, ()), BLOCK_MS)
        add(f"one change ({kind}): ms until it is in force", figures.latency_ms.get(kind, ()))
    title = f"{figures.tools:,} tools (median (least … greatest) over {len(figures.lookup_ratio):,} rounds)"
    return f"{title}\n" + aligned(rows, left=(0, 3))
