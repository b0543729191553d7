"""Metrics of the sessions between dispatchers and instances, on both sides. Everything is read at the scrape from what the
sessions count anyway.
"""

from __future__ import annotations

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import ClassVar, Final, Literal
from weakref import WeakKeyDictionary

from msgspec.structs import astuple
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from dispatch.protocol import Session, SessionTable
from dispatch.protocol.events import Failure
from dispatch.protocol.session_state import SessionState, find_state
from dispatch.protocol.statistics import SessionStatistics
from dispatch.telemetry.metrics.exposition import PAUSE_S
from dispatch.telemetry.metrics.text_family import ValueFamily, Values

Role = Literal["caller", "callee"]
"""``caller``: the sessions of a dispatcher. ``callee``: those of a tool server."""

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
"""The name of a family, and the label values of a series."""


class SessionCollector(Collector):
    """Reads the session tables that report to one registry. Those of one role add up."""

    _by_registry: ClassVar[WeakKeyDictionary[CollectorRegistry, SessionCollector]] = WeakKeyDictionary()
    _registry_lock = threading.Lock()

    def __init__(self) -> None:
        self._tables: WeakKeyDictionary[SessionTable, Role] = WeakKeyDictionary()
        self._roles: set[Role] = set()
        self._closed: Tally[Key] = Tally()
        """Counts of the tables that were removed."""
        self._highest: dict[Key, int] = {}
        """The values of the last scrape: a session that ends during one is missing in it, and no counter may decrease."""
        self._lock = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> SessionCollector:
        """Return the collector of ``registry``; it is created on first use."""
        with cls._registry_lock:
            collector = cls._by_registry.get(registry)
            if collector is None:
                collector = cls._by_registry[registry] = cls()
                registry.register(collector)
            return collector

    def add(self, table: SessionTable, role: Role) -> None:
        """Read ``table`` at each scrape until :meth:`remove`, or until it is garbage."""
        with self._lock:
            self._tables[table] = role
            self._roles.add(role)

    def remove(self, table: SessionTable) -> None:
        """Stop reading ``table``. Its counts stay, so that no counter decreases."""
        with self._lock:
            role = self._tables.pop(table, None)
            if role is not None:
                self._closed.update(_count(table, role))

    def describe(self) -> Iterable[Metric]:
        """Return the families without their values: a registry checks their names."""
        return [family(lambda: ()) for family in _SESSION_FAMILIES.values()]

    def collect(self) -> Iterator[Metric]:
        """Yield the families with their present values."""
        with self._lock:  # not held while sessions are read, for which an event loop would wait
            tables, counted = list(self._tables.items()), Tally(self._closed)
            roles = list(self._roles)
        found: dict[Key, float] = {}
        for table, role in tables:
            counted.update(_count(table, role))
        for role in roles:
            found.update(_measure([table for table, its in tables if its == role], role))
        with self._lock:
            highest = self._highest
            for key, value in counted.items():
                found[key] = highest[key] = max(highest.get(key, 0), value)
        for name, family in _SESSION_FAMILIES.items():
            yield family(lambda name=name: ((key[1:], value) for key, value in found.items() if key[0] == name))  # type: ignore[misc] # a closure over one name


def _count(table: SessionTable, role: Role) -> Tally[Key]:
    """Return the counts of a table. Ended sessions are read first: see :meth:`SessionTable.forget`."""
    ended = table.ended
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


def _measure(tables: Iterable[SessionTable], role: Role) -> dict[Key, float]:
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
            time.sleep(PAUSE_S)


def _family(name: str, help: str, type: str, *labels: str) -> Callable[[Callable[[], Values]], ValueFamily]:
    def family(values: Callable[[], Values]) -> ValueFamily:
        return ValueFamily(name, help, type, ("role", *labels), values)

    return family


_SESSION_FAMILIES: Final = {
    "sessions": _family(
        "dispatch_sessions",
        "Sessions by state: half-open (handshake), open, draining, suspect (probes without an acknowledgement), suspended "
        "(no connection to the broker). Role caller: of dispatchers; callee: of tool servers.",
        "gauge",
        "state",
    ),
    "closed": _family(
        "dispatch_sessions_closed",
        "Sessions that have ended, by reason; handshake: never opened. Of role caller, silent and restarted are lost "
        "instances.",
        "counter",
        "reason",
    ),
    **{name: _family(f"dispatch_session_{name}", text, "counter") for name, text in _COUNTERS.items()},
    "rejected": _family(
        "dispatch_session_packets_rejected",
        "Packets that changed nothing: malformed; unknown (without a session: late, or forged); refused-hello (a handshake "
        "whose inbox is not allowed, or is another dispatcher's).",
        "counter",
        "reason",
    ),
    "rtt": _family(
        "dispatch_session_rtt_seconds", "Round-trip time of open sessions: median and worst.", "gauge", "statistic"
    ),
    "window": _family(
        "dispatch_session_window_bytes",
        "Bytes without an acknowledgement that peers allow on each path: the smallest window of an open session.",
        "gauge",
    ),
    "in_flight": _family("dispatch_session_inflight_bytes", "Bytes sent and not yet acknowledged.", "gauge"),
    "queued": _family("dispatch_session_queued_bytes", "Payload bytes that wait to be sent.", "gauge"),
}
