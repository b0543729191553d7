"""The load: concurrent callers with one call at a time each; the same loop for every client."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.statistics import percentile

REACH_S = 30.0
"""Seconds until the first reply, at most: on a non-persistent topic the first requests may precede the subscription."""


@dataclass(frozen=True)
class Load:
    """A connected client.

    Attributes:
        call: makes one call and returns the answer.
        answer: what it must return.
        lost: what it raises for a call that gets none.
    """

    call: Callable[[], Awaitable[Any]]
    answer: str | bytes
    lost: type[Exception]


async def reach(load: Load) -> None:
    """Call until the first reply arrives.

    Raises:
        TimeoutError: none came.
    """
    async with asyncio.timeout(REACH_S):
        while True:
            try:
                _check(await load.call(), load)
            except load.lost:
                continue
            return


async def measure(load: Load, *, in_flight: int, seconds: float, ramp: float) -> dict[str, Any]:
    """Keep ``in_flight`` calls going for ``ramp`` and then ``seconds``, and count over the latter.

    Returns the fields of a :class:`benchmarks.harness.results.Measurement` that can be known here.

    Raises:
        ExceptionGroup: a call was answered wrongly, or failed in a way that is not a loss.
    """
    loop = asyncio.get_running_loop()
    clock = loop.time
    call, lost = load.call, load.lost
    latencies: list[float] = []
    errors: Counter[str] = Counter()
    answered = 0
    marks: list[tuple[float, float, int]] = []

    def mark() -> None:
        marks.append((clock(), time.process_time(), answered))

    begin = clock() + ramp
    end = begin + seconds

    async def caller() -> None:
        nonlocal answered
        while (asked := clock()) < end:
            try:
                answer = await call()
            except lost as error:
                errors[type(error).__name__] += 1
                continue
            took = clock() - asked
            _check(answer, load)
            answered += 1
            if asked >= begin:
                latencies.append(took)

    timers = [loop.call_later(ramp, mark), loop.call_later(ramp + seconds, mark)]
    try:
        async with asyncio.TaskGroup() as callers:
            for _ in range(in_flight):
                callers.create_task(caller())
    finally:
        for timer in timers:
            timer.cancel()
    if len(marks) < 2:  # the last call ended just before the timer was due
        mark()
    (from_time, from_cpu, from_count), (to_time, to_cpu, to_count) = marks
    count = to_count - from_count
    latencies.sort()
    return {
        "p50_ms": percentile(latencies, 0.50) * 1e3 if latencies else None,
        "p99_ms": percentile(latencies, 0.99) * 1e3 if latencies else None,
        "p999_ms": percentile(latencies, 0.999) * 1e3 if latencies else None,
        "calls_per_second": count / (to_time - from_time),
        "cpu_us_per_call": (to_cpu - from_cpu) / count * 1e6 if count else None,
        "seconds": to_time - from_time,
        "calls": answered + errors.total(),
        "answered": answered,
        "lost": errors.total(),
        "errors": dict(errors),
    }


def _check(answer: object, load: Load) -> None:
    if answer != load.answer:
        raise ValueError(f"a wrong answer: {answer!r:.200}")
