"""Gauges that are read at the scrape: circuit states, queue lengths, instances. They are stored nowhere, so that none
can differ from what it describes.
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
from dispatch.resilience.breaker.breaker import State
from dispatch.telemetry.metrics.instruments import MAX_INSTANCES, Instruments
from dispatch.telemetry.metrics.text_family import ValueFamily, Values
from dispatch.telemetry.names import OTHER

INSTANCE_STATES = ("up", "warming", "paused", "ejected")
_STATE_LABELS = tuple((state, str(state)) for state in State)


class Observed(Protocol):
    """A dispatcher, as a scrape sees it. Asked on any thread: what changes meanwhile must do no harm."""

    @property
    def connected(self) -> bool | None:
        """Is its broker in reach? None: it cannot know."""

    @property
    def pending(self) -> int:
        """Requests that wait for a reply."""

    def circuits(self) -> Mapping[str, State]:
        """The state of each tool's circuit breaker, by the tool's label."""

    def queued(self) -> Mapping[str, int]:
        """Calls that wait in line, by the tool's label."""

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Each service's instances, by the service's label."""

    def tools(self) -> Mapping[str, int]:
        """Tools in its catalogue, by where they come from."""


class LiveCollector(Collector):
    """Reads the dispatchers that report to one registry. Where several have a circuit for one tool, each state's value is
    how many of them are in it: the sum over the states is the number of circuits.

    Args:
        instruments: of the same registry.
    """

    _made: ClassVar[WeakKeyDictionary[CollectorRegistry, LiveCollector]] = WeakKeyDictionary()
    _making = threading.Lock()

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._observed: WeakSet[Observed] = WeakSet()
        self._lock = threading.Lock()  # a scrape is another thread's

    @classmethod
    def of(cls, registry: CollectorRegistry) -> LiveCollector:
        """The one of ``registry``."""
        instruments = Instruments.of(registry)
        with cls._making:
            made = cls._made.get(registry)
            if made is None:
                made = cls._made[registry] = cls(instruments)
                registry.register(made)
            return made

    def add(self, observed: Observed) -> None:
        """Look at this dispatcher, too; for as long as it is there, or until :meth:`remove`."""
        with self._lock:
            self._observed.add(observed)

    def remove(self, observed: Observed) -> None:
        """Look at it no more."""
        with self._lock:
            self._observed.discard(observed)

    def describe(self) -> Iterable[Metric]:
        """The families without their values, so that a registry can see whether a name is taken."""
        return [family(lambda: ()) for family in _FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """The families, as they are when they are read."""
        yield _connected(self._connected)
        yield _pending(lambda: [((), sum(each.pending for each in self._all()))])
        yield _in_flight(lambda: (((meter.label,), meter.in_flight) for meter in self._instruments.tools()))
        yield _queued(lambda: _summed((each.queued() for each in self._all()), self._tool_labels()))
        yield _circuits(self._circuits)
        yield _instances(self._instances)
        yield _instance_in_flight(self._instance_in_flight)
        yield _tools(lambda: _summed(each.tools() for each in self._all()))

    def _all(self) -> list[Observed]:
        with self._lock:
            return list(self._observed)

    def _tool_labels(self) -> set[str]:
        return {meter.label for meter in self._instruments.tools()}

    def _connected(self) -> Values:
        known = [each.connected for each in self._all() if each.connected is not None]
        return [((), sum(known))] if known else []

    def _circuits(self) -> Values:
        named = self._tool_labels()
        circuits: dict[str, list[State]] = {}
        for each in self._all():
            for tool, now in each.circuits().items():
                circuits.setdefault(_known(tool, named), []).append(now)
        return (
            ((tool, label), sum(now is state for now in found))
            for tool, found in circuits.items()
            for state, label in _STATE_LABELS
        )

    def _views(self) -> Iterator[tuple[str, tuple[InstanceView, ...]]]:
        """The instances of each service, by the label of its series."""
        services = self._instruments.services()
        for each in self._all():
            for id, views in each.pools():
                yield _known(id, services), views

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


def _known(label: str, named: Container[str]) -> str:
    """The label of its series: those that came when there were too many share one, as their counters do."""
    return label if label in named else OTHER


def _summed(parts: Iterable[Mapping[str, int]], named: Container[str] | None = None) -> Values:
    total: Counter[tuple[str, ...]] = Counter()
    for part in parts:
        for label, value in part.items():
            total[(label if named is None else _known(label, named),)] += value
    return total.items()


def _gauge(name: str, help: str, *labels: str) -> Callable[[Callable[[], Values]], ValueFamily]:
    def family(values: Callable[[], Values]) -> ValueFamily:
        return ValueFamily(name, help, "gauge", labels, values)

    return family


_connected = _gauge("dispatch_broker_connected", "Dispatchers of this process whose broker is in reach.")
_pending = _gauge("dispatch_pending_requests", "Requests that wait for a reply.")
_in_flight = _gauge("dispatch_inflight_calls", "Calls under way, those that wait in line among them.", "tool")
_queued = _gauge("dispatch_queued_calls", "Calls that wait in line for a rate or for room.", "tool")
_circuits = _gauge(
    "dispatch_circuit_state",
    "1 for the state that the tool's circuit breaker is in, 0 for the others (a state-set; with several dispatchers in one "
    "process: how many of them are in that state).",
    "tool",
    "state",
)
_instances = _gauge("dispatch_instances", "Instances of a service, by how they are doing.", "service", "state")
_instance_in_flight = _gauge(
    "dispatch_instance_inflight_calls", "Requests of ours that an instance has.", "service", "instance"
)
_tools = _gauge("dispatch_catalog_tools", "Tools in the catalogue, by where they come from.", "source")
_FAMILIES = (*(_connected, _pending, _in_flight, _queued, _circuits, _instances, _instance_in_flight, _tools),)
