"""Time from an edit of a watched folder to its activation, and the fate of the calls meanwhile, on the embedded broker.

Three folders are edited at the same time, each by random edits one after the other: one in place, one as the volume of a
ConfigMap, one as a symbolic link to a release. An edit is in force when the dispatcher's catalogue has exactly the tools of
that folder. Its time begins when the edit is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import dispatch
from benchmarks.catalog.folder_edits import LAYOUTS, EditedFolder
from benchmarks.harness.report import aligned, number
from benchmarks.harness.statistics import percentile

TARGET_S = 1.0
"""Target, at most: the 99th percentile of the time from edit to activation."""
CALL_S = 0.05
"""Time that a call takes, so that callers leave the processor time for everything else; 0 saturates the broker."""
RELOADS = 20
"""Reloads that are measured after the edits."""
PATIENCE_S = 20.0
"""Seconds after which an edit counts as lost."""
BUCKET_S = 0.1
"""Width of a bar of the histogram."""
BAR = 50
"""Characters of the longest bar."""


@dataclass
class FolderFigures:
    """The figures of one run.

    Attributes:
        seed: of the edits.
        activations: kind of each edit, and seconds until it was in force.
        lost: edits that were not in force in time.
        calls: number of calls that ended, by outcome.
        reloads: seconds of each reload of all folders.
    """

    seed: int
    activations: list[tuple[str, float]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    reloads: list[float] = field(default_factory=list)

    @property
    def failures(self) -> dict[str, int]:
        """Number of calls that ended with any outcome but success, by outcome."""
        return {outcome: count for outcome, count in self.calls.items() if outcome != str(dispatch.Outcome.SUCCESS)}

    @property
    def failed_calls(self) -> int:
        """Calls that ended with any outcome but success."""
        return sum(self.failures.values())


class Echo(dispatch.ToolService):
    """A tool that takes so many seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def invoke(self, config: object, arguments: object, user: str = "") -> str:
        """Return a constant text."""
        if self._seconds:
            await asyncio.sleep(self._seconds)
        return "done"


async def measure_folders(edits: int, callers: int, seed: int, call_s: float = CALL_S) -> FolderFigures:
    """Edit the folders while ``callers`` call one tool of each in turn.

    Args:
        edits: number of edits, over all folders.
        callers: calls in flight at any time.
        seed: of the edits.
        call_s: seconds that a call takes.
    """
    figures = FolderFigures(seed)
    with tempfile.TemporaryDirectory() as directory:
        folders = [
            EditedFolder(Path(directory) / layout / "tools", layout, layout, random.Random(f"{seed} {layout}"))
            for layout in LAYOUTS
        ]
        async with contextlib.AsyncExitStack() as stack:
            broker = f"memory://folder-edits-{os.urandom(6).hex()}"
            for folder in folders:
                await stack.enter_async_context(dispatch.ToolServer(Echo(call_s), broker, service=folder.service))

            def sources() -> list[dispatch.Folder]:
                return [dispatch.Folder(folder.path, watch=True, id=folder.service) for folder in folders]

            dispatcher = await stack.enter_async_context(dispatch.connect(broker, sources()))
            await stack.enter_async_context(
                calling(dispatcher, [folder.steady for folder in folders], callers, figures)
            )
            shares = [len(range(at, edits, len(folders))) for at in range(len(folders))]
            async with asyncio.TaskGroup() as group:
                for folder, share in zip(folders, shares, strict=True):
                    group.create_task(measure_edits(dispatcher, folder, share, figures))
            for _ in range(RELOADS):
                began = time.perf_counter()
                await dispatcher.reload(sources())
                figures.reloads.append(time.perf_counter() - began)
    return figures


@contextlib.asynccontextmanager
async def calling(
    dispatcher: dispatch.Dispatcher, tools: Sequence[str], callers: int, figures: FolderFigures
) -> AsyncIterator[None]:
    """Call the tools in turn, so many at a time, until the block ends; every call that began ends."""
    names = itertools.cycle(tools)
    is_over = False

    async def call() -> None:
        while not is_over:
            outcome = str((await dispatcher.execute(next(names))).outcome)
            figures.calls[outcome] = figures.calls.get(outcome, 0) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(call())
        try:
            yield
        finally:
            is_over = True


async def measure_edits(
    dispatcher: dispatch.Dispatcher, folder: EditedFolder, edits: int, figures: FolderFigures
) -> None:
    """Make so many edits of one folder, each after the former one is in force."""
    changed = asyncio.Event()
    unsubscribe = dispatcher.on_event(lambda event: changed.set())

    def is_in_force() -> bool:
        tools = dispatcher.catalog.list(service=folder.service)
        return {tool.name: tool.description for tool in tools} == folder.expected

    for _ in range(edits):
        await asyncio.to_thread(folder.make_noise)
        kind = await asyncio.to_thread(folder.edit)
        began = time.perf_counter()
        if await wait_until(is_in_force, changed):
            figures.activations.append((kind, time.perf_counter() - began))
        else:
            figures.lost.append(kind)
    unsubscribe()


async def wait_until(condition: Callable[[], bool], changed: asyncio.Event) -> bool:
    """Return whether the condition holds within :data:`PATIENCE_S`; it is checked whenever ``changed`` is set."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                changed.clear()
                await changed.wait()
    except TimeoutError:
        return condition()
    return True


def describe_figures(figures: FolderFigures) -> str:
    """Return the report: percentiles by kind of edit, the histogram, and the calls."""
    by_kind: dict[str, list[float]] = {}
    for kind, seconds in figures.activations:
        by_kind.setdefault(kind, []).append(seconds)
    rows: list[tuple[str, ...]] = [("edit", "edits", "p50 ms", "p99 ms", "max ms", "promised", "")]
    for kind, times in sorted(by_kind.items()):
        rows.append((kind, *_cells(times), "", ""))
    every = [seconds for _, seconds in figures.activations]
    if every:
        is_met = percentile(sorted(every), 0.99) <= TARGET_S and not figures.lost
        rows.append(("all", *_cells(every), f"p99 ≤ {TARGET_S * 1e3:,.0f} ms", "ok" if is_met else "MISSED"))
    if figures.reloads:
        is_met = max(figures.reloads) <= TARGET_S
        verdict = "ok" if is_met else "MISSED"
        rows.append(("reload", *_cells(figures.reloads), f"max ≤ {TARGET_S * 1e3:,.0f} ms", verdict))
    lost = f": {', '.join(figures.lost)}" if figures.lost else ""
    failures = [f"{count:,} {outcome}" for outcome, count in sorted(figures.failures.items())]
    return "\n".join(
        (
            f"Time from an edit of a watched folder to its activation (seed {figures.seed})",
            aligned(rows, left=(0, 6)),
            "",
            *_histogram(every),
            "",
            f"{len(every):,} edits in force, {len(figures.lost):,} lost{lost}",
            f"{sum(figures.calls.values()):,} calls meanwhile, {figures.failed_calls:,} failed"
            f"{': ' if failures else ''}{', '.join(failures)}",
        )
    )


def _cells(times: Sequence[float]) -> tuple[str, str, str, str]:
    ordered = sorted(seconds * 1e3 for seconds in times)
    figures = (percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1])
    return f"{len(ordered):,}", number(figures[0]), number(figures[1]), number(figures[2])


def _histogram(times: Sequence[float]) -> list[str]:
    counts = Counter(math.floor(seconds / BUCKET_S) for seconds in times)
    if not counts:
        return []
    longest = max(counts.values())
    rows = []
    for bucket in range(max(counts) + 1):
        bar = "█" * math.ceil(counts[bucket] / longest * BAR)
        label = f"{bucket * BUCKET_S * 1e3:.0f} … {(bucket + 1) * BUCKET_S * 1e3:.0f} ms"
        rows.append((label, f"{counts[bucket]:,}", bar))
    return aligned(rows, left=(2,)).splitlines()
