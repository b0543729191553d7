"""Memory retained by a million calls with metrics, one in a hundred traced; the expected value is none.

As in production: metrics, a genuine OpenTelemetry SDK that exports spans in batches on its own thread, and an exporter that
discards them. Calls before the first reading fill the bounded tables.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from benchmarks.harness.report import aligned, number
from benchmarks.micro.guard_stacks import catalog
from benchmarks.micro.instant_transport import AnsweringTransport
from benchmarks.micro.otel_sdk import Dropping, exporting
from dispatch import Dispatcher, Telemetry
from dispatch.calls import runtime
from dispatch.errors import Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

CALLS = 1_000_000
NAMES = 100_000
FORMER = 1_000
"""Former requests that the exchange remembers here, and not 100,000: that table is written anew now and then, and the ten
megabytes that come and go with it are more than what is looked for."""
FILLING = 50_000
"""Calls that come first."""
FILLING_NAMES = 10_000
"""Likewise names."""
SAMPLE = 0.01

MAX_RESIDENT = 2 * 2**20
"""Bytes that a process may have grown by. Two bytes kept of each of a million calls are as much."""
MAX_BLOCKS = 1_000
"""Blocks of memory that Python may hold more: they come and go by some hundreds. One kept of each thousandth call of a
million is as much."""


@dataclass(frozen=True)
class Reading:
    """A process at one moment, after everything that can go has gone.

    Attributes:
        resident: bytes of memory that it has; None where that is not known.
        blocks: pieces of memory that Python's allocator has given out.
        series: of metrics, all samples.
    """

    resident: int | None
    blocks: int
    series: int


@dataclass(frozen=True)
class Retained:
    """Retained memory between two readings.

    Attributes:
        text: label in tables.
        count: calls between the readings.
        spans: exported spans.
    """

    text: str
    count: int
    before: Reading
    after: Reading
    spans: int

    @property
    def flat(self) -> bool:
        """Nothing stayed."""
        before, after = self.before, self.after
        if (
            before.resident is not None
            and after.resident is not None
            and after.resident - before.resident > MAX_RESIDENT
        ):
            return False
        return after.blocks - before.blocks <= MAX_BLOCKS and after.series == before.series

    def as_dict(self) -> dict[str, object]:
        """For ``--json``."""
        return {**asdict(self), "flat": self.flat}


async def retained(
    calls: int, names: int, filling: int = FILLING, filling_names: int = FILLING_NAMES
) -> dict[str, Retained]:
    """Make the calls, and look what stays of them.

    Args:
        calls: of a tool.
        names: calls of tools that there are not, each with another name.
        filling, filling_names: that come first.

    Raises:
        Absent: the SDK is not installed.
    """
    registry, exporter = CollectorRegistry(), Dropping()
    provider = exporting(exporter)
    telemetry = Telemetry(registry=registry, tracer_provider=provider, sample=SAMPLE)
    try:
        async with _forgetful(Dispatcher(AnsweringTransport(), catalog({}), telemetry=telemetry)) as dispatcher:

            async def call(_number: int) -> None:
                assert (await dispatcher.execute("work")).ok

            async def invent(number: int) -> None:
                assert (await dispatcher.execute(f"invented-{number}")).outcome is Outcome.REJECTED

            look = _Look(registry, provider)
            found = {}
            for name, text, make, first, count in (
                ("calls", "calls of a tool", call, filling, calls),
                ("names", "calls of tools that there are not, each by another name", invent, filling_names, names),
            ):
                await _repeat(make, -first, 0)
                before, exported = look(), exporter.spans
                await _repeat(make, 0, count)
                found[name] = Retained(text, count, before, look(), exporter.spans - exported)
            return found
    finally:
        provider.shutdown()


@asynccontextmanager
async def _forgetful(dispatcher: Dispatcher) -> AsyncIterator[Dispatcher]:
    """It, started, with an exchange that remembers :data:`FORMER` requests."""
    usual = runtime.Correlator
    runtime.Correlator = partial(usual, max_tombstones=FORMER)  # type: ignore[assignment,misc] # made once, when it is started
    try:
        await dispatcher.start()
    finally:
        runtime.Correlator = usual  # type: ignore[misc] # as it was
    try:
        yield dispatcher
    finally:
        await dispatcher.close()


async def _repeat(make: Callable[[int], Awaitable[None]], start: int, end: int) -> None:
    for at in range(start, end):
        await make(at)


class _Look:
    def __init__(self, registry: CollectorRegistry, provider: TracerProvider) -> None:
        self._registry = registry
        self._provider = provider

    def __call__(self) -> Reading:
        self._provider.force_flush()
        series = sum(len(family.samples) for family in self._registry.collect())
        gc.collect()
        return Reading(_resident(), sys.getallocatedblocks(), series)


def _resident() -> int | None:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def table(found: Mapping[str, Retained]) -> str:
    """Table of the retained memory, with the verdict."""
    rows: list[tuple[str, ...]] = [("", "calls", "spans", "resident MiB", "blocks", "series", "")]
    for each in found.values():
        before, after = each.before, each.after
        rows.append(
            (
                each.text,
                f"{each.count:,}",
                f"{each.spans:,}",
                f"{_mib(before.resident)} → {_mib(after.resident)}",
                f"{before.blocks:,} → {after.blocks:,}",
                f"{before.series:,} → {after.series:,}",
                "ok" if each.flat else "MISSED",
            )
        )
    promised = f"≤ {MAX_RESIDENT / 2**20:g} MiB and ≤ {MAX_BLOCKS:,} blocks more, no series more"
    return f"Memory, before and after (promised: {promised})\n{aligned(rows, left=(0, 6))}"


def _mib(bytes: int | None) -> str:
    return "-" if bytes is None else number(bytes / 2**20)
