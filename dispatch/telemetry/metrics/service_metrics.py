"""The metrics of tool services: what their own process can tell. Counts that a server keeps anyway are read when somebody
scrapes; only how long the tool takes is written down as it happens.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatch.telemetry.metrics.call_metrics import LeanHistogram, Timing
from dispatch.telemetry.metrics.exposition import registry_of
from dispatch.telemetry.metrics.instruments import MAX_SERVICES
from dispatch.telemetry.names import DURATION_BUCKETS, OTHER
from dispatch.telemetry.settings import Telemetry

RESULTS = ("ok", "error", "stopped")
"""How a run can end: with an answer, with the tool's error, by being cancelled or running out of its caller's time."""

_COUNTS = {
    "requests": "Requests that arrived, whatever became of them.",
    "malformed": "Messages that are no request: without a usable id, replies, or without their sender's session.",
    "cancelled": "Requests that were stopped, because their callers wait no more.",
    "repeats": "Requests that came again, because their answer was asked for.",
    "lost_answers": "Answers that could not be sent.",
}

_GAUGES = {
    "running": "Requests being run.",
    "queued": "Requests that wait for a place.",
    "abandoned_threads": "Threads of synchronous tools that run on although their requests have ended; each keeps a place.",
}


class ServiceMetrics(Protocol):
    """A tool server, as a scrape sees it. Asked on any thread."""

    service: str
    refused: dict[str, int]

    @property
    def running(self) -> int:
        """Requests being run."""

    @property
    def queued(self) -> int:
        """Requests that wait for a place."""

    @property
    def abandoned_threads(self) -> int:
        """Threads whose request has ended, and that still run its tool."""

    def counts(self) -> Mapping[str, int]:
        """Since its start, by the names of ``_COUNTS``."""


class Services(Collector):
    """The tool servers that report to one registry. Counts of several servers of one service add up."""

    _made: ClassVar[WeakKeyDictionary[CollectorRegistry, Services]] = WeakKeyDictionary()
    _making = threading.Lock()

    def __init__(self, registry: CollectorRegistry) -> None:
        self._serving: WeakSet[ServiceMetrics] = WeakSet()
        self._former: Tally[tuple[str, ...]] = Tally()
        self._durations = LeanHistogram(
            "dispatch_service_duration_seconds",
            "How long the tool ran, in its own process: ok for an answer, error for the tool's own error, stopped when its "
            "caller had left or its time was over.",
            ("service", "result"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._known: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, telemetry: Telemetry) -> Services:
        """Those of a registry."""
        registry = registry_of(telemetry)
        with cls._making:
            made = cls._made.get(registry)
            if made is None:
                made = cls._made[registry] = cls(registry)
                registry.register(made)
            return made

    def add(self, server: ServiceMetrics) -> dict[str, Timing]:
        """Look at this server, too; how long its tool runs is written to what this returns, by :data:`RESULTS`."""
        with self._lock:
            if len(self._known) < MAX_SERVICES:
                self._known.add(server.service)
            self._serving.add(server)
            label = self._label(server)
        return {result: self._durations.labels(label, result) for result in RESULTS}

    def _label(self, server: ServiceMetrics) -> str:
        """Its id; those that came when there were too many share one."""
        return server.service if server.service in self._known else OTHER

    def remove(self, server: ServiceMetrics) -> None:
        """It has ended: its counts stay, so that none of them ever goes back."""
        with self._lock:
            if server in self._serving:
                self._serving.discard(server)
                self._former.update(self._counted([server]))

    def describe(self) -> Iterable[Metric]:
        """The families without their values."""
        return _families(Tally(), Tally())

    def collect(self) -> Iterator[Metric]:
        """The families, as they are now."""
        with self._lock:
            serving = list(self._serving)
            counted = self._counted(serving)
            counted.update(self._former)
            now: Tally[tuple[str, str]] = Tally()
            for each in serving:
                now["running", self._label(each)] += each.running
                now["queued", self._label(each)] += each.queued
                now["abandoned_threads", self._label(each)] += each.abandoned_threads
        return _families(counted, now)

    def _counted(self, serving: Iterable[ServiceMetrics]) -> Tally[tuple[str, ...]]:
        """By what, service and, for refusals, why."""
        found: Tally[tuple[str, ...]] = Tally()
        for each in serving:
            label = self._label(each)
            for name, value in each.counts().items():
                found[name, label] += value
            for reason, value in list(each.refused.items()):
                found["refused", label, reason] += value
        return found


def _families(counted: Mapping[tuple[str, ...], int], now: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
    for name, text in _COUNTS.items():
        family = CounterMetricFamily(f"dispatch_service_{name}", text, labels=("service",))
        for (kind, service, *_), value in counted.items():
            if kind == name:
                family.add_metric((service,), value)
        yield family
    refused = CounterMetricFamily(
        "dispatch_service_refused", "Requests that were refused, by why.", labels=("service", "reason")
    )
    for (kind, service, *reason), value in counted.items():
        if kind == "refused":
            refused.add_metric((service, *reason), value)
    yield refused
    for name, text in _GAUGES.items():
        gauge = GaugeMetricFamily(f"dispatch_service_{name}", text, labels=("service",))
        for (kind, service), value in now.items():
            if kind == name:
                gauge.add_metric((service,), value)
        yield gauge
