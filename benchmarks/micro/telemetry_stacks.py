"""Contenders of the telemetry benchmark: a whole call of dispatch over an instant transport, with more and more telemetry,
and single operations of telemetry.

Spans go to a genuine OpenTelemetry SDK whose processor discards them: export runs on another thread, and the suite
``telemetry`` measures it on a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.util.types import AttributeValue
from prometheus_client import CollectorRegistry

from benchmarks.micro.guard_stacks import Call, Stack, bare, catalog, whole_call
from benchmarks.micro.otel_sdk import recording, refusing
from dispatch.calls.resolution import ToolResolver
from dispatch.errors import Outcome
from dispatch.messaging.request import Disposition
from dispatch.policy import DEFAULT_POLICY
from dispatch.telemetry.call_metrics import Instruments, ToolKey
from dispatch.telemetry.observers import NULL_CALL, SILENT, Telemetry
from dispatch.telemetry.tracing import CallTracing

EMPTY = Context()
AT_FIRST: dict[str, AttributeValue] = {
    "gen_ai.operation.name": "execute_tool",
    **dict.fromkeys("abcd", "a text of some length"),
}
SENDING: dict[str, AttributeValue] = {"dispatch.attempt.number": 1, **dict.fromkeys("abcdefg", "a text of some length")}
IN_THE_END: dict[str, AttributeValue] = {"dispatch.attempts": 1, **dict.fromkeys("ef", "a text of some length")}
"""Attributes of the same number and kinds as those of dispatch's spans."""

Made = AbstractAsyncContextManager[Call]

DURATION_S = 0.0005
"""Duration of the recorded calls."""
UNSAMPLED = SpanContext(trace_id=0x0AF7651916CD43DD8448EB211C80319C, span_id=0x00F067AA0BA902B7, is_remote=False)
"""A caller's span that is not sampled."""
SAMPLED = SpanContext(UNSAMPLED.trace_id, UNSAMPLED.span_id, is_remote=False, trace_flags=TraceFlags(1))


def _observed(settings: Callable[[], dict[str, Any]]) -> Callable[[], Made]:
    """A call with this telemetry; the settings are created when it opens, because the SDK may be missing."""
    return lambda: whole_call({}, Telemetry(**settings()))()


def _within(parent: SpanContext, make: Callable[[], Made]) -> Callable[[], Made]:
    """The same call, made within a span of the caller."""

    @asynccontextmanager
    async def within() -> AsyncIterator[Call]:
        context = set_span_in_context(NonRecordingSpan(parent))
        async with make() as inner:

            async def call() -> object:
                token = attach(context)
                try:
                    return await inner()
                finally:
                    detach(token)

            yield call

    return within


def _registry() -> dict[str, Any]:
    return {"registry": CollectorRegistry()}


def _traced(**settings: Any) -> dict[str, Any]:
    return {"metrics": False, "tracer_provider": recording(), **settings}


@asynccontextmanager
async def _sdk_spans() -> AsyncIterator[Call]:
    """A call without telemetry between two spans like dispatch's: the cost of the SDK alone."""
    tracer = recording().get_tracer("benchmark")
    async with _OFF() as inner:

        async def call() -> object:
            outer = tracer.start_span("execute_tool work", EMPTY, SpanKind.INTERNAL, AT_FIRST)
            send = tracer.start_span("send", set_span_in_context(outer, EMPTY), SpanKind.PRODUCER, SENDING)
            try:
                return await inner()
            finally:
                send.set_attribute("dispatch.instance", "(shared)")
                send.end()
                outer.set_attributes(IN_THE_END)
                outer.end()

        yield call


@asynccontextmanager
async def _recording_call() -> AsyncIterator[Call]:
    meter = Instruments.of(registry := CollectorRegistry()).tools.acquire(ToolKey("work", "double"))

    async def call() -> object:
        meter.in_flight += 1
        meter.record_call(Outcome.SUCCESS, DURATION_S)
        return "done"

    yield call
    del registry


@asynccontextmanager
async def _recording_attempt() -> AsyncIterator[Call]:
    instruments = Instruments.of(registry := CollectorRegistry())
    attempts, replies = (
        instruments.tools.acquire(ToolKey("work", "double")).attempts,
        instruments.services.acquire("double").replies,
    )

    async def call() -> object:
        attempts["first"].value += 1
        replies[Disposition.MATCHED].value += 1
        return "done"

    yield call
    del registry


def _starting_span(settings: Callable[[], dict[str, Any]]) -> Callable[[], Made]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Call]:
        target = ToolResolver(catalog({}), DEFAULT_POLICY).tool("work")
        now = asyncio.get_running_loop().time()
        tracing = CallTracing(Telemetry(**settings()), "benchmark", now)

        async def call() -> object:
            tracing.start_call(target, now, NULL_CALL)
            return "done"

        yield call

    return make


_OFF = whole_call({}, SILENT)

STACKS = (
    Stack("bare", "the function alone", bare),
    Stack("off", "a whole call, no telemetry", _OFF),
    Stack("metrics", "with metrics", _observed(lambda: {**_registry(), "traces": "off"})),
    Stack("default", "with metrics and without an SDK: the default", _observed(_registry)),
    Stack("unsampled", "with an SDK, sample=0.0", _observed(lambda: _traced(sample=0.0))),
    Stack("sampled", "every call sampled: execute_tool and send", _observed(_traced)),
    Stack("sdk-spans", "no telemetry, between two such spans of the SDK", _sdk_spans),
    Stack(
        "sdk-unsampled", "the SDK's own sampler samples no call", _observed(lambda: _traced(tracer_provider=refusing()))
    ),
    Stack("off-in-trace", "no telemetry, the caller has a span", _within(UNSAMPLED, _OFF)),
    Stack("parent-unsampled", "with an SDK, the caller's span is not sampled", _within(UNSAMPLED, _observed(_traced))),
    Stack("parent-sampled", "with an SDK, the caller's span is sampled", _within(SAMPLED, _observed(_traced))),
    Stack("1-percent", "with metrics and an SDK, sample=0.01", _observed(lambda: _traced(**_all(), sample=0.01))),
    Stack("everything", "with metrics, their exemplars, every call sampled", _observed(lambda: _traced(**_all()))),
    Stack("record-call", "alone: start and end of a call (ToolMeter)", _recording_call),
    Stack("record-attempt", "alone: an attempt and a reply", _recording_attempt),
    Stack("start-no-sdk", "alone: start a call's span, no SDK (CallTracing.start_call)", _starting_span(dict)),
    Stack("start-unsampled", "alone: the same with an SDK, sample=0.0", _starting_span(lambda: _traced(sample=0.0))),
)


def _all() -> dict[str, Any]:
    return {"metrics": True, **_registry()}
