"""``dispatch size`` and ``dispatch bench``: what a load needs, from the measured cost of a call; and the benchmarks."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from bisect import bisect_left
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import dispatch
from dispatch.cli.base import CliError, Settings, print_result, with_settings
from dispatch.policy import Bulkhead, PolicyError, parse_rate_limit

COSTS: Final = {
    120: (23.0, 11.3, 3.31),
    10_000: (31.6, 20.9, 8.19),
    100_000: (138.0, 112.0, 71.9),
    1_000_000: (788.0, 726.0, 535.0),
}
"""Microseconds of a processor for a call in the dispatcher, the service and the broker, by the bytes of its reply, with 64
calls in flight: docs/explanation/benchmarks.md, which a test compares."""
RESERVE: Final = 2.0
"""The measured cost is multiplied by it: fewer calls share a packet at a lower load, and peaks exceed the average."""
BUSY: Final = 0.7
"""Largest share of its processor, or of its concurrency, that a process uses: outlier detection may eject instances, and the
rest must carry their load."""
CALL_BYTES: Final = 8 * 1024
"""Memory of a call in flight in the dispatcher and in the service, without its payloads."""
_DEFAULT_CALLS: Final = Bulkhead().max_concurrent_calls
"""A smaller bulkhead would delay calls that arrive together."""

_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([kKMG]i?)?B?")
_UNITS: Final[dict[str | Any, float]] = {
    None: 1,
    **dict.fromkeys("kK", 1_000),
    "M": 1_000_000,
    "G": 1_000_000_000,
    **dict.fromkeys(("ki", "Ki"), 1 << 10),
    "Mi": 1 << 20,
    "Gi": 1 << 30,
}


def parse_size(text: str) -> int:
    """Parse ``120``, ``10k``, ``1.5M`` or ``1MiB`` bytes.

    Raises:
        CliError: it is no size.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise CliError(f"--payload '{text}' is not a size.", "write for instance 500, 10k, 1M or 1MiB")
    return round(float(found[1]) * _UNITS[found[2]])


def cost_of(payload: int) -> tuple[float, ...]:
    """Return the microseconds of a call in dispatcher, service and broker: interpolated between the measured sizes, and
    beyond them in proportion to the largest one."""
    sizes = list(COSTS)
    if payload >= sizes[-1]:
        return tuple(each * payload / sizes[-1] for each in COSTS[sizes[-1]])
    at = max(1, bisect_left(sizes, payload))
    low, high = sizes[at - 1], sizes[at]
    share = max(0.0, (payload - low) / (high - low))
    return tuple(a + (b - a) * share for a, b in zip(COSTS[low], COSTS[high], strict=True))


def size_deployment(calls: float, payload: int, seconds: float, concurrency: int) -> dict[str, Any]:
    """Return how many processes a load needs.

    Args:
        calls: per second, at the peak.
        payload: bytes of a reply.
        seconds: that the tool takes.
        concurrency: requests that an instance executes at once.
    """
    cost = [calls * each * RESERVE / 1e6 for each in cost_of(payload)]
    in_flight = calls * seconds
    by_concurrency = in_flight / (concurrency * BUSY)
    dispatchers = max(1, math.ceil(cost[0] / BUSY))
    instances = max(1, math.ceil(by_concurrency), math.ceil(cost[1] / BUSY))
    memory = max(in_flight, 1) * (CALL_BYTES + 2 * payload) / 1e6
    return {
        "in_flight": round(in_flight, 1),
        "dispatchers": dispatchers,
        "dispatcher_processors": round(cost[0], 2),
        "instances": instances + 1,
        "service_processors": round(cost[1], 2),
        "broker_processors": round(cost[2], 2),
        "broker_megabits": round(calls * payload * 8 / 1e6, 1),
        "payload_megabytes": round(memory, 1),
        "max_concurrent_calls": max(_DEFAULT_CALLS, math.ceil(2 * in_flight / dispatchers)),
    }


@with_settings()
def size(
    settings: Settings,
    calls: Annotated[str, typer.Option()],
    payload: str = "1k",
    seconds: Annotated[float, typer.Option(min=0, max=86_400)] = 0.1,
    concurrency: Annotated[int, typer.Option(min=1, max=100_000)] = 64,
    json: bool = False,
) -> None:
    """Calculate how many processes a load needs, from the measured cost of a call.

    [bold]dispatch size --calls 500/s --payload 10k --seconds 0.5[/bold]

    The tool's own work is not included: add its processor time and memory.

    Args:
        calls (RATE): Calls at the peak, such as 500/s or 9000/m.
        payload (SIZE): Size of a reply: 500, 10k, 1M or 1MiB bytes.
        seconds (SECONDS): Time that the tool takes for a call.
        concurrency (N): Requests that an instance executes at once.
        json: Print one JSON object.
    """
    try:
        rate = parse_rate_limit(calls, "--calls").per_second
    except PolicyError as error:
        raise CliError(f"--calls: {error.problem}.", "write for instance 500/s; at most 1000000/s") from None
    found = size_deployment(rate, parse_size(payload), seconds, concurrency)
    text = (
        f"Calls in flight   {found['in_flight']:g}\n"
        f"Dispatchers       {found['dispatchers']}, {found['dispatcher_processors']:g} processors together\n"
        f"Instances         {found['instances']}, one of them for the failure of another; "
        f"{found['service_processors']:g} processors, without the tool's own work\n"
        f"Broker            {found['broker_processors']:g} processors, {found['broker_megabits']:g} Mbit/s of replies\n"
        f"Payloads          {found['payload_megabytes']:g} MB of memory on each side\n"
        f"Policy            bulkhead.max-concurrent-calls {found['max_concurrent_calls']} in each dispatcher"
    )
    print_result(found, text, json=json)


# ``dispatch bench``: run the benchmarks of a clone.


def bench(context: typer.Context) -> None:
    """Run the benchmarks with a Pulsar broker, under half an hour. Options are passed to them.

    The benchmarks are part of the repository, not of the installed package: run this inside a clone.

    [bold]dispatch bench[/bold] runs all of them.

    [bold]dispatch bench -- --help[/bold] shows the options of the benchmarks.
    """
    home = find_checkout()
    if home is None:
        raise CliError(
            "The benchmarks were not found: they are in the repository, not in the installed package.",
            "run 'dispatch bench' or 'make bench' inside a clone of tool-dispatch",
        )
    path = os.pathsep.join(filter(None, [str(home), os.environ.get("PYTHONPATH")]))
    # In place of this process: signals reach the benchmarks, and their exit code is that of the command.
    command = [sys.executable, "-m", "benchmarks", *context.args]
    os.execve(command[0], command, {**os.environ, "PYTHONPATH": path})


def find_checkout() -> Path | None:
    """Find the folder that contains ``benchmarks/``: the current one, a parent, or that of an editable installation."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(dispatch.__file__).resolve().parent.parent):
        if (folder / "benchmarks" / "__main__.py").is_file() and (folder / "dispatch").is_dir():
            return folder
    found = importlib.util.find_spec("benchmarks")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent.parent
    return None
