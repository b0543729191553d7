"""Settings of telemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from dispatch._internal.arguments import NamedFields
from dispatch.telemetry.served_request_observer import NULL_SERVER, ServerNames, ServerObserver

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from dispatch.telemetry.call_observer import DispatcherObserver
    from dispatch.telemetry.events import Events

METRICS_ADDRESS: Final = "127.0.0.1"
"""Address of a metrics endpoint on a port of its own: only this machine can connect."""
Redact = Callable[[str, str, str], str | None]
"""Receives ``"arguments"`` or ``"result"``, the tool's name and the text that would be recorded. Returns the text to record
instead, or None to record nothing."""


EXPECTED_TELEMETRY: Final = "a dispatch.Telemetry, such as dispatch.Telemetry(content=True)"
"""What errors of the argument ``telemetry`` ask for."""


class Telemetry(msgspec.Struct, metaclass=NamedFields, frozen=True, kw_only=True, eq=False):
    """Which metrics and traces a dispatcher or a tool server records.

    Attributes:
        metrics: measure calls for Prometheus.
        registry: the registry of the metrics; None: prometheus-client's own ``REGISTRY``. Dispatchers may share one: their
            counts add up.
        traces: ``native``: record spans if an OpenTelemetry SDK is set up; ``propagation-only``: record none, but pass the
            caller's trace context on to the service; ``off``: neither.
        sample: share (0 to 1) of calls outside a trace that begin one. It is drawn before a span is built, so that a call
            that is not sampled costs next to nothing; an SDK's own sampler is asked after it. Calls inside a trace follow
            that trace's decision.
        tracer_provider: None: OpenTelemetry's global one.
        content: record arguments and results on spans, and texts of exceptions in logs. Off by default: they are user data.
        redact: called with each text before ``content`` records it; None: texts are recorded as they are.
    """

    metrics: bool = True
    registry: CollectorRegistry | None = None
    traces: Literal["native", "propagation-only", "off"] = "native"
    sample: float = 1.0
    tracer_provider: TracerProvider | None = None
    content: bool = False
    redact: Redact | None = None

    def __post_init__(self) -> None:
        if self.traces not in ("native", "propagation-only", "off"):
            raise ValueError(f"traces must be 'native', 'propagation-only' or 'off', not {self.traces!r}")
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError(f"sample must be from 0 (no call) to 1 (every call), not {self.sample!r}")

    def observe_dispatcher(self, events: Events, client_id: str, clock: Callable[[], float]) -> DispatcherObserver:
        """Return the observer of a dispatcher that starts. Imports prometheus-client and the rest of OpenTelemetry's API,
        which would add a quarter to the time of ``import dispatch``. For the arguments see
        :class:`~dispatch.telemetry.dispatcher_observer.TelemetryDispatcherObserver`."""
        from dispatch.telemetry.dispatcher_observer import TelemetryDispatcherObserver

        return TelemetryDispatcherObserver(self, events, client_id, clock)

    def observe_server(self, names: ServerNames) -> ServerObserver:
        """Return the observer of a tool server that starts. Unless everything is off it imports prometheus-client and the
        rest of OpenTelemetry's API."""
        if not self.metrics and self.traces == "off":
            return NULL_SERVER
        from dispatch.telemetry.server_observer import TelemetryServerObserver

        return TelemetryServerObserver(self, names)


DEFAULT_TELEMETRY = Telemetry()
SILENT = Telemetry(metrics=False, traces="off")
"""Neither metrics nor traces."""
