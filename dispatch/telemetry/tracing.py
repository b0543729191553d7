"""Spans and the propagation of trace context, with OpenTelemetry."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from opentelemetry import trace
from opentelemetry.context import Context, attach, get_current
from opentelemetry.trace import (
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dispatch import __version__
from dispatch._internal import scalar_text, type_name
from dispatch.errors import DispatchError, ErrorType, Outcome
from dispatch.messaging.wire import json_text
from dispatch.results import CallResult
from dispatch.telemetry import observers
from dispatch.telemetry.events import ExceptionLogger

# Trace context in message properties: W3C's ``traceparent`` and ``tracestate``, without a prefix, as Pulsar's own clients
# send them. Baggage does not travel: it belongs to the caller, and the service may be a third party's.


_W3C = TraceContextTextMapPropagator()
_EMPTY = Context()


def encode_context(origin: Span | SpanContext) -> dict[str, str]:
    """Return the message properties with the context of ``origin``. perf: a fifth of the time of OpenTelemetry's propagator,
    which reads the span from a context that would have to be made first."""
    own = origin if isinstance(origin, SpanContext) else origin.get_span_context()
    if not own.is_valid:
        return {}
    carrier = {"traceparent": f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"}
    if own.trace_state:
        carrier["tracestate"] = own.trace_state.to_header()
    return carrier


def decode_context(properties: Mapping[str, str]) -> Context | None:
    """Return the trace context in the ``properties`` of a message; None: there is none, or it is malformed."""
    if "traceparent" not in properties:
        return None
    context = _W3C.extract(properties, _EMPTY)
    return context if get_current_span(context).get_span_context().is_valid else None


def decode_span_context(properties: Mapping[str, str]) -> SpanContext | None:
    """Return the span context in the ``properties`` of a message, for a link; None: as :func:`decode_context`."""
    context = decode_context(properties)
    return None if context is None else get_current_span(context).get_span_context()


def generate_unsampled() -> Iterator[str]:
    """Yield ``traceparent`` values of calls that are not sampled, each with a trace id of its own: the service records no
    spans for them either.

    perf: random digits are drawn for 256 values at once, which takes a third of the time. The digits that differ are the
    highest that a sampler by trace id compares: one that ignores the flag still samples its share.
    """
    while True:
        before = f"00-{random.getrandbits(64):016x}"
        after = f"{random.getrandbits(56):014x}-{random.getrandbits(64) | 1:016x}-00"
        for digits in _DIGITS:
            yield f"{before}{digits}{after}"


_DIGITS = tuple(f"{number:02x}" for number in range(256))

# The tracer of the OpenTelemetry SDK, which may be set up after the dispatcher or the service.


TRACER_CHECK_S: Final = 1.0
"""Seconds between two checks for a provider: while there is none, a check reads the environment, which takes 3 µs."""


def find_tracer(settings: observers.Telemetry) -> Tracer | None:
    """Return a tracer of the settings' provider or of the global one; None: no SDK is set up, or spans are off."""
    if settings.traces != "native":
        return None
    provider = settings.tracer_provider or trace.get_tracer_provider()
    if isinstance(provider, (ProxyTracerProvider, NoOpTracerProvider)):
        return None
    with _SPANS:
        return provider.get_tracer("dispatch", __version__, observers.SCHEMA_URL)
    return None


# Spans of calls on the dispatcher's side: ``execute_tool`` for a call over all its attempts, and a ``send`` for each one.
#
# A ``send`` span is open until its attempt has ended, not only until the broker has the request, so that the trace shows
# which attempt took long, at which instance, and why. Its context travels in the request's properties: the service's span
# is its child. No span is built unless an SDK is set up and the call is sampled.


logger = logging.getLogger("dispatch.telemetry")

MAX_CONTENT_CHARS = 64 * 1024
"""Longest text of arguments or a result that is recorded."""
MAX_NAME_CHARS = 256

NO_ATTRIBUTES: Mapping[str, str] = {}

_failures = ExceptionLogger(logger, time.monotonic)


class _SpanBoundary:
    """A context of calls of the application's tracer and spans: what its sampler and span processors raise is logged, and
    affects nothing else."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, raised: BaseException | None, _traceback: object) -> bool:
        if raised is not None:
            _failures.log("a span is not recorded", raised)
        return True


_SPANS = _SpanBoundary()


class _RecordedRequest(observers.RequestObserver):
    """The ``send`` span of one request."""

    __slots__ = ("_inner", "_span", "properties")

    def __init__(self, span: Span, inner: observers.RequestObserver) -> None:
        self._span = span
        self._inner = inner
        self.properties = encode_context(span)

    def activate(self) -> None:
        attach(set_span_in_context(self._span))

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        self._inner.on_end(outcome, error, instance=instance, sent=sent)
        span = self._span
        with _SPANS:
            if instance:
                span.set_attribute(observers.INSTANCE, instance)
            _conclude(span, outcome, error)
            span.end()


class _PropagatedRequest(observers.RequestObserver):
    """A request of a call that is not recorded: it carries the trace context."""

    __slots__ = ("_inner", "properties")

    def __init__(self, properties: Mapping[str, str], inner: observers.RequestObserver) -> None:
        self.properties = properties
        self._inner = inner

    def on_end(self, outcome: Outcome, error: DispatchError | None, *, instance: str, sent: bool) -> None:
        self._inner.on_end(outcome, error, instance=instance, sent=sent)


class _PropagatedCall(observers.CallObserver):
    """A call that is not recorded: its requests carry the trace context.

    Args:
        properties: of its requests.
        inner: the observer of the tool's calls, which counts what is passed on to it.
    """

    __slots__ = ("_inner", "_properties")

    def __init__(self, properties: Mapping[str, str], inner: observers.CallObserver) -> None:
        self._properties = properties
        self._inner = inner

    @property
    def trace_id(self) -> str:
        return self._properties.get("traceparent", "")[3:35]

    def on_queued(self, seconds: float) -> None:
        self._inner.on_queued(seconds)

    def on_rejected(self, error: DispatchError) -> None:
        self._inner.on_rejected(error)

    def on_refused(self, user: str, reason: str) -> None:
        self._inner.on_refused(user, reason)

    def on_budget_exhausted(self) -> None:
        self._inner.on_budget_exhausted()

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> observers.RequestObserver:
        return _PropagatedRequest(self._properties, self._inner.on_request(topic, template, id, number, reason))

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_first_chunk(seconds, exemplar)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_end(result, reply, exemplar)

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_cancel(seconds, attempts, exemplar)


class _RecordedCall(_PropagatedCall):
    """A call that is recorded as a span, whose requests have spans of their own."""

    __slots__ = ("_chunks", "_context", "_exemplar", "_size", "_span", "_tool", "_trace_id", "_tracing")

    def __init__(self, tracing: CallTracing, span: Span, tool: str, inner: observers.CallObserver) -> None:
        self._inner = inner  # perf: no call of the base class, whose properties no request has
        self._tracing = tracing
        self._tool = tool
        self._span = span
        self._context = set_span_in_context(span, _EMPTY)
        self._chunks: list[str] = []
        self._size = 0
        own = span.get_span_context()
        self._trace_id = f"{own.trace_id:032x}"
        self._exemplar: dict[str, str] | None = None
        if own.trace_flags.sampled:
            self._exemplar = {"trace_id": self._trace_id, "span_id": f"{own.span_id:016x}"}

    @property
    def trace_id(self) -> str:
        return self._trace_id

    def on_arguments(self, arguments: Mapping[str, Any]) -> None:
        if self._tracing.content:
            self._record_content("arguments", json_text(arguments, "arguments"))

    def on_request(self, topic: str, template: str, id: str, number: int, reason: str) -> observers.RequestObserver:
        inner = self._inner.on_request(topic, template, id, number, reason)
        name, kind = observers.EXECUTE_LOCALLY, SpanKind.INTERNAL
        known: dict[str, str | int | bool] = {}
        if topic:
            name, kind = f"{observers.SEND} {template}", SpanKind.PRODUCER
            known = _describe_sending(topic, id, self._tracing.client_id)
            if topic != template:
                known[observers.MESSAGING_TEMPLATE] = template
        known[observers.ATTEMPT] = number
        known[observers.ATTEMPT_REASON] = reason
        with _SPANS:
            return _RecordedRequest(self._tracing.tracer.start_span(name, self._context, kind, known), inner)
        return inner

    def on_retry(self, wait: float) -> None:
        self._add_event(observers.RETRY_EVENT, {observers.WAIT: wait})

    def on_hedge(self) -> None:
        self._add_event(observers.HEDGE_EVENT, {})

    def _add_event(self, name: str, attributes: Mapping[str, str | float]) -> None:
        with _SPANS:
            if self._span.is_recording():  # not any more after the caller cancelled a call that other callers share
                self._span.add_event(name, attributes)

    def _record_content(self, kind: str, text: str) -> None:
        shown = self._tracing.redact_content(kind, self._tool, text)
        if shown is not None:
            with _SPANS:
                name = observers.TOOL_ARGUMENTS if kind == "arguments" else observers.TOOL_RESULT
                self._span.set_attribute(name, shown)

    def on_first_chunk(self, seconds: float, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_first_chunk(seconds, self._exemplar)
        with _SPANS:
            self._span.set_attribute(observers.FIRST_CHUNK, seconds)

    def on_chunk(self, text: str) -> None:
        if self._tracing.content and self._size < MAX_CONTENT_CHARS:
            self._chunks.append(text)
            self._size += len(text)

    def on_end(self, result: CallResult, reply: Mapping[str, str], exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_end(result, reply, self._exemplar)
        span, error = self._span, result.error
        known: dict[str, str | int] = {observers.OUTCOME: str(result.outcome), observers.ATTEMPTS: result.attempts}
        if result.request_id:
            known[observers.TOOL_CALL_ID] = result.request_id
        if result.chunks > 1:
            known[observers.CHUNKS] = result.chunks
        with _SPANS:
            span.set_attributes(known)
            text = "".join(self._chunks) or result.text
            if text and self._tracing.content:
                self._record_content("result", text)
            sender = decode_span_context(reply)
            if sender is not None:
                span.add_link(sender)
            if error is not None and error.rejected_by is not None:
                span.add_event(observers.REJECTED_EVENT, {observers.REASON: error.rejected_by})
            _conclude(span, result.outcome, error)
            span.end()

    def on_cancel(self, seconds: float, attempts: int, exemplar: dict[str, str] | None = None) -> None:
        self._inner.on_cancel(seconds, attempts, self._exemplar)
        with _SPANS:
            self._span.set_attribute(observers.OUTCOME, str(Outcome.CANCELLED))
            self._span.set_attribute(observers.ATTEMPTS, attempts)
            _conclude(self._span, Outcome.CANCELLED, None)
            self._span.end()


def _describe_sending(topic: str, id: str, client: str) -> dict[str, str | int | bool]:
    """Return the attributes of the span of a message that is sent, of the exchange ``id``."""
    return {
        observers.MESSAGING_SYSTEM: observers.PULSAR,
        observers.MESSAGING_OPERATION: observers.SEND,
        observers.MESSAGING_OPERATION_TYPE: observers.SEND,
        observers.MESSAGING_DESTINATION: topic,
        observers.MESSAGING_CONVERSATION: id,
        observers.MESSAGING_CLIENT: client,
    }


def _conclude(span: Span, outcome: Outcome, error: DispatchError | None) -> None:
    if error is not None:
        # The type, not the text: a tool's own error may quote its arguments.
        kind = error.telemetry_type
        span.set_attribute(observers.ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, kind))
    elif outcome is Outcome.CANCELLED:
        span.set_attribute(observers.ERROR_TYPE, ErrorType.CANCELLED.value)
        span.set_status(Status(StatusCode.ERROR, ErrorType.CANCELLED.value))


class CallTracing:
    """Spans of the calls of one dispatcher.

    Args:
        settings: what is traced.
        client_id: of the dispatcher.
        now: seconds, on the clock of :meth:`start_call`.
    """

    def __init__(self, settings: observers.Telemetry, client_id: str, now: float) -> None:
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

    def start_call(
        self, tool: observers.ObservedTool, now: float, inner: observers.CallObserver
    ) -> observers.CallObserver:
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
        known = {observers.SERVICE: tool.service_id, observers.TOOL_TYPE: tool.tool_type}
        if tool.description:
            known[observers.TOOL_DESCRIPTION] = tool.description
        with _SPANS:
            span = self._start(tool.label, tool.label, context, known)
            if not span.is_recording():
                return _PropagatedCall(encode_context(span), inner)
            return _RecordedCall(self, span, tool.label, inner)
        return inner if parent is None or not parent.is_valid else _PropagatedCall(encode_context(parent), inner)

    def _start(self, shown: str, tool: str, context: Context, known: Mapping[str, str] = NO_ATTRIBUTES) -> Span:
        return self.tracer.start_span(
            f"{observers.EXECUTE_TOOL} {shown}",
            context,
            SpanKind.INTERNAL,
            {observers.OPERATION: observers.EXECUTE_TOOL, observers.TOOL_NAME: tool[:MAX_NAME_CHARS], **known},
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
        known = {observers.TOOL_TYPE: observers.EXTENSION}
        with _SPANS:
            span = self._start(observers.OTHER, scalar_text(tool), context, known)
            span.set_attribute(observers.OUTCOME, str(error.outcome))
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


# Spans of a tool service: ``process`` while the tool runs, a child of the caller's ``send``; and one ``send`` for all
# messages of the reply.
#
# The caller's span is the parent, not a link, because a request is one message that one service processes: the exchange is
# one trace. A request that is rejected before it runs has no span.


class _RecordedServedRequest(observers.ServedRequestObserver):
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
        request: observers.ObservedRequest,
        inner: observers.ServedRequestObserver,
    ) -> None:
        self._tracing = tracing
        self._span = span
        self._context = context
        self._request = request
        self._inner = inner
        self._reply: Span | None = None
        self._is_reply_ended = False
        self._chunks = 0

    @property
    def traceparent(self) -> str:
        return encode_context(self._span).get("traceparent", "")

    def on_reply(self, *, is_last: bool) -> Mapping[str, str]:
        self._inner.on_reply(is_last=is_last)
        if self._is_reply_ended:
            return observers.NO_PROPERTIES
        carried: Mapping[str, str] = observers.NO_PROPERTIES
        with _SPANS:
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
            span.set_attribute(observers.CHUNKS, self._chunks)
        span.end()

    def on_error(self, error_type: str) -> None:
        self._inner.on_error(error_type)
        with _SPANS:
            self._span.set_attribute(observers.ERROR_TYPE, str(error_type))
            self._span.set_status(Status(StatusCode.ERROR, str(error_type)))

    def on_tool_end(self, result: observers.RunResult, seconds: float) -> None:
        self._inner.on_tool_end(result, seconds)

    def on_end(self) -> None:
        self._inner.on_end()
        with _SPANS:
            if self._reply is not None and not self._is_reply_ended:
                self._end_reply(self._reply)
            self._span.end()


class ServiceTracing:
    """Spans of one service instance.

    Args:
        settings: what is traced.
        names: of the instance.
    """

    def __init__(self, settings: observers.Telemetry, names: observers.ServerNames) -> None:
        self._settings = settings
        self._names = names
        self._tracer: Tracer | None = None
        self._tracer_check_at = float("-inf")

    def rename(self, service: str) -> None:
        """From now on the service has the id ``service``."""
        self._names = msgspec.structs.replace(self._names, service=service)

    def start_request(
        self, request: observers.ObservedRequest, now: float, inner: observers.ServedRequestObserver
    ) -> observers.ServedRequestObserver:
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
        with _SPANS:
            names = self._names
            span = tracer.start_span(
                f"{observers.PROCESS} {names.topic}",
                _EMPTY if origin is None else origin,
                SpanKind.CONSUMER,
                {
                    observers.MESSAGING_SYSTEM: observers.PULSAR,
                    observers.MESSAGING_OPERATION: observers.PROCESS,
                    observers.MESSAGING_OPERATION_TYPE: observers.PROCESS,
                },
            )
            context = set_span_in_context(span, _EMPTY if origin is None else origin)
            attach(context)
            if not span.is_recording():
                return inner
            span.set_attributes(
                {
                    observers.MESSAGING_DESTINATION: names.topic,
                    observers.MESSAGING_CONVERSATION: request.id,
                    observers.MESSAGING_CLIENT: names.instance,
                    observers.SERVICE: names.service,
                    observers.INSTANCE: names.instance,
                }
            )
            return _RecordedServedRequest(self, span, context, request, inner)
        if origin is not None:
            attach(origin)
        return inner

    def start_reply(self, request: observers.ObservedRequest, context: Context) -> Span:
        """Begin the span of the reply to ``request``."""
        assert self._tracer is not None  # the reply is part of a span
        topic, names = request.reply_topic, self._names
        own = topic != names.responses
        attributes = _describe_sending(topic, request.id, names.instance)
        if own:
            attributes[observers.MESSAGING_TEMPLATE] = names.replies
            attributes[observers.MESSAGING_TEMPORARY] = True
        name = names.replies if own else topic
        return self._tracer.start_span(f"{observers.SEND} {name}", context, SpanKind.PRODUCER, attributes)
