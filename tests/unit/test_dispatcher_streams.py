"""Streams through the dispatcher: in order, in time, and nothing left when a reader goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Policy
from dispatch.errors import CallTimeoutError, InvalidArgumentsError, ThrottledError, ToolError, TransportError
from dispatch.protocol.frames import CHUNK_BYTES
from tests.helpers.clock import START, advance, idle
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, dispatching, read, stand

pytestmark = pytest.mark.usefixtures("strangers")


def now() -> float:
    return asyncio.get_running_loop().time()


def story(count: int, gap: float = 0.0) -> Any:
    async def stream() -> AsyncIterator[str]:
        for index in range(count):
            if gap:
                await asyncio.sleep(gap)
            yield f"<{index}>"

    return lambda _: stream()


async def test_chunks_come_as_they_are_made() -> None:
    async with stand(story(5, gap=1)) as (dispatcher, _):
        seen = [(round(now() - START), chunk) async for chunk in dispatcher.stream("work")]
    assert seen == [(second + 1, f"<{second}>") for second in range(5)]


async def test_a_long_stream_arrives_whole() -> None:
    async with stand(story(5_000)) as (dispatcher, _):
        assert [chunk async for chunk in dispatcher.stream("work")] == [f"<{n}>" for n in range(5_000)]


async def test_a_plain_answer_is_a_stream_of_one() -> None:
    async with stand(lambda _: "done") as (dispatcher, _):
        assert [chunk async for chunk in dispatcher.stream("work")] == ["done"]


async def test_a_stream_asked_for_as_a_call_is_put_together() -> None:
    async with stand(story(3)) as (dispatcher, _):
        assert await dispatcher.call("work") == "<0><1><2>"


async def test_the_time_left_travels_with_a_stream() -> None:
    for options, policy, remaining in (
        ({}, {}, 300_000),
        ({}, {"stream-timeout": 9}, 9_000),
        ({"timeout": 5}, {}, 5_000),
    ):
        async with Peer.as_service() as peer, dispatching(catalog(work={"policy": policy})) as dispatcher:
            chunks = dispatcher.stream("work", idempotency_key="k", **options)
            first = asyncio.create_task(anext(chunks))
            _, properties = await peer.request()
            assert properties.keys() == {
                "id",
                "reply-to",
                "session",
                "remaining-ms",
                "largest",
                "idempotency-key",
            }
            assert int(properties["remaining-ms"]) in (remaining, remaining - 1)
            await peer.answer(properties, "x", end=False)
            assert await first == "x"
            await chunks.aclose()


@pytest.mark.parametrize(
    ("options", "policy", "after", "clock"),
    [
        ({}, {}, 30, "stream-idle"),
        ({"idle_timeout": 5}, {}, 5, "stream-idle"),
        ({}, {"stream-idle-timeout": 7}, 7, "stream-idle"),
        ({"idle_timeout": 3}, {"stream-idle-timeout": 7}, 3, "stream-idle"),
        ({"timeout": 4}, {}, 4, "stream"),
        ({}, {"stream-timeout": 6}, 6, "stream"),
        ({"timeout": 2}, {"stream-timeout": 6}, 2, "stream"),
    ],
)
async def test_a_stream_that_says_nothing_ends_to_the_moment_and_names_its_clock(
    options: dict[str, Any], policy: dict[str, Any], after: float, clock: str
) -> None:
    async with Peer.as_service(), dispatching(catalog(work={"policy": policy})) as dispatcher:
        with pytest.raises(CallTimeoutError) as caught:
            await anext(dispatcher.stream("work", **options))
        assert caught.value.limit_name == clock
        assert f"{after} s" in caught.value.message
        assert now() == pytest.approx(START + after, abs=0.01)
        assert dispatcher.pending_requests == 0


async def test_a_stream_that_falls_silent_gives_what_came_and_says_how_much() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        chunks = dispatcher.stream("work", idle_timeout=5)
        first = asyncio.create_task(anext(chunks))
        _, properties = await peer.request()
        await advance(4)
        await peer.answer(properties, "one", end=False, chunk="0")
        await peer.answer(properties, "three", end=True, chunk="2")
        assert await first == "one"
        with pytest.raises(
            CallTimeoutError, match=r"brought nothing for 5 s after 1 chunk\(s\) \(chunk 1 was lost\)"
        ) as caught:
            await anext(chunks)
        assert caught.value.limit_name == "stream-idle"
        assert now() == pytest.approx(START + 9, abs=0.01)


async def test_a_stream_that_never_ends_is_ended() -> None:
    got: list[str] = []
    async with stand(story(1_000, gap=1)) as (dispatcher, server):
        with pytest.raises(CallTimeoutError, match=r"was not complete within 10\.5 s") as caught:
            await read(dispatcher.stream("work", timeout=10.5), got)
        assert caught.value.limit_name == "stream"
        assert got == [f"<{n}>" for n in range(10)]
        await idle()
        assert server.running == 0


@pytest.mark.parametrize("idle_timeout", [0, -1, "5"])
async def test_an_idle_limit_that_cannot_be_is_told_by_its_name(idle_timeout: Any) -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        with pytest.raises(InvalidArgumentsError, match="idle-timeout") as caught:
            await anext(dispatcher.stream("work", idle_timeout=idle_timeout))
        assert caught.value.type == "invalid-timeout"
        assert peer.arrived.empty()


async def test_closing_a_stream_leaves_nothing_at_once() -> None:
    async with stand(story(100, gap=1)) as (dispatcher, _):
        async with contextlib.aclosing(dispatcher.stream("work")) as chunks:
            async for _ in chunks:
                break
            assert dispatcher.pending_requests == 1
        assert dispatcher.pending_requests == 0


async def test_leaving_the_loop_leaves_nothing() -> None:
    async with stand(story(100, gap=1)) as (dispatcher, _):
        async for _ in dispatcher.stream("work"):
            break
        await idle()
        assert dispatcher.pending_requests == 0


async def test_cancelling_a_reader_leaves_nothing() -> None:
    async with Peer.as_service(), dispatching() as dispatcher:
        reading = asyncio.create_task(read(dispatcher.stream("work"), []))
        await idle()
        assert dispatcher.pending_requests == 1
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert dispatcher.pending_requests == 0


async def test_a_stream_that_is_never_read_was_never_asked_for() -> None:
    async with Peer.as_service() as peer, dispatching() as dispatcher:
        await dispatcher.stream("work").aclose()
        assert peer.arrived.empty()
        assert dispatcher.pending_requests == 0


async def test_a_reader_that_falls_behind_gets_what_was_kept_and_then_a_clear_error() -> None:
    got: list[str] = []
    async with stand(story(50)) as (dispatcher, _):
        dispatcher._running.exchange._max_buffer = 10 * CHUNK_BYTES
        chunks = dispatcher.stream("work")
        got.append(await anext(chunks))
        await idle()
        with pytest.raises(TransportError, match="stream buffer") as caught:
            await read(chunks, got)
        assert caught.value.type == "response-limit-exceeded"
        assert got == [f"<{n}>" for n in range(len(got))]
        assert len(got) >= 11


async def test_an_error_is_raised_after_what_came_before_it() -> None:
    async def stream() -> AsyncIterator[str]:
        yield "one"
        raise ToolError("no-more", "That is all.")

    got: list[str] = []
    async with stand(lambda _: stream()) as (dispatcher, _):
        with pytest.raises(ToolError, match="That is all") as caught:
            await read(dispatcher.stream("work"), got)
        assert caught.value.type == "no-more"
        assert got == ["one"]


async def test_a_refusal_is_raised_as_one() -> None:
    async with Peer.as_service() as peer, dispatching(policy=Policy(**UNGUARDED)) as dispatcher:
        first = asyncio.ensure_future(anext(dispatcher.stream("work")))
        _, properties = await peer.request()
        await peer.answer(properties, error=("overloaded", "full"), refused="overloaded", retry_after_ms="2000")
        with pytest.raises(ThrottledError) as caught:
            await first
        assert caught.value.retry_after == 2.0


async def test_many_streams_at_once_do_not_mix() -> None:
    async def all_of(dispatcher: Any, number: int) -> list[str]:
        return [chunk async for chunk in dispatcher.stream("work", {"n": number})]

    def work(arguments: dict[str, Any]) -> AsyncIterator[str]:
        async def stream() -> AsyncIterator[str]:
            for index in range(10):
                await asyncio.sleep(index % 3)
                yield f"{arguments['n']}:{index}"

        return stream()

    async with stand(work) as (dispatcher, _):
        answers = await asyncio.gather(*(all_of(dispatcher, number) for number in range(50)))
    assert answers == [[f"{number}:{index}" for index in range(10)] for number in range(50)]
