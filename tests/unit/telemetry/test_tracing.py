"""The spans of one exchange, from the agent's own to the tool's and back: one trace, whatever happens on the way.
The spans of calls that take more than one attempt, or whose answers come in chunks: still one trace, and no span more.
What callers send and tools answer is user data: it is nowhere unless it was asked for, and then as the hook has it.
Every span that is begun is ended, once, whatever happens: whichever way the call ends, and wherever it is cancelled.
What travels to the service, and when spans are begun: with and without somebody who listens, and with every mode.
Trace context in message properties.
The tracer is looked up once a second while no SDK is set up, and not for every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import islice
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from opentelemetry import baggage, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, DEFAULT_ON, Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.openmetrics.exposition import generate_latest

from dispatch import CallTimeoutError, Catalog, Dispatcher, DispatchError, RejectedError, Telemetry, ToolError
from dispatch.protocol.events import ReplyReceived
from dispatch.telemetry import tracing as service_spans
from dispatch.telemetry.events import Event, ExceptionLogger
from dispatch.telemetry.observers import NULL_SERVED_REQUEST, ServerNames
from dispatch.telemetry.tracing import (
    MAX_CONTENT_CHARS,
    TRACER_CHECK_S,
    ServiceTracing,
    decode_context,
    decode_span_context,
    encode_context,
    find_tracer,
    generate_unsampled,
)
from tests.helpers.clock import advance, idle, reply_after, run, wait_at
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, UNGUARDED, Peer, catalog, read, serving
from tests.helpers.internals import correlator_of
from tests.helpers.run_profile import by_profile
from tests.helpers.session_caller import calling
from tests.helpers.telemetry_capture import Board, Spans, short, telling

ONCE = {"policy": UNGUARDED}


def traceparent(span: ReadableSpan) -> str:
    own = span.context
    return f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@contextlib.asynccontextmanager
async def traced(spans: Spans, work: Any, tools: Catalog | None = None, **settings: Any) -> AsyncIterator[Dispatcher]:
    """A dispatcher and a service ``here``, both of which tell ``spans``."""
    telemetry = spans.telemetry(**settings)
    async with (
        serving(work, instance="here", telemetry=telemetry),
        telling(telemetry, tools or catalog(work=ONCE), client_id="me") as dispatcher,
    ):
        yield dispatcher


@contextlib.asynccontextmanager
async def deaf(spans: Spans, **keys: Any) -> AsyncIterator[tuple[Dispatcher, Peer]]:
    async with (
        Peer.as_service() as peer,
        telling(spans.telemetry(), catalog(work=keys or ONCE), client_id="me") as dispatcher,
    ):
        yield dispatcher, peer


# -- a call -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def spans() -> Spans:
    return Spans()


async def test_one_call_is_one_trace(spans: Spans) -> None:
    agent = spans.provider.get_tracer("agent")

    async def work(_: dict[str, Any]) -> str:
        with trace.get_tracer("tool", tracer_provider=spans.provider).start_as_current_span("look it up"):
            await asyncio.sleep(0.1)
        return "done"

    async with traced(spans, work) as dispatcher:
        with agent.start_as_current_span("agent"):
            assert await dispatcher.call("work", {"topic": "cats"}) == "done"
        await idle()
    assert short(spans.tree()) == [
        "agent",
        "  execute_tool work",
        "    send REQUESTS",
        "      process REQUESTS",
        "        look it up",
        "        send REPLIES",
    ]
    assert spans.open == []
    assert {each.context.trace_id for each in spans.ended} == {spans.one("agent").context.trace_id}


async def test_a_call_has_a_link_to_the_span_of_its_reply() -> None:
    async def chunks(_: dict[str, Any]) -> AsyncIterator[str]:
        for number in range(3):
            yield str(number)

    def fail(_: dict[str, Any]) -> str:
        raise ToolError("sold-out", "no")

    for work in (lambda _: "done", lambda _: "x" * 1_000_000, chunks, fail):
        spans = Spans()
        async with traced(spans, work) as dispatcher:
            await dispatcher.execute("work")
            await idle()
        [link] = spans.one("execute_tool").links
        assert link.context.span_id == spans.named("send")[1].context.span_id, work


async def test_a_call_that_the_service_stopped_has_a_link_to_the_span_of_the_refusal(spans: Spans) -> None:
    sleep = reply_after(60, "late")
    async with serving(sleep, instance="here", telemetry=spans.telemetry()) as server, calling(server) as caller:
        refusal = await caller.send(run_for=1.0).refusal()
        assert refusal.reason == "stopped"
        assert refusal.trace == {"traceparent": traceparent(spans.one("send"))}


async def test_a_service_without_traces_sends_no_trace_context() -> None:
    async with serving(lambda _: "done") as server, calling(server) as caller:
        request = caller.send()
        assert await request.text() == "done"
        reply = await request.final
        assert isinstance(reply, ReplyReceived)
        assert reply.trace is None


async def test_attributes_of_each_span(spans: Spans) -> None:
    async with traced(spans, lambda _: "done") as dispatcher:
        result = await dispatcher.execute("work")
        await idle()
    call, send, process = spans.one("execute_tool"), spans.named("send")[0], spans.one("process")
    reply = spans.named("send")[1]
    assert [each.kind for each in (call, send, process, reply)] == [
        SpanKind.INTERNAL, SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.PRODUCER,
    ]  # fmt: skip
    assert attributes(call) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.description": "Does work.",
        "gen_ai.tool.call.id": result.request_id,
        "dispatch.service": "lab",
        "dispatch.outcome": "success",
        "dispatch.attempts": 1,
    }
    messaging = {"messaging.system": "pulsar", "messaging.message.conversation_id": result.request_id}
    sends = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    sent = attributes(send)
    assert sent.pop("messaging.destination.name").endswith("-here"), "the instance's own topic"
    assert sent == {
        **messaging,
        **sends,
        "messaging.destination.template": REQUESTS,
        "messaging.client.id": "me",
        "dispatch.instance": "here",
        "dispatch.attempt.number": 1,
        "dispatch.attempt.reason": "first",
    }
    assert attributes(process) == {
        **messaging,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": REQUESTS,
        "messaging.client.id": "here",
        "dispatch.service": "lab",
        "dispatch.instance": "here",
    }
    key = correlator_of(dispatcher).identity.key
    assert attributes(reply) == {
        **messaging,
        **sends,
        "messaging.destination.name": f"non-persistent://tg/response/dispatch-reply-{key}-me",
        "messaging.destination.template": "non-persistent://tg/response/dispatch-reply-{dispatcher}",
        "messaging.destination.temporary": True,
        "messaging.client.id": "here",
    }
    assert reply.parent.span_id == process.context.span_id, "the reply is a descendant of the call"
    assert all(each.status.status_code is StatusCode.UNSET for each in spans.ended)
    scopes = {(each.instrumentation_scope.name, each.instrumentation_scope.schema_url) for each in spans.ended}
    assert scopes == {("dispatch", "https://opentelemetry.io/schemas/1.44.0")}


async def test_a_service_whose_instances_are_not_known_by_name_has_no_template(spans: Spans) -> None:
    async with deaf(spans) as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        await call
        send = attributes(spans.one("send"))
        assert send["messaging.destination.name"] == REQUESTS
        assert "messaging.destination.template" not in send
        assert spans.one("execute_tool").links == ()


async def test_a_reply_on_the_response_topic(spans: Spans) -> None:
    """To a caller without a topic of its own."""
    async with serving(lambda _: "done", telemetry=spans.telemetry()), Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{}", "arguments": "{}"}', id="theirs")
        await caller.arrived.get()
        await idle()
    assert short(spans.tree()) == ["process REQUESTS", "  send RESPONSES"]
    sent = attributes(spans.one("send"))
    assert sent["messaging.destination.name"] == RESPONSES
    assert "messaging.destination.temporary" not in sent


async def test_concurrent_calls_are_separate_traces(spans: Spans) -> None:

    async def work(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(arguments["n"] % 3)
        return "done"

    async with traced(spans, work) as dispatcher:
        await asyncio.gather(*(dispatcher.call("work", {"n": n}) for n in range(20)))
        await idle()
    by_trace: dict[int, list[str]] = {}
    for each in spans.begun:
        by_trace.setdefault(each.get_span_context().trace_id, []).append(each.name.partition(" ")[0])
    assert list(by_trace.values()) == [["execute_tool", "send", "process", "send"]] * 20
    assert spans.open == []


# -- calls that fail --------------------------------------------------------------------------------------------------
async def test_a_tools_own_error(spans: Spans) -> None:

    def work(_: dict[str, Any]) -> str:
        raise ToolError("busy", "come back")

    async with traced(spans, work) as dispatcher:
        await dispatcher.execute("work")
        await idle()
    assert short(spans.tree()) == [
        "execute_tool work !tool-error",
        "  send REQUESTS !tool-error",
        "    process REQUESTS !tool-error",
        "      send REPLIES",
    ]
    failed = [each for each in spans.ended if "error.type" in attributes(each)]
    assert {(each.status.status_code, each.status.description) for each in failed} == {(StatusCode.ERROR, "tool-error")}
    # No exception is recorded: its text may quote what it was given.
    assert all(not each.events for each in spans.ended)


async def test_a_call_that_times_out(spans: Spans) -> None:
    work = reply_after(60, "late")
    async with traced(spans, work) as dispatcher:
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", timeout=1)
        await idle()
        assert short(spans.tree()) == [
            "execute_tool work !timeout",
            "  send REQUESTS !timeout",
            "    process REQUESTS !timeout",
            "      send REPLIES",
        ]


async def test_a_reply_above_its_callers_limit(spans: Spans) -> None:
    limited = catalog(service={"policy": {"max-response-bytes": 1_000_000}}, work=ONCE)
    async with traced(spans, lambda _: "x" * 6_000_000, limited) as dispatcher:
        result = await dispatcher.execute("work")
        await idle()
        assert result.error.type == "response-limit-exceeded"
    assert [line.strip() for line in short(spans.tree())] == [
        "execute_tool work !response-limit-exceeded",
        "send REQUESTS !response-limit-exceeded",
        "process REQUESTS",
        "send REPLIES",
    ]


async def test_a_rejected_call_has_no_send_span(spans: Spans) -> None:
    async with traced(spans, lambda _: "done", catalog(work={})) as dispatcher:
        dispatcher.breaker("work").force_open()
        assert (await dispatcher.execute("work")).error is not None
        dispatcher.breaker("work").reset()
        assert (await dispatcher.execute("work", {"what": object()})).error is not None
        with pytest.raises(RejectedError):
            await dispatcher.call("wrok")
        with pytest.raises(RejectedError):
            await read(dispatcher.stream("owrk"), [])
    assert spans.tree() == [
        "execute_tool work !circuit-open",
        "execute_tool work !invalid-arguments",
        "execute_tool _OTHER !unknown-tool",
        "execute_tool _OTHER !unknown-tool",
    ], "a name that a model invents is no span's name"
    refused, _, unknown, _ = spans.named("execute_tool")
    (event,) = refused.events
    assert (event.name, dict(event.attributes or {})) == ("dispatch.rejected", {"dispatch.reason": "breaker"})
    assert attributes(refused)["dispatch.attempts"] == 0
    assert "gen_ai.tool.call.id" not in attributes(refused)
    assert attributes(unknown)["gen_ai.tool.name"] == "wrok"
    assert spans.open == []


async def test_a_name_may_be_any_text(spans: Spans) -> None:
    async with telling(spans.telemetry()) as dispatcher:
        for name in ("", "x" * 10_000, "\ud800 half a character"):
            assert (await dispatcher.execute(name)).error is not None
    found = [attributes(each)["gen_ai.tool.name"] for each in spans.named("execute_tool")]
    assert found == ["", "x" * 256, "? half a character"]


async def test_a_request_that_its_service_rejects_has_no_process_span(spans: Spans) -> None:
    """It was never processed."""
    slow = reply_after(5)
    async with (
        serving(slow, concurrency=1, max_queue=0, telemetry=spans.telemetry()),
        telling(spans.telemetry(), catalog(work=ONCE)) as dispatcher,
    ):
        first = asyncio.create_task(dispatcher.execute("work"))
        await idle()
        refused = await dispatcher.execute("work")
        assert refused.error is not None
        await first
        await idle()
    assert [line.strip() for line in short(spans.tree())] == [
        *("execute_tool work", "send REQUESTS", "process REQUESTS", "send REPLIES"),
        *("execute_tool work !overloaded", "send REQUESTS !overloaded"),
    ]


class FailingProcessor(Spans):
    """A span processor and a sampler that raise at one place for spans of one name."""

    def __init__(self, place: str, name: str) -> None:
        super().__init__()
        self.place, self.name, self.error = place, name, SystemExit("4711")
        if place == "sampler":
            self.provider.sampler = self  # type: ignore[assignment]

    def fail(self, place: str, name: str) -> None:
        if place == self.place and name.startswith(self.name):
            raise self.error

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.fail("start", span.name)

    def on_end(self, span: ReadableSpan) -> None:
        self.fail("end", span.name)

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any) -> Any:
        self.fail("sampler", name)
        return DEFAULT_ON.should_sample(parent_context, trace_id, name, *rest, **more)


@pytest.mark.parametrize("place", ["sampler", "start", "end"])
@pytest.mark.parametrize("name", ["execute_tool", "send", "process"])
async def test_a_processor_that_raises_affects_no_call(
    place: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = ExceptionLogger(logging.getLogger("dispatch.telemetry"))
    monkeypatch.setattr("dispatch.telemetry.tracing._failures", failures)

    async def work(arguments: dict[str, Any]) -> str:
        if "fail" in arguments:
            raise ToolError("full", "The store is full.")
        return "done"

    tools = catalog(work={"policy": {"bulkhead": {"max-concurrent-calls": 1}}})
    async with traced(FailingProcessor(place, name), work, tools) as dispatcher:
        for _ in range(2):
            assert await dispatcher.call("work", timeout=5) == "done"
            failed = await dispatcher.execute("work", {"fail": 1}, timeout=5)
            assert failed.error.type == "full"
            assert [chunk async for chunk in dispatcher.stream("work", timeout=5)] == ["done"]
            assert (await dispatcher.execute("unknown")).error is not None
    assert "a span is not recorded" in caplog.text
    assert "4711" not in caplog.text


# -- more than one attempt --------------------------------------------------------------------------------------------
async def test_retries_are_children_and_no_new_traces(spans: Spans) -> None:
    async with deaf(spans, policy={"retry": {"initial-backoff": 0.01, "max-backoff": 0.01}}) as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        carried = []
        for _ in range(2):
            _, properties = await peer.request()
            carried.append(properties["traceparent"])
            await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="100")
        _, properties = await peer.request()
        carried.append(properties["traceparent"])
        await peer.answer(properties, "done")
        assert (await call).ok
    assert short(spans.tree()) == ["execute_tool work", *["  send REQUESTS !overloaded"] * 2, "  send REQUESTS"]
    sends = spans.named("send")
    assert [attributes(each)["dispatch.attempt.number"] for each in sends] == [1, 2, 3]
    assert [attributes(each)["dispatch.attempt.reason"] for each in sends] == ["first", "retry", "retry"]
    assert carried == [traceparent(each) for each in sends]
    call_span = spans.one("execute_tool")
    assert [event.name for event in call_span.events] == ["dispatch.retry"] * 2
    assert all(dict(event.attributes or {})["dispatch.wait.seconds"] >= 0.1 for event in call_span.events)
    assert attributes(call_span)["dispatch.attempts"] == 3
    assert "error.type" not in attributes(call_span)
    assert spans.open == []


async def test_the_span_of_a_hedge_that_loses_is_cancelled(spans: Spans) -> None:
    slow = reply_after(60, "slow")
    tools = catalog(work={"read-only": True, "policy": {"hedging": 0.2, "breaker": None}})
    async with (
        serving(slow, instance="a", telemetry=spans.telemetry()),
        serving(lambda _: "fast", instance="b", telemetry=spans.telemetry()),
        telling(spans.telemetry(), tools) as dispatcher,
    ):
        for _ in range(2):  # each has the first turn once
            assert await dispatcher.call("work") == "fast"
            await idle()
        hedged = next(each for each in spans.named("execute_tool") if each.events)
        assert [event.name for event in hedged.events] == ["dispatch.hedge"]
        tree = short(spans.tree())
        begin = tree.index("  send REQUESTS !cancelled")
        assert tree[begin - 1 : begin + 5] == [
            "execute_tool work",
            "  send REQUESTS !cancelled",
            "    process REQUESTS !cancelled",
            "  send REQUESTS",
            "    process REQUESTS",
            "      send REPLIES",
        ]
        sends = [each for each in spans.named("send") if each.parent and each.parent.span_id == hedged.context.span_id]
        assert [attributes(each)["dispatch.attempt.reason"] for each in sends] == ["first", "hedge"]
        assert [attributes(each)["dispatch.instance"] for each in sends] == ["a", "b"]
        assert spans.open == []


async def test_calls_that_share_an_exchange_have_a_span_each() -> None:
    spans, gate = Spans(), asyncio.Event()
    slow = wait_at(gate)
    async with traced(spans, slow, catalog(work={"read-only": True, "policy": {"single-flight": True}})) as dispatcher:
        calls = [asyncio.create_task(dispatcher.call("work")) for _ in range(3)]
        await idle()
        calls[0].cancel()  # the one that began it: its span ends, and what it began goes on
        with pytest.raises(asyncio.CancelledError):
            await calls[0]
        assert [each.name for each in spans.ended] == ["execute_tool work"]
        gate.set()
        assert await asyncio.gather(*calls[1:]) == ["done", "done"]
        await idle()
    assert short(spans.tree()) == [
        "execute_tool work !cancelled",
        "  send REQUESTS",
        "    process REQUESTS",
        "      send REPLIES",
        "execute_tool work",
        "execute_tool work",
    ]
    assert spans.open == []


# -- a stream ---------------------------------------------------------------------------------------------------------
async def test_a_stream_has_no_span_a_chunk(spans: Spans) -> None:

    async def work(_: dict[str, Any]) -> Any:
        async def chunks() -> AsyncIterator[str]:
            for index in range(50):
                await asyncio.sleep(0.5)
                yield str(index)

        return chunks()

    async with traced(spans, work) as dispatcher:
        got: list[str] = []
        await read(dispatcher.stream("work"), got)
        await idle()
        assert len(got) == 50
    assert short(spans.tree()) == ["execute_tool work", "  send REQUESTS", "    process REQUESTS", "      send REPLIES"]
    call, reply = spans.one("execute_tool"), spans.named("send")[1]
    assert attributes(call)["dispatch.first_chunk.seconds"] == pytest.approx(0.5, abs=0.01)
    assert attributes(call)["dispatch.chunks"] == 50
    assert attributes(reply)["dispatch.chunks"] == 51
    assert spans.open == []


async def test_a_stream_that_is_closed_early(spans: Spans) -> None:

    async def work(_: dict[str, Any]) -> Any:
        async def chunks() -> AsyncIterator[str]:
            while True:
                yield "x"
                await asyncio.sleep(1)

        return chunks()

    async with traced(spans, work) as dispatcher:
        async with contextlib.aclosing(dispatcher.stream("work")) as stream:
            async for _ in stream:
                break
        await advance(1)
        assert short(spans.tree()) == [
            "execute_tool work !cancelled",
            "  send REQUESTS !cancelled",
            "    process REQUESTS !cancelled",
            "      send REPLIES",
        ]
        assert spans.open == []


MARK = "s3cr3t-of-a-user"
ONCE_CONTENT = catalog(work={"policy": UNGUARDED})


async def work(arguments: dict[str, Any]) -> Any:
    do = arguments.get("do")
    if do == "fail":
        raise ToolError(f"busy-{MARK}", f"{MARK} is not there")
    if do == "raise":
        raise ValueError(MARK)
    if do == "sleep":
        await asyncio.sleep(60)
    return _chunks() if do == "stream" else f"{MARK} was here"


async def _chunks() -> AsyncIterator[str]:
    yield MARK
    yield MARK


def told(spans: Spans) -> str:
    """Everything that a span would export."""
    return "\n".join(each.to_json() for each in spans.ended)


async def test_content_is_not_recorded_by_default(caplog: pytest.LogCaptureFixture) -> None:
    """In arguments, answers, chunks, errors' types and texts, idempotency keys, users."""
    spans, board = Spans(), Board()
    telemetry = Telemetry(registry=board.registry, tracer_provider=spans.provider)
    tools = catalog(work={"policy": {"breaker": {"consecutive-failures": 5, "count-tool-errors": True}, "retry": 1}})
    events: list[Event] = []
    with caplog.at_level(logging.INFO):
        async with serving(work, telemetry=telemetry), telling(telemetry, tools) as dispatcher:
            dispatcher.on_event(events.append)
            for do in ("answer", "stream", "fail", "raise", "sleep", "sleep", "fail"):
                arguments = {"do": do, "text": MARK}
                await dispatcher.execute("work", arguments, user=MARK, idempotency_key=f"{do}-{MARK}", timeout=1)
                with contextlib.suppress(DispatchError):
                    await read(dispatcher.stream("work", arguments, user=MARK), [])
            await dispatcher.execute("work", {MARK: object()})
            await idle()
        async with Peer.as_service() as peer, telling(telemetry, ONCE_CONTENT) as dispatcher:
            call = asyncio.create_task(dispatcher.execute("work", {"text": MARK}))
            _, properties = await peer.request()
            await peer.answer(properties, payload=f'{{"what": "{MARK}"'.encode())
            assert (await call).error is not None
    assert len(spans.ended) > 20
    assert "tool-error" in told(spans)
    assert MARK not in told(spans)
    assert MARK not in generate_latest(board.registry).decode()
    assert events
    assert MARK not in repr(events)
    assert caplog.records
    assert not [record.getMessage() for record in caplog.records if MARK in caplog.handler.format(record)]
    assert not [record for record in caplog.records if MARK in repr(vars(record))]


async def test_content_is_recorded_when_it_is_on(spans: Spans) -> None:
    async with telling(spans.telemetry(content=True), ONCE_CONTENT) as dispatcher, serving(work):
        await dispatcher.execute("work", {"topic": "cats"})
        await read(dispatcher.stream("work", {"do": "stream"}), [])
        await dispatcher.execute("work", {"do": "fail"})
    recorded = [attributes(each) for each in spans.named("execute_tool")]
    found = [(each.get("gen_ai.tool.call.arguments"), each.get("gen_ai.tool.call.result")) for each in recorded]
    assert found == [('{"topic":"cats"}', f"{MARK} was here"), ('{"do":"stream"}', MARK * 2), ('{"do":"fail"}', None)]
    keys = {key for each in spans.named("send") for key in attributes(each) if "call.id" not in key}
    assert "gen_ai.tool.call" not in "".join(keys)


async def test_the_redaction_hook_decides_what_is_recorded() -> None:
    spans, asked = Spans(), []

    def redact(kind: str, tool: str, text: str) -> str | None:
        asked.append((kind, tool, text))
        return None if kind == "arguments" else text.replace(MARK, "***")

    async with serving(work), telling(spans.telemetry(content=True, redact=redact), ONCE_CONTENT) as dispatcher:
        await dispatcher.execute("work", {"topic": MARK})
        await read(dispatcher.stream("work", {"do": "stream"}), [])
    assert asked == [
        ("arguments", "work", f'{{"topic":"{MARK}"}}'),
        ("result", "work", f"{MARK} was here"),
        ("arguments", "work", '{"do":"stream"}'),
        ("result", "work", MARK * 2),
    ]
    recorded = [dict(each.attributes or {}) for each in spans.named("execute_tool")]
    assert [each["gen_ai.tool.call.result"] for each in recorded] == ["*** was here", "******"]
    assert not [each for each in recorded if "gen_ai.tool.call.arguments" in each]


async def test_a_failing_redaction_hook_records_nothing_and_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    spans = Spans()

    def redact(kind: str, tool: str, text: str) -> str | None:
        raise LookupError(f"the hook's own mistake, with {text}")

    async with serving(work), telling(spans.telemetry(content=True, redact=redact), ONCE_CONTENT) as dispatcher:
        assert (await dispatcher.execute("work", {"topic": MARK})).ok
    assert spans.open == []
    assert MARK not in told(spans)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "the redaction hook failed (LookupError): arguments of 'work' not recorded",
        "the redaction hook failed (LookupError): result of 'work' not recorded",
    ]
    assert MARK not in caplog.text


async def test_recorded_content_is_bounded(spans: Spans) -> None:
    async with serving(lambda _: "x" * 200_000), telling(spans.telemetry(content=True), ONCE_CONTENT) as dispatcher:
        await dispatcher.execute("work", {"topic": "y" * 200_000})
    recorded = dict(spans.one("execute_tool").attributes or {})
    assert len(recorded["gen_ai.tool.call.arguments"]) == len(recorded["gen_ai.tool.call.result"]) == MAX_CONTENT_CHARS


async def test_content_is_not_encoded_unless_it_is_recorded() -> None:
    """Not sampled, or not listened to: the hook is not even asked."""
    spans, asked = Spans(), []

    def redact(kind: str, tool: str, text: str) -> str | None:
        asked.append(kind)
        return text

    async with serving(work):
        for settings in ({"sample": 0.0}, {"traces": "propagation-only"}, {"traces": "off"}, {"content": False}):
            telemetry = spans.telemetry(**{"content": True, "redact": redact, **settings})
            async with telling(telemetry, ONCE_CONTENT) as dispatcher:
                assert (await dispatcher.execute("work", {"topic": MARK})).ok
                await read(dispatcher.stream("work", {"do": "stream"}), [])
        await advance(1)
    assert asked == []


TOOLS = catalog(
    service={"policy": {"max-response-bytes": 1_000_000}},
    plain={"policy": {"bulkhead": {"max-concurrent-calls": 2, "max-wait": 1}}},
    safe={"read-only": True, "policy": {"hedging": 0.2, "attempt-timeout": 0.6, "retry": {"initial-backoff": 0.05}}},
    shared={"read-only": True, "policy": {"single-flight": True}},
    rated={"policy": {"rate-limit": {"rate": "2/s", "burst": 1, "max-wait": 1}}},
)
WAYS = ("succeed", "fail", "sleep", "stream", "stream and fail", "stream for ever", "too large")


async def work_end(arguments: dict[str, Any]) -> Any:
    do = arguments["do"]
    if do == "fail":
        raise ToolError("failed", "as told")
    if do == "sleep":
        await asyncio.sleep(30)
    if do == "too large":
        return "x" * 6_000_000
    return _chunks_end(do) if do.startswith("stream") else "done"


async def _chunks_end(do: str) -> AsyncIterator[str]:
    yield "a"
    await asyncio.sleep(0.3)
    if do == "stream and fail":
        raise ToolError("failed", "half-way")
    while do == "stream for ever":
        yield "b"
        await asyncio.sleep(0.3)


calls = st.fixed_dictionaries(
    {
        "tool": st.sampled_from([*TOOLS.tools, "unheard-of"]),
        "do": st.sampled_from(WAYS),
        "streamed": st.booleans(),
        "timeout": st.sampled_from([0.1, 1.0, 3.0]),
        "at": st.sampled_from([0.0, 0.1, 0.5]),
        "cancel after": st.none() | st.floats(0, 1.2) | st.just(0.0),
        "turns": st.integers(0, 40),
        "leave after": st.none() | st.integers(1, 3),
        "arguments": st.sampled_from([{}, {"bad": object()}]),
    }
)


# Few in the long profile: pytest retains the log records of each example, megabytes of replies.
@pytest.mark.costly
@settings(max_examples=by_profile(short=30, long=150))
@given(st.lists(calls, min_size=1, max_size=6), st.booleans())
def test_every_span_ends_once_and_every_call_is_counted_once(story: list[dict[str, Any]], close: bool) -> None:
    async def told() -> None:
        spans, board = Spans(), Board()
        telemetry = Telemetry(registry=board.registry, tracer_provider=spans.provider)
        begun = 0

        async def make(call: dict[str, Any]) -> None:
            nonlocal begun
            await asyncio.sleep(call["at"])
            arguments = {"do": call["do"], **call["arguments"]}
            begun += 1
            with contextlib.suppress(DispatchError):
                if not call["streamed"]:
                    await dispatcher.call(call["tool"], arguments, timeout=call["timeout"])
                    return
                async with contextlib.aclosing(
                    dispatcher.stream(call["tool"], arguments, timeout=call["timeout"])
                ) as stream:
                    count = 0
                    async for _ in stream:
                        count += 1
                        if count == call["leave after"]:
                            break

        async def cancel(task: asyncio.Task[None], call: dict[str, Any]) -> None:
            if call["cancel after"] is not None:
                await asyncio.sleep(call["at"] + call["cancel after"])
                for _ in range(call["turns"]):  # any point of its way
                    await asyncio.sleep(0)
                task.cancel()

        async with (
            serving(work_end, instance="a", telemetry=telemetry, drain_timeout=0),
            serving(work_end, instance="b", telemetry=telemetry, drain_timeout=0),
        ):
            async with telling(telemetry, TOOLS) as dispatcher:
                tasks = [asyncio.create_task(make(call)) for call in story]
                cancels = [asyncio.create_task(cancel(*pair)) for pair in zip(tasks, story, strict=True)]
                if close:
                    await advance(0.4)
                    await dispatcher.close()
                await asyncio.gather(*tasks, *cancels, return_exceptions=True)
                made = sum(n for key, n in board.read().items() if key.startswith("calls_total"))
                running = [n for key, n in board.read().items() if key.startswith("inflight_calls")]
            await advance(5)  # until services have heard of it
        assert spans.open == []
        assert made == begun == len(spans.named("execute_tool"))
        assert not any(running)
        for span in spans.ended:
            wrong = "error.type" in (span.attributes or {})
            assert wrong == (span.status.status_code is StatusCode.ERROR)
            assert span.events == () or span.name.startswith("execute_tool")

    run(told)


ONE_ATTEMPT = catalog(work={"policy": UNGUARDED})
TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
W3C = ("traceparent", "tracestate", "baggage")


def foreign(*, sampled: bool, state: str = "") -> Context:
    """The context of an agent's span that some other library has begun."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    own = SpanContext(TRACE, SPAN, is_remote=False, trace_flags=flags, trace_state=TraceState.from_header([state]))
    return baggage.set_baggage("user", "ann", set_span_in_context(NonRecordingSpan(own), Context()))


@contextlib.contextmanager
def within(context: Context) -> Iterator[None]:
    token = attach(context)
    try:
        yield
    finally:
        detach(token)


async def carried(telemetry: Telemetry, context: Context | None = None, *, calls: int = 1) -> list[dict[str, str]]:
    """What the requests of so many calls carry of a trace, made in that context."""
    found = []
    async with Peer.as_service() as peer, telling(telemetry, ONE_ATTEMPT) as dispatcher:
        with within(Context() if context is None else context):
            for _ in range(calls):
                call = asyncio.create_task(dispatcher.execute("work"))
                _, properties = await peer.request()
                await peer.answer(properties, "done")
                await call
                found.append({key: value for key, value in properties.items() if key in W3C})
    return found


# -- what travels -----------------------------------------------------------------------------------------------------
async def test_native_carries_the_spans_own_context_and_no_baggage(spans: Spans) -> None:
    (properties,) = await carried(spans.telemetry(), foreign(sampled=True, state="vendor=1"))
    own = spans.one("send").context
    assert own.trace_id == TRACE
    assert spans.one("execute_tool").parent.span_id == SPAN
    assert properties == {
        "traceparent": f"00-{TRACE:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}",
        "tracestate": "vendor=1",
    }


async def test_a_parent_that_is_not_sampled_is_passed_on_unchanged(spans: Spans) -> None:
    (properties,) = await carried(spans.telemetry(), foreign(sampled=False, state="vendor=1"))
    assert properties == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-00", "tracestate": "vendor=1"}
    assert spans.begun == []


@pytest.mark.parametrize("sampled", [True, False])
async def test_propagation_only_passes_the_callers_context_on(sampled: bool, spans: Spans) -> None:
    (properties,) = await carried(spans.telemetry(traces="propagation-only"), foreign(sampled=sampled))
    assert properties == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-{sampled:02x}"}
    assert spans.begun == []


async def test_propagation_only_without_a_caller_that_has_one(spans: Spans) -> None:
    assert await carried(spans.telemetry(traces="propagation-only")) == [{}]
    assert spans.begun == []


async def test_off_sends_no_trace_context(spans: Spans) -> None:
    assert await carried(spans.telemetry(traces="off"), foreign(sampled=True)) == [{}]
    assert spans.begun == []


async def test_without_an_sdk_the_callers_context_is_passed_on_all_the_same() -> None:
    """OpenTelemetry's own rule: an API without an SDK propagates."""
    assert await carried(Telemetry(metrics=False)) == [{}]
    (properties,) = await carried(Telemetry(metrics=False), foreign(sampled=True))
    assert properties == {"traceparent": f"00-{TRACE:032x}-{SPAN:016x}-01"}


async def test_a_stream_carries_the_trace_context(spans: Spans) -> None:
    async with Peer.as_service() as peer, telling(spans.telemetry(), ONE_ATTEMPT) as dispatcher:
        reading = asyncio.create_task(read(dispatcher.stream("work"), []))
        _, properties = await peer.request()
        await peer.answer(properties, "a", chunk="0")
        await reading
    assert decode_context(properties) is not None
    assert get_current_span(decode_context(properties)).get_span_context().span_id == spans.one("send").context.span_id


# -- sampling ---------------------------------------------------------------------------------------------------------
async def test_an_unsampled_call_sends_an_unsampled_context(spans: Spans) -> None:
    found = [each["traceparent"] for each in await carried(spans.telemetry(sample=0.0), calls=50)]
    assert spans.begun == []
    assert {each.split("-")[0] for each in found} == {"00"}
    assert {each.split("-")[3] for each in found} == {"00"}
    assert len({each.split("-")[1] for each in found}) == 50, "a sampler by trace id must not find them all alike"
    contexts = [get_current_span(decode_context({"traceparent": each})).get_span_context() for each in found]
    assert all(each.is_valid and not each.trace_flags.sampled for each in contexts)


async def test_a_service_records_no_span_of_an_unsampled_call(spans: Spans) -> None:
    """What was not to be traced is not begun half-way: an SDK's usual sampler keeps to its caller's word."""
    async with (
        serving(lambda _: "done", telemetry=spans.telemetry()),
        telling(spans.telemetry(sample=0.0), ONE_ATTEMPT) as dispatcher,
    ):
        assert (await dispatcher.execute("work")).ok
        await idle()
    assert spans.begun == []


async def test_a_call_within_a_trace_stays_in_it_whatever_the_sample(spans: Spans) -> None:
    await carried(spans.telemetry(sample=0.0), foreign(sampled=True), calls=3)
    assert [each.name.partition(" ")[0] for each in spans.begun] == ["execute_tool", "send"] * 3


async def test_the_sampled_share_of_calls(spans: Spans) -> None:
    found = await carried(spans.telemetry(sample=0.5), calls=200)
    traced = len(spans.named("execute_tool"))
    assert 50 < traced < 150  # 10⁻¹³ that it is not
    assert sum(not each["traceparent"].endswith("-00") for each in found) == traced


async def test_an_unknown_tool_is_sampled_like_any_other(spans: Spans) -> None:
    async with telling(spans.telemetry(sample=0.0)) as dispatcher:
        await dispatcher.execute("unheard-of")
        assert spans.begun == []
        with within(foreign(sampled=True)):
            await dispatcher.execute("unheard-of")
        assert spans.one("execute_tool").context.trace_id == TRACE


class Recording(Sampler):
    """Notes what it is asked with."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def should_sample(
        self,
        parent_context: Any,
        trace_id: int,
        name: str,
        kind: Any = None,
        attributes: Any = None,
        *_: Any,
        **__: Any,
    ) -> SamplingResult:
        self.asked.append((name, dict(attributes or {})))
        return SamplingResult(self.decision)

    def get_description(self) -> str:
        return "notes"


async def test_the_sdks_sampler_is_asked_before_attributes_are_built() -> None:
    sampler = Recording(Decision.DROP)
    provider = TracerProvider(sampler=sampler)
    (properties,) = await carried(Telemetry(metrics=False, tracer_provider=provider))
    ((name, given),) = sampler.asked
    assert name == "execute_tool work"
    assert given == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "work",
        "gen_ai.tool.type": "extension",
        "gen_ai.tool.description": "Does work.",
        "dispatch.service": "lab",
    }, "what it may decide by, and is at hand"
    assert properties["traceparent"].endswith(("-00", "-02")), "not sampled: the service hears of it"


@pytest.mark.parametrize(
    ("sampler", "exemplars"),
    [(ALWAYS_OFF, 0), (Recording(Decision.RECORD_ONLY), 0), (ParentBased(Recording(Decision.RECORD_AND_SAMPLE)), 2)],
    ids=["off", "recorded only", "sampled"],
)
async def test_exemplars_point_to_sampled_spans_only(sampler: Sampler, exemplars: int) -> None:
    board = Board()
    telemetry = Telemetry(registry=board.registry, tracer_provider=TracerProvider(sampler=sampler))

    async def work(_: dict[str, Any]) -> Any:
        async def chunks() -> AsyncIterator[str]:
            yield "a"

        return chunks()

    async with serving(work), telling(telemetry, ONE_ATTEMPT) as dispatcher:
        await read(dispatcher.stream("work"), [])
    found = [sample for family in board.registry.collect() for sample in family.samples if sample.exemplar is not None]
    assert sorted(each.name for each in found) == sorted(
        ["dispatch_call_duration_seconds_bucket", "dispatch_first_chunk_seconds_bucket"][:exemplars]
    )
    assert all(set(each.exemplar.labels) == {"trace_id", "span_id"} for each in found if each.exemplar)


# -- an SDK that comes later ------------------------------------------------------------------------------------------
@pytest.fixture
def no_global_provider(monkeypatch: pytest.MonkeyPatch) -> Any:
    """As when a program starts. Gives what sets the global one."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER_SET_ONCE", type(trace._TRACER_PROVIDER_SET_ONCE)())
    return trace.set_tracer_provider


async def test_an_sdk_that_is_set_up_after_the_dispatcher_is_noticed(no_global_provider: Any, spans: Spans) -> None:
    quiet = Telemetry(metrics=False)
    async with serving(lambda _: "done", telemetry=quiet), telling(quiet, ONE_ATTEMPT) as dispatcher:
        await dispatcher.call("work")
        no_global_provider(spans.provider)
        await advance(1)
        await dispatcher.call("work")
        await idle()
    assert [each.name.partition(" ")[0] for each in spans.begun] == ["execute_tool", "send", "process", "send"]
    assert spans.open == []


# -- at the service ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["native", "propagation-only", "off"])
async def test_a_tools_own_spans_are_part_of_the_callers_trace(mode: str) -> None:
    """Its own spans, and the calls that it makes itself, are part of it; with ``off`` it knows nothing of it."""
    caller, service = Spans(), Spans()
    seen: list[SpanContext] = []

    def work(_: dict[str, Any]) -> str:
        seen.append(get_current_span().get_span_context())
        if mode != "off":  # the embedded broker is in this process, and so is the caller's own context
            assert baggage.get_all() == {}
        return "done"

    async with (
        serving(work, telemetry=service.telemetry(traces=mode)),
        telling(caller.telemetry(), ONE_ATTEMPT) as dispatcher,
    ):
        with within(baggage.set_baggage("user", "ann", Context())):
            await dispatcher.call("work")
            await dispatcher.call("work")
        await idle()
    sends = [each.context for each in caller.named("send")]
    if mode == "native":
        assert [each.parent.span_id for each in service.named("process")] == [each.span_id for each in sends]
        assert [each.span_id for each in seen] == [each.context.span_id for each in service.named("process")]
    elif mode == "propagation-only":
        assert [(each.trace_id, each.span_id, each.is_remote) for each in seen] == [
            (each.trace_id, each.span_id, True) for each in sends
        ]
    else:
        assert not any(each.is_valid for each in seen)
    assert bool(service.begun) == (mode == "native")
    assert get_current_span().get_span_context().is_valid is False, "nothing is left in this task"


async def test_an_agent_that_is_a_tool_continues_the_trace(spans: Spans) -> None:
    """A tool that calls another tool: still one trace."""
    outer: list[Dispatcher] = []

    async def work(arguments: dict[str, Any]) -> str:
        return await outer[0].call("work", {"deep": False}) if arguments["deep"] else "done"

    async with serving(work, telemetry=spans.telemetry()), telling(spans.telemetry(), ONE_ATTEMPT) as dispatcher:
        outer.append(dispatcher)
        assert await dispatcher.call("work", {"deep": True}) == "done"
        await idle()
    assert [line.replace("  ", "·").partition(" ")[0] for line in spans.tree()] == [
        *("execute_tool", "·send", "··process"),
        *("···execute_tool", "····send", "·····process", "······send"),
        "···send",
    ]
    assert len({each.context.trace_id for each in spans.ended}) == 1


@pytest.mark.parametrize(
    "traceparent", ["", "rubbish", f"00-{'0' * 32}-{SPAN:016x}-01", f"00-{TRACE:032x}-{SPAN:016x}-zz", "x" * 5_000]
)
async def test_a_malformed_context_is_ignored(traceparent: str, spans: Spans) -> None:
    async with serving(lambda _: "done", telemetry=spans.telemetry()), Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{}", "arguments": "{}"}', id="theirs", traceparent=traceparent)
        message = await caller.arrived.get()
        await idle()
    assert spans.one("process").parent is None
    sent = spans.one("send").context
    assert message.properties()["traceparent"].split("-")[1:3] == [f"{sent.trace_id:032x}", f"{sent.span_id:016x}"]


async def test_a_reply_with_a_malformed_context_is_accepted(spans: Spans) -> None:
    async with Peer.as_service() as peer, telling(spans.telemetry(), ONE_ATTEMPT) as dispatcher:
        call = asyncio.create_task(dispatcher.call("work"))
        _, properties = await peer.request()
        await peer.answer(properties, "done", traceparent="rubbish")
        assert await call == "done"
    assert spans.one("execute_tool").links == ()


@pytest.mark.parametrize(
    ("settings", "problem"), [({"traces": "loud"}, "traces"), ({"sample": 1.5}, "sample"), ({"sample": -0.1}, "sample")]
)
def test_invalid_settings_are_errors(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Telemetry(**settings)


STATES = st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.from_regex(r"[!-+]{1,8}", fullmatch=True))
ORIGINS = st.builds(
    lambda trace_id, span_id, flags, state: SpanContext(
        trace_id, span_id, is_remote=False, trace_flags=TraceFlags(flags), trace_state=TraceState(list(state.items()))
    ),
    st.integers(0, 2**128 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 3),
    STATES,
)


@given(ORIGINS)
def test_encoded_context_equals_the_propagators_and_is_decodable(origin: SpanContext) -> None:
    expected: dict[str, str] = {}
    if origin.is_valid:
        TraceContextTextMapPropagator().inject(expected, set_span_in_context(NonRecordingSpan(origin)))
    assert encode_context(origin) == encode_context(NonRecordingSpan(origin)) == expected
    read = decode_span_context(expected)
    if origin.is_valid:
        assert (read.trace_id, read.span_id, read.trace_flags, dict(read.trace_state)) == (
            *(origin.trace_id, origin.span_id, origin.trace_flags),
            dict(origin.trace_state),
        )
    else:
        assert read is decode_context(expected) is None


def test_unsampled_contexts_have_distinct_trace_ids() -> None:
    made = list(islice(generate_unsampled(), 2_000))
    traces = Counter()  # type: Counter[str]
    for text in made:
        found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-00", text)
        assert found, text
        traces[found[1]] += 1
        origin = decode_span_context({"traceparent": text})
        assert not origin.trace_flags.sampled
    assert set(traces.values()) == {1}


def test_a_sampler_by_trace_id_samples_its_share_of_them() -> None:
    """What a service without a look at the flag would do: an eighth of them, whatever was drawn."""
    low = [int(text.split("-")[1][16:], 16) for text in islice(generate_unsampled(), 256 * 8)]
    assert sum(each < 2**61 for each in low) == 256


class _Request:
    """A request without a trace context."""

    id = "id"
    headers: Mapping[str, str] = {}
    reply_topic = "responses"


REQUEST = _Request()


def test_a_tracer_of_the_settings_provider_is_found_unless_it_is_a_no_op() -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    assert find_tracer(Telemetry(tracer_provider=provider)) is not None
    assert find_tracer(Telemetry(tracer_provider=NoOpTracerProvider())) is None
    assert find_tracer(Telemetry(tracer_provider=provider, traces="propagation-only")) is None
    assert find_tracer(Telemetry()) is None, "this process has no global provider"


async def test_a_service_checks_once_a_second_for_an_sdk_until_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, is_set_up = [], False
    provider = TracerProvider(shutdown_on_exit=False)

    def check(settings: Telemetry) -> Tracer | None:
        checks.append(settings)
        return find_tracer(Telemetry(tracer_provider=provider)) if is_set_up else None

    monkeypatch.setattr(service_spans, "find_tracer", check)
    tracing = ServiceTracing(Telemetry(), ServerNames("s", "i", "t", "r-{dispatcher}", "responses"))
    now = 1_000.0
    for _ in range(50):
        assert tracing.start_request(REQUEST, now, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    assert len(checks) == 1
    is_set_up = True
    assert tracing.start_request(REQUEST, now + TRACER_CHECK_S / 2, NULL_SERVED_REQUEST) is NULL_SERVED_REQUEST
    for _ in range(3):
        request = tracing.start_request(REQUEST, now + TRACER_CHECK_S, NULL_SERVED_REQUEST)
        assert request is not NULL_SERVED_REQUEST
        request.on_end()
    assert len(checks) == 2, "no further check once there is an SDK"
