"""The observer of calls: what the call path reports, without knowing whether metrics, traces or logs listen.

A dispatcher has one :class:`DispatcherObserver`; it gives a :class:`ToolObserver` for each tool, which gives a
:class:`CallObserver` for each call, which gives a :class:`RequestObserver` for each request of the call. These classes
observe nothing, and so do their objects at the end of this module, which are used where telemetry is off: the call path has
no conditions on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from dispatch.errors import DispatchError, Outcome
from dispatch.result import CallResult
from dispatch.telemetry.catalog_observer import NULL_CATALOG, CatalogObserver

NO_PROPERTIES: Final[Mapping[str, str]] = {}

OnCircuitTransition = Callable[[Any, Any, str], None]
"""Receives the old state, the new state and the reason of each transition of a circuit breaker."""
OnInstanceChange = Callable[[str, str, str], object]
"""Receives the instance's name, its change (``joined``, ``left``, ``ejected``, ``returned``) and the reason."""


class Counter(Protocol):
    """A counter that the message path increments in place: a function call for each reply would cost more than the rest."""

    value: float


class ObservedTool(Protocol):
    """The called tool, as observers see it."""

    @property
    def label(self) -> str:
        """The tool's name."""

    @property
    def service_id(self) -> str:
        """The id of the tool's service."""

    @property
    def description(self) -> str:
        """The description for models."""

    @property
    def tool_type(self) -> str:
        """The type of the tool, as OpenTelemetry names it in ``gen_ai.tool.type``."""


class RequestObserver:
    """Receives the end of one request of a call."""

    __slots__ = ()

    properties: Mapping[str, str] = NO_PROPERTIES
    """Message properties that the request carries: the trace context."""

    def activate(self) -> None:
        """Make the request's span the current one of the running task, in which this process executes the tool."""

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        """Observe the end of the request.

        Args:
            outcome, error: of the request's attempt.
            instance: name of the instance that the request was addressed to.
            sent: it was sent, or may have been.
        """


class CallObserver:
    """Receives the events of one call, in the order in which they happen; it ends with ``on_end`` or ``on_cancel``."""

    __slots__ = ()

    @property
    def trace_id(self) -> str:
        """The trace that the call is in, as 32 hex digits; empty: none."""
        return ""

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Observe the valid arguments. They are user data, recorded only if telemetry has ``content`` on."""

    def on_queued(self, seconds: float) -> None:
        """Observe that an attempt waited ``seconds`` for a rate limit or the bulkhead."""

    def on_rejected(self, error: DispatchError) -> None:
        """Observe that an attempt was rejected before the tool was executed; ``error.rejected_by`` names the part."""

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        """Observe a request before it is sent, or before this process executes the tool.

        Args:
            topic, template: topic of the request; ``template`` is the service's request topic, of which instances' topics
                derive. Both ``""``: this process executes the tool.
            id: of the request.
            number: of the attempt, from 1.
            reason: ``first``, ``retry`` or ``hedge``.
        """
        return NULL_REQUEST

    def on_retry(self, wait: float) -> None:
        """Observe that the call is retried after ``wait`` seconds."""

    def on_hedge(self) -> None:
        """Observe that a hedge is sent beside the first attempt."""

    def on_budget_exhausted(self) -> None:
        """Observe that a retry or a hedge was due and is not sent: the retry budget is exhausted."""

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        """Observe the first chunk of a stream, ``seconds`` after the start of the call."""

    def on_chunk(self, text: str) -> None:
        """Observe a chunk of a stream. It is user data, as the arguments."""

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        """Observe the end of the call.

        Args:
            result: the caller's result.
            reply: trace context of the reply, as ``traceparent`` and ``tracestate``.
            exemplar: ``trace_id`` and ``span_id`` for the measurement of the call.
        """

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        """Observe that the call was cancelled, or its stream closed early, after ``seconds`` and ``attempts`` requests."""


class ToolObserver:
    """Observes the calls and the circuit breakers of one tool."""

    __slots__ = ()

    def start_call(self, tool: ObservedTool, started: float) -> CallObserver:
        """Begin to observe a call that began at ``started``, on the loop's clock."""
        return NULL_CALL

    def observe_circuit(self, instance: str | None = None) -> OnCircuitTransition:
        """Return the callback for transitions of the tool's breaker, or of its breaker at one instance."""
        return _ignore


class ServiceObserver:
    """Observes replies and instances of one service."""

    __slots__ = ()

    replies: Mapping[Any, Counter] | None = None
    """Counters of replies by :class:`~dispatch.messaging.rpc.exchange_outcome.Disposition`; None: not counted."""

    def on_instance_change(self, instance: str, change: str, reason: str) -> None:
        """See :data:`OnInstanceChange`."""


class DispatcherObserver:
    """Observes one dispatcher from its start to its close."""

    catalog: CatalogObserver = NULL_CATALOG
    """The observer of the dispatcher's catalogue."""

    def attach(self, dispatcher: Any) -> None:
        """Read the gauges of ``dispatcher`` at each scrape.

        Args:
            dispatcher: a :class:`~dispatch.telemetry.metrics.collector.ObservedDispatcher`.
        """

    def observe_tool(self, label: str, version: str | None = None) -> ToolObserver:
        """Return the observer of a version of the tool with that label. None: the tool declares no version."""
        return NULL_TOOL

    def observe_service(self, id: str, label: str) -> ServiceObserver:
        """Return the observer of the service ``id``, with the ``label`` of its series; ``_OTHER``: of replies that belong to
        no service."""
        return NULL_SERVICE

    def observe_sessions(self, table: Any) -> None:
        """Read the sessions with instances at each scrape.

        Args:
            table: a :class:`~dispatch.protocol.session_table.SessionTable`.
        """

    def release_sessions(self, table: Any) -> None:
        """Stop reading the sessions of ``table``; their counts stay."""

    def on_unknown_tool(self, name: str, error: DispatchError, now: float) -> None:
        """Observe the call of a tool that is in no catalogue."""

    def release_tool(self, label: str) -> None:
        """Remove the series of a tool that was removed from the catalogue."""

    def release_version(self, label: str, version: str) -> None:
        """Remove the series of a version of a tool that was removed from the catalogue."""

    def release_service(self, id: str) -> None:
        """Remove the series of a service that was removed from the catalogue."""

    def close(self) -> None:
        """End the observation."""


class CallDecorator(CallObserver):
    """Passes every event of a call on to another observer.

    Args:
        inner: the other observer.
    """

    __slots__ = ("_inner",)

    def __init__(self, inner: CallObserver) -> None:
        self._inner = inner

    @property
    def trace_id(self) -> str:
        return self._inner.trace_id

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        self._inner.on_arguments(arguments)

    def on_queued(self, seconds: float) -> None:
        self._inner.on_queued(seconds)

    def on_rejected(self, error: DispatchError) -> None:
        self._inner.on_rejected(error)

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        return self._inner.on_request(topic, template, id, number, reason)

    def on_retry(self, wait: float) -> None:
        self._inner.on_retry(wait)

    def on_hedge(self) -> None:
        self._inner.on_hedge()

    def on_budget_exhausted(self) -> None:
        self._inner.on_budget_exhausted()

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_first_chunk(seconds, exemplar)

    def on_chunk(self, text: str) -> None:
        self._inner.on_chunk(text)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_end(result, reply, exemplar)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_cancel(seconds, attempts, exemplar)


def _ignore(_old: object, _new: object, _reason: str) -> None:
    pass


NULL_REQUEST = RequestObserver()
NULL_CALL = CallObserver()
NULL_TOOL = ToolObserver()
NULL_SERVICE = ServiceObserver()
NULL_DISPATCHER = DispatcherObserver()
