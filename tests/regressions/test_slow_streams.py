"""A stream whose reader was 1,024 chunks behind its tool was cut, and an abandoned one took the tool's permits for 300 s.

The tool waits for its reader instead, within bounds of bytes; a reader that stops costs its own stream only, for the idle
limit.
A circuit breaker never closed for a tool whose streams last longer than a probe's lease of 60 s: each probe was lost.

A stream is a success for the breakers as soon as its first chunk is there; what becomes of it later concerns its instance.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from dispatch import CallTimeoutError, Dispatcher, RejectedError, ToolError
from dispatch.calls.local import MAX_BYTES_AHEAD
from dispatch.errors import Outcome
from dispatch.policy import Breaker, Policy
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.resilience.breaker import BreakerRules, State
from dispatch.server import ToolServer
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import dispatching, read, serving, stand
from tests.helpers.protocol_settings import override_settings

CHUNKS = 4_000
WINDOW_BYTES = 200_000
"""Of a stream in a session, a tenth of the default: 1,219 chunks."""


class Source:
    """A tool that sends chunks as fast as it may, or one each ``gap`` seconds."""

    def __init__(self, chunks: int = CHUNKS, *, size: int = 100, gap: float = 0.0) -> None:
        self.chunks, self.size, self.gap = chunks, size, gap
        self.sent = 0
        self.closed = 0

    async def stream(self) -> AsyncIterator[str]:
        try:
            for index in range(self.chunks):
                if self.gap:
                    await asyncio.sleep(self.gap)
                self.sent += 1
                yield f"{index}:".ljust(self.size, ".")
        finally:
            self.closed += 1

    def invoke(self, arguments: dict[str, Any]) -> Any:
        return "pong" if arguments else self.stream()


class Stand:
    """A dispatcher with a tool, and how many bytes of its chunks may be ahead of its reader."""

    def __init__(self, dispatcher: Dispatcher, window: int, server: ToolServer | None = None) -> None:
        self.dispatcher, self.window, self.server = dispatcher, window, server


@contextlib.asynccontextmanager
async def _open(kind: str, source: Source) -> AsyncIterator[Stand]:
    if kind == "session":
        with override_settings(stream_window=WINDOW_BYTES):
            async with serving(source.invoke) as server, dispatching() as dispatcher:
                assert await dispatcher.call("work", {"ping": True}) == "pong"
                while not dispatcher.instances("lab"):
                    await advance(1)
                yield Stand(dispatcher, WINDOW_BYTES, server)
        return

    @dispatch.tool
    async def work(ping: bool = False) -> AsyncIterator[str]:
        """Work."""
        if ping:
            yield "pong"
            return
        async for chunk in source.stream():
            yield chunk

    async with dispatch.connect("memory://local", [dispatch.Functions(work)]) as dispatcher:
        yield Stand(dispatcher, MAX_BYTES_AHEAD)


KINDS = pytest.mark.parametrize("kind", ["session", "function"])


@KINDS
@pytest.mark.parametrize("delay", [0.0, 0.02])
async def test_every_chunk_arrives_in_order_however_slow_the_reader_is(kind: str, delay: float) -> None:
    source = Source()
    async with _open(kind, source) as stand:
        most, read = 0, 0
        async for chunk in stand.dispatcher.stream("work", timeout=1_000):
            assert chunk.startswith(f"{read}:")
            read += 1
            most = max(most, source.sent - read)
            if delay:
                await asyncio.sleep(delay)
        assert read == CHUNKS
        assert most <= stand.window / (source.size + CHUNK_BYTES) + 2, "the tool waits for its reader"


@KINDS
async def test_large_chunks_wait_by_their_bytes(kind: str) -> None:
    source = Source(20, size=1_500_000)
    async with _open(kind, source) as stand:
        stream = stand.dispatcher.stream("work", timeout=1_000)
        async for chunk in stream:
            assert source.sent <= int(chunk.partition(":")[0]) + 3
            await asyncio.sleep(0.1)
        assert source.sent == 20


@KINDS
async def test_abandoned_streams_take_no_permits_after_the_idle_limit(kind: str) -> None:
    source = Source(10_000_000, gap=0.1)
    async with _open(kind, source) as stand:
        abandoned = [stand.dispatcher.stream("work") for _ in range(64)]
        for stream in abandoned:
            await anext(stream)
        before = await stand.dispatcher.execute("work", {"ping": True}, timeout=1)
        assert before.outcome is Outcome.THROTTLED
        await advance(31)
        after = await stand.dispatcher.execute("work", {"ping": True}, timeout=1)
        assert after.text == "pong"
        await idle()
        assert source.closed == 64, "the tools were stopped"
        assert stand.server is None or stand.server.running == 0
        with pytest.raises(CallTimeoutError, match=r"read nothing for 30 s .*while further ones waited") as caught:
            async for _ in abandoned[0]:
                pass
        assert (caught.value.limit_name, caught.value.type) == ("stream-reader", "idle-timeout")
        for stream in abandoned[1:]:
            await stream.aclose()


@KINDS
async def test_a_stream_whose_tool_has_ended_takes_no_permit_however_long_its_reader_pauses(kind: str) -> None:
    source = Source(10)
    async with _open(kind, source) as stand:
        streams = [stand.dispatcher.stream("work") for _ in range(64)]
        for stream in streams:
            await anext(stream)
        await idle()
        assert (await stand.dispatcher.execute("work", {"ping": True})).text == "pong"
        await advance(500)
        for stream in streams:
            assert len([chunk async for chunk in stream]) == 9


async def test_a_stopped_reader_costs_its_own_stream_only() -> None:
    source = Source()
    async with _open("session", source) as stand:
        stopped = stand.dispatcher.stream("work")
        await anext(stopped)
        await advance(1)
        sent = source.sent
        assert sent < CHUNKS
        await advance(5)
        assert source.sent == sent, "its tool waits"
        assert len([chunk async for chunk in stand.dispatcher.stream("work")]) == CHUNKS
        assert (await stand.dispatcher.execute("work", {"ping": True})).text == "pong"
        await stopped.aclose()
        await idle()
        assert source.closed == 2


async def test_a_repeated_stream_of_an_idempotency_key_waits_for_its_reader_too() -> None:
    source = Source()
    async with _open("session", source) as stand:
        for _ in range(2):
            read = 0
            async for chunk in stand.dispatcher.stream("work", idempotency_key="k", timeout=1_000):
                assert chunk.startswith(f"{read}:")
                read += 1
                await asyncio.sleep(0.001)
            assert read == CHUNKS
        assert source.sent == CHUNKS, "the tool ran once"


LASTS_S = 90


OPEN_S = 5.0


PROMPT = BreakerRules(slow_call_duration=10, open_duration=OPEN_S, jitter=0)


async def _long(arguments: dict[str, Any]) -> AsyncIterator[str]:
    for second in range(LASTS_S):
        yield f"{second} "
        await asyncio.sleep(arguments.get("pause", 1))


def long(arguments: dict[str, Any]) -> AsyncIterator[str]:
    return _long(arguments)


async def open_circuit(dispatcher: Dispatcher) -> None:
    """The breaker is open for a moment, as after failures; what comes next is a probe."""
    breaker = dispatcher.breaker("work")
    breaker.open_until(asyncio.get_running_loop().time() + OPEN_S)
    await advance(OPEN_S)
    assert breaker.state is State.OPEN


async def test_streams_close_the_circuit_at_their_first_chunks() -> None:
    async with stand(long, policy=Policy(breaker=PROMPT)) as (dispatcher, _):
        breaker = dispatcher.breaker("work")
        await open_circuit(dispatcher)
        streams: list[asyncio.Task[None]] = []
        chunks: list[list[str]] = []
        for _ in range(21):  # the probes of all three rounds, of which none has ended
            chunks.append([])
            streams.append(asyncio.create_task(read(dispatcher.stream("work"), chunks[-1])))
            await advance(0.1)
        assert not any(stream.done() for stream in streams)
        assert breaker.state is State.CLOSED
        await asyncio.gather(*streams)
        assert {len(each) for each in chunks} == {LASTS_S}
        assert (breaker.state, breaker.lost, breaker.stale) == (State.CLOSED, 0, 0)
        assert breaker.slow_call_rate in (None, 0.0), "a stream is as slow as its first chunk"


async def test_the_breaker_of_an_instance_closes_as_well() -> None:
    ill = True

    async def failing(arguments: dict[str, Any]) -> AsyncIterator[str]:
        if ill:
            raise ToolError("ill", "I am ill.")
        async for chunk in _long(arguments):
            yield chunk

    policy = Policy(
        retry=1, breaker=BreakerRules(failure_rate=1, count_tool_errors=True, open_duration=OPEN_S, jitter=0)
    )
    async with (
        serving(failing, instance="one"),
        serving(long, instance="two"),
        dispatching(policy=policy) as dispatcher,
    ):
        states: list[str] = []
        dispatcher.on_event(lambda event: states.append(event.new) if getattr(event, "instance", "") == "one" else None)
        for _ in range(20):
            await dispatcher.execute("work", {"pause": 0})
        assert states == [State.OPEN]
        ill = False
        await advance(OPEN_S)
        streams = []
        for _ in range(50):
            streams.append(asyncio.create_task(read(dispatcher.stream("work"), [])))
            await advance(0.1)
        assert states == [State.OPEN, State.HALF_OPEN, State.CLOSED]
        await asyncio.gather(*streams)


async def test_a_stream_that_breaks_after_its_first_chunk_counts_for_its_instance() -> None:
    policy = Policy(retry=1, breaker=Breaker(consecutive_failures=3), stream_idle_timeout=2)
    async with stand(long, policy=policy, instance="one") as (dispatcher, _):
        for _ in range(4):
            with pytest.raises(CallTimeoutError):
                await read(dispatcher.stream("work", {"pause": 10}), [])
        assert dispatcher.breaker("work").state is State.CLOSED
        assert [view.failures for view in dispatcher.instances("lab")] == [4]


async def test_a_stream_without_a_first_chunk_is_a_failure() -> None:
    async def silent(_arguments: dict[str, Any]) -> str:
        await asyncio.sleep(60)
        return ""

    policy = Policy(retry=1, breaker=Breaker(consecutive_failures=3), stream_idle_timeout=2)
    async with stand(silent, policy=policy) as (dispatcher, _):
        for _ in range(3):
            with pytest.raises(CallTimeoutError):
                await read(dispatcher.stream("work"), [])
        with pytest.raises(RejectedError, match="was not executed"):
            await read(dispatcher.stream("work"), [])
