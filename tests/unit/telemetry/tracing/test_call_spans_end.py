"""Every span that is begun is ended, once, whatever happens: whichever way the call ends, and wherever it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from opentelemetry.trace import StatusCode

from dispatch import DispatchError, Telemetry, ToolError
from tests.helpers.clock import advance, run
from tests.helpers.dispatcher_and_service import catalog, serving
from tests.helpers.telemetry_capture import Board, Spans, telling

TOOLS = catalog(
    service={"policy": {"max-response-bytes": 1_000_000}},
    plain={"policy": {"bulkhead": {"max-concurrent-calls": 2, "max-wait": 1}}},
    safe={"read-only": True, "policy": {"hedging": 0.2, "attempt-timeout": 0.6, "retry": {"initial-backoff": 0.05}}},
    shared={"read-only": True, "policy": {"single-flight": True}},
    rated={"policy": {"rate-limit": {"rate": "2/s", "burst": 1, "max-wait": 1}}},
)
WAYS = ("succeed", "fail", "sleep", "stream", "stream and fail", "stream for ever", "too large")


async def work(arguments: dict[str, Any]) -> Any:
    do = arguments["do"]
    if do == "fail":
        raise ToolError("failed", "as told")
    if do == "sleep":
        await asyncio.sleep(30)
    if do == "too large":
        return "x" * 6_000_000
    return _chunks(do) if do.startswith("stream") else "done"


async def _chunks(do: str) -> AsyncIterator[str]:
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


@settings(max_examples=150)  # in both profiles: pytest retains the log records of each example, megabytes of replies
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
            serving(work, instance="a", telemetry=telemetry, drain_timeout=0),
            serving(work, instance="b", telemetry=telemetry, drain_timeout=0),
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
