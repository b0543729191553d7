"""The spans of one exchange, from the agent's own to the tool's and back: one trace, whatever happens on the way."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from dispatch import CallTimeoutError, Catalog, Dispatcher, RejectedError, ToolError
from dispatch.protocol.events import ReplyReceived
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, UNGUARDED, Peer, catalog, read, serving
from tests.helpers.internals import correlator_of
from tests.helpers.session_caller import calling
from tests.helpers.telemetry_capture import Spans, short, telling

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


async def test_one_call_is_one_trace() -> None:
    spans = Spans()
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

    def answer(_: dict[str, Any]) -> str:
        return "done"

    def answer_at_length(_: dict[str, Any]) -> str:
        return "x" * 1_000_000

    for work in (answer, answer_at_length, chunks, fail):
        spans = Spans()
        async with traced(spans, work) as dispatcher:
            await dispatcher.execute("work")
            await idle()
        [link] = spans.one("execute_tool").links
        assert link.context.span_id == spans.named("send")[1].context.span_id, work


async def test_a_call_that_the_service_stopped_has_a_link_to_the_span_of_the_refusal() -> None:
    async def sleep(_: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return "late"

    spans = Spans()
    async with (
        serving(sleep, instance="here", telemetry=spans.telemetry()) as server,
        calling(server) as caller,
    ):
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


async def test_attributes_of_each_span() -> None:
    spans = Spans()
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


async def test_a_service_whose_instances_are_not_known_by_name_has_no_template() -> None:
    spans = Spans()
    async with deaf(spans) as (dispatcher, peer):
        call = asyncio.create_task(dispatcher.execute("work"))
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        await call
        send = attributes(spans.one("send"))
        assert send["messaging.destination.name"] == REQUESTS
        assert "messaging.destination.template" not in send
        assert spans.one("execute_tool").links == ()


async def test_a_reply_on_the_response_topic() -> None:
    """To a caller without a topic of its own."""
    spans = Spans()
    async with serving(lambda _: "done", telemetry=spans.telemetry()), Peer.as_caller() as caller:
        await caller.ask(b'{"config": "{}", "arguments": "{}"}', id="theirs")
        await caller.arrived.get()
        await idle()
    assert short(spans.tree()) == ["process REQUESTS", "  send RESPONSES"]
    sent = attributes(spans.one("send"))
    assert sent["messaging.destination.name"] == RESPONSES
    assert "messaging.destination.temporary" not in sent


async def test_concurrent_calls_are_separate_traces() -> None:
    spans = Spans()

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


async def test_a_tools_own_error() -> None:
    spans = Spans()

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
    assert all(not each.events for each in spans.ended), (
        "no exception is recorded: its text may quote what it was given"
    )


async def test_a_call_that_times_out() -> None:
    spans = Spans()

    async def work(_: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return "late"

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


async def test_a_reply_above_its_callers_limit() -> None:
    spans = Spans()
    limited = catalog(service={"policy": {"max-response-bytes": 1_000_000}}, work=ONCE)
    async with traced(spans, lambda _: "x" * 6_000_000, limited) as dispatcher:
        result = await dispatcher.execute("work")
        await idle()
        assert result.error is not None
        assert result.error.type == "response-limit-exceeded"
    assert [line.strip() for line in short(spans.tree())] == [
        "execute_tool work !response-limit-exceeded",
        "send REQUESTS !response-limit-exceeded",
        "process REQUESTS",
        "send REPLIES",
    ]


async def test_a_rejected_call_has_no_send_span() -> None:
    spans = Spans()
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


async def test_a_name_may_be_any_text() -> None:
    spans = Spans()
    async with telling(spans.telemetry()) as dispatcher:
        for name in ("", "x" * 10_000, "\ud800 half a character"):
            assert (await dispatcher.execute(name)).error is not None
    found = [attributes(each)["gen_ai.tool.name"] for each in spans.named("execute_tool")]
    assert found == ["", "x" * 256, "? half a character"]


async def test_a_request_that_its_service_rejects_has_no_process_span() -> None:
    """It was never processed."""
    spans = Spans()

    async def slow(_: dict[str, Any]) -> str:
        await asyncio.sleep(5)
        return "done"

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
