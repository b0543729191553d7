"""The observer of a tool server: its metrics and traces, joined."""

from __future__ import annotations

from dispatch.telemetry.metrics.exposition import registry_of
from dispatch.telemetry.metrics.service_metrics import ServedRequestMetrics, ServerCollector
from dispatch.telemetry.metrics.session_metrics import SessionCollector
from dispatch.telemetry.served_request_observer import (
    NULL_SERVED_REQUEST,
    ObservedRequest,
    ObservedServer,
    ServedRequestObserver,
    ServerNames,
    ServerObserver,
)
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing.service_spans import ServiceTracing


class TelemetryServerObserver(ServerObserver):
    """Observes one tool server.

    Args:
        settings: which metrics and traces are recorded.
        names: of the server.
    """

    def __init__(self, settings: Telemetry, names: ServerNames) -> None:
        self._collector = ServerCollector.of(registry_of(settings)) if settings.metrics else None
        self._sessions = SessionCollector.of(registry_of(settings)) if settings.metrics else None
        self._server: ObservedServer | None = None
        self._requests: ServedRequestObserver = NULL_SERVED_REQUEST
        if self._collector is not None:
            self._requests = ServedRequestMetrics(self._collector.durations(names.service))
        self._tracing = ServiceTracing(settings, names) if settings.traces != "off" else None

    def attach(self, server: ObservedServer) -> None:
        if self._collector is not None:
            self._server = server
            self._collector.add(server)
            if self._sessions is not None and server.session_table is not None:
                self._sessions.add(server.session_table, "callee")

    def start_request(self, request: ObservedRequest, now: float) -> ServedRequestObserver:
        if self._tracing is None:
            return self._requests
        return self._tracing.start_request(request, now, self._requests)

    def close(self) -> None:
        if self._collector is not None and self._server is not None:
            self._collector.remove(self._server)
            if self._sessions is not None and self._server.session_table is not None:
                self._sessions.remove(self._server.session_table)
            self._server = None
