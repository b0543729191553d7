"""Answers of which another instance, or another topic, brings a part: none is put together from two."""

from __future__ import annotations

import asyncio

from dispatch.messaging.request import Answer, Disposition, Restarted
from tests.helpers.clock import idle
from tests.helpers.exchange_harness import Bench, read, request
from tests.helpers.fakes import reply


async def test_a_whole_answer_begun_anew_is_that_of_the_second_instance_alone() -> None:
    bench = Bench()
    id = bench.exchange.new_id()
    task = asyncio.create_task(request(bench.exchange, bench.publisher, id=id, max_bytes=9))
    await idle()
    for index, text in ((0, "aaa"), (1, "aaa"), (3, "aaa")):
        assert bench.take(reply(id, text, end=False, chunk=index, instance="one")) is Disposition.MATCHED
    for index, text in ((0, "bbb"), (2, "bbb"), (1, "bbb")):
        assert bench.take(reply(id, text, end=index == 2, chunk=index, instance="two")) is Disposition.MATCHED
    settled = await task
    assert isinstance(settled, Answer)
    assert (settled.text, settled.chunks) == ("bbbbbbbbb", 3), "nor does what was forgotten count towards the limit"


async def test_who_began_before_is_never_listened_to_again() -> None:
    bench = Bench()
    stream = bench.open()
    for name in ("one", "two", "three"):
        taken = bench.take(reply(stream.id, "half", end=False, chunk=0, more="1", instance=name))
        assert taken is Disposition.MATCHED
    for name in ("one", "two"):
        taken = bench.take(reply(stream.id, "half", end=False, chunk=1, more="1", instance=name))
        assert taken is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "?", end=False, chunk=1, more="1")) is Disposition.MATCHED, "nobody's name"
    bench.take(reply(stream.id, "!", chunk=2, instance="three"))
    assert await read(stream) == ["half?!"]


async def test_a_stream_of_which_something_was_given_cannot_begin_anew() -> None:
    bench = Bench()
    stream = bench.open()
    for index in range(2):
        bench.take(reply(stream.id, str(index), end=False, chunk=index, instance="one"))
    assert bench.take(reply(stream.id, "0", end=False, chunk=0, instance="two")) is Disposition.DUPLICATE
    assert await read(stream) == ["0", "1"]
    assert stream.settled == Restarted(2)


# -- two topics -----------------------------------------------------------------------------------------------------


async def test_a_stream_without_numbers_comes_from_the_topic_that_brought_its_first_part() -> None:
    bench = Bench()
    stream = bench.open()
    assert bench.take(reply(stream.id, "a", end=False), is_shared=True) is Disposition.MATCHED
    assert bench.take(reply(stream.id, "a", end=False)) is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "b", end=False), is_shared=True) is Disposition.MATCHED
    assert bench.take(reply(stream.id, "b")) is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "c"), is_shared=True) is Disposition.MATCHED
    assert await read(stream) == ["a", "b", "c"]


async def test_a_handler_of_messages_is_that_of_a_shared_topic() -> None:
    bench = Bench()
    stream = bench.open()
    bench.exchange.on_message(reply(stream.id, "a", end=False))
    assert bench.take(reply(stream.id, "b", end=False)) is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "b"), is_shared=True) is Disposition.MATCHED
    another = bench.open()
    first = reply(another.id, "a", end=False)
    bench.exchange.receive(first, first.properties())
    assert bench.take(reply(another.id, "b")) is Disposition.MATCHED
    assert await read(another) == await read(stream) == ["a", "b"]


async def test_a_stream_with_numbers_comes_from_both_topics() -> None:
    bench = Bench()
    stream = bench.open()
    assert bench.take(reply(stream.id, "a", end=False, chunk=0), is_shared=True) is Disposition.MATCHED
    assert bench.take(reply(stream.id, "b", chunk=1)) is Disposition.MATCHED
    assert await read(stream) == ["a", "b"]


async def test_once_the_own_topic_brought_something_a_shared_one_brings_nothing() -> None:
    bench = Bench()
    stream = bench.open()
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    assert bench.take(reply(stream.id, "forged"), is_shared=True) is Disposition.UNKNOWN
    bench.take(reply(stream.id, "b", chunk=1))
    assert await read(stream) == ["a", "b"]
