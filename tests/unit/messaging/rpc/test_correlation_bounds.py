"""The exchange's bounds: what may wait, what may come back, what is remembered."""

from __future__ import annotations

import asyncio

import pytest

from dispatch._internal import Rejection
from dispatch.messaging.plain import MAX_AHEAD
from dispatch.messaging.request import Answer, Disposition, Overflow
from tests.helpers.clock import advance, idle
from tests.helpers.exchange_harness import Bench
from tests.helpers.fakes import reply


async def test_more_than_may_wait_is_refused_without_being_sent_and_has_room_later() -> None:
    bench = Bench(max_pending=2)
    (first, one), (_, two) = await bench.ask(), await bench.ask()
    _, refused = await bench.ask()
    settled = await refused
    assert settled == Rejection("exchange", "pending-limit", 1.0)
    assert (len(bench.publisher.sent), bench.exchange.pending) == (2, 2)
    bench.take(reply(first))
    third, three = await bench.ask()
    bench.take(reply(third))
    assert isinstance(await three, Answer)
    bench.exchange.close()
    await asyncio.gather(one, two)


@pytest.mark.parametrize("texts", [["x" * 11], ["x" * 5, "x" * 6], ["x" * 10, "x"]])
async def test_an_answer_beyond_its_limit_is_cut_off(texts: list[str]) -> None:
    bench = Bench()
    id, task = await bench.ask(max_bytes=10)
    for index, text in enumerate(texts):
        bench.take(reply(id, text, end=index == len(texts) - 1))
    assert await task == Overflow("max-response-bytes")
    assert bench.take(reply(id)) is Disposition.LATE


@pytest.mark.parametrize("texts", [["x" * 10], ["x" * 5, "x" * 5], ["x" * 10, ""]])
async def test_an_answer_of_just_its_limit_passes(texts: list[str]) -> None:
    bench = Bench()
    id, task = await bench.ask(max_bytes=10)
    for index, text in enumerate(texts):
        bench.take(reply(id, text, end=index == len(texts) - 1))
    assert isinstance(await task, Answer)


async def test_chunks_kept_for_a_missing_one_are_bounded_in_number() -> None:
    bench = Bench()
    id, task = await bench.ask()
    for index in range(1, MAX_AHEAD + 1):
        assert bench.take(reply(id, "", end=False, chunk=index)) is Disposition.MATCHED
    await idle()
    assert not task.done()
    bench.take(reply(id, "", end=False, chunk=MAX_AHEAD + 1))
    assert await task == Overflow("chunks ahead of a missing one")


async def test_chunks_kept_for_a_missing_one_are_bounded_in_size() -> None:
    bench = Bench()
    id, task = await bench.ask(max_bytes=10)
    bench.take(reply(id, "xxxx", end=False, chunk=0))
    bench.take(reply(id, "xxx", end=False, chunk=3))
    bench.take(reply(id, "xxx", end=False, chunk=2))
    await idle()
    assert not task.done(), "just the limit"
    bench.take(reply(id, "x", end=False, chunk=5))
    assert await task == Overflow("max-response-bytes")


async def test_chunks_that_were_kept_and_then_taken_are_not_counted_twice() -> None:
    bench = Bench()
    id, task = await bench.ask(max_bytes=10)
    bench.take(reply(id, "bbbb", end=False, chunk=1))
    bench.take(reply(id, "aaaa", end=False, chunk=0))
    bench.take(reply(id, "d", chunk=3))
    bench.take(reply(id, "c", end=False, chunk=2))
    settled = await task
    assert isinstance(settled, Answer)
    assert settled.text == "aaaabbbbcd"


async def test_tombstones_are_bounded_in_number() -> None:
    bench = Bench(max_tombstones=3)
    ids = []
    for _ in range(10):
        id, task = await bench.ask()
        bench.take(reply(id))
        await task
        ids.append(id)
        assert bench.exchange.tombstones <= 3
    found = [bench.take(reply(id)) for id in ids]
    assert found == [Disposition.UNKNOWN] * 7 + [Disposition.DUPLICATE] * 3, "the newest are remembered"


async def test_tombstones_are_bounded_in_age() -> None:
    bench = Bench(tombstone_age=60)
    early, task = await bench.ask()
    bench.take(reply(early))
    await task
    for wait, remembered in ((59, Disposition.DUPLICATE), (1, Disposition.UNKNOWN)):
        await advance(wait)
        id, task = await bench.ask()
        bench.take(reply(id))
        await task
        assert bench.take(reply(early)) is remembered
    assert bench.exchange.tombstones == 2
