"""Calls over MCP: ``python -m benchmarks.mcp``. Half a minute, no broker.

The server is a process of its own, over a dispatcher and a tool service on the embedded broker. Beside it, with the same
load: an echo of the SDK's server without dispatch; and ``Dispatcher.call`` without MCP.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned
from benchmarks.mcp.load import measure
from benchmarks.mcp.served import TEXT, start
from benchmarks.workers.proc import read_processor_time

IN_FLIGHT: Final = 64
LEAST_RATE: Final = 1_000.0
"""Target: calls per second at 64 in flight on two processors."""
MOST_TIMES: Final = 3.0
"""Target: p50 of a call over MCP, as a multiple of ``Dispatcher.call`` and an echo together."""


@contextlib.contextmanager
def served(kind: str) -> Iterator[tuple[str, int]]:
    """Start a server; yield its URL and its process id."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.mcp.served", kind], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.communicate()


async def measure_calls(seconds: float) -> list[float]:
    """Return the duration of each ``Dispatcher.call``, in milliseconds, one at a time."""
    service, dispatcher = start()
    durations: list[float] = []
    async with service, dispatcher:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            await dispatcher.call("echo", {"text": TEXT})
            durations.append((time.perf_counter() - began) * 1e3)
    return durations[len(durations) // 5 :]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures."""
    programme = Programme("benchmarks.mcp", __doc__)
    programme.add_number("--rounds", 3, "rounds, of which the median counts")
    programme.add_argument("--seconds", type=float, default=2.0, help="duration of one measurement")
    options = programme.begin(arguments)
    rates: dict[str, list[float]] = {"tools": [], "echo": []}
    costs: dict[str, list[float]] = {"tools": [], "echo": []}
    medians: dict[str, list[float]] = {"tools": [], "echo": [], "call": []}
    for _ in range(options.rounds):
        for kind, found in rates.items():
            with served(kind) as (url, pid):
                medians[kind].append(statistics.median(asyncio.run(measure(url, TEXT, 1, options.seconds))[1]))
                before = read_processor_time([pid]) or 0.0
                rate, durations = asyncio.run(measure(url, TEXT, IN_FLIGHT, options.seconds))
                found.append(rate)
                costs[kind].append(((read_processor_time([pid]) or 0.0) - before) * 1e3 / len(durations))
        medians["call"].append(statistics.median(asyncio.run(measure_calls(options.seconds))))
    rate_of = {kind: statistics.median(each) for kind, each in rates.items()}
    cost = {kind: statistics.median(each) for kind, each in costs.items()}
    p50 = {kind: statistics.median(each) for kind, each in medians.items()}
    times = p50["tools"] / (p50["call"] + p50["echo"])
    rows = [
        ("", "p50, one in flight", f"calls/s, {IN_FLIGHT} in flight", "processor time of a call"),
        ("dispatch over MCP", f"{p50['tools']:.2f} ms", f"{rate_of['tools']:,.0f}", f"{cost['tools']:.2f} ms"),
        ("an echo of the SDK's server", f"{p50['echo']:.2f} ms", f"{rate_of['echo']:,.0f}", f"{cost['echo']:.2f} ms"),
        ("Dispatcher.call", f"{p50['call']:.2f} ms", "", ""),
    ]
    print(aligned(rows))
    print(f"\ncalls/s over MCP: {rate_of['tools']:,.0f} (target: {LEAST_RATE:,.0f} or more)")
    print(f"p50 over MCP / (Dispatcher.call + echo): {times:.2f} (target: {MOST_TIMES:g} or less)", flush=True)
    write_figures(options.json, {"calls_per_s": rate_of, "p50_ms": p50, "processor_ms": cost, "times": times})
    return 0


if __name__ == "__main__":
    sys.exit(main())
