"""Gauges that are read at the scrape: circuit states, queue lengths, instances. They are stored nowhere, so that none can
differ from what it describes.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary, WeakSet

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dispatch.balancing.snapshot import InstanceView
from dispatch.catalog.sources.base import SourceStatus
from dispatch.resilience.breaker.breaker import State
from dispatch.telemetry.metrics.instruments import MAX_INSTANCES, Instruments
from dispatch.telemetry.metrics.text_family import ValueFamily, Values
from dispatch.telemetry.names import OTHER

INSTANCE_STATES = ("up", "warming", "paused", "ejected")
_STATE_LABELS = tuple((state, str(state)) for state in State)


class ObservedDispatcher(Protocol):
    """A dispatcher as a scrape reads it, on any thread and while calls change its state."""

    @property
    def connected(self) -> bool | None:
        """Whether the broker is in reach; None: not known."""

    @property
    def pending(self) -> int:
        """Requests in flight: sent and without a complete reply."""

    def circuits(self) -> Iterable[tuple[str, State]]:
        """Return the state of each circuit breaker, with the tool's label. Each version of a tool has a breaker."""

    def queued(self) -> Mapping[str, int]:
        """Return the number of queued calls, by the tool's label."""

    def abandoned_threads(self) -> Mapping[str, int]:
        """Return the number of threads that still run a tool a second after the end of their calls, by the tool's label."""

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Each service's instances, by the service's label."""

    def sources(self) -> Iterable[SourceStatus]:
        """Return the state of each source of the catalogue."""


class DispatcherCollector(Collector):
    """Reads the dispatchers that report to one registry. If there are several circuits for one tool, of dispatchers or of
    versions, the value of a state is the number of circuits in it: the sum over the states is the number of circuits.

    Args:
        instruments: metrics of the same registry.
    """

    _by_registry: ClassVar[WeakKeyDictionary[CollectorRegistry, DispatcherCollector]] = WeakKeyDictionary()
    _registry_lock = threading.Lock()

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._observed: WeakSet[ObservedDispatcher] = WeakSet()
        self._lock = threading.Lock()  # scrapes run on other threads

    @classmethod
    def of(cls, registry: CollectorRegistry) -> DispatcherCollector:
        """Return the collector of ``registry``; it is created on first use."""
        instruments = Instruments.of(registry)
        with cls._registry_lock:
            collector = cls._by_registry.get(registry)
            if collector is None:
                collector = cls._by_registry[registry] = cls(instruments)
                registry.register(collector)
            return collector

    def add(self, observed: ObservedDispatcher) -> None:
        """Read ``observed`` at each scrape until :meth:`remove`, or until it is garbage."""
        with self._lock:
            self._observed.add(observed)

    def remove(self, observed: ObservedDispatcher) -> None:
        """Stop reading ``observed``."""
        with self._lock:
            self._observed.discard(observed)

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values: a registry checks their names."""
        return [family(lambda: ()) for family in _FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Yield the families; each reads its values when it is rendered."""
        yield _connected(self._connected)
        yield _pending(lambda: [((), sum(each.pending for each in self._dispatchers()))])
        yield _in_flight(lambda: (((meter.label,), meter.in_flight) for meter in self._instruments.tool_meters()))
        yield _queued(lambda: _add_up((each.queued() for each in self._dispatchers()), self._tool_labels()))
        yield _abandoned_threads(
            lambda: _add_up((each.abandoned_threads() for each in self._dispatchers()), self._tool_labels())
        )
        yield _circuits(self._circuits)
        yield _instances(self._instances)
        yield _instance_in_flight(self._instance_in_flight)
        yield _tools(lambda: self._add_up_sources(lambda each: each.tools))
        yield _refused_items(lambda: self._add_up_sources(lambda each: each.refused))
        yield _held_changes(lambda: self._add_up_sources(lambda each: each.held))
        yield _source_up(self._source_up)

    def _dispatchers(self) -> list[ObservedDispatcher]:
        with self._lock:
            return list(self._observed)

    def _tool_labels(self) -> set[str]:
        return {meter.label for meter in self._instruments.tool_meters()}

    def _connected(self) -> Values:
        known = [each.connected for each in self._dispatchers() if each.connected is not None]
        return [((), sum(known))] if known else []

    def _circuits(self) -> Values:
        named = self._tool_labels()
        circuits: dict[str, list[State]] = {}
        for each in self._dispatchers():
            for tool, now in each.circuits():
                circuits.setdefault(_series_label(tool, named), []).append(now)
        return (
            ((tool, label), sum(now is state for now in found))
            for tool, found in circuits.items()
            for state, label in _STATE_LABELS
        )

    def _views(self) -> Iterator[tuple[str, tuple[InstanceView, ...]]]:
        """Yield the instances of each service with the label of the service's series."""
        services = self._instruments.service_labels()
        for each in self._dispatchers():
            for label, views in each.pools():
                yield _series_label(label, services), views

    def _instances(self) -> Values:
        states: Counter[tuple[str, ...]] = Counter()
        for service, views in self._views():
            for kind in INSTANCE_STATES:
                states[service, kind] += 0
            for view in views:
                states[service, view.state] += 1
        return states.items()

    def _instance_in_flight(self) -> Values:
        in_flight: Counter[tuple[str, ...]] = Counter()
        for service, views in self._views():
            for view in views:
                at = service, view.id
                if at not in in_flight and len(in_flight) >= MAX_INSTANCES:
                    at = OTHER, OTHER
                in_flight[at] += view.in_flight
        return in_flight.items()

    def _sources(self) -> Iterator[tuple[str, SourceStatus]]:
        """Yield the sources with the label of the source's series."""
        named = self._instruments.sources.labels()
        for each in self._dispatchers():
            for status in each.sources():
                yield _series_label(status.id, named), status

    def _add_up_sources(self, count: Callable[[SourceStatus], int]) -> Values:
        total: Counter[tuple[str, ...]] = Counter()
        for label, status in self._sources():
            total[(label,)] += count(status)
        return total.items()

    def _source_up(self) -> Values:
        is_up: dict[tuple[str, ...], bool] = {}
        for label, status in self._sources():
            is_up[(label,)] = is_up.get((label,), True) and status.state == "ok"
        return is_up.items()


def _series_label(label: str, named: Container[str]) -> str:
    """Return the label of the series: ``_OTHER`` for what has none of its own, as for the counters."""
    return label if label in named else OTHER


def _add_up(parts: Iterable[Mapping[str, int]], named: Container[str] | None = None) -> Values:
    total: Counter[tuple[str, ...]] = Counter()
    for part in parts:
        for label, value in part.items():
            total[(label if named is None else _series_label(label, named),)] += value
    return total.items()


def _gauge(name: str, help: str, *labels: str) -> Callable[[Callable[[], Values]], ValueFamily]:
    def family(values: Callable[[], Values]) -> ValueFamily:
        return ValueFamily(name, help, "gauge", labels, values)

    return family


_connected = _gauge("dispatch_broker_connected", "Dispatchers of this process that are connected to their broker.")
_pending = _gauge("dispatch_pending_requests", "Requests in flight: sent and without a complete reply.")
_in_flight = _gauge("dispatch_inflight_calls", "Calls in flight, including queued ones.", "tool")
_queued = _gauge("dispatch_queued_calls", "Calls that are queued for a rate limit or the bulkhead.", "tool")
_abandoned_threads = _gauge(
    "dispatch_abandoned_threads",
    "Threads of synchronous functions that still run a second after the end of their calls; each keeps its place in the "
    "bulkhead.",
    "tool",
)
_circuits = _gauge(
    "dispatch_circuit_state",
    "1 for the state of the tool's circuit breaker, 0 for the others (a state set; with several versions of the tool, or "
    "several dispatchers in one process: the number of circuits in that state).",
    "tool",
    "state",
)
_instances = _gauge("dispatch_instances", "Instances of a service, by state.", "service", "state")
_instance_in_flight = _gauge(
    "dispatch_instance_inflight_calls",
    "Requests of this process that are in flight at an instance.",
    "service",
    "instance",
)
_tools = _gauge("dispatch_catalog_tools", "Tools in force, by source.", "source")
_refused_items = _gauge(
    "dispatch_catalog_refused_items",
    "Items of the source that are invalid: each is in force in its last valid version, or not at all.",
    "source",
)
_held_changes = _gauge(
    "dispatch_catalog_held_changes", "Changed definitions of the source that wait for approval.", "source"
)
_source_up = _gauge(
    "dispatch_catalog_source_up",
    "1: the source is in reach and its items are in force; 0: it failed in at least one dispatcher of this process, and its "
    "last valid items stay in force there, or it has none.",
    "source",
)
_FAMILIES = (
    *(_connected, _pending, _in_flight, _queued, _abandoned_threads, _circuits, _instances, _instance_in_flight),
    *(_tools, _refused_items, _held_changes, _source_up),
)
