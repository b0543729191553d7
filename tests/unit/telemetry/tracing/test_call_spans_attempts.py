"""The spans of calls that take more than one attempt, or whose answers come in chunks: still one trace, and no span more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import catalog, read, serving
from tests.helpers.telemetry_capture import Spans, short, telling
from tests.unit.telemetry.tracing.test_call_spans import attributes, deaf, traced, traceparent

# -- more than one attempt --------------------------------------------------------------------------------------------


async def test_retries_are_children_and_no_new_traces() -> None:
    spans = Spans()
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
    assert short(spans.tree()) == [
        "execute_tool work",
        "  send REQUESTS !overloaded",
        "  send REQUESTS !overloaded",
        "  send REQUESTS",
    ]
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


async def test_the_span_of_a_hedge_that_loses_is_cancelled() -> None:
    spans = Spans()

    async def slow(_: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return "slow"

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

    async def slow(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

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


async def test_a_stream_has_no_span_a_chunk() -> None:
    spans = Spans()

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
    assert short(spans.tree()) == [
        "execute_tool work",
        "  send REQUESTS",
        "    process REQUESTS",
        "      send REPLIES",
    ]
    call, reply = spans.one("execute_tool"), spans.named("send")[1]
    assert attributes(call)["dispatch.first_chunk.seconds"] == pytest.approx(0.5, abs=0.01)
    assert attributes(call)["dispatch.chunks"] == 50
    assert attributes(reply)["dispatch.chunks"] == 51
    assert spans.open == []


async def test_a_stream_that_is_closed_early() -> None:
    spans = Spans()

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
