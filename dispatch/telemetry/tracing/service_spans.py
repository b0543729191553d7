"""Spans of a tool service: ``process`` while the tool runs, a child of the caller's ``send``; under it one ``send`` for the
answer, however many messages that comes in.

The caller's span is the parent, and not only linked, because a request is one message that one service processes: so the
exchange is one trace. What is refused before it runs has no span: it was never processed.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import Context, attach
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)

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
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing.propagation import parent, written
from dispatch.telemetry.tracing.provider import LOOK_S, listening

_EMPTY = Context()
_NOTHING: Mapping[str, str] = {}


class RequestTrace:
    """One request, while it runs. Made by :meth:`ServiceTracing.process`."""

    __slots__ = ("_answer", "_answered", "_chunks", "_context", "_id", "_span", "_tracing")

    def __init__(self, tracing: ServiceTracing, span: Span | None, context: Context, id: str) -> None:
        self._tracing = tracing
        self._span = span
        self._context = context
        self._id = id
        self._answer: Span | None = None
        self._answered = False
        self._chunks = 0

    def enter(self) -> None:
        """From now on what runs in this task is part of it: the tool's own spans, and calls of its own."""
        attach(self._context)  # the task ends with the request

    def answering(self, topic: str, *, last: bool) -> Mapping[str, str]:
        """A message of the answer leaves; what it carries.

        Args:
            topic: where to.
            last: it is the last one.
        """
        if self._span is None or self._answered:
            return _NOTHING
        span = self._answer
        if span is None:
            span = self._answer = self._tracing.send(topic, self._context, self._id)
        self._chunks += 1
        carried = written(span)
        if last:
            self._end_answer(span)
        return carried

    def _end_answer(self, span: Span) -> None:
        self._answered = True
        if self._chunks > 1:
            span.set_attribute(CHUNKS, self._chunks)
        span.end()

    def failed(self, kind: str) -> None:
        """It ends in an error of that kind: one of :class:`~dispatch.errors.ErrorType`."""
        if self._span is not None:
            self._span.set_attribute(ERROR_TYPE, str(kind))
            self._span.set_status(Status(StatusCode.ERROR, str(kind)))

    def ended(self) -> None:
        """It is over."""
        if self._answer is not None and not self._answered:
            self._end_answer(self._answer)
        if self._span is not None:
            self._span.end()


class ServiceTracing:
    """The spans of one service instance.

    Args:
        settings: what is to be traced.
        service, instance: its ids.
        topic: where its requests come from.
        replies: the name of callers' own reply topics, with a placeholder for what differs.
        responses: the service's response topic.
    """

    def __init__(
        self,
        settings: Telemetry,
        *,
        service: str,
        instance: str,
        topic: str,
        replies: str,
        responses: str,
    ) -> None:
        self._settings = settings
        self._service = service
        self._instance = instance
        self._topic = topic
        self._replies = replies
        self._responses = responses
        self._tracer: Tracer | None = None
        self._look_at = float("-inf")

    def process(self, id: str, properties: Mapping[str, str], now: float) -> RequestTrace | None:
        """A request begins to run, at ``now`` on any clock that is always the same. None: nobody wants to know, and its
        caller's context is none."""
        origin = parent(properties)
        tracer = self._tracer
        if tracer is None and now >= self._look_at:
            self._look_at = now + LOOK_S
            tracer = self._tracer = listening(self._settings)
        if tracer is None:
            return None if origin is None else RequestTrace(self, None, origin, id)
        span = tracer.start_span(
            f"{PROCESS} {self._topic}",
            _EMPTY if origin is None else origin,
            SpanKind.CONSUMER,
            {MESSAGING_SYSTEM: PULSAR, MESSAGING_OPERATION: PROCESS, MESSAGING_OPERATION_TYPE: PROCESS},
        )
        context = set_span_in_context(span, _EMPTY if origin is None else origin)
        if not span.is_recording():
            return RequestTrace(self, None, context, id)
        span.set_attributes(
            {
                MESSAGING_DESTINATION: self._topic,
                MESSAGING_CONVERSATION: id,
                MESSAGING_CLIENT: self._instance,
                SERVICE: self._service,
                INSTANCE: self._instance,
            }
        )
        return RequestTrace(self, span, context, id)

    def send(self, topic: str, context: Context, id: str) -> Span:
        """The span of an answer."""
        assert self._tracer is not None  # there is a span that it is part of
        own = topic != self._responses
        attributes: dict[str, str | bool] = {
            MESSAGING_SYSTEM: PULSAR,
            MESSAGING_OPERATION: SEND,
            MESSAGING_OPERATION_TYPE: SEND,
            MESSAGING_DESTINATION: topic,
            MESSAGING_CONVERSATION: id,
            MESSAGING_CLIENT: self._instance,
        }
        if own:
            attributes[MESSAGING_TEMPLATE] = self._replies
            attributes[MESSAGING_TEMPORARY] = True
        name = self._replies if own else topic
        return self._tracer.start_span(f"{SEND} {name}", context, SpanKind.PRODUCER, attributes)
