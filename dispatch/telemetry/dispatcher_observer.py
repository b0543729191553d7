"""The observer of a dispatcher: metrics, traces, events and log lines, joined here so that each change is reported once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from dispatch.errors import DispatchError
from dispatch.messaging.rpc.exchange_outcome import Disposition
from dispatch.protocol import SessionTable
from dispatch.resilience.breaker.breaker import State
from dispatch.result import CallResult
from dispatch.telemetry.call_observer import (
    NULL_CALL,
    CallDecorator,
    CallObserver,
    Counter,
    DispatcherObserver,
    ObservedTool,
    OnCircuitTransition,
    ServiceObserver,
    ToolObserver,
)
from dispatch.telemetry.catalog_telemetry import TelemetryCatalogObserver
from dispatch.telemetry.events import CircuitChanged, Event, Events, InstanceChanged
from dispatch.telemetry.logs import CALLS, TransitionLogger, log_call
from dispatch.telemetry.metrics.call_metrics import CallMetrics, VersionCallMetrics
from dispatch.telemetry.metrics.collector import DispatcherCollector, ObservedDispatcher
from dispatch.telemetry.metrics.exposition import registry_of
from dispatch.telemetry.metrics.instruments import Instruments, ServiceMeter, ToolMeter
from dispatch.telemetry.metrics.session_metrics import SessionCollector
from dispatch.telemetry.metrics.version_series import VersionMeter
from dispatch.telemetry.names import OTHER
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing.call_spans import CallTracing

logger = logging.getLogger("dispatch.transitions")

MAX_NAME_CHARS = 200
"""Characters of an unknown tool's name that are logged."""
_WARNING_STATES = (State.OPEN, State.FORCED_OPEN)


class _LoggedCall(CallDecorator):
    """Writes one line for the call, when it ends."""

    __slots__ = ("_label",)

    def __init__(self, label: str, inner: CallObserver) -> None:
        super().__init__(inner)
        self._label = label

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_end(result, reply, exemplar)
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
        self._inner.on_cancel(seconds, attempts, exemplar)
        log_call(self._label, "cancelled", seconds, call_id="", error_type="", trace_id=_trace_id(exemplar))


def _trace_id(exemplar: dict[str, str] | None) -> str:
    return "" if exemplar is None else exemplar["trace_id"]


class _ObservedTool(ToolObserver):
    """Observes the calls and circuit breakers of one version of a tool."""

    __slots__ = ("_calls", "_circuits", "_label", "_meter", "_tracing", "_version")

    def __init__(
        self,
        label: str,
        version: str | None,
        calls: CallMetrics | None,
        tracing: CallTracing | None,
        circuits: TelemetryDispatcherObserver,
    ) -> None:
        self._label = label
        self._version = version
        self._meter = None if calls is None else calls.meter
        self._calls: CallObserver = NULL_CALL if calls is None else calls
        self._tracing = tracing
        self._circuits = circuits

    def start_call(self, tool: ObservedTool, started: float) -> CallObserver:
        observer = self._calls
        if self._meter is not None:
            self._meter.in_flight += 1
        if CALLS.isEnabledFor(logging.DEBUG):
            observer = _LoggedCall(self._label, observer)
        if self._tracing is not None:
            observer = self._tracing.start_call(tool, started, observer)
        return observer

    def observe_circuit(self, instance: str | None = None) -> OnCircuitTransition:
        def on_transition(old: State, new: State, reason: str) -> None:
            self._circuits.on_circuit_transition(self._label, self._version, instance, old, new, reason)

        return on_transition


class _ObservedService(ServiceObserver):
    """Observes replies and instances of one service."""

    __slots__ = ("_id", "_instances", "_label", "replies")

    def __init__(self, id: str, label: str, meter: ServiceMeter | None, instances: TelemetryDispatcherObserver) -> None:
        self.replies: Mapping[Disposition, Counter] | None = None if meter is None else meter.replies
        self._id = id
        self._label = label
        self._instances = instances

    def on_instance_change(self, instance: str, change: str, reason: str) -> None:
        self._instances.on_instance_change(self._id, instance, change, reason, self._label)


class TelemetryDispatcherObserver(DispatcherObserver):
    """Observes one dispatcher.

    Args:
        settings: which metrics and traces are recorded.
        events: delivers changes to listeners.
        client_id: of the dispatcher.
        clock: of the event loop, in seconds.

    Attributes:
        catalog: observes the catalogue.
    """

    catalog: TelemetryCatalogObserver

    def __init__(self, settings: Telemetry, events: Events, client_id: str, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._events = events
        self._transition_log = TransitionLogger(logger, clock)
        self._tracing = CallTracing(settings, client_id, clock()) if settings.traces != "off" else None
        self._instruments: Instruments | None = None
        self._collector: DispatcherCollector | None = None
        self._sessions: SessionCollector | None = None
        self._tables: list[SessionTable] = []
        self._observed: ObservedDispatcher | None = None
        self._tools: dict[str, ToolMeter] = {}
        self._versions: dict[tuple[str, str], VersionMeter] = {}
        self._services: dict[tuple[str, str], ServiceMeter] = {}
        if settings.metrics:
            registry = registry_of(settings)
            self._instruments = Instruments.of(registry)
            self._collector = DispatcherCollector.of(registry)
            self._sessions = SessionCollector.of(registry)
        sources = None if self._instruments is None else self._instruments.sources
        self.catalog = TelemetryCatalogObserver(sources, events, self._transition_log)

    def attach(self, dispatcher: ObservedDispatcher) -> None:
        if self._collector is not None:
            self._observed = dispatcher
            for source in dispatcher.sources():
                self.catalog.acquire_series(source.id)
            self._collector.add(dispatcher)

    # -- tools and services -------------------------------------------------------------------------------------

    def observe_tool(self, label: str, version: str | None = None) -> _ObservedTool:
        return _ObservedTool(label, version, self._call_metrics(label, version), self._tracing, self)

    def _call_metrics(self, label: str, version: str | None) -> CallMetrics | None:
        meter = self._tool_meter(label)
        if meter is None or self._instruments is None:
            return None
        if version is None:
            return CallMetrics(meter)
        version_meter = self._versions.get((label, version))
        if version_meter is None:
            version_meter = self._versions[label, version] = self._instruments.versions.acquire(meter.label, version)
        return VersionCallMetrics(meter, version_meter)

    def _tool_meter(self, label: str) -> ToolMeter | None:
        meter = self._tools.get(label)
        if meter is None and self._instruments is not None:
            meter = self._tools[label] = self._instruments.acquire_tool(label)
        return meter

    def observe_service(self, id: str, label: str) -> ServiceObserver:
        meter = self._services.get((id, label))
        if meter is None and self._instruments is not None:
            meter = self._services[id, label] = self._instruments.acquire_service(label)
        return _ObservedService(id, label, meter, self)

    def observe_sessions(self, table: SessionTable) -> None:
        if self._sessions is not None:
            self._tables.append(table)
            self._sessions.add(table, "caller")

    def release_sessions(self, table: SessionTable) -> None:
        """Stop reading the sessions of ``table``; their counts stay. Idempotent."""
        if self._sessions is not None and table in self._tables:
            self._tables.remove(table)
            self._sessions.remove(table)

    def on_unknown_tool(self, name: str, error: DispatchError, now: float) -> None:
        """Observe the call of a tool that is in no catalogue. Metrics count it under ``_OTHER``."""
        meter = self._tool_meter(OTHER)
        if meter is not None:
            meter.in_flight += 1
            meter.record_call(error.outcome, 0.0)
        if self._tracing is not None:
            self._tracing.record_unknown_tool(name, error, now)
        if CALLS.isEnabledFor(logging.DEBUG):
            # Escaped as in a Python literal, and bounded: a model may have invented it.
            shown = name[:MAX_NAME_CHARS].encode("unicode_escape").decode()
            log_call(shown, str(error.outcome), 0.0, call_id="", error_type=error.telemetry_type, trace_id="")

    def release_tool(self, label: str) -> None:
        meter = self._tools.pop(label, None)
        if meter is not None and self._instruments is not None:
            self._instruments.release_tool(meter.label, is_removed=True)

    def release_version(self, label: str, version: str) -> None:
        meter = self._versions.pop((label, version), None)
        if meter is not None and self._instruments is not None:
            self._instruments.versions.release(meter, is_removed=True)

    def release_service(self, id: str) -> None:
        for key in [key for key in self._services if key[0] == id]:
            meter = self._services.pop(key)
            if self._instruments is not None:
                self._instruments.release_service(meter.label, is_removed=True)

    def close(self) -> None:
        """End the observation: gauges are no longer read, counters stay."""
        if self._collector is not None and self._observed is not None:
            self._collector.remove(self._observed)
        for table in list(self._tables):
            self.release_sessions(table)
        if self._instruments is not None:
            for version in self._versions.values():
                self._instruments.versions.release(version, is_removed=False)
            for meter in self._tools.values():
                self._instruments.release_tool(meter.label, is_removed=False)
            for each in self._services.values():
                self._instruments.release_service(each.label, is_removed=False)
        self._versions.clear()
        self._tools.clear()
        self._services.clear()
        self.catalog.close()

    # -- changes ------------------------------------------------------------------------------------------------

    def on_circuit_transition(
        self, tool: str, version: str | None, instance: str | None, old: State, new: State, reason: str
    ) -> None:
        """Observe a transition of the circuit breaker of a version of a tool, or of its breaker at one instance."""
        meter = self._tools.get(tool)
        if meter is not None and instance is None:
            meter.transitions[new]()
        self._publish(CircuitChanged(time.time(), tool, instance, str(old), str(new), reason, version))
        where = f"'{tool}'" if version is None else f"'{tool}' {version}"
        if instance is not None:
            where += f" at {instance}"
        self._transition_log.log(
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

    def on_instance_change(self, service: str, id: str, change: str, reason: str, label: str = "") -> None:
        """Observe that an instance ``joined``, ``left``, was ``ejected`` or has ``returned``. ``label``: of the service in
        metrics; default: its id."""
        if self._instruments is not None:
            label = label or service
            if change == "joined":
                self._instruments.add_instance(label, id)
            elif change == "ejected":
                self._instruments.record_ejection(label, id, reason)
            elif change == "left":
                self._instruments.remove_instance(label, id)
        self._publish(InstanceChanged(time.time(), service, id, change, reason))
        self._transition_log.log(
            logging.WARNING if change == "ejected" else logging.INFO,
            ("instance", service, id, change),
            f"instance {id} of {service}: {change} ({reason})",
            service=service,
            instance=id,
            change=change,
            reason=reason,
        )

    def _publish(self, event: Event) -> None:
        if len(self._events):
            self._events.publish(event)
