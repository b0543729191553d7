"""Streams: chunks in order and once, the two limits, and what a reader that goes away leaves."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.messaging.request import Answer, Closed, Disposition, Overflow, Request, TimedOut, Unreadable
from dispatch.protocol.frames import CHUNK_BYTES
from tests.helpers import exchange_harness
from tests.helpers.clock import START, advance, idle, run
from tests.helpers.exchange_harness import read
from tests.helpers.fakes import lost, reply
from tests.helpers.malformed_messages import AlteredMessage
from tests.helpers.run_profile import examples


class Bench(exchange_harness.Bench):
    """An exchange and one open stream."""

    def __init__(
        self,
        *,
        limit: float = 300.0,
        idle: float = 30.0,
        max_buffer: int = 10_000,
        max_bytes: int = 1_000,
        **options: Any,
    ) -> None:
        super().__init__(max_buffer=max_buffer, **options)
        self.limits: dict[str, Any] = {"idle": idle, "max_bytes": max_bytes, "limit": limit}

    def open(self) -> Request:
        return super().open(**self.limits)


async def test_chunks_are_given_as_they_come() -> None:
    bench = Bench()
    stream = bench.open()
    got: list[str] = []

    async def reader() -> None:
        async for chunk in stream:
            got.append(chunk)

    reading = asyncio.create_task(reader())
    for index, text in enumerate(("Once", " upon", " a time")):
        await idle()
        assert len(got) == index
        bench.take(reply(stream.id, text, end=False, chunk=index))
    await idle()
    assert got == ["Once", " upon", " a time"]
    assert not reading.done()
    bench.take(reply(stream.id, "", chunk=3))
    await reading
    assert isinstance(stream.settled, Answer)
    assert stream.settled.chunks == 4
    assert bench.exchange.pending == 0


async def test_the_last_chunk_may_carry_text_and_empty_ones_are_not_shown() -> None:
    bench = Bench()
    stream = bench.open()
    for text, end in (("", False), ("a", False), ("", False), ("z", True)):
        bench.take(reply(stream.id, text, end=end))
    assert await read(stream) == ["a", "z"]


async def test_the_end_of_a_stream_is_an_answer_without_a_text() -> None:
    bench = Bench()
    stream = bench.open()
    assert bench.publisher.sent[0].flow == "tool"
    bench.take(reply(stream.id, "a", end=False))
    bench.take(reply(stream.id, "b", instance="one"))
    assert stream.settled == Answer("", chunks=2, instance="one", trace_context={"id": stream.id, "instance": "one"})
    stream = bench.open()
    bench.take(reply(stream.id, "a", end=False))
    bench.take(reply(stream.id, error=("Odd", "no"), instance="one"))
    assert stream.settled == Answer(
        "", "Odd", "no", 2, instance="one", trace_context={"id": stream.id, "instance": "one"}
    )


async def test_the_idle_limit_has_a_timer_of_its_own_until_the_end() -> None:
    bench = Bench(idle=10)
    stream = bench.open()
    assert stream.buffer._timer is not None
    assert stream.buffer._timer.when() == START + 10
    await advance(4)
    bench.take(reply(stream.id, "a", end=False))
    assert stream.buffer._timer.when() == START + 10, "it is not moved at every chunk"
    await advance(6)
    assert stream.buffer._timer.when() == START + 14
    bench.take(reply(stream.id, "b"))
    assert stream.buffer._timer is None
    assert await read(stream) == ["a", "b"]


async def test_a_plain_answer_is_a_stream_of_one() -> None:
    bench = Bench()
    stream = bench.open()
    bench.take(reply(stream.id, "all at once"))
    assert await read(stream) == ["all at once"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_chunks_are_put_in_order(order: tuple[int, ...]) -> None:
    bench = Bench()
    stream = bench.open()
    for index in order:
        assert bench.take(reply(stream.id, "abcd"[index], end=index == 3, chunk=index)) is Disposition.MATCHED
    assert "".join(await read(stream)) == "abcd"


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 8).flatmap(
        lambda size: st.lists(st.integers(0, size - 1), max_size=24).map(lambda extra: (size, extra))
    ),
    st.randoms(use_true_random=False),
)
def test_in_any_order_and_with_any_repetition_each_is_shown_once(drawn: tuple[int, list[int]], rng: Any) -> None:
    size, extra = drawn
    arriving = [*range(size), *extra]
    rng.shuffle(arriving)

    async def scene() -> None:
        bench = Bench()
        stream = bench.open()
        seen = [bench.take(reply(stream.id, f"<{i}>", end=i == size - 1, chunk=i)) for i in arriving]
        assert await read(stream) == [f"<{i}>" for i in range(size)]
        assert seen.count(Disposition.MATCHED) == size
        assert seen.count(Disposition.DUPLICATE) == len(extra)

    run(scene)


async def test_the_idle_limit_counts_from_the_request_and_then_from_each_chunk() -> None:
    bench = Bench(limit=1_000, idle=10)
    stream = bench.open()
    reading = asyncio.create_task(read(stream))
    for index in range(5):
        await advance(9.9)
        bench.take(reply(stream.id, "x", end=False, chunk=index))
    assert await reading == ["x"] * 5
    assert stream.settled == TimedOut("stream-idle", may_have_run=True, chunks=5)
    assert bench.exchange.loop.time() == pytest.approx(START + 5 * 9.9 + 10, abs=0.01)


async def test_the_idle_limit_counts_for_the_reader_while_chunks_wait() -> None:
    """An abandoned stream of a tool that goes on ends as one whose tool hangs."""
    bench = Bench(limit=1_000, idle=10)
    stream = bench.open()
    for index in range(4):
        bench.take(reply(stream.id, str(index), end=False, chunk=index))
        await advance(4)
    assert stream.settled == TimedOut("stream-reader", may_have_run=True, chunks=3)
    assert bench.exchange.pending == 0
    assert await read(stream) == ["0", "1", "2"]


async def test_a_stream_that_ended_waits_for_its_reader_without_a_limit() -> None:
    bench = Bench(idle=10)
    stream = bench.open()
    for index in range(3):
        bench.take(reply(stream.id, str(index), end=index == 2, chunk=index))
    await advance(1_000)
    assert await read(stream) == ["0", "1", "2"]
    assert isinstance(stream.settled, Answer)


async def test_the_idle_limit_before_the_first_chunk() -> None:
    bench = Bench(idle=10)
    bench.publisher.queueing = True
    stream = bench.open()
    assert await read(stream) == []
    assert stream.settled == TimedOut("stream-idle", may_have_run=False)
    assert bench.exchange.loop.time() == pytest.approx(START + 10, abs=0.01)


async def test_the_absolute_limit_ends_a_stream_that_keeps_talking() -> None:
    bench = Bench(limit=20, idle=10)
    stream = bench.open()
    reading = asyncio.create_task(read(stream))
    for index in range(4):
        await advance(4.5)
        bench.take(reply(stream.id, "x", end=False, chunk=index))
    assert await reading == ["x"] * 4
    assert stream.settled == TimedOut("stream", may_have_run=True, chunks=4)
    assert bench.exchange.loop.time() == pytest.approx(START + 20, abs=0.01)


async def test_a_chunk_that_never_came_is_named_and_nothing_after_it_is_shown() -> None:
    bench = Bench(idle=10)
    stream = bench.open()
    for index in (0, 1, 3, 4):
        bench.take(reply(stream.id, str(index), end=index == 4, chunk=index))
    assert await read(stream) == ["0", "1"]
    assert stream.settled == TimedOut("stream-idle", may_have_run=True, chunks=2, missing=2)


async def test_an_error_counts_even_if_a_chunk_before_it_was_lost() -> None:
    bench = Bench()
    stream = bench.open()
    bench.take(reply(stream.id, "0", end=False, chunk=0))
    bench.take(reply(stream.id, "2", end=False, chunk=2))
    bench.take(reply(stream.id, error=("Odd", "broke")))
    assert await read(stream) == ["0"]
    assert isinstance(stream.settled, Answer)
    assert (stream.settled.error_type, stream.settled.error_message) == ("Odd", "broke")
    assert bench.exchange.loop.time() == START


async def test_a_reader_that_falls_behind_gets_what_was_kept_and_then_the_limit() -> None:
    bench = Bench(max_buffer=3 * CHUNK_BYTES)
    stream = bench.open()
    for index in range(3):
        bench.take(reply(stream.id, str(index), end=False, chunk=index))
    assert stream.settled is None
    bench.take(reply(stream.id, "3", end=False, chunk=3))
    assert stream.settled == Overflow("stream buffer")
    assert bench.exchange.pending == 0
    assert await read(stream) == ["0", "1", "2"]


@pytest.mark.parametrize(("texts", "fits"), [(["x" * 10], True), (["x" * 11], False), (["x" * 9, "xx"], False)])
async def test_the_size_of_a_stream_is_bounded(texts: list[str], fits: bool) -> None:
    bench = Bench(max_bytes=10)
    stream = bench.open()
    for index, text in enumerate(texts):
        bench.take(reply(stream.id, text, end=index == len(texts) - 1))
    await read(stream)
    assert isinstance(stream.settled, Answer) if fits else stream.settled == Overflow("max-response-bytes")


async def test_a_reader_that_leaves_early_may_leave_a_running_tool() -> None:
    bench = Bench()
    stream = bench.open()
    stream.close()
    assert stream.settled == TimedOut("abandoned", may_have_run=True)


async def test_a_reader_that_leaves_early_leaves_nothing() -> None:
    bench = Bench()
    bench.publisher.queueing = True
    stream = bench.open()
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    bench.take(reply(stream.id, "b", end=False, chunk=1))
    async for _ in stream:
        break
    stream.close()
    assert stream.settled == TimedOut("abandoned", may_have_run=False, chunks=2)
    assert bench.exchange.pending == 0
    assert bench.publisher.sent[0].cancelled
    assert await read(stream) == []
    assert bench.take(reply(stream.id, "c", end=False, chunk=2)) is Disposition.LATE


async def test_a_reader_that_is_cancelled_can_go_on_or_close() -> None:
    bench = Bench()
    stream = bench.open()
    reading = asyncio.create_task(read(stream))
    await idle()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    bench.take(reply(stream.id, "a"))
    assert await read(stream) == ["a"]
    stream.close()
    assert isinstance(stream.settled, Answer), "closing what has ended changes nothing"


async def test_a_publish_that_fails_ends_the_stream() -> None:
    bench = Bench()
    stream = bench.open()
    reading = asyncio.create_task(read(stream))
    await idle()
    bench.publisher.sent[0].on_failure(error := lost())
    assert await reading == []
    assert stream.settled is error


async def test_a_failure_after_the_end_changes_nothing() -> None:
    bench = Bench()
    stream = bench.open()
    bench.take(reply(stream.id, "a"))
    bench.publisher.sent[0].on_failure(lost())
    assert await read(stream) == ["a"]
    assert isinstance(stream.settled, Answer)


async def test_a_publish_that_is_refused_never_opens_it() -> None:
    bench = Bench()
    bench.publisher.refusal = error = lost(sent=False)
    stream = bench.open()
    assert await read(stream) == []
    assert stream.settled is error
    assert bench.exchange.pending == 0


async def test_a_stream_too_many_is_refused() -> None:
    bench = Bench(max_pending=1)
    first, second = bench.open(), bench.open()
    assert await read(second) == []
    assert second.settled == Rejection("exchange", "pending-limit", 1.0)
    first.close()


async def test_rubbish_ends_the_stream_at_once() -> None:
    bench = Bench()
    stream = bench.open()
    assert bench.take(AlteredMessage(b"<html>", {"id": stream.id})) is Disposition.MALFORMED
    assert await read(stream) == []
    assert isinstance(stream.settled, Unreadable)
    assert bench.exchange.loop.time() == START


async def test_closing_the_exchange_ends_the_stream() -> None:
    bench = Bench()
    stream = bench.open()
    reading = asyncio.create_task(read(stream))
    await idle()
    bench.exchange.close()
    assert await reading == []
    assert stream.settled == Closed(may_have_run=True)


async def test_after_the_end_every_chunk_is_a_duplicate() -> None:
    bench = Bench()
    stream = bench.open()
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    bench.take(reply(stream.id, "", chunk=1))
    assert bench.take(reply(stream.id, "a", end=False, chunk=0)) is Disposition.DUPLICATE
    assert await read(stream) == ["a"]


async def test_a_chunk_in_parts_is_given_when_it_is_whole() -> None:
    bench = Bench(max_buffer=2 * CHUNK_BYTES)
    stream = bench.open()
    id = stream.id
    for index, (text, more) in enumerate([("a", True), ("b", True), ("c", False), ("d", False)]):
        named = {"more": "1"} if more else {}
        assert bench.take(reply(id, text, end=False, chunk=index, **named)) is Disposition.MATCHED
        assert stream.buffer.size == [0, 0, 3 + CHUNK_BYTES, 4 + 2 * CHUNK_BYTES][index]
    bench.take(reply(id, "e", end=False, chunk=4, more="1"))
    bench.take(reply(id, "f", end=True, chunk=5))
    assert stream.settled == Overflow("stream buffer"), "it is three chunks, and there is room for two"
    assert await read(stream) == ["abc", "d"]


async def test_parts_count_as_what_they_are_towards_the_limit_of_bytes() -> None:
    bench = Bench(max_bytes=5)
    stream = bench.open()
    for index in range(3):
        bench.take(reply(stream.id, "xx", end=False, chunk=index, more="1"))
    assert stream.settled == Overflow("max-response-bytes")
    assert await read(stream) == []


async def test_an_error_in_the_middle_of_a_chunk_gives_nothing_of_it() -> None:
    bench = Bench()
    stream = bench.open()
    bench.take(reply(stream.id, "half a ", end=False, chunk=0, more="1"))
    bench.take(reply(stream.id, error=("oops", "it broke")))
    assert await read(stream) == []
    assert isinstance(stream.settled, Answer)
    assert stream.settled.error_type == "oops"


async def test_another_instance_may_begin_a_chunk_anew_of_which_nothing_was_given() -> None:
    bench = Bench()
    stream = bench.open()
    for index in range(2):
        bench.take(reply(stream.id, "half ", end=False, chunk=index, more="1", instance="a"))
    bench.take(reply(stream.id, "an", end=False, chunk=0, more="1", instance="b"))
    assert bench.take(reply(stream.id, "half ", end=False, chunk=2, more="1", instance="a")) is Disposition.DUPLICATE
    bench.take(reply(stream.id, "swer", end=True, chunk=1, instance="b"))
    assert await read(stream) == ["answer"]
