"""CPU time of the path of a call, and of each of its parts: ``python -m benchmarks.micro.call_path``.

No broker, no session, no transport: instant instances (:mod:`benchmarks.micro.instant_instances`) answers in the next turn
of the loop. Callers run side by side, each making one call after the other. Method of measurement:
:mod:`benchmarks.micro.rounds`.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.harness.programs import Programme, write_figures
from benchmarks.micro.guard_stacks import OFF, Call, Stack, catalog
from benchmarks.micro.instant_instances import InstantPools, Turn
from benchmarks.micro.instant_transport import AnsweringTransport
from benchmarks.micro.rounds import (
    Costs,
    Difference,
    add_options,
    cost,
    cost_table,
    difference_table,
    measure,
)
from dispatch import Dispatcher
from dispatch.messaging.wire import encode_request, json_text
from dispatch.telemetry.observers import SILENT, Telemetry

IN_FLIGHT = 64
"""Callers side by side: the default limit of the bulkhead."""
BLOCK = 2_048
"""Calls per block: some ten milliseconds, and as many for each caller."""
PROFILED = 100_000
ARGUMENTS: dict[str, Any] = {"topic": "cats", "count": 3}
DEFAULT: dict[str, Any] = {}
QUEUED: dict[str, Any] = {"bulkhead": IN_FLIGHT // 2}


@asynccontextmanager
async def _bare() -> AsyncIterator[Call]:
    turn = Turn()

    async def call() -> object:
        return (await turn.send()).text

    yield call


@asynccontextmanager
async def _encoded() -> AsyncIterator[Call]:
    turn = Turn()

    async def call() -> object:
        encode_request("{}", json_text(ARGUMENTS, "arguments"), "alice")
        return (await turn.send()).text

    yield call


def _path(
    policy: dict[str, Any], telemetry: Callable[[], Telemetry], instances: int = 1, admin: str | None = None
) -> Callable[[], AbstractAsyncContextManager[Call]]:
    """Return a contender: a whole call over instant instances.

    Args:
        policy: of the tool.
        telemetry: of the dispatcher.
        instances: of the service.
        admin: address of an admin endpoint, for which calls are recorded; None: there is none.
    """

    @asynccontextmanager
    async def make() -> AsyncIterator[Call]:
        async with Dispatcher(AnsweringTransport(), catalog(policy), telemetry=telemetry(), admin=admin) as dispatcher:
            dispatcher._running.attempts._pools = InstantPools(instances)
            yield lambda: dispatcher.call("work", ARGUMENTS, user="alice")

    return make


def _default_telemetry() -> Telemetry:
    return Telemetry(registry=CollectorRegistry())


def _metrics() -> Telemetry:
    return Telemetry(registry=CollectorRegistry(), traces="off")


STACKS = (
    Stack("bare", "a coroutine that awaits a future", _bare),
    Stack("encoded", "the same, with the encoding of a request", _encoded),
    Stack("call", "a whole call: default guards, metrics, balancer", _path(DEFAULT, _metrics)),
    Stack("call-8", "the same, of 8 instances with a breaker each", _path(DEFAULT, _metrics, 8)),
    Stack("recorded", "'call' with an admin endpoint", _path(DEFAULT, _metrics, admin="127.0.0.1:0")),
    Stack("queued", "'call' with 32 places in the bulkhead: half of the callers wait", _path(QUEUED, _metrics)),
    Stack("traced", "'call' with the default telemetry, no OpenTelemetry SDK", _path(DEFAULT, _default_telemetry)),
    Stack("silent", "'call' without metrics", _path(DEFAULT, lambda: SILENT)),
    Stack("unguarded", "'call' without breaker, bulkhead and retries", _path(OFF, _metrics)),
    Stack("path", "'call' without guards and metrics", _path(OFF, lambda: SILENT)),
)
DIFFERENCES = (
    Difference("the whole path", "call", "bare", 14.0),
    Difference("the whole path, 8 instances", "call-8", "bare"),
    Difference("the record of a call", "recorded", "call", 1.0),
    Difference("wait in the queue of the bulkhead", "queued", "call"),
    Difference("encoding of the request", "encoded", "bare"),
    Difference("traces without an SDK", "traced", "call"),
    Difference("metrics", "call", "silent"),
    Difference("breaker, bulkhead, retries", "call", "unguarded"),
    Difference("the path without guards and metrics", "path", "encoded"),
)


async def profile(stack: Stack) -> None:
    """Print the profile of :data:`PROFILED` calls."""
    async with stack.make() as call:
        await cost(call, BLOCK, IN_FLIGHT)
        profiler = cProfile.Profile()
        profiler.enable()
        await cost(call, PROFILED, IN_FLIGHT)
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(40)


def parser() -> Programme:
    """The options."""
    made = Programme(
        "benchmarks.micro.call_path",
        f"CPU time of the path of a call with {IN_FLIGHT} callers, over instant instances, with and without "
        "each of its parts. No broker; under a minute on an idle machine.",
        epilog="contenders: " + ", ".join(stack.name for stack in STACKS),
    )
    add_options(made, blocks=20, block=BLOCK)
    made.add_argument(
        "--profile",
        choices=[stack.name for stack in STACKS],
        metavar="NAME",
        help=f"print the profile of {PROFILED} calls of a contender instead",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark. Return the exit code: 0 for every cost; 2 if the results cannot be written."""
    options = parser().begin(arguments)
    if options.profile is not None:
        asyncio.run(profile(next(stack for stack in STACKS if stack.name == options.profile)))
        return 0
    found = Costs()
    asyncio.run(measure(STACKS, options.rounds, options.blocks, found, BLOCK, IN_FLIGHT))
    print(cost_table(found, STACKS), difference_table(found, DIFFERENCES), sep="\n\n", flush=True)
    differences = {each.text: list(found.differences(each.over, each.under).values()) for each in DIFFERENCES}
    write_figures(options.json, {"costs_us": found.costs_us(), "differences_us": differences})
    return 0


if __name__ == "__main__":
    sys.exit(main())
