"""Metrics of tool services, measured in their own process. Counts that a server keeps anyway are read at the scrape; only
how long the tool runs is recorded as it happens.
"""

from __future__ import annotations

import threading
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final, get_args
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatch.telemetry.metrics.instruments import MAX_SERVICES
from dispatch.telemetry.metrics.lock_free import HistogramSeries, LockFreeHistogram
from dispatch.telemetry.names import DURATION_BUCKETS, OTHER
from dispatch.telemetry.served_request_observer import ObservedServer, RunResult, ServedRequestObserver

RESULTS: Final[tuple[RunResult, ...]] = get_args(RunResult)
"""Values of the label ``result``."""

_COUNTS = {
    "requests": "Requests that arrived, whatever their outcome; copies are not counted.",
    "malformed": "Messages that are not requests: without a usable id, replies, or packets that belong to no session.",
    "cancelled": "Requests that were cancelled by their callers.",
    "repeats": "Copies of requests without a session, which are not executed again.",
    "lost_replies": "Replies that could not be sent.",
}

_GAUGES = {
    "running": "Requests being run.",
    "queued": "Requests in the queue.",
    "abandoned_threads": "Threads of synchronous tools that still run although their requests have ended; each counts "
    "towards the concurrency.",
}


class ServedRequestMetrics(ServedRequestObserver):
    """Records how long a service's tool runs. One object observes all requests, because it has no state of a request.

    Args:
        durations: series of the service, by result.
    """

    __slots__ = ("_durations",)

    def __init__(self, durations: Mapping[RunResult, HistogramSeries]) -> None:
        self._durations = durations

    def on_tool_end(self, result: RunResult, seconds: float) -> None:
        self._durations[result].observe(seconds)


class ServerCollector(Collector):
    """Reads the tool servers that report to one registry. Counts of several servers of one service add up."""

    _by_registry: ClassVar[WeakKeyDictionary[CollectorRegistry, ServerCollector]] = WeakKeyDictionary()
    _registry_lock = threading.Lock()

    def __init__(self, registry: CollectorRegistry) -> None:
        self._servers: WeakSet[ObservedServer] = WeakSet()
        self._closed_servers: Tally[tuple[str, ...]] = Tally()
        self._durations = LockFreeHistogram(
            "dispatch_service_duration_seconds",
            "Run time of the tool in its own process, in seconds: ok for a result, error for the tool's own error, stopped "
            "when the request was cancelled or its deadline passed.",
            ("service", "result"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._labelled: set[str] = set()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> ServerCollector:
        """Return the collector of ``registry``; it is created on first use."""
        with cls._registry_lock:
            collector = cls._by_registry.get(registry)
            if collector is None:
                collector = cls._by_registry[registry] = cls(registry)
                registry.register(collector)
            return collector

    def durations(self, service: str) -> dict[RunResult, HistogramSeries]:
        """Return the series of how long the tool of ``service`` runs, by result."""
        with self._lock:
            if len(self._labelled) < MAX_SERVICES:
                self._labelled.add(service)
            label = self._label(service)
        return {result: self._durations.labels(label, result) for result in RESULTS}

    def add(self, server: ObservedServer) -> None:
        """Read ``server`` at each scrape, until :meth:`remove`."""
        with self._lock:
            self._servers.add(server)

    def _label(self, service: str) -> str:
        """Return the label of a service's series: its name, or ``_OTHER`` for those beyond :data:`MAX_SERVICES`."""
        return service if service in self._labelled else OTHER

    def remove(self, server: ObservedServer) -> None:
        """Stop reading ``server``. Its counts stay, so that no counter ever decreases."""
        with self._lock:
            if server in self._servers:
                self._servers.discard(server)
                self._closed_servers.update(self._counted([server]))

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values."""
        return _families(Tally(), Tally())

    def collect(self) -> Iterator[Metric]:
        """Return the families with their present values."""
        with self._lock:
            servers = list(self._servers)
            counted = self._counted(servers)
            counted.update(self._closed_servers)
            now: Tally[tuple[str, str]] = Tally()
            for each in servers:
                now["running", self._label(each.meter_label)] += each.running
                now["queued", self._label(each.meter_label)] += each.queued
                now["abandoned_threads", self._label(each.meter_label)] += each.abandoned_threads
        return _families(counted, now)

    def _counted(self, servers: Iterable[ObservedServer]) -> Tally[tuple[str, ...]]:
        """Return the counts of ``servers`` by name, service and, for refusals, reason."""
        found: Tally[tuple[str, ...]] = Tally()
        for each in servers:
            label = self._label(each.meter_label)
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
        "dispatch_service_refused", "Requests that were rejected, by reason.", labels=("service", "reason")
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
