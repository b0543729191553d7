"""Figures of one measurement: latencies, losses and processor time between two marks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.statistics import percentile
from benchmarks.workers.proc import read_machine_time, read_processor_time

Watched = Mapping[str, Sequence[int]]
"""Process ids by role: ``service`` and ``broker``."""


@dataclass(frozen=True)
class Mark:
    """Counters at the beginning or the end of a measurement; ``cpu`` has processor seconds by role, as far as known: the
    watched processes, ``client`` (this process) and ``machine`` (all programs)."""

    time: float
    answered: int
    cpu: dict[str, float | None]


class Meter:
    """Counts the calls of a load that begins now and is measured from ``ramp`` to ``ramp + seconds``.

    Args:
        seconds: length of the measurement.
        ramp: length of the same load before it, in seconds.
        watched: processes whose processor time is read too.
    """

    def __init__(self, *, seconds: float, ramp: float, watched: Watched | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.clock = loop.time
        self.begin = self.clock() + ramp
        self.end = self.begin + seconds
        self._watched = watched or {}
        self._latencies: list[float] = []
        self._errors: Counter[str] = Counter()
        self._answered = 0
        self._counted = 0
        self._marks: list[Mark] = []
        self._timers = [loop.call_at(instant, self._mark) for instant in (self.begin, self.end)]

    def _mark(self) -> None:
        cpu: dict[str, float | None] = {role: read_processor_time(pids) for role, pids in self._watched.items()}
        cpu |= {"client": time.process_time(), "machine": read_machine_time()}
        self._marks.append(Mark(self.clock(), self._answered, cpu))

    def record_answer(self, since: float) -> None:
        """Count an answered call that began, or was due, at ``since``."""
        now = self.clock()
        self._answered += 1
        if self.begin <= now < self.end:
            self._counted += 1
        if since >= self.begin:
            self._latencies.append(now - since)

    def record_loss(self, error: Exception) -> None:
        """Count a call without an answer."""
        self._errors[type(error).__name__] += 1

    def close(self) -> dict[str, Any]:
        """End the measurement and return its figures."""
        for timer in self._timers:
            timer.cancel()
        while len(self._marks) < 2:  # the last call ended just before the timer was due
            self._mark()
        first, last = self._marks
        ordered = sorted(self._latencies)
        cpu = {
            role: None if used is None or (before := first.cpu[role]) is None else used - before
            for role, used in last.cpu.items()
        }
        return {
            "p50_ms": percentile(ordered, 0.50) * 1e3 if ordered else None,
            "p99_ms": percentile(ordered, 0.99) * 1e3 if ordered else None,
            "p999_ms": percentile(ordered, 0.999) * 1e3 if ordered else None,
            "seconds": self.end - self.begin,
            "counted": self._counted,
            # Between two marks, which are late if the event loop stalls.
            "cpu_s": cpu,
            "cpu_seconds": last.time - first.time,
            "cpu_counted": last.answered - first.answered,
            "calls": self._answered + self._errors.total(),
            "answered": self._answered,
            "lost": self._errors.total(),
            "errors": dict(self._errors),
        }
