"""The context of a trace in a message's properties: W3C's ``traceparent`` and ``tracestate``, without a prefix, as Pulsar's
own clients have them. Baggage does not travel: it is the caller's, and the service may be somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_W3C = TraceContextTextMapPropagator()
_EMPTY = Context()


def written(origin: Span | SpanContext) -> dict[str, str]:
    """The properties that say that a message comes from ``origin``: what the propagator would write, in a fifth of the time,
    since nothing has to be put into a context first, only to be taken out again."""
    own = origin if isinstance(origin, SpanContext) else origin.get_span_context()
    if not own.is_valid:
        return {}
    carrier = {"traceparent": f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"}
    if own.trace_state:
        carrier["tracestate"] = own.trace_state.to_header()
    return carrier


def parent(properties: Mapping[str, str]) -> Context | None:
    """The context that a message came with; None: it came with none, or with one that cannot be read."""
    if "traceparent" not in properties:
        return None
    context = _W3C.extract(properties, _EMPTY)
    return context if get_current_span(context).get_span_context().is_valid else None


def received(properties: Mapping[str, str]) -> SpanContext | None:
    """Likewise, as what a span can be linked to."""
    context = parent(properties)
    return None if context is None else get_current_span(context).get_span_context()
