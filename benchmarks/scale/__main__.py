"""``python -m benchmarks.scale``: cost of a call and memory against tools, instances, users, dispatchers, calls in flight.

Each size has a process of its own, with callers and services on the embedded broker, so that the processor time of a call
is that of both sides. The sizes of a dimension take turns, and medians are compared within the run. Writes the figures of
``docs/explanation/scale.md`` and its picture.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import dispatch
from benchmarks.harness.environment import load as load_average
from benchmarks.harness.processes import ROOT
from benchmarks.harness.programs import picture, write_page
from benchmarks.harness.report import markdown_table
from benchmarks.workers.proc import read_memory

SIZES = {
    "tools": (1, 10, 100, 1_000, 10_000),
    "instances": (1, 4, 16, 64),
    "users": (1, 100, 10_000, 100_000),
    "dispatchers": (1, 10, 100, 500),
    "in flight": (1, 16, 64, 256, 1_024, 4_096),
}
"""By dimension; of the others there is one each."""
ALONE = ("instances", "dispatchers")
"""Measured with one call in flight: several that one dispatcher makes at one instance share packets, so that the same number
of calls costs more where it is divided among many."""
ROUNDS, CALLS, IN_FLIGHT = 3, 20_000, 64
BROKER = "memory://scale"
TOPICS = {"request_queue": "non-persistent://tg/request/scale", "response_queue": "non-persistent://tg/response/scale"}
POLICY = {"bulkhead": {"max-concurrent-calls": 8_192}, "user-rate-limit": "1000000/s"}
PAGE, PICTURE = Path("docs/explanation/scale.md"), Path("docs/images/scale.png")


class Echo(dispatch.ToolService):
    """Answers at once."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        """The name of the tool."""
        return str(config["tool"])


def catalog(tools: int) -> dispatch.Catalog:
    """Return a catalogue of one service with so many tools."""
    service = {"id": "scale", **{name.replace("_", "-"): topic for name, topic in TOPICS.items()}}
    tool = {"type": "tool-service", "description": "An echo.", "service": "scale"}
    described = [{**tool, "name": f"tool-{number}", "tool": f"{number}"} for number in range(tools)]
    return dispatch.Catalog.of(
        services=[{**service, "config-params": [{"name": "tool", "required": True}], "policy": POLICY}], tools=described
    )


async def measure(dimension: str, size: int) -> dict[str, float]:
    """Return the processor time of a call in µs, and the memory of the process in MiB."""
    of = dict.fromkeys(SIZES, 1) | {"in flight": 1 if dimension in ALONE else IN_FLIGHT, dimension: size}
    async with AsyncExitStack() as stack:
        for number in range(of["instances"]):
            server = dispatch.ToolServer(Echo(), BROKER, instance=f"instance-{number}", concurrency=8_192, **TOPICS)
            await stack.enter_async_context(server)
        tools = catalog(of["tools"])
        dispatchers = [
            await stack.enter_async_context(dispatch.connect(BROKER, tools)) for _ in range(of["dispatchers"])
        ]
        numbers = itertools.count()

        async def make(end: int) -> None:
            while (number := next(numbers)) < end:
                dispatcher = dispatchers[number % len(dispatchers)]
                await dispatcher.call(f"tool-{number % of['tools']}", {}, user=f"user-{number % of['users']}")

        async def make_all(calls: int) -> None:
            nonlocal numbers
            numbers = itertools.count()
            await asyncio.gather(*(make(calls) for _ in range(of["in flight"])))

        await make_all(max(CALLS // 4, 2 * size))
        gc.collect()
        began = time.process_time()
        await make_all(CALLS)
        used = time.process_time() - began
        return {"us": used / CALLS * 1e6, "mib": read_memory(os.getpid())}


def run(dimension: str, rounds: int) -> dict[int, dict[str, float]]:
    """Measure the sizes of a dimension in turns. Return the medians by size."""
    found: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES[dimension]}
    for turn in range(rounds):
        sizes = SIZES[dimension] if turn % 2 == 0 else SIZES[dimension][::-1]
        for size in sizes:
            command = [sys.executable, "-m", "benchmarks.scale", "--one", dimension, str(size)]
            ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            found[size].append(json.loads(ended.stdout))
            print(f"{dimension} {size:,}: {found[size][-1]['us']:.1f} µs", flush=True)
    return {
        size: {name: statistics.median(each[name] for each in values) for name in ("us", "mib")}
        for size, values in found.items()
    }


def render(found: dict[str, dict[int, dict[str, float]]], load: float | None) -> str:
    """Return the Markdown of a run."""
    rows = []
    for dimension, sizes in found.items():
        first, last = next(iter(sizes.values())), list(sizes.values())[-1]
        steps = " → ".join(f"{each['us']:.1f}" for each in sizes.values())
        space = " → ".join(f"{each['mib']:.0f}" for each in sizes.values())
        rows.append(
            [dimension, " → ".join(f"{size:,}" for size in sizes), steps, f"{last['us'] / first['us']:.2f}", space]
        )
    header = ["dimension", "sizes", "µs of a call, both sides", "last to first", "MiB of the process"]
    return f"{time.strftime('%Y-%m-%d')}, load before the run {load}.\n\n{markdown_table(header, rows)}"


def draw(found: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    """Draw the cost of a call and the memory over each dimension."""
    with picture(path, 2, len(found), size=(3 * len(found), 5), dpi=120, sharey="row") as (_, axes):
        for place, (dimension, sizes) in enumerate(found.items()):
            for row, name in enumerate(("us", "mib")):
                axes[row][place].plot(list(sizes), [each[name] for each in sizes.values()], "o-", color="#0072B2")
                axes[row][place].set_xscale("log")
                axes[row][place].grid(alpha=0.3)
            axes[1][place].set_xlabel(dimension)
        for row, name in enumerate(("us", "mib")):
            greatest = max(each[name] for sizes in found.values() for each in sizes.values())
            axes[row][0].set_ylim(0, 1.1 * greatest)  # of the row
        axes[0][0].set_ylabel("µs of a call, both sides")
        axes[1][0].set_ylabel("MiB of the process")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write page and picture if all dimensions were measured. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SIZES), help="a dimension; again for others")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each size (default {ROUNDS})")
    parser.add_argument(
        "--one", nargs=2, metavar=("DIMENSION", "SIZE"), help="measure one size in this process, as JSON"
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout whose docs are written")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(asyncio.run(measure(options.one[0], int(options.one[1])))))
        return 0
    load = load_average()
    found = {dimension: run(dimension, options.rounds) for dimension in options.only or SIZES}
    table = render(found, load)
    print(table)
    if not options.only:
        write_page(options.root / PAGE, table)
        draw(found, options.root / PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
