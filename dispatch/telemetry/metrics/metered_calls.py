"""Metrics of calls: one :class:`~dispatch.telemetry.call_observer.CallObserver` for all calls of a tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dispatch.errors import DispatchError, Outcome
from dispatch.result import CallResult
from dispatch.telemetry.call_observer import NO_PROPERTIES, RequestObserver
from dispatch.telemetry.metrics.call_metrics import Count
from dispatch.telemetry.metrics.instruments import ToolMeter

_CANCELLED = Outcome.CANCELLED


class _MeteredRequests:
    """Counts the requests of one reason, when they end."""

    __slots__ = ("_count",)

    properties = NO_PROPERTIES

    def __init__(self, count: Count) -> None:
        self._count = count

    def on_end(
        self, outcome: Outcome, error: DispatchError | None, *, instance: str, transmissions: int, sent: bool
    ) -> None:
        if sent:
            self._count.value += 1


class MeteredCalls:
    """Writes the metrics of a tool's calls. It holds no state of a single call: all of them share it.

    Args:
        meter: the tool's series.
    """

    __slots__ = ("_requests", "meter")

    def __init__(self, meter: ToolMeter) -> None:
        self.meter = meter
        self._requests: dict[str, RequestObserver] = {
            reason: _MeteredRequests(count) for reason, count in meter.attempts.items()
        }

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        pass

    def on_queued(self, seconds: float) -> None:
        self.meter.waited.observe(seconds)

    def on_rejected(self, error: DispatchError) -> None:
        self.meter.refused(error)

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        return self._requests[reason]

    def on_retry(self, wait: float) -> None:
        pass

    def on_hedge(self) -> None:
        pass

    def on_budget_exhausted(self) -> None:
        self.meter.unpaid()

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self.meter.first_chunk.observe(seconds, exemplar)

    def on_chunk(self, text: str) -> None:
        pass

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        self.meter.finished(result.outcome, result.duration, exemplar)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self.meter.finished(_CANCELLED, seconds)
