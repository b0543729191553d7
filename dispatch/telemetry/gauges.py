"""Metrics that are read at the scrape from what is counted or held anyway: of sessions, dispatchers and tool servers."""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import ClassVar, Final, Generic, Protocol, TypeVar, get_args
from weakref import WeakKeyDictionary

from msgspec.structs import astuple
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dispatch.catalog.items import SourceStatus
from dispatch.protocol import Session, SessionTable
from dispatch.protocol.events import Failure
from dispatch.protocol.session import SessionState, find_state
from dispatch.protocol.settings import SessionStatistics
from dispatch.resilience.breaker import State
from dispatch.resilience.fleet import FleetFigures
from dispatch.resilience.instances import InstanceView
from dispatch.telemetry import exposition
from dispatch.telemetry.call_metrics import MAX_INSTANCES, MAX_SERVICES, OTHER_TOOL, Instruments, ToolKey
from dispatch.telemetry.observers import DURATION_BUCKETS, OTHER, ObservedServer, RunResult, ServedRequestObserver

HANDSHAKE: Final = "handshake"
"""The end of a session that was never open."""
END_REASONS: Final = (*(str(each) for each in Failure if each not in (Failure.DEADLINE, Failure.TOO_LARGE)), HANDSHAKE)
"""Values of the label ``reason`` of ended sessions. Deadlines and sizes end requests."""
REJECTIONS: Final = ("malformed", "unknown", "refused-hello")
"""Values of the label ``reason`` of rejected packets."""

PIECE = 128
"""Sessions read at once: some tenths of a millisecond, after which other threads may run."""
_COUNTERS: Final = {
    "packets_sent": "Packets sent, acknowledgements and probes included.",
    "packets_received": "Packets received for an open session.",
    "frames_sent": "Frames sent in packets, without acknowledgements and retransmissions. Divided by the packets: how many "
    "share one.",
    "bytes_sent": "Bytes of the packets sent.",
    "retransmissions": "Packets that were lost, and whose frames were sent again, by a probe too.",
    "probes": "Packets sent because no acknowledgement arrived in time.",
    "duplicates": "Packets that had arrived before.",
}
assert set(_COUNTERS) == set(SessionStatistics.__struct_fields__)

Key = tuple[str, ...]
"""The key of a family, and the label values of a series."""
Family = Callable[[Callable[[], exposition.Values]], exposition.ValueFamily]
"""Makes a metric family of what returns its values, which is called when the family is rendered."""


def _family(name: str, help: str, type: str, *labels: str) -> Family:
    return partial(exposition.ValueFamily, name, help, type, labels)


def _gauge(name: str, help: str, *labels: str) -> Family:
    return _family(name, help, "gauge", *labels)


O = TypeVar("O")  # noqa: E741 - an observed object


class LiveCollector(exposition.PerRegistry, Collector, Generic[O]):
    """Reads the objects that report to one registry, from :meth:`add` until :meth:`remove`, or until they are garbage.

    Attributes:
        families: by their keys.
    """

    families: ClassVar[Mapping[str, Family]]

    def __init__(self, registry: CollectorRegistry) -> None:
        self._observed: WeakKeyDictionary[O, str] = WeakKeyDictionary()
        self._closed: Tally[Key] = Tally()
        """Counts of the objects that were removed."""
        self._lock = threading.Lock()  # scrapes run on other threads
        registry.register(self)

    def add(self, observed: O, role: str = "") -> None:
        """Read ``observed`` at each scrape.

        Args:
            role: of a table of sessions: ``caller`` of a dispatcher, ``callee`` of a tool server.
        """
        with self._lock:
            self._observed[observed] = role

    def remove(self, observed: O) -> None:
        """Stop reading ``observed``. Its counts stay, so that no counter decreases."""
        with self._lock:
            role = self._observed.pop(observed, None)
            if role is not None:
                self._closed.update(self._count(observed, role))

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values: a registry checks their names."""
        return self._fill({})

    def _fill(self, found: Mapping[Key, float]) -> Iterator[Metric]:
        """Yield the families with their values."""
        for name, family in self.families.items():
            yield family(partial(_select, found, name))

    def _count(self, observed: O, role: str) -> Tally[Key]:
        """Return the counts of an object by the keys of their families and by labels."""
        return Tally()


def _select(found: Mapping[Key, float], name: str) -> exposition.Values:
    return ((key[1:], value) for key, value in found.items() if key[0] == name)


_SESSION_FAMILIES: Final = {
    "sessions": _gauge(
        "dispatch_sessions",
        "Sessions by state: half-open (handshake), open, draining, suspect (probes without an acknowledgement), suspended "
        "(no connection to the broker). Role caller: of dispatchers; callee: of tool servers.",
        "role",
        "state",
    ),
    "closed": _family(
        "dispatch_sessions_closed",
        "Sessions that have ended, by reason; handshake: never opened. Of role caller, silent and restarted are lost "
        "instances.",
        "counter",
        *("role", "reason"),
    ),
    **{name: _family(f"dispatch_session_{name}", text, "counter", "role") for name, text in _COUNTERS.items()},
    "rejected": _family(
        "dispatch_session_packets_rejected",
        "Packets that changed nothing: malformed; unknown (without a session: late, or forged); refused-hello (a handshake "
        "whose inbox is not allowed, or is another dispatcher's).",
        "counter",
        *("role", "reason"),
    ),
    "rtt": _gauge(
        "dispatch_session_rtt_seconds", "Round-trip time of open sessions: median and worst.", "role", "statistic"
    ),
    "window": _gauge(
        "dispatch_session_window_bytes",
        "Bytes without an acknowledgement that peers allow on each path: the smallest window of an open session.",
        "role",
    ),
    "in_flight": _gauge("dispatch_session_inflight_bytes", "Bytes sent and not yet acknowledged.", "role"),
    "queued": _gauge("dispatch_session_queued_bytes", "Payload bytes that wait to be sent.", "role"),
}


class SessionCollector(LiveCollector[SessionTable]):
    """Reads the session tables that report to one registry. Those of one role add up."""

    families = _SESSION_FAMILIES

    def __init__(self, registry: CollectorRegistry) -> None:
        self._highest: dict[Key, int] = {}
        """The values of the last scrape: a session that ends during one is missing in it, and no counter may decrease."""
        super().__init__(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their present values."""
        with self._lock:  # not held while sessions are read, for which an event loop would wait
            tables, counted = list(self._observed.items()), Tally(self._closed)
            roles = {key[1] for key in self._highest}
        found: dict[Key, float] = {}
        for table, role in tables:
            counted.update(self._count(table, role))
        for role in roles.union(key[1] for key in counted):
            found.update(_measure([table for table, its in tables if its == role], role))
        with self._lock:
            highest = self._highest
            for key, value in counted.items():
                found[key] = highest[key] = max(highest.get(key, 0), value)
        yield from self._fill(found)

    def _count(self, observed: SessionTable, role: str) -> Tally[Key]:
        # Ended sessions are read first: see SessionTable.forget.
        table, ended = observed, observed.ended
        counted: Tally[Key] = Tally()
        counted.update({("closed", role, reason): ended.reasons.get(reason, 0) for reason in END_REASONS})
        counted["closed", role, HANDSHAKE] = ended.handshakes
        rows = [astuple(ended.statistics)]
        rows += [astuple(each.statistics) for each in _in_pieces(list(table.sessions.values()))]
        for name, *column in zip(SessionStatistics.__struct_fields__, *rows, strict=True):
            counted[name, role] = sum(column)
        for reason, count in zip(REJECTIONS, (table.malformed, table.unknown, table.refused_hellos), strict=True):
            counted["rejected", role, reason] = count
        return counted


def _measure(tables: Iterable[SessionTable], role: str) -> dict[Key, float]:
    """Return the gauges of a role."""
    sessions: list[Session] = [each for table in tables for each in list(table.sessions.values())]
    found: dict[Key, float] = {("sessions", role, str(state)): 0 for state in SessionState}
    states = Tally(find_state(each) for each in _in_pieces(sessions))
    found.update({("sessions", role, str(state)): count for state, count in states.items()})
    found["in_flight", role] = sum(each.in_flight_bytes for each in _in_pieces(sessions))
    found["queued", role] = sum(each.queued_bytes for each in _in_pieces(sessions))
    now_open = [each for each in sessions if each.is_open]
    if now_open:
        found["window", role] = min(each.window for each in now_open)
    times = [each.rtt for each in now_open if each.rtt]
    if times:
        found["rtt", role, "median"] = median(times)
        found["rtt", role, "worst"] = max(times)
    return found


def _in_pieces(sessions: Sequence[Session]) -> Iterator[Session]:
    """Yield ``sessions``, and let other threads run after each :data:`PIECE`, as the exposition does."""
    for at, session in enumerate(sessions, 1):
        yield session
        if at % PIECE == 0:
            time.sleep(exposition.PAUSE_S)


# Gauges of dispatchers: circuit states, queue lengths, instances. They are stored nowhere, so that none can
# differ from what it describes.


INSTANCE_STATES = ("up", "warming", "paused", "unresponsive", "ejected")
_STATE_LABELS = tuple((state, str(state)) for state in State)


class ObservedDispatcher(Protocol):
    """A dispatcher as a scrape reads it, on any thread and while calls change its state."""

    @property
    def connected(self) -> bool | None:
        """Whether the broker is in reach; None: not known."""

    @property
    def pending(self) -> int:
        """Requests in flight: sent and without a complete reply."""

    def circuits(self) -> Iterable[tuple[tuple[str, str], State]]:
        """Return the state of each circuit breaker, by :class:`ToolKey`. Each version of a tool has a breaker."""

    def queued(self) -> Mapping[tuple[str, str], int]:
        """Return the number of queued calls, by :class:`ToolKey`."""

    def abandoned_threads(self) -> Mapping[tuple[str, str], int]:
        """Return the number of threads that still run a tool a second after the end of their calls, by :class:`ToolKey`."""

    def pools(self) -> Iterable[tuple[str, tuple[InstanceView, ...]]]:
        """Each service's instances, by the service's id."""

    def sources(self) -> Iterable[SourceStatus]:
        """Return the state of each source of the catalogue."""

    def fleet_figures(self) -> FleetFigures | None:
        """Return the fleet of the dispatcher; None: it belongs to none."""


class DispatcherCollector(LiveCollector[ObservedDispatcher]):
    """Reads the dispatchers that report to one registry. If there are several circuits for one tool, of dispatchers or of
    versions, the value of a state is the number of circuits in it: the sum over the states is the number of circuits.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._instruments = Instruments.of(registry)
        super().__init__(registry)

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values: a registry checks their names."""
        return [family(lambda: ()) for family, _ in self._list_families()]

    def collect(self) -> Iterator[Metric]:
        """Yield the families; each reads its values when it is rendered."""
        return (family(read) for family, read in self._list_families())

    def _list_families(self) -> list[tuple[Family, Callable[[], exposition.Values]]]:
        tools = self._instruments.tools
        return [
            (_connected, self._connected),
            (_pending, lambda: [((), sum(each.pending for each in self._dispatchers()))]),
            (_in_flight, lambda: ((meter.label, meter.in_flight) for meter in tools.meters())),
            (_queued, lambda: self._add_up_tools(lambda each: each.queued())),
            (_abandoned_threads, lambda: self._add_up_tools(lambda each: each.abandoned_threads())),
            (_circuits, self._circuits),
            (_instances, self._instances),
            (_instance_in_flight, self._instance_in_flight),
            (_tools, lambda: self._add_up_sources(lambda each: each.tools)),
            (_refused_items, lambda: self._add_up_sources(lambda each: each.refused)),
            (_held_changes, lambda: self._add_up_sources(lambda each: each.held)),
            (_source_up, self._source_up),
            (_fleet_members, lambda: {(each.name,): each.members for each in self._fleets()}.items()),
            (_fleet_reachable, lambda: {(each.name,): each.is_reachable for each in self._fleets()}.items()),
            (_fleet_share, self._fleet_shares),
            (_fleet_quota_used, lambda: self._fleet_quotas(0)),
            (_fleet_quota, lambda: self._fleet_quotas(1)),
        ]

    def _dispatchers(self) -> list[ObservedDispatcher]:
        with self._lock:
            return list(self._observed)

    def _fleets(self) -> Iterator[FleetFigures]:
        """Yield the fleets of the dispatchers."""
        for each in self._dispatchers():
            if (fleet := each.fleet_figures()) is not None:
                yield fleet

    def _fleet_shares(self) -> exposition.Values:
        return _add_up(((each.name, *key), share) for each in self._fleets() for key, share in each.shares.items())

    def _fleet_quotas(self, which: int) -> exposition.Values:
        return {(each.name, *key): of[which] for each in self._fleets() for key, of in each.quotas.items()}.items()

    def _connected(self) -> exposition.Values:
        known = [each.connected for each in self._dispatchers() if each.connected is not None]
        return [((), sum(known))] if known else []

    def _circuits(self) -> exposition.Values:
        named = self._instruments.tools.labels()
        circuits: dict[tuple[str, str], list[State]] = {}
        for each in self._dispatchers():
            for tool, now in each.circuits():
                circuits.setdefault(tool if tool in named else OTHER_TOOL, []).append(now)
        return (
            ((*tool, label), sum(now is state for now in found))
            for tool, found in circuits.items()
            for state, label in _STATE_LABELS
        )

    def _views(self) -> Iterator[tuple[str, tuple[InstanceView, ...]]]:
        """Yield the instances of each service with the label of the service's series."""
        services = self._instruments.services.labels()
        for each in self._dispatchers():
            for label, views in each.pools():
                yield _series_label(label, services), views

    def _instances(self) -> exposition.Values:
        states: Tally[tuple[str, ...]] = Tally()
        for service, views in self._views():
            for kind in INSTANCE_STATES:
                states[service, kind] += 0
            for view in views:
                states[service, view.state] += 1
        return states.items()

    def _instance_in_flight(self) -> exposition.Values:
        in_flight: Tally[tuple[str, ...]] = Tally()
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

    def _add_up_sources(self, count: Callable[[SourceStatus], int]) -> exposition.Values:
        return _add_up(((label,), count(status)) for label, status in self._sources())

    def _add_up_tools(self, count: Callable[[ObservedDispatcher], Mapping[tuple[str, str], int]]) -> exposition.Values:
        named = self._instruments.tools.labels()
        return _add_up(
            (tool if tool in named else OTHER_TOOL, value)
            for each in self._dispatchers()
            for tool, value in count(each).items()
        )

    def _source_up(self) -> exposition.Values:
        is_up: dict[tuple[str, ...], bool] = {}
        for label, status in self._sources():
            is_up[(label,)] = is_up.get((label,), True) and status.state == "ok"
        return is_up.items()


def _series_label(label: str, named: Container[str]) -> str:
    """Return the label of the series: ``_OTHER`` for what has none of its own, as for the counters."""
    return label if label in named else OTHER


def _add_up(found: Iterable[tuple[Key, float]]) -> exposition.Values:
    total: dict[Key, float] = {}
    for labels, value in found:
        total[labels] = total.get(labels, 0) + value
    return total.items()


_connected = _gauge("dispatch_broker_connected", "Dispatchers of this process that are connected to their broker.")
_pending = _gauge("dispatch_pending_requests", "Requests in flight: sent and without a complete reply.")
_in_flight = _gauge("dispatch_inflight_calls", "Calls in flight, including queued ones.", *ToolKey._fields)
_queued = _gauge("dispatch_queued_calls", "Calls that are queued for a rate limit or the bulkhead.", *ToolKey._fields)
_abandoned_threads = _gauge(
    "dispatch_abandoned_threads",
    "Threads of synchronous functions that still run a second after the end of their calls; each keeps its place in the "
    "bulkhead.",
    *ToolKey._fields,
)
_circuits = _gauge(
    "dispatch_circuit_state",
    "1 for the state of the tool's circuit breaker, 0 for the others (a state set; with several versions of the tool, or "
    "several dispatchers in one process: the number of circuits in that state).",
    *ToolKey._fields,
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
_fleet_members = _gauge("dispatch_fleet_members", "Dispatchers of the fleet, as this process sees it.", "fleet")
_fleet_reachable = _gauge(
    "dispatch_fleet_reachable",
    "1: messages of the fleet pass; 0: this process keeps its last share of each limit, then an equal one.",
    "fleet",
)
_fleet_share = _gauge(
    "dispatch_fleet_share",
    "Share of a limit that this process may use, from 0 to 1. Kind rate: of the rate limit; slots: of the bulkhead.",
    *("fleet", "kind", "tool"),
)
_fleet_quota_used = _gauge(
    "dispatch_fleet_quota_used",
    "Calls of the quota that the fleet has made in this period or handed out to its dispatchers.",
    *("fleet", "tool", "per"),
)
_fleet_quota = _gauge("dispatch_fleet_quota", "Calls of the quota in a day or month.", "fleet", "tool", "per")

# Reads the states of circuits from the metrics of a dispatcher, in the text format of Prometheus.


_METRIC: Final = "dispatch_circuit_state"


def parse_circuit_states(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield how many circuits of a tool are in a state: label of the tool, state, number of dispatchers.

    Raises:
        ValueError: it has no metrics.
    """
    try:
        for family in text_string_to_metric_families(text):
            if family.name == _METRIC:
                for sample in family.samples:
                    yield sample.labels["tool"], sample.labels["state"], int(sample.value)
    except (ValueError, KeyError) as error:
        raise ValueError(f"not the text of metrics ({error})") from None


# Metrics of tool services, measured in their own process. Counts that a server keeps anyway are read at the scrape; only
# how long the tool runs is recorded as it happens.


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


_SERVICE_FAMILIES: Final = {
    **{name: _family(f"dispatch_service_{name}", text, "counter", "service") for name, text in _COUNTS.items()},
    "refused": _family(
        "dispatch_service_refused", "Requests that were rejected, by reason.", "counter", "service", "reason"
    ),
    **{name: _gauge(f"dispatch_service_{name}", text, "service") for name, text in _GAUGES.items()},
}


class ServedRequestMetrics(ServedRequestObserver):
    """Records how long a service's tool runs. One object observes all requests, because it has no state of a request.

    Args:
        durations: series of the service, by result.
    """

    __slots__ = ("_durations",)

    def __init__(self, durations: Mapping[RunResult, exposition.HistogramSeries]) -> None:
        self._durations = durations

    def on_tool_end(self, result: RunResult, seconds: float) -> None:
        self._durations[result].observe(seconds)


class ServerCollector(LiveCollector[ObservedServer]):
    """Reads the tool servers that report to one registry. Counts of several servers of one service add up."""

    families = _SERVICE_FAMILIES

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations = exposition.LockFreeHistogram(
            "dispatch_service_duration_seconds",
            "Run time of the tool in its own process, in seconds: ok for a result, error for the tool's own error, stopped "
            "when the request was cancelled or its deadline passed.",
            ("service", "result"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self._labelled: set[str] = set()
        super().__init__(registry)

    def durations(self, service: str) -> dict[RunResult, exposition.HistogramSeries]:
        """Return the series of how long the tool of ``service`` runs, by result."""
        with self._lock:
            if len(self._labelled) < MAX_SERVICES:
                self._labelled.add(service)
            label = _series_label(service, self._labelled)
        return {result: self._durations.labels(label, result) for result in RESULTS}

    def drop_unused(self, service: str) -> None:
        """Remove the series of ``service`` if no server has that id, and none has run a tool."""
        with self._lock:
            if service not in self._labelled or any(each.service_id == service for each in self._observed):
                return
            if not any(self._durations.labels(service, result).value for result in RESULTS):
                self._labelled.discard(service)
                self._durations.remove_by_labels({"service": service})

    def collect(self) -> Iterator[Metric]:
        """Return the families with their present values."""
        with self._lock:
            counted = Tally(self._closed)
            for each in self._observed:
                counted.update(self._count(each, ""))
                for name in _GAUGES:
                    counted[name, _series_label(each.service_id, self._labelled)] += getattr(each, name)
        return self._fill(counted)

    def _count(self, observed: ObservedServer, role: str) -> Tally[Key]:
        found: Tally[Key] = Tally()
        label = _series_label(observed.service_id, self._labelled)
        for name, value in observed.counts().items():
            found[name, label] += value
        for reason, value in list(observed.refused.items()):
            found["refused", label, reason] += value
        return found
