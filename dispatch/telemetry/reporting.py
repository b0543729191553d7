"""The observers of a dispatcher and of a tool server: metrics, traces, events and log lines, each change reported once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, Protocol, TypeVar

import msgspec
from prometheus_client import CollectorRegistry

from dispatch._internal import excerpt
from dispatch.errors import USER_RATE_LIMIT, DispatchError, Outcome
from dispatch.messaging.request import Disposition
from dispatch.protocol import SessionTable
from dispatch.resilience.breaker import State
from dispatch.results import CallResult
from dispatch.telemetry import observers
from dispatch.telemetry.call_metrics import (
    OTHER_TOOL,
    HeldSeries,
    Instruments,
    ToolKey,
    ToolMeter,
    VersionMeter,
)
from dispatch.telemetry.events import (
    CALLS,
    MAX_NAMES,
    BrokerChanged,
    CatalogChanged,
    ChangeHeld,
    CircuitChanged,
    Event,
    Events,
    InstanceChanged,
    ItemRefused,
    ItemShadowed,
    SourceChanged,
    TransitionLogger,
    log_call,
)
from dispatch.telemetry.exposition import CounterSeries, registry_of
from dispatch.telemetry.gauges import (
    DispatcherCollector,
    ObservedDispatcher,
    ServedRequestMetrics,
    ServerCollector,
    SessionCollector,
)
from dispatch.telemetry.tracing import CallTracing, ServiceTracing

MAX_LINES = 20
"""Log lines for the refused, shadowed or held items of one report; one more line has the number of the others. A source with
10,000 invalid items must neither fill the log nor block the event loop."""
MAX_SHOWN_CHARS = 500
"""Characters of a problem in a log line; the record's attributes have all of it."""
SHOWN_FINGERPRINT_CHARS = 12
"""Characters of a fingerprint in a log line; the record's attributes have all of it."""

T = TypeVar("T", bound=msgspec.Struct)

logger = logging.getLogger("dispatch.transitions")

MAX_NAME_CHARS = 200
"""Characters of an unknown tool's name that are logged."""
_WARNING_STATES = (State.OPEN, State.FORCED_OPEN)


class _ToolCalls(observers.CallObserver):
    """Observes the calls of one version of a tool: logs them, and begins their spans. One object observes all calls, because
    it has no state of a call.

    Args:
        label: of the tool.
        tracing: of the dispatcher; None: off.
    """

    __slots__ = ("_label", "_tracing")

    def __init__(self, label: str, tracing: CallTracing | None) -> None:
        self._label = label
        self._tracing = tracing

    def start_call(self, tool: observers.ObservedTool, started: float, user: str = "") -> observers.CallObserver:
        observer = self if CALLS.isEnabledFor(logging.DEBUG) else observers.NULL_CALL
        return observer if self._tracing is None else self._tracing.start_call(tool, started, observer)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        error = result.error
        log_call(
            self._label,
            str(result.outcome),
            result.duration,
            call_id=result.request_id,
            error_type="" if error is None else error.telemetry_type,
            trace_id=_trace_id(exemplar),
        )

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        log_call(self._label, "cancelled", seconds, call_id="", error_type="", trace_id=_trace_id(exemplar))


def _trace_id(exemplar: dict[str, str] | None) -> str:
    return "" if exemplar is None else exemplar["trace_id"]


class _MeasuredCalls(_ToolCalls):
    """Observes the calls of one version of a tool, and records their metrics.

    Args:
        label, tracing: see :class:`_ToolCalls`.
        instruments: of the registry.
        meter: series of the tool.
        version: series of the version; None: the tool declares none.
    """

    __slots__ = ("_instruments", "_meter", "_requests", "_version")

    def __init__(
        self,
        label: str,
        tracing: CallTracing | None,
        instruments: Instruments,
        meter: ToolMeter,
        version: VersionMeter | None,
    ) -> None:
        super().__init__(label, tracing)
        self._instruments = instruments
        self._meter = meter
        self._version = version
        self._requests: dict[str, observers.RequestObserver] = {
            reason: _CountedRequest(count) for reason, count in meter.attempts.items()
        }

    def start_call(self, tool: observers.ObservedTool, started: float, user: str = "") -> observers.CallObserver:
        self._meter.in_flight += 1
        return self if self._tracing is None else self._tracing.start_call(tool, started, self)

    def on_queued(self, seconds: float) -> None:
        self._meter.queue_wait.observe(seconds)

    def on_rejected(self, error: DispatchError) -> None:
        self._meter.record_rejection(error)

    def on_refused(self, user: str, reason: str) -> None:
        self._instruments.record_refused_call(user, reason)

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> observers.RequestObserver:
        return self._requests[reason]

    def on_budget_exhausted(self) -> None:
        self._meter.budget_exhausted()

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._meter.first_chunk.observe(seconds, exemplar)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        meter, error = self._meter, result.error
        if error is None:  # perf: without a further call
            meter.in_flight -= 1
            meter.ok.observe(result.duration, exemplar)
        elif error.policy_refusal and result.outcome is not Outcome.INVALID_ARGUMENTS:
            if error.rejected_by == USER_RATE_LIMIT:
                meter.rate_limited["user"]()
            meter.record_refusal()
        else:
            meter.record_call(result.outcome, result.duration, exemplar)
        if self._version is not None:
            self._version.record_call(result.outcome)
        if CALLS.isEnabledFor(logging.DEBUG):
            super().on_end(result, reply, exemplar)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self._meter.record_call(Outcome.CANCELLED, seconds)
        if self._version is not None:
            self._version.record_call(Outcome.CANCELLED)
        if CALLS.isEnabledFor(logging.DEBUG):
            super().on_cancel(seconds, attempts, exemplar)


class _CountedRequest(observers.RequestObserver):
    """Counts the requests of one reason (``first``, ``retry``, ``hedge``) when they end."""

    __slots__ = ("_count",)

    def __init__(self, count: CounterSeries) -> None:
        self._count = count

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        if sent:
            self._count.value += 1


class CallRecorder(Protocol):
    """Records the calls of a dispatcher."""

    def record_calls(self, label: str, version: str | None, service: str) -> observers.CallRecords:
        """Return the records of the calls of a version of a tool, which ``service`` executes from now on."""

    def record_unknown_tool(self, name: str, error: DispatchError, now: float, user: str) -> None:
        """Record a call of a tool that is in no catalogue; ``name`` is at most :data:`MAX_NAME_CHARS` of its name."""

    def forget_tool(self, label: str) -> None:
        """Forget a tool that was removed from the catalogue."""


class _DispatcherMetrics:
    """What one dispatcher uses of the metrics of a registry.

    Attributes:
        tools, services, sources: the series that it holds.
        versions: likewise, of the versions of each tool.
        tables: its tables of sessions.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.instruments = Instruments.of(registry)
        self.collector = DispatcherCollector.of(registry)
        self.sessions = SessionCollector.of(registry)
        self.tools = HeldSeries(self.instruments.tools)
        self.services = HeldSeries(self.instruments.services)
        self.sources = HeldSeries(self.instruments.sources)
        self.versions: dict[ToolKey, HeldSeries[str, VersionMeter]] = {}
        self.tables: list[SessionTable] = []
        self.observed: ObservedDispatcher | None = None

    def close(self) -> None:
        """End the observation: gauges are no longer read, counters stay."""
        if self.observed is not None:
            self.collector.remove(self.observed)
        for table in self.tables:
            self.sessions.remove(table)
        held: list[HeldSeries[Any, Any]] = [*self.versions.values(), self.tools, self.services, self.sources]
        for series in held:
            series.release_all()
        self.tables.clear()
        self.versions.clear()


class TelemetryDispatcherObserver(observers.DispatcherObserver):
    """Observes one dispatcher.

    Args:
        settings: which metrics and traces are recorded.
        events: delivers changes to listeners.
        client_id: of the dispatcher.
        clock: of the event loop, in seconds.
        recorder: records calls; None: off.
    """

    def __init__(
        self,
        settings: observers.Telemetry,
        events: Events,
        client_id: str,
        clock: Callable[[], float],
        recorder: CallRecorder | None = None,
    ) -> None:
        self.settings = settings
        self._recorder = recorder
        self._events = events
        self._transition_log = TransitionLogger(logger, clock)
        self._tracing = CallTracing(settings, client_id, clock()) if settings.traces != "off" else None
        self._metrics = _DispatcherMetrics(registry_of(settings)) if settings.metrics else None
        self._rejected_sources: set[str] = set()
        """Sources of rejected reloads that are not in force, so that they are never removed."""
        self._reported: dict[tuple[type, str], frozenset[object]] = {}

    def attach(self, dispatcher: ObservedDispatcher) -> None:
        if self._metrics is not None:
            self._metrics.observed = dispatcher
            for source in dispatcher.sources():
                self._metrics.sources.acquire(source.id)
            self._metrics.collector.add(dispatcher)

    # -- tools and services -------------------------------------------------------------------------------------

    def record_calls(self, label: str, version: str | None, service: str) -> observers.CallRecords | None:
        return None if self._recorder is None else self._recorder.record_calls(label, version, service)

    def observe_tool(self, label: str, version: str | None = None, service: str = "") -> observers.CallObserver:
        metrics = self._metrics
        if metrics is None:
            return _ToolCalls(label, self._tracing)
        key = ToolKey(label, service)
        meter = metrics.tools.acquire(key)
        version_meter = None
        if version is not None:
            version_meter = metrics.versions.setdefault(key, HeldSeries(meter.versions)).acquire(version)
        return _MeasuredCalls(label, self._tracing, metrics.instruments, meter, version_meter)

    def observe_service(self, id: str) -> Mapping[Disposition, observers.Counter] | None:
        return None if self._metrics is None else self._metrics.services.acquire(id).replies

    def observe_sessions(self, table: SessionTable) -> None:
        if self._metrics is not None:
            self._metrics.tables.append(table)
            self._metrics.sessions.add(table, "caller")

    def release_sessions(self, table: SessionTable) -> None:
        """Stop reading the sessions of ``table``; their counts stay. Idempotent."""
        if self._metrics is not None and table in self._metrics.tables:
            self._metrics.tables.remove(table)
            self._metrics.sessions.remove(table)

    def on_unknown_tool(self, name: str, error: DispatchError, now: float, user: str = "") -> None:
        """Observe the call of a tool that is in no catalogue. Metrics count it under ``_OTHER``."""
        if self._metrics is not None:
            meter = self._metrics.tools.acquire(OTHER_TOOL)
            meter.in_flight += 1
            if error.policy_refusal:
                meter.record_refusal()
                self._metrics.instruments.record_refused_call(user, error.policy_refusal)
            else:
                meter.record_call(error.outcome, 0.0)
        if self._recorder is not None:
            self._recorder.record_unknown_tool(name[:MAX_NAME_CHARS], error, now, user)
        if self._tracing is not None:
            self._tracing.record_unknown_tool(name, error, now)
        if CALLS.isEnabledFor(logging.DEBUG):
            # Escaped as in a Python literal, and bounded: a model may have invented it.
            shown = name[:MAX_NAME_CHARS].encode("unicode_escape").decode()
            log_call(shown, str(error.outcome), 0.0, call_id="", error_type=error.telemetry_type, trace_id="")

    def release_tool(self, label: str) -> None:
        if self._recorder is not None:
            self._recorder.forget_tool(label)
        if self._metrics is not None:
            for key in list(self._metrics.tools):
                if key.tool == label:
                    self._metrics.versions.pop(key, None)
                    self._metrics.tools.release(key)

    def release_version(self, label: str, version: str) -> None:
        if self._metrics is not None:
            for key, held in self._metrics.versions.items():
                if key.tool == label:
                    held.release(version)

    def release_service(self, id: str) -> None:
        if self._metrics is not None:
            self._metrics.services.release(id)

    def close(self) -> None:
        """End the observation: gauges are no longer read, counters stay."""
        if self._metrics is not None:
            self._metrics.close()
        self._reported.clear()

    # -- changes ------------------------------------------------------------------------------------------------

    def on_circuit_transition(
        self, tool: str, version: str | None, service: str, instance: str | None, old: State, new: State, reason: str
    ) -> None:
        meter = None if self._metrics is None else self._metrics.tools.get(ToolKey(tool, service))
        if meter is not None and instance is None:
            meter.transitions[new]()
        where = f"'{tool}'" if version is None else f"'{tool}' {version}"
        if instance is not None:
            where += f" at {instance}"
        self._report_change(
            CircuitChanged,
            logging.WARNING if new in _WARNING_STATES else logging.INFO,
            ("circuit", tool, version or "", instance or "", str(new)),
            f"circuit of {where}: {old} to {new} ({reason})",
            tool=tool,
            version=version,
            instance=instance,
            old=str(old),
            new=str(new),
            reason=reason,
        )

    def on_instance_change(self, service: str, instance: str, change: str, reason: str) -> None:
        if self._metrics is not None:
            if change == "joined":
                self._metrics.instruments.add_instance(service, instance)
            elif change == "ejected":
                self._metrics.instruments.record_ejection(service, instance, reason)
            elif change == "left":
                self._metrics.instruments.remove_instance(service, instance)
        self._report_change(
            InstanceChanged,
            logging.WARNING if change in ("ejected", "unresponsive") else logging.INFO,
            ("instance", service, instance, change),
            f"instance {instance} of {service}: {change} ({reason})",
            service=service,
            instance=instance,
            change=change,
            reason=reason,
        )

    def on_connection_change(self, broker: str, is_connected: bool, seconds: float) -> None:
        """Publish an event; the transport logs the change."""
        self._publish(BrokerChanged, broker=broker, connected=is_connected, seconds=round(seconds, 3))

    # -- the catalogue ------------------------------------------------------------------------------------------

    def on_activated(
        self,
        sources: Collection[str],
        tools: int,
        names: Mapping[str, Collection[str]],
        fingerprints: Mapping[str, str],
        *,
        is_reload: bool,
    ) -> None:
        for source in sources:
            self._count_reload(source, is_successful=True)
        self._rejected_sources.difference_update(sources)
        if is_reload:
            for source in self._rejected_sources:
                self._forget_source(source)
            self._rejected_sources.clear()
        shown = ", ".join(sorted(sources))
        counted = {kind: len(each) for kind, each in names.items()}
        listed = {kind: tuple(islice(each, MAX_NAMES)) for kind, each in names.items()}
        new = (*listed["added"], *listed["changed"])
        self._publish(
            CatalogChanged,
            source=shown,
            ok=True,
            tools=tools,
            fingerprints={name: fingerprints[name] for name in new if name in fingerprints},
            **listed,
            **{f"{kind}_count": count for kind, count in counted.items()},
        )
        counts = ", ".join(f"{count:,} {kind}" for kind, count in counted.items()) + f", {tools:,} in force"
        self._transition_log.log(
            logging.INFO,
            ("catalog", shown, counts),
            f"catalogue activated ({shown}): {counts}",
            source=shown,
            tools=tools,
            **counted,
        )

    def on_reload_rejected(self, sources: Collection[str], tools: int, problem: str) -> None:
        for source in sources:
            if self._metrics is None or source not in self._metrics.sources:
                self._rejected_sources.add(source)
            self._count_reload(source, is_successful=False)
        shown = ", ".join(sorted(sources))
        self._publish(CatalogChanged, source=shown, ok=False, tools=tools, problem=problem)
        self._transition_log.log(
            logging.WARNING,
            ("reload", shown, problem),
            f"catalogue not reloaded, the previous one stays in force: {problem}",
            source=shown,
            problem=problem,
        )

    def on_source_changed(self, source: str, old: str, new: str, problem: str = "") -> None:
        """Observe that a source changed its state, or has another problem in the same state. The series of a removed source
        are removed."""
        change = f"still {new}" if old == new else f"{old} to {new}" if old else f"added, {new}"
        reason = f" ({excerpt(problem, MAX_SHOWN_CHARS)})" if problem else ""
        self._report_change(
            SourceChanged,
            logging.WARNING if new in ("stale", "failed") else logging.INFO,
            ("source", source, new, problem),
            f"source {excerpt(source)}: {change}{reason}",
            source=source,
            old=old,
            new=new,
            problem=problem,
        )
        if new == "removed":
            self._forget_source(source)
        elif self._metrics is not None:
            self._metrics.sources.acquire(source)

    def on_refused_items(self, source: str, items: Collection[observers.RefusedItem]) -> None:
        """Report the items that were not refused before."""

        def describe(item: observers.RefusedItem) -> str:
            where = f"{item.origin}: {item.key}" if item.key else item.origin
            return f"item of {item.source} refused: {where}: {item.problem}. Fix: {item.fix}."

        self._report(source, items, observers.RefusedItem, ItemRefused, describe)

    def on_shadowed_items(self, source: str, items: Collection[observers.ShadowedItem]) -> None:
        """Report the items that were not shadowed before."""

        def describe(item: observers.ShadowedItem) -> str:
            return (
                f"item of {item.source} shadowed: '{item.name}' ({item.origin}) is not in force, because "
                f"{item.active_source} ({item.active_origin}) precedes it"
            )

        self._report(source, items, observers.ShadowedItem, ItemShadowed, describe)

    def on_held_changes(self, source: str, changes: Collection[observers.HeldChange]) -> None:
        """Report the changes that were not held before."""

        def describe(change: observers.HeldChange) -> str:
            old, new = change.old[:SHOWN_FINGERPRINT_CHARS], change.new[:SHOWN_FINGERPRINT_CHARS]
            former = f"the former definition {old} stays in force" if old else "the tool is not in force"
            return (
                f"change of '{change.name}' from {change.source} held: {former}, and the definition {new} waits. "
                f"Review it, then approve it with `dispatch tools approve {change.name}`."
            )

        self._report(source, changes, observers.HeldChange, ChangeHeld, describe)

    def _count_reload(self, source: str, *, is_successful: bool) -> None:
        if self._metrics is not None:
            self._metrics.sources.acquire(source).record_reload(is_successful=is_successful)

    def _forget_source(self, source: str) -> None:
        for kind in (observers.RefusedItem, observers.ShadowedItem, observers.HeldChange):
            self._reported.pop((kind, source), None)
        if self._metrics is not None:
            self._metrics.sources.release(source)

    def _report(
        self, source: str, items: Collection[T], kind: type[T], event: type[Event], describe: Callable[[T], str]
    ) -> None:
        former = self._reported.get((kind, source), frozenset())
        if not items and not former:
            return
        self._reported[kind, source] = frozenset(items)
        new = [item for item in items if item not in former]
        for item in new[:MAX_NAMES]:
            self._publish(event, **msgspec.structs.asdict(item))
        for item in new[:MAX_LINES]:
            self._transition_log.log(
                logging.WARNING,
                (kind.__name__, *msgspec.structs.astuple(item)),
                excerpt(describe(item), MAX_SHOWN_CHARS),
                **msgspec.structs.asdict(item),
            )
        if len(new) > MAX_LINES:
            self._transition_log.log(
                logging.WARNING,
                (kind.__name__, source, str(len(new))),
                f"{len(new) - MAX_LINES:,} more items of {excerpt(source)} are not listed here; see `dispatch tools`",
                source=source,
            )

    def _report_change(self, event: type[Event], level: int, key: tuple[str, ...], text: str, **facts: object) -> None:
        """Publish an event, and log a line with the same facts."""
        self._publish(event, **facts)
        self._transition_log.log(level, key, text, **facts)

    def _publish(self, event: type[Event], **values: object) -> None:
        if len(self._events):
            self._events.publish(event(at=time.time(), **values))


# The observer of a tool server: its metrics and traces, joined.


class TelemetryServerObserver(observers.ServerObserver):
    """Observes one tool server.

    Args:
        settings: which metrics and traces are recorded.
        names: of the server.
    """

    def __init__(self, settings: observers.Telemetry, names: observers.ServerNames) -> None:
        self._collector = ServerCollector.of(registry_of(settings)) if settings.metrics else None
        self._sessions = SessionCollector.of(registry_of(settings)) if settings.metrics else None
        self._server: observers.ObservedServer | None = None
        self._requests: observers.ServedRequestObserver = observers.NULL_SERVED_REQUEST
        self._service = names.service
        if self._collector is not None:
            self._requests = ServedRequestMetrics(self._collector.durations(names.service))
        self._tracing = ServiceTracing(settings, names) if settings.traces != "off" else None

    def rename(self, service: str) -> None:
        former, self._service = self._service, service
        if self._collector is not None:
            self._requests = ServedRequestMetrics(self._collector.durations(service))
            self._collector.drop_unused(former)
        if self._tracing is not None:
            self._tracing.rename(service)

    def attach(self, server: observers.ObservedServer) -> None:
        if self._collector is not None:
            self._server = server
            self._collector.add(server)
            if self._sessions is not None and server.session_table is not None:
                self._sessions.add(server.session_table, "callee")

    def start_request(self, request: observers.ObservedRequest, now: float) -> observers.ServedRequestObserver:
        if self._tracing is None:
            return self._requests
        return self._tracing.start_request(request, now, self._requests)

    def close(self) -> None:
        if self._collector is not None and self._server is not None:
            self._collector.remove(self._server)
            if self._sessions is not None and self._server.session_table is not None:
                self._sessions.remove(self._server.session_table)
            self._server = None
