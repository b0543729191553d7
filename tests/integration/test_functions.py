"""Functions on the whole path of a call, over the embedded transport: spans, and a function that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Literal

import prometheus_client
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dispatch
from dispatch.calls.attempt import OCCUPIED_AFTER_S
from dispatch.functions import MAX_THREADS
from tests.helpers.run_profile import by_profile

CALLS = by_profile(short=1_000, long=10_000)


@dispatch.tool(read_only=True)
async def add(a: int, b: int = 0, mode: Literal["exact", "fast"] = "exact") -> int:
    """Add two whole numbers."""
    return a + b


@dispatch.tool(policy={"max-response-bytes": 2_000_000})
def read_file(chars: int) -> str:
    """Read a file."""
    return "é" * chars


async def test_spans_name_the_type_of_the_tool() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: list[dispatch.CallContext] = []

    def trace(context: dispatch.CallContext) -> None:
        seen.append(context)

    telemetry = dispatch.Telemetry(tracer_provider=provider)
    async with dispatch.connect("memory://", [dispatch.Functions(trace)], telemetry=telemetry) as dispatcher:
        await dispatcher.call("trace")
    spans = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    assert {span["gen_ai.tool.type"] for span in spans if "gen_ai.tool.type" in span} == {"function"}
    assert seen[0].traceparent.startswith(f"00-{seen[0].trace_id}-")


class Hanging:
    """A function that returns when the test ends."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.release = threading.Event()

    def hang(self) -> str:
        """Hang."""
        self.began.set()
        self.release.wait(60)
        return "released"


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    hanging = Hanging()
    yield hanging
    hanging.release.set()


def count_threads(tool: str) -> int:
    return sum(thread.name.startswith(f"dispatch-{tool}-") for thread in threading.enumerate())


async def await_threads(functions: dispatch.Functions, number: int) -> None:
    async with asyncio.timeout(10):
        while functions.abandoned_threads != number:  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.01)


@pytest.mark.wall_clock
@pytest.mark.long
@pytest.mark.parametrize("bulkhead", [4, None])
async def test_a_function_that_hangs_occupies_a_bounded_number_of_threads(
    hanging: Hanging, bulkhead: int | None
) -> None:
    limit = MAX_THREADS if bulkhead is None else bulkhead
    places = {"max-concurrent-calls": bulkhead, "max-wait": 0.1} if bulkhead else None
    policy = {"timeout": 0.2, "breaker": None, "bulkhead": places}
    name = f"hang-in-{limit}"
    functions = dispatch.Functions(dispatch.tool(name=name, policy=policy)(lambda: hanging.hang()), add, read_file)
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        hung = asyncio.gather(*(dispatcher.execute(name) for _ in range(CALLS)))
        assert await dispatcher.call("read_file", {"chars": 1}) == "é"
        outcomes = [result.outcome for result in await hung]
        assert set(outcomes) <= {"timeout", "throttled"}
        await await_threads(functions, limit)
        assert count_threads(name) == limit
        await asyncio.sleep(OCCUPIED_AFTER_S)

        began = time.perf_counter()
        rejected = [await dispatcher.execute(name) for _ in range(CALLS)]
        registry = prometheus_client.REGISTRY
        if bulkhead is not None:
            assert (
                registry.get_sample_value("dispatch_abandoned_threads", {"tool": name, "service": "functions"}) == limit
            )
        assert {result.outcome for result in rejected} == {"throttled"}, "at once: no thread becomes free"
        assert {error.rejected_by for result in rejected if (error := result.error)} == {"bulkhead"}
        assert time.perf_counter() - began < CALLS * 0.01
        assert await dispatcher.call("add", {"a": 1}) == "1"
        assert await dispatcher.call("read_file", {"chars": 1}) == "é"
        assert count_threads(name) == limit

        hanging.release.set()
        await await_threads(functions, 0)
        assert await dispatcher.call(name) == "released"
    async with asyncio.timeout(10):
        while count_threads(name):  # noqa: ASYNC110 - of threads
            await asyncio.sleep(0.01)


@pytest.mark.wall_clock
async def test_threads_that_hang_outlive_the_dispatcher_and_are_counted(hanging: Hanging) -> None:
    functions = dispatch.Functions(dispatch.tool(name="hang-on")(lambda: hanging.hang()))
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        assert (await dispatcher.execute("hang-on", timeout=1)).outcome == "timeout"
    assert functions.abandoned_threads == 1
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        assert (await dispatcher.execute("hang-on", timeout=1)).outcome == "timeout"
        await await_threads(functions, 2)
        hanging.release.set()
        await await_threads(functions, 0)
        assert await dispatcher.call("hang-on") == "released"


@pytest.mark.wall_clock
async def test_a_cancelled_call_of_a_thread_keeps_its_place_until_the_function_returns(hanging: Hanging) -> None:
    policy = {"bulkhead": {"max-concurrent-calls": 1, "max-wait": 0.05}}
    functions = dispatch.Functions(dispatch.tool(name="hang", policy=policy)(lambda: hanging.hang()))
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        task = asyncio.create_task(dispatcher.call("hang"))
        await asyncio.to_thread(hanging.began.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await await_threads(functions, 1)
        result = await dispatcher.execute("hang")
        assert result.error is not None
        assert result.error.message.startswith("Tool 'hang' was not executed: the limit of calls in flight")
        hanging.release.set()
        await await_threads(functions, 0)
        assert await dispatcher.call("hang") == "released"
