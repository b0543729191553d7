"""Metrics of calls: one :class:`~dispatch.telemetry.call_observer.CallObserver` for all calls of a tool."""

from __future__ import annotations

from collections.abc import Mapping

from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.result import CallResult
from dispatch.telemetry.call_observer import CallObserver, RequestObserver
from dispatch.telemetry.metrics.instruments import USER_RATE_LIMIT, ToolMeter
from dispatch.telemetry.metrics.lock_free import CounterSeries
from dispatch.telemetry.metrics.version_series import VersionMeter

_CANCELLED = Outcome.CANCELLED


def _is_refused(error: DispatchError | None) -> bool:
    """Whether the user may not call the tool. Such a call is counted as a rejection and not by its outcome: it says nothing
    about the tool, and must not use up the error budget of an objective."""
    return error is not None and error.type == ErrorType.NOT_PERMITTED


class _RequestMetrics(RequestObserver):
    """Counts the requests of one reason (``first``, ``retry``, ``hedge``) when they end."""

    __slots__ = ("_count",)

    def __init__(self, count: CounterSeries) -> None:
        self._count = count

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        if sent:
            self._count.value += 1


class CallMetrics(CallObserver):
    """Records the metrics of a tool's calls. One object observes all calls of the tool, because it has no state of a call.

    Args:
        meter: series of the tool.
    """

    __slots__ = ("_requests", "meter")

    def __init__(self, meter: ToolMeter) -> None:
        self.meter = meter
        self._requests: dict[str, RequestObserver] = {
            reason: _RequestMetrics(count) for reason, count in meter.attempts.items()
        }

    def on_queued(self, seconds: float) -> None:
        self.meter.queue_wait.observe(seconds)

    def on_rejected(self, error: DispatchError) -> None:
        self.meter.record_rejection(error)

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        return self._requests[reason]

    def on_budget_exhausted(self) -> None:
        self.meter.budget_exhausted()

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self.meter.first_chunk.observe(seconds, exemplar)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        meter = self.meter
        if result.error is None:
            meter.in_flight -= 1
            meter.ok.observe(result.duration, exemplar)
        elif _is_refused(result.error):
            meter.in_flight -= 1
        else:
            if result.error.rejected_by == USER_RATE_LIMIT:
                meter.rate_limited["user"]()
            meter.record_call(result.outcome, result.duration, exemplar)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self.meter.record_call(_CANCELLED, seconds)


class VersionCallMetrics(CallMetrics):
    """Records the metrics of the calls of one version of a tool: those of the tool, and those of the version.

    Args:
        meter: series of the tool.
        version: series of the version.
    """

    __slots__ = ("_version",)

    def __init__(self, meter: ToolMeter, version: VersionMeter) -> None:
        super().__init__(meter)
        self._version = version

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        super().on_end(result, reply, exemplar)
        if not _is_refused(result.error):
            self._version.record_call(result.outcome)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self.meter.record_call(_CANCELLED, seconds)
        self._version.record_call(_CANCELLED)
