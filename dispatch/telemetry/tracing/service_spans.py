"""Spans of a tool service: ``process`` while the tool runs, a child of the caller's ``send``; and one ``send`` for all
messages of the reply.

The caller's span is the parent, not a link, because a request is one message that one service processes: the exchange is one
trace. A request that is rejected before it runs has no span.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import Context, attach
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from dispatch.telemetry.names import (
    CHUNKS,
    ERROR_TYPE,
    INSTANCE,
    MESSAGING_CLIENT,
    MESSAGING_CONVERSATION,
    MESSAGING_DESTINATION,
    MESSAGING_OPERATION,
    MESSAGING_OPERATION_TYPE,
    MESSAGING_SYSTEM,
    MESSAGING_TEMPLATE,
    MESSAGING_TEMPORARY,
    PROCESS,
    PULSAR,
    SEND,
    SERVICE,
)
from dispatch.telemetry.served_request_observer import (
    NO_PROPERTIES,
    ObservedRequest,
    RunResult,
    ServedRequestObserver,
    ServerNames,
)
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing.propagation import decode_context, encode_context
from dispatch.telemetry.tracing.provider import TRACER_CHECK_S, find_tracer

_EMPTY = Context()


class _RecordedServedRequest(ServedRequestObserver):
    """The ``process`` span of one request, and the ``send`` span of its reply.

    Args:
        tracing: of the service.
        span: of the request.
        context: of the request's task, which has the span.
        request: the request.
        inner: the observer that receives the same events.
    """

    __slots__ = ("_chunks", "_context", "_inner", "_is_reply_ended", "_reply", "_request", "_span", "_tracing")

    def __init__(
        self,
        tracing: ServiceTracing,
        span: Span,
        context: Context,
        request: ObservedRequest,
        inner: ServedRequestObserver,
    ) -> None:
        self._tracing = tracing
        self._span = span
        self._context = context
        self._request = request
        self._inner = inner
        self._reply: Span | None = None
        self._is_reply_ended = False
        self._chunks = 0

    def on_reply(self, *, is_last: bool) -> Mapping[str, str]:
        self._inner.on_reply(is_last=is_last)
        if self._is_reply_ended:
            return NO_PROPERTIES
        span = self._reply
        if span is None:
            span = self._reply = self._tracing.start_reply(self._request, self._context)
        self._chunks += 1
        carried = encode_context(span)
        if is_last:
            self._end_reply(span)
        return carried

    def _end_reply(self, span: Span) -> None:
        self._is_reply_ended = True
        if self._chunks > 1:
            span.set_attribute(CHUNKS, self._chunks)
        span.end()

    def on_error(self, error_type: str) -> None:
        self._inner.on_error(error_type)
        self._span.set_attribute(ERROR_TYPE, str(error_type))
        self._span.set_status(Status(StatusCode.ERROR, str(error_type)))

    def on_tool_end(self, result: RunResult, seconds: float) -> None:
        self._inner.on_tool_end(result, seconds)

    def on_end(self) -> None:
        self._inner.on_end()
        if self._reply is not None and not self._is_reply_ended:
            self._end_reply(self._reply)
        self._span.end()


class ServiceTracing:
    """Spans of one service instance.

    Args:
        settings: what is traced.
        names: of the instance.
    """

    def __init__(self, settings: Telemetry, names: ServerNames) -> None:
        self._settings = settings
        self._names = names
        self._tracer: Tracer | None = None
        self._tracer_check_at = float("-inf")

    def start_request(
        self, request: ObservedRequest, now: float, inner: ServedRequestObserver
    ) -> ServedRequestObserver:
        """Begin the span of a request in the task that runs it, and make its context the task's: the tool's own spans and
        calls are part of the caller's trace. Return ``inner`` itself if the request is not recorded.

        Args:
            request: the request.
            now: seconds, on any clock that is always the same.
            inner: the observer that receives the same events.
        """
        origin = decode_context(request.headers)
        tracer = self._tracer
        if tracer is None and now >= self._tracer_check_at:
            self._tracer_check_at = now + TRACER_CHECK_S
            tracer = self._tracer = find_tracer(self._settings)
        if tracer is None:
            if origin is not None:
                attach(origin)  # the task ends with the request
            return inner
        names = self._names
        span = tracer.start_span(
            f"{PROCESS} {names.topic}",
            _EMPTY if origin is None else origin,
            SpanKind.CONSUMER,
            {MESSAGING_SYSTEM: PULSAR, MESSAGING_OPERATION: PROCESS, MESSAGING_OPERATION_TYPE: PROCESS},
        )
        context = set_span_in_context(span, _EMPTY if origin is None else origin)
        attach(context)
        if not span.is_recording():
            return inner
        span.set_attributes(
            {
                MESSAGING_DESTINATION: names.topic,
                MESSAGING_CONVERSATION: request.id,
                MESSAGING_CLIENT: names.instance,
                SERVICE: names.service,
                INSTANCE: names.instance,
            }
        )
        return _RecordedServedRequest(self, span, context, request, inner)

    def start_reply(self, request: ObservedRequest, context: Context) -> Span:
        """Begin the span of the reply to ``request``."""
        assert self._tracer is not None  # the reply is part of a span
        topic, names = request.reply_topic, self._names
        own = topic != names.responses
        attributes: dict[str, str | bool] = {
            MESSAGING_SYSTEM: PULSAR,
            MESSAGING_OPERATION: SEND,
            MESSAGING_OPERATION_TYPE: SEND,
            MESSAGING_DESTINATION: topic,
            MESSAGING_CONVERSATION: request.id,
            MESSAGING_CLIENT: names.instance,
        }
        if own:
            attributes[MESSAGING_TEMPLATE] = names.replies
            attributes[MESSAGING_TEMPORARY] = True
        name = names.replies if own else topic
        return self._tracer.start_span(f"{SEND} {name}", context, SpanKind.PRODUCER, attributes)
