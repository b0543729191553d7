"""The loads; the same loops for every client.

``closed``: concurrent callers with one call at a time each. ``open``: calls that arrive at random, whether earlier ones are
answered or not. ``burst``: calls that begin at once; the next burst follows the last answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.workers.meter import Meter, Watched

Mode = Literal["closed", "open", "burst"]

REACH_S = 30.0
"""Seconds until the first reply, at most: on a non-persistent topic the first requests may precede the subscription."""
BATCH_S = 0.001
"""Seconds between two looks at the arrivals of an open load: those due by then begin together."""


@dataclass(frozen=True)
class Load:
    """A connected client.

    Attributes:
        call: makes one call and returns the answer.
        answer: what it must return.
        lost: what it raises for a call that gets none.
        large_call: makes a call with a large answer; None: the client has none.
        large_answer: what that one must return.
    """

    call: Callable[[], Awaitable[Any]]
    answer: str | bytes
    lost: type[Exception] | tuple[type[Exception], ...]
    large_call: Callable[[], Awaitable[Any]] | None = None
    large_answer: str | bytes = ""


async def reach(load: Load) -> None:
    """Call until the first reply arrives.

    Raises:
        TimeoutError: none came.
    """
    async with asyncio.timeout(REACH_S):
        while True:
            try:
                check_answer(await load.call(), load.answer)
            except load.lost:
                continue
            return


async def measure(
    load: Load,
    *,
    level: int,
    seconds: float,
    ramp: float,
    mode: Mode = "closed",
    beside: int = 0,
    watched: Watched | None = None,
) -> dict[str, Any]:
    """Put the load on the client for ``ramp`` and then ``seconds``, and count over the latter.

    Args:
        load: the client.
        level: calls in flight; with mode ``open``, calls per second; with mode ``burst``, calls that begin at once.
        seconds, ramp: see :class:`~benchmarks.workers.meter.Meter`.
        mode: the kind of load.
        beside: callers of the large answer beside it, each with one call at a time; their calls are not counted.
        watched: processes whose processor time is read too.

    Returns the figures of :meth:`Meter.close <benchmarks.workers.meter.Meter.close>`.

    Raises:
        ExceptionGroup: a call was answered wrongly, or failed in a way that is not a loss.
    """
    meter = Meter(seconds=seconds, ramp=ramp, watched=watched)
    run = {"closed": _run_closed, "open": _run_open, "burst": _run_burst}[mode]
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(beside):
                tasks.create_task(_call_large(meter, load))
            await run(meter, load, level)
    finally:
        figures = meter.close()
    return figures


async def _run_closed(meter: Meter, load: Load, level: int) -> None:
    async def caller() -> None:
        while (since := meter.clock()) < meter.end:
            await _call_once(meter, load, since)

    async with asyncio.TaskGroup() as callers:
        for _ in range(level):
            callers.create_task(caller())


async def _run_open(meter: Meter, load: Load, level: int) -> None:
    # Seeded: the contenders of a round get the same arrivals.
    arrivals = random.Random(level)
    due = meter.clock() + arrivals.expovariate(level)
    async with asyncio.TaskGroup() as calls:
        while due < meter.end:
            # After a stall the clock may be far past the end of the measurement.
            until = min(meter.clock(), meter.end)
            while due <= until:
                # The latency counts from the moment a call is due: a client that stalls does not hide its delay.
                calls.create_task(_call_once(meter, load, due))
                due += arrivals.expovariate(level)
            await asyncio.sleep(BATCH_S)


async def _run_burst(meter: Meter, load: Load, level: int) -> None:
    while (since := meter.clock()) < meter.end:
        async with asyncio.TaskGroup() as calls:
            for _ in range(level):
                calls.create_task(_call_once(meter, load, since))


async def _call_once(meter: Meter, load: Load, since: float) -> None:
    try:
        answer = await load.call()
    except load.lost as error:
        meter.record_loss(error)
        return
    check_answer(answer, load.answer)
    meter.record_answer(since)


async def _call_large(meter: Meter, load: Load) -> None:
    assert load.large_call is not None
    while meter.clock() < meter.end:
        try:
            answer = await load.large_call()
        except load.lost:
            continue
        check_answer(answer, load.large_answer)


def check_answer(answer: object, expected: object) -> None:
    """Raise ``ValueError`` if an answer is wrong: the figures of a client that does not do its work count for nothing."""
    if answer != expected:
        raise ValueError(f"a wrong answer: {answer!r:.200}")
