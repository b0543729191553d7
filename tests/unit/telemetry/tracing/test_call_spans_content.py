"""What callers send and tools answer is user data: it is nowhere unless it was asked for, and then as the hook has it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.openmetrics.exposition import generate_latest

from dispatch import DispatchError, Telemetry, ToolError
from dispatch.telemetry.events import Event
from dispatch.telemetry.tracing import MAX_CONTENT_CHARS
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, read, serving
from tests.helpers.telemetry_capture import Board, Spans, telling

MARK = "s3cr3t-of-a-user"
ONCE = catalog(work={"policy": UNGUARDED})


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
        async with Peer.as_service() as peer, telling(telemetry, ONCE) as dispatcher:
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


async def test_content_is_recorded_when_it_is_on() -> None:
    spans = Spans()
    async with telling(spans.telemetry(content=True), ONCE) as dispatcher, serving(work):
        await dispatcher.execute("work", {"topic": "cats"})
        await read(dispatcher.stream("work", {"do": "stream"}), [])
        await dispatcher.execute("work", {"do": "fail"})
    found = [
        (
            (each.attributes or {}).get("gen_ai.tool.call.arguments"),
            (each.attributes or {}).get("gen_ai.tool.call.result"),
        )
        for each in spans.named("execute_tool")
    ]
    assert found == [
        ('{"topic":"cats"}', f"{MARK} was here"),
        ('{"do":"stream"}', MARK * 2),
        ('{"do":"fail"}', None),
    ]
    assert "gen_ai.tool.call" not in "".join(
        key for each in spans.named("send") for key in (each.attributes or {}) if "call.id" not in key
    )


async def test_the_redaction_hook_decides_what_is_recorded() -> None:
    spans, asked = Spans(), []

    def redact(kind: str, tool: str, text: str) -> str | None:
        asked.append((kind, tool, text))
        return None if kind == "arguments" else text.replace(MARK, "***")

    async with serving(work), telling(spans.telemetry(content=True, redact=redact), ONCE) as dispatcher:
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

    async with serving(work), telling(spans.telemetry(content=True, redact=redact), ONCE) as dispatcher:
        assert (await dispatcher.execute("work", {"topic": MARK})).ok
    assert spans.open == []
    assert MARK not in told(spans)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "the redaction hook failed (LookupError): arguments of 'work' not recorded",
        "the redaction hook failed (LookupError): result of 'work' not recorded",
    ]
    assert MARK not in caplog.text


async def test_recorded_content_is_bounded() -> None:
    spans = Spans()
    async with serving(lambda _: "x" * 200_000), telling(spans.telemetry(content=True), ONCE) as dispatcher:
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
            async with telling(telemetry, ONCE) as dispatcher:
                assert (await dispatcher.execute("work", {"topic": MARK})).ok
                await read(dispatcher.stream("work", {"do": "stream"}), [])
        await advance(1)
    assert asked == []
