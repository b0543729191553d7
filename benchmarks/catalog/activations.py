"""Memory, tasks and threads of a dispatcher over many activations, in virtual time, because at most ten happen per second.

Each activation adds, changes or removes tools and services of one source, and in between sources come and go. Tools that
are used between them have guards, which are retained for a while after the removal of the tool.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import tracemalloc
from dataclasses import dataclass, field
from typing import Final

import dispatch
from benchmarks.catalog.large_catalog import ChangedSource, raw_items, raw_tool
from benchmarks.harness.report import aligned, number
from dispatch.testing.clock import run

TOOLS: Final = 20
GROWTH_KIB: Final = 64.0
"""Target, at most: growth of the memory from the first quarter to the end. A leak of 10 bytes for each of 7,500 activations
would exceed it, and it covers the names that Python interns."""
INTERNED: Final = 100_000
"""Texts that are interned and released: more than the table has free slots."""
PAUSE_S: Final = 120.0
"""Until the retained state of removed tools is released."""


class Echo(dispatch.ToolService):
    """A tool that replies at once."""

    async def invoke(self, config: object, arguments: object, user: str = "") -> str:
        """Return a constant text."""
        return "done"


@dataclass
class ActivationFigures:
    """The figures of one run.

    Attributes:
        activations: number of catalogues that came into force.
        memory_kib: memory in use at each quarter.
        tasks, threads: their numbers at each quarter.
        failed_calls: number of calls without success.
    """

    activations: int = 0
    memory_kib: list[float] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    failed_calls: int = 0

    @property
    def growth_kib(self) -> float:
        """Growth of the memory from the first quarter to the end."""
        return self.memory_kib[-1] - self.memory_kib[0]


def measure_activations(activations: int) -> ActivationFigures:
    """Activate so many catalogues, one after the other."""
    tracemalloc.start()
    try:
        _replace_table_of_interned_texts()
        return run(lambda: _activate(activations))
    finally:
        tracemalloc.stop()


def _replace_table_of_interned_texts() -> None:
    """Make the interpreter replace its table of interned texts, in which each activation interns some for a while. The table
    of 1 MiB is older than the measurement, and its first replacement would count as growth."""
    for at in range(INTERNED):
        sys.intern(f"{at} is interned")


async def _activate(activations: int) -> ActivationFigures:
    figures = ActivationFigures()
    broker = f"memory://activations-{os.urandom(6).hex()}"
    source = ChangedSource("base", TOOLS)
    async with (
        dispatch.ToolServer(Echo(), broker, service="base-0"),
        dispatch.connect(broker, source) as dispatcher,
    ):
        catalog = dispatcher.catalog

        async def call(name: str) -> None:
            result = await dispatcher.execute(name)
            figures.failed_calls += result.outcome is not dispatch.Outcome.SUCCESS

        for at in range(activations):
            await _change(dispatcher, source, at)
            figures.activations += dispatcher.catalog is not catalog
            catalog = dispatcher.catalog
            if at % 10 == 0:
                dispatcher.breaker("extra-7")  # makes its guards
                if at < activations // 4:  # each call is remembered, up to a number that is seldom reached here
                    await call("extra-7")
            if (at + 1) % (activations // 4) == 0:
                await asyncio.sleep(PAUSE_S)
                gc.collect()
                figures.memory_kib.append(tracemalloc.get_traced_memory()[0] / 1024)
                figures.tasks.append(len(asyncio.all_tasks()))
                figures.threads.append(threading.active_count())
    return figures


async def _change(dispatcher: dispatch.Dispatcher, source: ChangedSource, at: int) -> None:
    """Make one change; the state after every tenth one is the same."""
    registry = dispatcher.registry
    extra = raw_tool("extra", 7) | {"service": "base-service-0"}
    match at % 10:
        case 0:
            await registry.put("tool", extra)
        case 1:
            await registry.put("tool", extra | {"description": f"Description {at}"})
        case 2:
            await registry.put("tool", raw_tool("base", 3, f"Shadows another tool {at}"))
        case 3:
            await registry.remove("tool", "base-3")
        case 4:
            await registry.remove("tool", "extra-7")
        case 5:
            source.change(f"Description {at}")
            await registry.refresh(source.id)
        case 6:
            await registry.add_source(ChangedSource("other", TOOLS))
        case 7:
            await registry.remove_source("other")
        case 8:
            source.items = source.items[:-1]
            await registry.refresh(source.id)
        case _:
            source.items = raw_items(source.id, TOOLS)
            await registry.refresh(source.id)


def describe_activations(figures: ActivationFigures) -> str:
    """Return the report."""
    rows: list[tuple[str, ...]] = [("", "25 %", "50 %", "75 %", "100 %")]
    rows.append(("memory, KiB", *(number(value) for value in figures.memory_kib)))
    rows.append(("tasks", *map(str, figures.tasks)))
    rows.append(("threads", *map(str, figures.threads)))
    verdict = "ok" if figures.growth_kib <= GROWTH_KIB else "MISSED"
    return "\n".join(
        (
            f"{figures.activations:,} activations in virtual time",
            aligned(rows),
            f"growth {number(figures.growth_kib)} KiB; promised ≤ {number(GROWTH_KIB)} KiB: {verdict}",
            f"{figures.failed_calls:,} calls failed",
        )
    )
