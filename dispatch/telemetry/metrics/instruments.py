"""The metrics that calls write to: prometheus-client's counters and histograms, made once for a registry.

All dispatchers of a process that share a registry share these: what they count adds up, and a counter never goes back when
one of them is closed. What can be read at any moment (states, how many are in flight) is not written at all: the
:mod:`~dispatch.telemetry.metrics.collector` looks when it is asked.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar, TypeVar
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Gauge

from dispatch._version import __version__
from dispatch.errors import DispatchError, Outcome
from dispatch.messaging.rpc.exchange_outcome import Disposition
from dispatch.resilience.breaker.breaker import State
from dispatch.telemetry.metrics.call_metrics import Count, LeanCounter, LeanHistogram
from dispatch.telemetry.names import DURATION_BUCKETS, FIRST_CHUNK_BUCKETS, OTHER, WAIT_BUCKETS

logger = logging.getLogger("dispatch.telemetry")

MAX_TOOLS = 2_000
"""Tools (and services called without one) with series of their own; those that come later share ``_OTHER``."""
MAX_SERVICES = 2_000
"""Likewise services."""
MAX_INSTANCES = 2_000
"""Instances with series of their own: of ejections those that came, or were ejected, last; of requests that they have,
the first ones."""

EJECTED_FOR = ("failures", "success-rate")
"""Why instances are ejected (:mod:`dispatch.balancing.outlier_detection`)."""
REJECTED_BY = ("breaker", "rate", "bulkhead", "balancer", "service", "exchange")
"""Who refuses calls. The catalogue does, too, but never a call of a tool that there is."""

Inc = Callable[[], None]
M = TypeVar("M")

_SUCCESS = Outcome.SUCCESS
_TIMED = frozenset({Outcome.TOOL_ERROR, Outcome.TIMEOUT, Outcome.TRANSPORT})


class ToolMeter:
    """One tool's series.

    Attributes:
        in_flight: calls under way. A small number, which Python has one object of: a count of all calls would be one in
            each tool's memory, and slower to reach the more tools there are.
        first: counts first attempts, as ``attempts["first"]`` does.
        calls: counts a call of that outcome; successes are those that ``ok`` has timed.
        ok, error: time calls that succeeded, and those that failed.
        attempts: counts attempts, by reason: ``first``, ``retry``, ``hedge``.
        rejected: counts refusals, by whom.
        limited: counts refusals of the rate limits, by scope: ``tool``, ``user``.
        waited: seconds in line.
        first_chunk: seconds until a stream began.
        transitions: counts those of its circuit, by the new state.
        unpaid: counts repeats that were not made because their budget was spent.
    """

    __slots__ = (
        *("attempts", "calls", "error", "first", "first_chunk", "in_flight", "label", "limited", "ok", "rejected"),
        *("transitions", "unpaid", "waited"),
    )

    def __init__(self, made: Instruments, label: str) -> None:
        self.label = label
        self.in_flight = 0
        self.ok = made.duration.labels(label, "ok")
        made.calls.counts(self.ok, label, str(_SUCCESS))  # in its place: first, and once a call less to do
        self.calls: dict[Outcome, Count] = {
            each: made.calls.labels(label, str(each)) for each in Outcome if each is not _SUCCESS
        }
        self.error = made.duration.labels(label, "error")
        self.attempts = {each: made.attempts.labels(label, each) for each in ("first", "retry", "hedge")}
        self.first = self.attempts["first"]
        self.rejected: dict[str, Inc] = {each: made.rejected.labels(label, each).inc for each in REJECTED_BY}
        self.limited: dict[str, Inc] = {each: made.limited.labels(label, each).inc for each in ("tool", "user")}
        self.waited = made.waited.labels(label)
        self.first_chunk = made.first_chunk.labels(label)
        self.transitions: dict[State, Inc] = {each: made.transitions.labels(label, str(each)).inc for each in State}
        self.unpaid: Inc = made.unpaid.labels(label).inc

    def finished(self, outcome: Outcome, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """A call that was counted in ``in_flight`` has ended.

        Args:
            outcome: how.
            seconds: since it began.
            exemplar: ``trace_id`` and ``span_id`` of its span, if that is sampled.
        """
        self.in_flight -= 1
        if outcome is _SUCCESS:
            self.ok.observe(seconds, exemplar)
            return
        self.calls[outcome].inc()
        if outcome in _TIMED:
            self.error.observe(seconds, exemplar)

    def refused(self, error: DispatchError) -> None:
        """An attempt was refused."""
        by = error.rejected_by
        if by == "user-rate":
            self.limited["user"]()
            by = "rate"
        elif by == "rate":
            self.limited["tool"]()
        count = self.rejected.get(by or "")
        if count is not None:
            count()


class ServiceMeter:
    """One service's series.

    Attributes:
        replies: counts replies, by what became of them.
        status_polls: counts retransmissions that found the instance executing the tool.
        recovered_replies: counts lost replies that an instance has sent again.
    """

    __slots__ = ("label", "recovered_replies", "replies", "status_polls")

    def __init__(self, made: Instruments, label: str) -> None:
        self.label = label
        self.replies = {each: made.replies.labels(label, str(each)) for each in Disposition}
        self.status_polls: Callable[[float], None] = made.status_polls.labels(label).inc
        self.recovered_replies: Callable[[float], None] = made.recovered_replies.labels(label).inc


class Instruments:
    """Everything in one registry. Take it from :meth:`of`."""

    _made: ClassVar[WeakKeyDictionary[CollectorRegistry, Instruments]] = WeakKeyDictionary()
    _making = threading.Lock()

    def __init__(self, registry: CollectorRegistry) -> None:
        by_tool = ("tool",)
        self.calls = LeanCounter(
            "dispatch_calls", "Calls that have ended, by how.", (*by_tool, "outcome"), registry=registry
        )
        self.duration = LeanHistogram(
            "dispatch_call_duration_seconds",
            "From a call to its end, over all its attempts: ok for successes; error for errors of the tool, timeouts and "
            "transport. Calls that were refused, or left by their callers, are not timed.",
            (*by_tool, "outcome_class"),
            buckets=DURATION_BUCKETS,
            registry=registry,
        )
        self.first_chunk = LeanHistogram(
            "dispatch_first_chunk_seconds",
            "From the call of a stream to its first chunk.",
            by_tool,
            buckets=FIRST_CHUNK_BUCKETS,
            registry=registry,
        )
        self.attempts = LeanCounter(
            "dispatch_attempts",
            "Requests that were sent for calls: first, retry, hedge.",
            (*by_tool, "reason"),
            registry=registry,
        )
        self.waited = LeanHistogram(
            "dispatch_queue_wait_seconds",
            "Time that calls spent in line for a rate or for room; those that could go on at once are not in it.",
            by_tool,
            buckets=WAIT_BUCKETS,
            registry=registry,
        )
        self.rejected = LeanCounter(
            "dispatch_rejections",
            "Attempts that were refused before the tool ran, by who refused them.",
            (*by_tool, "by"),
            registry=registry,
        )
        self.limited = LeanCounter(
            "dispatch_rate_limited",
            "Attempts that a rate limit refused: the tool's, or the user's.",
            (*by_tool, "scope"),
            registry=registry,
        )
        self.transitions = LeanCounter(
            "dispatch_circuit_transitions",
            "Transitions of the tool's circuit breaker, by the new state.",
            (*by_tool, "to"),
            registry=registry,
        )
        self.unpaid = LeanCounter(
            "dispatch_retry_budget_exhausted",
            "Retries and hedges that were due and not made, because the tool's budget for them was spent.",
            by_tool,
            registry=registry,
        )
        self.replies = LeanCounter(
            "dispatch_replies",
            "Replies that arrived, by what became of them.",
            ("service", "disposition"),
            registry=registry,
        )
        self.status_polls = LeanCounter(
            "dispatch_status_polls",
            "Requests repeated while the instance was executing the tool: polls of a slow tool's progress.",
            ("service",),
            registry=registry,
        )
        self.recovered_replies = LeanCounter(
            "dispatch_recovered_replies",
            "Replies that were lost and that the instance sent again on request.",
            ("service",),
            registry=registry,
        )
        self.ejections = LeanCounter(
            "dispatch_instance_ejections",
            "Times that an instance was left alone for a while because it did badly.",
            ("service", "instance", "reason"),
            registry=registry,
        )
        self.reloads = LeanCounter(
            "dispatch_catalog_reloads",
            "Times that another catalogue or policy was to be taken over: ok, or failed and the former one stayed.",
            ("source", "result"),
            registry=registry,
        )
        self.taken_over = Gauge(
            "dispatch_catalog_last_reload_successful",
            "1: the last catalogue or policy that was to be taken over is in force; 0: it was refused, and the former one "
            "stayed.",
            ("source",),
            registry=registry,
        )
        self.build = Gauge(
            "dispatch_build_info", "Always 1; the label has the version.", ("version",), registry=registry
        )
        self.build.labels(__version__).set(1)
        self._by_tool: tuple[LeanCounter | LeanHistogram, ...] = (
            *(self.calls, self.duration, self.first_chunk, self.attempts, self.waited, self.rejected, self.limited),
            *(self.transitions, self.unpaid),
        )
        self._by_service: tuple[LeanCounter | LeanHistogram, ...] = (
            *(self.replies, self.status_polls, self.recovered_replies, self.ejections),
        )
        self._tools: dict[str, ToolMeter] = {}
        self._services: dict[str, ServiceMeter] = {}
        self._holders: dict[tuple[str, str], int] = {}
        self._instances: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def of(cls, registry: CollectorRegistry) -> Instruments:
        """Those of ``registry``, made when they are first asked for."""
        with cls._making:
            made = cls._made.get(registry)
            if made is None:
                made = cls._made[registry] = cls(registry)
            return made

    def tool(self, label: str) -> ToolMeter:
        """The series of the tool ``label``, for one holder more; those of ``_OTHER`` when there are too many tools."""
        with self._lock:
            return self._meter("tool", self._tools, label, MAX_TOOLS, ToolMeter)

    def service(self, label: str) -> ServiceMeter:
        """Likewise of the service ``label``."""
        with self._lock:
            return self._meter("service", self._services, label, MAX_SERVICES, ServiceMeter)

    def _meter(self, kind: str, known: dict[str, M], label: str, most: int, make: Callable[[Instruments, str], M]) -> M:
        if label not in known and len(known) >= most and label != OTHER:
            if OTHER not in known:
                logger.warning("more than %d %ss: further ones share the series of %s", most, kind, OTHER)
            label = OTHER
        meter = known.get(label)
        if meter is None:
            meter = known[label] = make(self, label)
        self._holders[kind, label] = self._holders.get((kind, label), 0) + 1
        return meter

    def release(self, kind: str, label: str, *, gone: bool) -> None:
        """One holder less.

        Args:
            kind: ``tool`` or ``service``.
            label: of its meter.
            gone: it is in the catalogue no more, rather than that its dispatcher was closed: its series go when nobody else
                holds them. Counters of what is only closed stay, because it may be opened again.
        """
        with self._lock:
            left = self._holders.get((kind, label), 1) - 1
            self._holders[kind, label] = left
            if left or not gone or label == OTHER:
                return
            del self._holders[kind, label]
            if kind == "tool":
                self._tools.pop(label, None)
            else:
                self._services.pop(label, None)
                for pair in [pair for pair in self._instances if pair[0] == label]:
                    del self._instances[pair]
            for metric in self._by_tool if kind == "tool" else self._by_service:
                metric.remove_by_labels({kind: label})

    def joined(self, service: str, instance: str) -> None:
        """An instance is there: its series begin at 0, so that its first ejection is seen as one."""
        with self._lock:
            self._instances[service, instance] = None
            self._instances.move_to_end((service, instance))
            if len(self._instances) > MAX_INSTANCES:
                self._forget_instance(*next(iter(self._instances)))
            for reason in EJECTED_FOR:
                self.ejections.labels(service, instance, reason)

    def ejected(self, service: str, instance: str, reason: str) -> None:
        """An instance was ejected."""
        self.joined(service, instance)
        self.ejections.labels(service, instance, reason).inc()

    def source(self, name: str) -> None:
        """The catalogue comes from there: its series begin at 0, too."""
        for result in ("ok", "failed"):
            self.reloads.labels(name, result)

    def left(self, service: str, instance: str) -> None:
        """An instance has gone."""
        with self._lock:
            if (service, instance) in self._instances:
                self._forget_instance(service, instance)

    def _forget_instance(self, service: str, instance: str) -> None:
        del self._instances[service, instance]
        self.ejections.remove_by_labels({"service": service, "instance": instance})

    def tools(self) -> list[ToolMeter]:
        """All that have series."""
        with self._lock:
            return list(self._tools.values())

    def services(self) -> frozenset[str]:
        """Labels of those that have series."""
        with self._lock:
            return frozenset(self._services)
