"""Spans of calls on the dispatcher's side: ``execute_tool`` for a call over all its attempts, and a ``send`` for each one.

A ``send`` span is open until its attempt has ended, not only until the broker has the request, so that the trace shows which
attempt took long, at which instance, and why. Its context travels in the request's properties: the service's span is its
child. No span is built unless an SDK is set up and the call is sampled.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context

from dispatch._internal.user_code import type_name
from dispatch._internal.utf8 import scalar_text
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.messaging.wire.codec import json_text
from dispatch.result import CallResult
from dispatch.telemetry.call_observer import CallDecorator, CallObserver, ObservedTool, RequestObserver
from dispatch.telemetry.names import (
    ATTEMPT,
    ATTEMPT_REASON,
    ATTEMPTS,
    CHUNKS,
    ERROR_TYPE,
    EXECUTE_LOCALLY,
    EXECUTE_TOOL,
    EXTENSION,
    FIRST_CHUNK,
    HEDGE_EVENT,
    INSTANCE,
    MESSAGING_CLIENT,
    MESSAGING_CONVERSATION,
    MESSAGING_DESTINATION,
    MESSAGING_OPERATION,
    MESSAGING_OPERATION_TYPE,
    MESSAGING_SYSTEM,
    MESSAGING_TEMPLATE,
    OPERATION,
    OTHER,
    OUTCOME,
    PULSAR,
    REASON,
    REJECTED_EVENT,
    RETRY_EVENT,
    SEND,
    SERVICE,
    TOOL_ARGUMENTS,
    TOOL_CALL_ID,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    TOOL_RESULT,
    TOOL_TYPE,
    WAIT,
)
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing.propagation import decode_span_context, encode_context, generate_unsampled
from dispatch.telemetry.tracing.provider import TRACER_CHECK_S, find_tracer

logger = logging.getLogger("dispatch.telemetry")

MAX_CONTENT_CHARS = 64 * 1024
"""Longest text of arguments or a result that is recorded."""
MAX_NAME_CHARS = 256

NO_ATTRIBUTES: Mapping[str, str] = {}


class _RecordedRequest(RequestObserver):
    """The ``send`` span of one request."""

    __slots__ = ("_inner", "_span", "properties")

    def __init__(self, span: Span, inner: RequestObserver) -> None:
        self._span = span
        self._inner = inner
        self.properties = encode_context(span)

    def activate(self) -> None:
        attach(set_span_in_context(self._span))

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        self._inner.on_end(outcome, error, instance=instance, sent=sent)
        span = self._span
        if instance:
            span.set_attribute(INSTANCE, instance)
        _conclude(span, outcome, error)
        span.end()


class _PropagatedRequest(RequestObserver):
    """A request of a call that is not recorded: it carries the trace context."""

    __slots__ = ("_inner", "properties")

    def __init__(self, properties: Mapping[str, str], inner: RequestObserver) -> None:
        self.properties = properties
        self._inner = inner

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        self._inner.on_end(outcome, error, instance=instance, sent=sent)


class _PropagatedCall(CallDecorator):
    """A call that is not recorded: its requests carry the trace context."""

    __slots__ = ("_properties",)

    def __init__(self, properties: Mapping[str, str], inner: CallObserver) -> None:
        super().__init__(inner)
        self._properties = properties

    @property
    def trace_id(self) -> str:
        return self._properties.get("traceparent", "")[3:35]

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        return _PropagatedRequest(self._properties, self._inner.on_request(topic, template, id, number, reason))


class _RecordedCall(CallDecorator):
    """A call that is recorded as a span."""

    __slots__ = ("_chunks", "_context", "_exemplar", "_size", "_span", "_tool", "_tracing")

    def __init__(self, tracing: CallTracing, span: Span, tool: str, inner: CallObserver) -> None:
        super().__init__(inner)
        self._tracing = tracing
        self._tool = tool
        self._span = span
        self._context = set_span_in_context(span, EMPTY)
        self._chunks: list[str] = []
        self._size = 0
        own = span.get_span_context()
        self._exemplar: dict[str, str] | None = None
        if own.trace_flags.sampled:
            self._exemplar = {"trace_id": f"{own.trace_id:032x}", "span_id": f"{own.span_id:016x}"}

    @property
    def trace_id(self) -> str:
        return f"{self._span.get_span_context().trace_id:032x}"

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        self._inner.on_arguments(arguments)
        if self._tracing.content:
            self._record_content("arguments", json_text(arguments, "arguments"))

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> RequestObserver:
        if not topic:
            known: dict[str, str | int] = {ATTEMPT: number, ATTEMPT_REASON: reason}
            span = self._tracing.tracer.start_span(EXECUTE_LOCALLY, self._context, SpanKind.INTERNAL, known)
            return _RecordedRequest(span, self._inner.on_request(topic, template, id, number, reason))
        attributes: dict[str, str | int] = {
            MESSAGING_SYSTEM: PULSAR,
            MESSAGING_OPERATION: SEND,
            MESSAGING_OPERATION_TYPE: SEND,
            MESSAGING_DESTINATION: topic,
            MESSAGING_CONVERSATION: id,
            MESSAGING_CLIENT: self._tracing.client_id,
            ATTEMPT: number,
            ATTEMPT_REASON: reason,
        }
        if topic != template:
            attributes[MESSAGING_TEMPLATE] = template
        return _RecordedRequest(
            self._tracing.tracer.start_span(f"{SEND} {template}", self._context, SpanKind.PRODUCER, attributes),
            self._inner.on_request(topic, template, id, number, reason),
        )

    def on_retry(self, wait: float) -> None:
        self._inner.on_retry(wait)
        self._add_event(RETRY_EVENT, {WAIT: wait})

    def on_hedge(self) -> None:
        self._inner.on_hedge()
        self._add_event(HEDGE_EVENT, {})

    def _add_event(self, name: str, attributes: Mapping[str, str | float]) -> None:
        if self._span.is_recording():  # not any more after the caller cancelled a call that other callers share
            self._span.add_event(name, attributes)

    def _record_content(self, kind: str, text: str) -> None:
        shown = self._tracing.redact_content(kind, self._tool, text)
        if shown is not None:
            self._span.set_attribute(TOOL_ARGUMENTS if kind == "arguments" else TOOL_RESULT, shown)

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_first_chunk(seconds, self._exemplar)
        self._span.set_attribute(FIRST_CHUNK, seconds)

    def on_chunk(self, text: str) -> None:
        self._inner.on_chunk(text)
        if self._tracing.content and self._size < MAX_CONTENT_CHARS:
            self._chunks.append(text)
            self._size += len(text)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_end(result, reply, self._exemplar)
        span, error = self._span, result.error
        known: dict[str, str | int] = {OUTCOME: str(result.outcome), ATTEMPTS: result.attempts}
        if result.request_id:
            known[TOOL_CALL_ID] = result.request_id
        if result.chunks > 1:
            known[CHUNKS] = result.chunks
        span.set_attributes(known)
        text = "".join(self._chunks) or result.text
        if text and self._tracing.content:
            self._record_content("result", text)
        sender = decode_span_context(reply)
        if sender is not None:
            span.add_link(sender)
        if error is not None and error.rejected_by is not None:
            span.add_event(REJECTED_EVENT, {REASON: error.rejected_by})
        _conclude(span, result.outcome, error)
        span.end()

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_cancel(seconds, attempts, self._exemplar)
        self._span.set_attribute(OUTCOME, str(Outcome.CANCELLED))
        self._span.set_attribute(ATTEMPTS, attempts)
        _conclude(self._span, Outcome.CANCELLED, None)
        self._span.end()


EMPTY = Context()


def _conclude(span: Span, outcome: Outcome, error: DispatchError | None) -> None:
    if error is not None:
        # The type, not the text: a tool's own error may quote its arguments.
        kind = error.telemetry_type
        span.set_attribute(ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, kind))
    elif outcome is Outcome.CANCELLED:
        span.set_attribute(ERROR_TYPE, ErrorType.CANCELLED.value)
        span.set_status(Status(StatusCode.ERROR, ErrorType.CANCELLED.value))


class CallTracing:
    """Spans of the calls of one dispatcher.

    Args:
        settings: what is traced.
        client_id: of the dispatcher.
        now: seconds, on the clock of :meth:`start_call`.
    """

    def __init__(self, settings: Telemetry, client_id: str, now: float) -> None:
        self._settings = settings
        self.client_id = client_id
        self.content = settings.content
        """Record arguments and results."""
        self._sample = settings.sample
        self._random = random.random
        self._unsampled = generate_unsampled().__next__
        self.tracer: Tracer = trace.NoOpTracer()
        self._has_tracer = False
        self._tracer_check_at = now
        self._check_tracer(now)

    def _check_tracer(self, now: float) -> None:
        self._tracer_check_at = now + TRACER_CHECK_S
        if not self._has_tracer and (tracer := find_tracer(self._settings)) is not None:
            self.tracer = tracer
            self._has_tracer = True

    def start_call(self, tool: ObservedTool, now: float, inner: CallObserver) -> CallObserver:
        """Begin to observe a call of ``tool``; return ``inner`` itself if the call is in no trace and begins none."""
        if now >= self._tracer_check_at:
            self._check_tracer(now)
        context = get_current()
        parent = get_current_span(context).get_span_context() if context else None
        if parent is not None and parent.is_valid:
            if not (self._has_tracer and parent.trace_flags.sampled):
                return _PropagatedCall(encode_context(parent), inner)
        elif not self._has_tracer:
            return inner
        elif self._sample < 1.0 and self._random() >= self._sample:
            return _PropagatedCall({"traceparent": self._unsampled()}, inner)
        # perf: attributes at the start of a span are cheap; each one that is set later costs 1 µs
        known = {SERVICE: tool.service_id, TOOL_TYPE: tool.tool_type}
        if tool.description:
            known[TOOL_DESCRIPTION] = tool.description
        span = self._start(tool.label, tool.label, context, known)
        if not span.is_recording():
            return _PropagatedCall(encode_context(span), inner)
        return _RecordedCall(self, span, tool.label, inner)

    def _start(self, shown: str, tool: str, context: Context, known: Mapping[str, str] = NO_ATTRIBUTES) -> Span:
        return self.tracer.start_span(
            f"{EXECUTE_TOOL} {shown}",
            context,
            SpanKind.INTERNAL,
            {OPERATION: EXECUTE_TOOL, TOOL_NAME: tool[:MAX_NAME_CHARS], **known},
        )

    def record_unknown_tool(self, tool: str, error: DispatchError, now: float) -> None:
        """Record a span for the call of a tool that is in no catalogue."""
        if now >= self._tracer_check_at:
            self._check_tracer(now)
        if not self._has_tracer:
            return
        context = get_current()
        parent = get_current_span(context).get_span_context()
        if not parent.is_valid and self._sample < 1.0 and self._random() >= self._sample:
            return
        known = {TOOL_TYPE: EXTENSION}
        span = self._start(OTHER, scalar_text(tool), context, known)
        span.set_attribute(OUTCOME, str(error.outcome))
        _conclude(span, error.outcome, error)
        span.end()

    def redact_content(self, kind: str, tool: str, text: str) -> str | None:
        """Return what may be recorded of ``arguments`` or a ``result``; None: nothing."""
        settings = self._settings
        shown: str | None = text
        try:
            if settings.redact is not None:
                shown = settings.redact(kind, tool, text)
            return None if shown is None else scalar_text(shown[:MAX_CONTENT_CHARS])
        except BaseException as raised:
            # The call continues. The log has the exception's type alone: its text may quote what was to be redacted.
            name = type_name(raised)
            logger.error("the redaction hook failed (%s): %s of '%s' not recorded", name, kind, tool)
            return None
