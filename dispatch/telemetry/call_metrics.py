"""The metrics that calls record: counters and histograms, and the series of each tool, version, service and source."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from prometheus_client import CollectorRegistry, Gauge

from dispatch import __version__
from dispatch.errors import USER_RATE_LIMIT, DispatchError, ErrorType, Outcome
from dispatch.messaging.request import Disposition
from dispatch.resilience.breaker import State
from dispatch.telemetry.exposition import CounterSeries, LockFreeCounter, LockFreeHistogram, PerRegistry
from dispatch.telemetry.observers import DURATION_BUCKETS, FIRST_CHUNK_BUCKETS, OTHER, REFUSED, WAIT_BUCKETS

logger = logging.getLogger("dispatch.telemetry")


class ToolKey(NamedTuple):
    """A tool with the service that executes it: services may have tools of one name.

    Attributes:
        tool: its label in metrics.
        service: its service's id.
    """

    tool: str
    service: str


OTHER_TOOL = ToolKey(OTHER, OTHER)
"""Calls of unknown tools, and of tools beyond :data:`MAX_TOOLS`."""


class _Meter(Protocol):
    @property
    def label(self) -> Any:
        """The label of the series."""


M = TypeVar("M", bound=_Meter)
K = TypeVar("K", bound=Hashable)


class BoundedSeries(Generic[K, M]):
    """The series of labels that come and go, such as those of tools: at most ``limit`` labels have series of their own, and
    further ones share ``_OTHER``. All holders of a label share its series, which are removed when the last one has removed
    the label.

    Args:
        limit: number of labels, without ``other``.
        other: the label that further ones share.
        create: returns the series of a label.
        remove: removes series from the metrics.
        kind: of the labels, for the warning at the limit, such as ``tool``; "": no warning.
        replaces_idle: beyond the limit a label replaces one that has no holder, if there is one.
    """

    __slots__ = ("_create", "_holders", "_kind", "_limit", "_lock", "_meters", "_other", "_remove", "_replaces_idle")

    def __init__(
        self,
        limit: int,
        other: K,
        create: Callable[[K], M],
        remove: Callable[[M], object],
        *,
        kind: str = "",
        replaces_idle: bool = False,
    ) -> None:
        self._limit = limit
        self._other = other
        self._create = create
        self._remove = remove
        self._kind = kind
        self._replaces_idle = replaces_idle
        self._meters: dict[K, M] = {}
        self._holders: dict[K, int] = {}
        self._lock = threading.Lock()

    def acquire(self, label: K) -> M:
        """Return the series of ``label``, or of ``_OTHER``, and count a holder of them."""
        with self._lock:
            if label not in self._meters and len(self._meters) - (self._other in self._meters) >= self._limit:
                label = self._find_place(label)
            meter = self._meters.get(label)
            if meter is None:
                meter = self._meters[label] = self._create(label)
            self._holders[label] = self._holders.get(label, 0) + 1
            return meter

    def _find_place(self, label: K) -> K:
        if self._replaces_idle:
            idle = next((each for each, holders in self._holders.items() if not holders and each != self._other), None)
            if idle is not None:
                self._drop(idle)
                return label
        if self._other not in self._meters and label != self._other and self._kind:
            logger.warning("more than %d %ss: further ones share the series %s", self._limit, self._kind, OTHER)
        return self._other

    def release(self, label: K, *, is_removed: bool) -> None:
        """Release one holder of the series of a label, if it still has series.

        Args:
            label: of the series.
            is_removed: the label's object was removed: the series are removed with their last holder. Otherwise only its
                dispatcher was closed, and the series stay, because counters must not decrease when it is opened again.
        """
        with self._lock:
            if label not in self._meters:
                return
            self._holders[label] = max(0, self._holders[label] - 1)
            if not self._holders[label] and is_removed and label != self._other:
                self._drop(label)

    def _drop(self, label: K) -> None:
        del self._holders[label]
        self._remove(self._meters.pop(label))

    def clear(self) -> None:
        """Forget all labels, whose series were removed together."""
        with self._lock:
            self._meters.clear()
            self._holders.clear()

    def meters(self) -> list[M]:
        """Return the series of all labels."""
        with self._lock:
            return list(self._meters.values())

    def labels(self) -> frozenset[K]:
        """Return the labels that have series."""
        with self._lock:
            return frozenset(self._meters)


class HeldSeries(dict[K, M]):
    """The series that one dispatcher holds, by their labels.

    Args:
        series: of all dispatchers.
    """

    def __init__(self, series: BoundedSeries[K, M]) -> None:
        super().__init__()
        self._series = series

    def acquire(self, label: K) -> M:
        """Return the series of ``label``, which are held from now on."""
        if label not in self:
            self[label] = self._series.acquire(label)
        return self[label]

    def release(self, label: K, *, is_removed: bool = True) -> None:
        """Release the series of ``label`` if they are held; see :meth:`BoundedSeries.release`."""
        meter = self.pop(label, None)
        if meter is not None:
            self._series.release(meter.label, is_removed=is_removed)

    def release_all(self) -> None:
        """Release all series; their counts stay."""
        for label in list(self):
            self.release(label, is_removed=False)


# The metrics that calls record: counters and histograms, one set for each registry.
#
# All dispatchers of a process that share a registry share its metrics: their counts add up, and no counter decreases when a
# dispatcher is closed. States and numbers in flight are not recorded: :mod:`~dispatch.telemetry.gauges` reads them at the
# scrape.


MAX_TOOLS = 2_000
"""Tools (and services that are called without a tool) with series of their own; later ones share ``_OTHER``."""
MAX_SERVICES = 2_000
"""Services with series of their own; later ones share ``_OTHER``."""
MAX_VERSIONS: Final = 4
"""Versions of one tool with series of their own; later ones share ``_OTHER``. A rollout has two, and a slow migration of
callers few more."""
MAX_SOURCES = 100
"""Sources with series of their own. Beyond them a source replaces one whose dispatchers are closed; if there is none, it
shares ``_OTHER``. A source is a folder or a connection: a deployment has a few."""
MAX_INSTANCES = 2_000
"""Instances with series of their own: of ejections those that joined or were ejected last; of requests in flight the first
ones."""

EJECTION_REASONS = ("failures", "success-rate", "latency", "unresponsive", "operator")
"""Reasons of ejections (:mod:`dispatch.resilience.instances`)."""
REJECTED_BY = ("permissions", "breaker", "rate-limit", "bulkhead", "balancer", "service", "exchange")
"""Parts that reject attempts. The catalogue rejects only calls of tools that do not exist, which have no series."""

REFUSALS: Final = (
    ErrorType.INVALID_ARGUMENTS.value,
    ErrorType.UNKNOWN_TOOL.value,
    ErrorType.NOT_PERMITTED.value,
    USER_RATE_LIMIT,
)
"""Values of the label ``reason`` of refused calls."""
MAX_USERS = 200
"""Users with series of their refused calls: those that were refused last."""
MAX_USER_CHARS = 100
NO_USER: Final = "_NONE"
"""Label of calls without a user, or with one that is no text."""

OUTCOME_CLASSES: Final = ("ok", "error", "other")

Inc = Callable[[], None]

_SUCCESS = Outcome.SUCCESS
_TIMED = frozenset({Outcome.TOOL_ERROR, Outcome.TIMEOUT, Outcome.TRANSPORT})


class ToolMeter:
    """Series of one tool.

    Attributes:
        in_flight: calls in flight. perf: a small number, for which CPython shares one object; a count of all started calls
            would be an object of its own for each tool.
        calls: counts ended calls by outcome; successes are the observations of ``ok``.
        refused: counts calls that were refused because of their caller alone.
        ok, error: durations of calls that succeeded, and of calls that failed, in seconds.
        attempts: counts attempts by reason: ``first``, ``retry``, ``hedge``.
        rejected: counts rejections by the part that rejects.
        rate_limited: counts attempts that the tool's rate limit rejected (``tool``), and calls that ended because their
            user's own limit rejected them (``user``).
        queue_wait: seconds in queues.
        first_chunk: seconds to the first chunk of a stream.
        transitions: counts transitions of the circuit breaker by the new state.
        budget_exhausted: counts retries and hedges that were not sent because the retry budget was exhausted.
        versions: series of the tool's versions.
    """

    __slots__ = (
        *("attempts", "budget_exhausted", "calls", "error", "first_chunk", "in_flight", "label", "ok", "queue_wait"),
        *("rate_limited", "refused", "rejected", "transitions", "versions"),
    )

    def __init__(self, instruments: Instruments, label: ToolKey) -> None:
        self.label = label
        self.in_flight = 0
        self.ok = instruments.duration.labels(*label, "ok")
        instruments.calls.mirror(self.ok, *label, str(_SUCCESS))  # perf: one increment a call less
        self.calls: dict[Outcome, CounterSeries] = {
            each: instruments.calls.labels(*label, str(each)) for each in Outcome if each is not _SUCCESS
        }
        self.refused: Inc = instruments.calls.labels(*label, REFUSED).inc
        self.error = instruments.duration.labels(*label, "error")
        self.attempts = {each: instruments.attempts.labels(*label, each) for each in ("first", "retry", "hedge")}
        self.rejected: dict[str, Inc] = {each: instruments.rejected.labels(*label, each).inc for each in REJECTED_BY}
        self.rate_limited: dict[str, Inc] = {
            each: instruments.rate_limited.labels(*label, each).inc for each in ("tool", "user")
        }
        self.queue_wait = instruments.queue_wait.labels(*label)
        self.first_chunk = instruments.first_chunk.labels(*label)
        self.transitions: dict[State, Inc] = {
            each: instruments.transitions.labels(*label, str(each)).inc for each in State
        }
        self.budget_exhausted: Inc = instruments.budget_exhausted.labels(*label).inc
        calls = instruments.version_calls
        self.versions: BoundedSeries[str, VersionMeter] = BoundedSeries(
            0 if label == OTHER_TOOL else MAX_VERSIONS,
            OTHER,
            lambda version: VersionMeter(calls, label, version),
            lambda meter: calls.remove_by_labels({**label._asdict(), "version": meter.label}),
        )

    def record_call(self, outcome: Outcome, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Record the end of a call that is counted in ``in_flight``.

        Args:
            outcome: of the call.
            seconds: duration of the call.
            exemplar: ``trace_id`` and ``span_id`` of the call's span if it is sampled.
        """
        self.in_flight -= 1
        if outcome is _SUCCESS:
            self.ok.observe(seconds, exemplar)
            return
        self.calls[outcome].inc()
        if outcome in _TIMED:
            self.error.observe(seconds, exemplar)

    def record_refusal(self) -> None:
        """Record the end of a call, counted in ``in_flight``, that was refused because of its caller alone."""
        self.in_flight -= 1
        self.refused()

    def record_rejection(self, error: DispatchError) -> None:
        """Record the rejection of an attempt."""
        by = error.rejected_by
        if by == USER_RATE_LIMIT:
            by = "rate-limit"
        elif by == "rate-limit":
            self.rate_limited["tool"]()
        count = self.rejected.get(by or "")
        if count is not None:
            count()


class VersionMeter:
    """Series of one version of a tool: how a rollout goes.

    Args:
        calls: the counter.
        tool: label of the tool's series.
        label: the version.
    """

    __slots__ = ("_by_outcome", "label")

    def __init__(self, calls: LockFreeCounter, tool: ToolKey, label: str) -> None:
        self.label = label
        ok, error, other = (calls.labels(*tool, label, each) for each in OUTCOME_CLASSES)
        self._by_outcome = {
            outcome: ok if outcome is _SUCCESS else error if outcome in _TIMED else other for outcome in Outcome
        }

    def record_call(self, outcome: Outcome) -> None:
        """Count the end of a call."""
        self._by_outcome[outcome].value += 1


class ServiceMeter:
    """Series of one service.

    Attributes:
        replies: counts replies by their disposition.
    """

    __slots__ = ("label", "replies")

    def __init__(self, instruments: Instruments, label: str) -> None:
        self.label = label
        self.replies = {each: instruments.replies.labels(label, str(each)) for each in Disposition}


class SourceMeter:
    """Series of the reloads of one source of the catalogue. That of the last reload exists from the first one on."""

    __slots__ = ("_is_last_successful", "_reloads", "label")

    def __init__(self, instruments: Instruments, label: str) -> None:
        self.label = label
        self._reloads = {ok: instruments.reloads.labels(label, "ok" if ok else "failed") for ok in (True, False)}
        self._is_last_successful = instruments.last_reload_successful

    def record_reload(self, *, is_successful: bool) -> None:
        """Record an activation, or a reload that was rejected."""
        self._reloads[is_successful].inc()
        self._is_last_successful.labels(self.label).set(is_successful)


class Instruments(PerRegistry):
    """All metrics of one registry, from :meth:`of`.

    Attributes:
        tools, services, sources: the series by label.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        by_tool = ToolKey._fields
        counter = partial(LockFreeCounter, registry=registry)
        histogram = partial(LockFreeHistogram, registry=registry)
        gauge = partial(Gauge, registry=registry)
        self.calls = counter(
            "dispatch_calls",
            "Calls that have ended, by outcome. refused: because of the user's permissions or own rate limit, or because "
            "there is no such tool.",
            (*by_tool, "outcome"),
        )
        self.duration = histogram(
            "dispatch_call_duration_seconds",
            "Duration of a call over all its attempts, in seconds: ok for successes; error for tool errors, timeouts and "
            "transport errors. Rejected and cancelled calls are not included.",
            (*by_tool, "outcome_class"),
            buckets=DURATION_BUCKETS,
        )
        self.first_chunk = histogram(
            "dispatch_first_chunk_seconds",
            "Seconds from the call of a stream to its first chunk.",
            by_tool,
            buckets=FIRST_CHUNK_BUCKETS,
        )
        self.attempts = counter(
            "dispatch_attempts",
            "Requests that were sent for calls, by reason: first, retry, hedge.",
            (*by_tool, "reason"),
        )
        self.queue_wait = histogram(
            "dispatch_queue_wait_seconds",
            "Seconds that attempts waited for a rate limit or the bulkhead. Attempts that did not wait are not included.",
            by_tool,
            buckets=WAIT_BUCKETS,
        )
        self.rejected = counter(
            "dispatch_rejections",
            "Attempts that were rejected before the tool was executed, by the part that rejected them.",
            (*by_tool, "by"),
        )
        self.rate_limited = counter(
            "dispatch_rate_limited",
            "Rejections of rate limits by scope: attempts that the tool's limit rejected, or calls that ended because their "
            "user's own limit rejected them.",
            (*by_tool, "scope"),
        )
        self.refused_calls = counter(
            "dispatch_refused_calls",
            "Calls that were refused because of their caller alone, by user and reason: no unavailability of a tool.",
            ("user", "reason"),
        )
        self.transitions = counter(
            "dispatch_circuit_transitions",
            "Transitions of the tool's circuit breaker, by the new state.",
            (*by_tool, "to"),
        )
        self.budget_exhausted = counter(
            "dispatch_retry_budget_exhausted",
            "Retries and hedges that were due and not sent, because the tool's retry budget was exhausted.",
            by_tool,
        )
        self.replies = counter("dispatch_replies", "Replies that arrived, by disposition.", ("service", "disposition"))
        self.ejections = counter(
            "dispatch_instance_ejections",
            "Ejections of an instance by outlier detection, by reason.",
            ("service", "instance", "reason"),
        )
        self.reloads = counter(
            "dispatch_catalog_reloads",
            "Activations of another catalogue or policy, by the source that changed: ok, or failed (a reload was rejected, "
            "and the previous catalogue stays in force).",
            ("source", "result"),
        )
        self.last_reload_successful = gauge(
            "dispatch_catalog_last_reload_successful",
            "1: the last reload of the catalogue or policy succeeded; 0: it failed, and the previous one stays in force.",
            ("source",),
        )
        self.version_calls = counter(
            "dispatch_version_calls",
            "Calls that have ended, by version of the tool: ok for successes; error for tool errors, timeouts and transport "
            "errors; other for rejected, throttled, invalid and cancelled calls.",
            (*by_tool, "version", "outcome_class"),
        )
        self.build = gauge("dispatch_build_info", "Always 1; the label is the version of dispatch.", ("version",))
        self.build.labels(__version__).set(1)
        self._by_tool: tuple[LockFreeCounter | LockFreeHistogram, ...] = (
            *(self.calls, self.duration, self.first_chunk, self.attempts, self.queue_wait, self.rejected),
            *(self.rate_limited, self.transitions, self.budget_exhausted, self.version_calls),
        )
        self.tools: BoundedSeries[ToolKey, ToolMeter] = BoundedSeries(
            MAX_TOOLS, OTHER_TOOL, lambda label: ToolMeter(self, label), self._remove_tool, kind="tool"
        )
        self.services: BoundedSeries[str, ServiceMeter] = BoundedSeries(
            MAX_SERVICES, OTHER, lambda label: ServiceMeter(self, label), self._remove_service, kind="service"
        )
        self.sources: BoundedSeries[str, SourceMeter] = BoundedSeries(
            *(MAX_SOURCES, OTHER, lambda label: SourceMeter(self, label), self._remove_source),
            kind="source",
            replaces_idle=True,
        )
        self._refused_users: OrderedDict[str, dict[str, CounterSeries]] = OrderedDict()
        self._instances: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._lock = threading.Lock()

    def _remove_tool(self, meter: ToolMeter) -> None:
        meter.versions.clear()
        for metric in self._by_tool:
            metric.remove_by_labels(meter.label._asdict())

    def _remove_service(self, meter: ServiceMeter) -> None:
        with self._lock:
            for pair in [pair for pair in self._instances if pair[0] == meter.label]:
                del self._instances[pair]
        for metric in (self.replies, self.ejections):
            metric.remove_by_labels({"service": meter.label})

    def _remove_source(self, meter: SourceMeter) -> None:
        self.reloads.remove_by_labels({"source": meter.label})
        self.last_reload_successful.remove(meter.label)

    def record_refused_call(self, user: str, reason: str) -> None:
        """Record a call that was refused because of its caller alone."""
        user = user[:MAX_USER_CHARS] if isinstance(user, str) and user else NO_USER
        with self._lock:
            series = self._refused_users.get(user)
            if series is None:
                series = {each: self.refused_calls.labels(user, each) for each in REFUSALS}
                self._refused_users[user] = series
                if len(self._refused_users) > MAX_USERS:
                    self.refused_calls.remove_by_labels({"user": self._refused_users.popitem(last=False)[0]})
            self._refused_users.move_to_end(user)
        series[reason].inc()

    def add_instance(self, service: str, instance: str) -> None:
        """Create the series of an instance at 0, so that ``increase()`` sees its first ejection."""
        with self._lock:
            self._instances[service, instance] = None
            self._instances.move_to_end((service, instance))
            if len(self._instances) > MAX_INSTANCES:
                self._drop_instance(*next(iter(self._instances)))
            for reason in EJECTION_REASONS:
                self.ejections.labels(service, instance, reason)

    def record_ejection(self, service: str, instance: str, reason: str) -> None:
        """Record the ejection of an instance."""
        self.add_instance(service, instance)
        self.ejections.labels(service, instance, reason).inc()

    def remove_instance(self, service: str, instance: str) -> None:
        """Remove the series of an instance."""
        with self._lock:
            if (service, instance) in self._instances:
                self._drop_instance(service, instance)

    def _drop_instance(self, service: str, instance: str) -> None:
        del self._instances[service, instance]
        self.ejections.remove_by_labels({"service": service, "instance": instance})
