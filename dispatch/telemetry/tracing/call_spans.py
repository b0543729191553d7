"""Spans of calls, on the dispatcher's side: ``execute_tool`` for a call over all its attempts, under it a ``send`` for each.

A ``send`` span is open until its attempt has ended, not only until the broker has the request: which attempt took long, at
which instance and why, is what a trace of a call is read for. Its context travels in the request's properties, so that the
service's span is its child.

Nothing is built unless somebody listens and the call is sampled.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from dispatch.calls.resolved_tool import ResolvedTool
from dispatch.errors import DispatchError, Outcome
from dispatch.result import CallResult
from dispatch.telemetry.error_types import error_type
from dispatch.telemetry.names import (
    ATTEMPT,
    ATTEMPT_REASON,
    ATTEMPTS,
    CHUNKS,
    ERROR_TYPE,
    EXECUTE_TOOL,
    EXTENSION,
    FIRST_CHUNK,
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
    REFUSED_EVENT,
    SEND,
    SERVICE,
    TOOL_ARGUMENTS,
    TOOL_CALL_ID,
    TOOL_DESCRIPTION,
    TOOL_NAME,
    TOOL_RESULT,
    TOOL_TYPE,
    TRANSMISSIONS,
    ErrorType,
)
from dispatch.telemetry.settings import Telemetry
from dispatch.telemetry.tracing.interface import CallTrace, Passed, SendTrace, unsampled
from dispatch.telemetry.tracing.propagation import received, written
from dispatch.telemetry.tracing.provider import LOOK_S, listening

logger = logging.getLogger("dispatch.telemetry")

MAX_CONTENT_CHARS = 64 * 1024
"""Of arguments and results, where they are recorded."""
MAX_NAME_CHARS = 256

NOTHING: Mapping[str, str] = {}


class _RecordedSend:
    __slots__ = ("_span", "properties")

    def __init__(self, span: Span) -> None:
        self._span = span
        self.properties = written(span)

    def ended(self, outcome: Outcome, error: DispatchError | None, instance: str | None, transmissions: int) -> None:
        span = self._span
        if instance is not None:
            span.set_attribute(INSTANCE, instance)
        if transmissions > 1:
            span.set_attribute(TRANSMISSIONS, transmissions)
        _conclude(span, outcome, error)
        span.end()


class _Recorded:
    __slots__ = ("_context", "_span", "_tool", "_tracing", "records_content")

    carried = None

    def __init__(self, tracing: Tracing, span: Span, tool: str) -> None:
        self._tracing = tracing
        self._tool = tool
        self._span = span
        self.records_content = tracing.content
        self._context = set_span_in_context(span, EMPTY)

    @property
    def exemplar(self) -> dict[str, str] | None:
        own = self._span.get_span_context()
        if not own.trace_flags.sampled:
            return None
        return {"trace_id": f"{own.trace_id:032x}", "span_id": f"{own.span_id:016x}"}

    def send(self, topic: str, template: str, id: str, number: int, reason: str) -> SendTrace:
        attributes: dict[str, str | int] = {
            MESSAGING_SYSTEM: PULSAR,
            MESSAGING_OPERATION: SEND,
            MESSAGING_OPERATION_TYPE: SEND,
            MESSAGING_DESTINATION: topic,
            MESSAGING_CONVERSATION: id,
            MESSAGING_CLIENT: self._tracing.name,
            ATTEMPT: number,
            ATTEMPT_REASON: reason,
        }
        if topic != template:
            attributes[MESSAGING_TEMPLATE] = template
        return _RecordedSend(
            self._tracing.tracer.start_span(f"{SEND} {template}", self._context, SpanKind.PRODUCER, attributes)
        )

    def event(self, name: str, attributes: Mapping[str, str | float]) -> None:
        if self._span.is_recording():  # else its caller has left what others share, and wait for
            self._span.add_event(name, attributes)

    def content(self, kind: str, text: str) -> None:
        shown = self._tracing.shown(kind, self._tool, text)
        if shown is not None:
            self._span.set_attribute(TOOL_ARGUMENTS if kind == "arguments" else TOOL_RESULT, shown)

    def first_chunk(self, seconds: float) -> None:
        self._span.set_attribute(FIRST_CHUNK, seconds)

    def ended(self, result: CallResult, reply: Mapping[str, str]) -> None:
        span, error = self._span, result.error
        known: dict[str, str | int] = {OUTCOME: str(result.outcome), ATTEMPTS: result.attempts}
        if result.request_id:
            known[TOOL_CALL_ID] = result.request_id
        if result.chunks > 1:
            known[CHUNKS] = result.chunks
        span.set_attributes(known)
        if result.text and self._tracing.content:
            self.content("result", result.text)
        sender = received(reply)
        if sender is not None:
            span.add_link(sender)
        if error is not None and error.rejected_by is not None:
            span.add_event(REFUSED_EVENT, {REASON: error.rejected_by})
        _conclude(span, result.outcome, error)
        span.end()

    def left(self, attempts: int) -> None:
        self._span.set_attribute(OUTCOME, str(Outcome.CANCELLED))
        self._span.set_attribute(ATTEMPTS, attempts)
        _conclude(self._span, Outcome.CANCELLED, None)
        self._span.end()


EMPTY = Context()


def _conclude(span: Span, outcome: Outcome, error: DispatchError | None) -> None:
    if error is not None:
        # The type, and not the text: a tool's own error may quote what it was given.
        kind = error_type(error)
        span.set_attribute(ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, kind))
    elif outcome is Outcome.CANCELLED:
        span.set_attribute(ERROR_TYPE, ErrorType.CANCELLED)
        span.set_status(Status(StatusCode.ERROR, ErrorType.CANCELLED))


class Tracing:
    """The spans of one dispatcher.

    Args:
        settings: what is to be traced.
        name: the dispatcher's.
        now: the moment, on the clock of :meth:`call`'s.
    """

    def __init__(self, settings: Telemetry, name: str, now: float) -> None:
        self._settings = settings
        self.name = name
        self.content = settings.content
        """Arguments and results may be recorded."""
        self._sample = settings.sample
        self._random = random.random
        self._unsampled = unsampled().__next__
        self.tracer: Tracer = trace.NoOpTracer()
        self._listening = False
        self._look_at = now
        self._look(now)

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_S
        if not self._listening and (tracer := listening(self._settings)) is not None:
            self.tracer = tracer
            self._listening = True

    def call(self, target: ResolvedTool, now: float) -> CallTrace | None:
        """A call of ``target`` begins. None: nobody wants to know."""
        if now >= self._look_at:
            self._look(now)
        context = get_current()
        parent = get_current_span(context).get_span_context() if context else None
        if parent is not None and parent.is_valid:
            if not (self._listening and parent.trace_flags.sampled):
                return Passed(written(parent))
        elif not self._listening:
            return None
        elif self._sample < 1.0 and self._random() >= self._sample:
            return Passed({"traceparent": self._unsampled()})
        tool = target.label
        # What is at hand goes along at once: each attribute that is set later costs a microsecond.
        known = {SERVICE: target.service.id}
        if target.description:
            known[TOOL_DESCRIPTION] = target.description
        span = self._start(tool, tool, context, known)
        if not span.is_recording():
            return Passed(written(span))
        return _Recorded(self, span, tool)

    def _start(self, shown: str, tool: str, context: Context, known: Mapping[str, str] = NOTHING) -> Span:
        return self.tracer.start_span(
            f"{EXECUTE_TOOL} {shown}",
            context,
            SpanKind.INTERNAL,
            {OPERATION: EXECUTE_TOOL, TOOL_NAME: tool[:MAX_NAME_CHARS], TOOL_TYPE: EXTENSION, **known},
        )

    def unknown(self, tool: str, error: DispatchError, now: float) -> None:
        """Somebody called a tool that there is not: a span for the call that came to nothing."""
        if now >= self._look_at:
            self._look(now)
        if not self._listening:
            return
        context = get_current()
        parent = get_current_span(context).get_span_context()
        if not parent.is_valid and self._sample < 1.0 and self._random() >= self._sample:
            return
        span = self._start(OTHER, tool.encode(errors="replace").decode(), context)  # it may be any text at all
        span.set_attribute(OUTCOME, str(error.outcome))
        _conclude(span, error.outcome, error)
        span.end()

    def shown(self, kind: str, tool: str, text: str) -> str | None:
        """What may be recorded of ``arguments`` or a ``result``."""
        settings = self._settings
        shown: str | None = text
        if settings.redact is not None:
            try:
                shown = settings.redact(kind, tool, text)
            except (
                Exception
            ) as error:  # a call does not fail for it; and what it was to hide stays hidden, in the log too
                name = type(error).__name__
                logger.error("the redaction hook failed (%s): nothing is recorded of the %s of '%s'", name, kind, tool)
                return None
        return None if shown is None else shown[:MAX_CONTENT_CHARS]
