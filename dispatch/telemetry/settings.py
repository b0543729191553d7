"""What a dispatcher, or a tool service, tells of itself: a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from dispatch.telemetry.served_request_observer import NULL_SERVER

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider
    from prometheus_client import CollectorRegistry

    from dispatch.telemetry.call_observer import DispatcherObserver
    from dispatch.telemetry.events import Events
    from dispatch.telemetry.served_request_observer import ServerObserver

Redact = Callable[[str, str, str], str | None]
"""Takes ``"arguments"`` or ``"result"``, the tool's name and the text that would be recorded; gives what may be recorded
instead, or None for nothing."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is measured and traced.

    Attributes:
        metrics: count and time calls, for Prometheus.
        registry: where the metrics are; None: prometheus-client's own ``REGISTRY``. Any number of dispatchers may share one:
            what they count adds up.
        traces: ``native``: spans of our own, wherever an OpenTelemetry SDK listens; ``propagation-only``: none, but the
            caller's context travels to the service; ``off``: neither.
        sample: the share of calls without a trace of their caller's that begin one: asked before anything is built, so that
            a call that is not sampled costs next to nothing. An SDK's own sampler is asked after it. Calls that are part of
            a trace stay part of it.
        tracer_provider: None: OpenTelemetry's global one.
        content: record arguments and results on spans. They are user data: off.
        redact: what may be recorded of them; None: everything, where ``content`` is on.
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
            raise ValueError(f"traces: 'native', 'propagation-only' or 'off', not {self.traces!r}")
        if not 0.0 <= self.sample <= 1.0:
            raise ValueError(f"sample: from 0 (no call) to 1 (every call), not {self.sample!r}")

    def observe_dispatcher(self, events: Events, name: str, clock: Callable[[], float]) -> DispatcherObserver:
        """Return the observer of a dispatcher that starts. Imports prometheus-client and the rest of OpenTelemetry's API, a
        quarter of what importing dispatch would take otherwise. For the arguments see
        :class:`~dispatch.telemetry.dispatcher_observer.TelemetryObserver`."""
        from dispatch.telemetry.dispatcher_observer import TelemetryObserver

        return TelemetryObserver(self, events, name, clock)

    def observe_server(
        self,
        *,
        service: str,
        instance: str,
        topic: str,
        replies: str,
        responses: str,
        reply_topic: Callable[[Mapping[str, str]], str],
    ) -> ServerObserver:
        """Return the observer of a tool server that starts. Unless everything is off it imports prometheus-client and the
        rest of OpenTelemetry's API. For the arguments see
        :class:`~dispatch.telemetry.server_observer.TelemetryServerObserver`."""
        if not self.metrics and self.traces == "off":
            return NULL_SERVER
        from dispatch.telemetry.server_observer import TelemetryServerObserver

        return TelemetryServerObserver(
            self,
            service=service,
            instance=instance,
            topic=topic,
            replies=replies,
            responses=responses,
            reply_topic=reply_topic,
        )


DEFAULT_TELEMETRY = Telemetry()
SILENT = Telemetry(metrics=False, traces="off")
"""Nothing at all."""
