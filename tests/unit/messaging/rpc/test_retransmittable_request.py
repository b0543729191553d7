"""Requests whose answer can be asked for again: what their line is told, and how they end."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.rpc.exchange_outcome import Answer, Disposition, TimedOut
from dispatch.messaging.wire.properties import Refusal
from tests.helpers.clock import START, advance
from tests.helpers.fakes import lost, reply
from tests.helpers.malformed_messages import AlteredMessage
from tests.helpers.retransmission_harness import Bench, read

# -- what the line is told ------------------------------------------------------------------------------------------


async def test_word_of_the_request_and_of_its_parts_goes_to_the_line() -> None:
    bench = Bench()
    id, task, line = await bench.ask()
    await advance(0.5)
    bench.word(id)
    assert line.told == [("heard", START + 0.5)]
    assert bench.publisher.sent[0].proofs == ["mark_received"]
    bench.word(id, part="3")
    bench.word(id, missing="1-2")
    assert line.told[1:] == [("part", START + 0.5, "3"), ("part", START + 0.5, "1-2")]
    assert bench.publisher.sent[0].proofs == ["mark_received"]
    for properties in ({}, {"part": "3"}, {"missing": "1"}):
        bench.word("somebody-else", **properties)
    assert len(line.told) == 3
    bench.take(reply(id, "ha"))
    await task
    bench.word(id)
    assert line.told[3:] == [("end", START + 0.5, True)]


async def test_word_of_parts_and_of_the_request_needs_no_line_and_no_ticket() -> None:
    bench = Bench()
    stream = bench.open()
    bench.word(stream.id, part="1")
    assert bench.publisher.sent[0].proofs == []
    stream.ticket = None
    bench.word(stream.id)
    assert bench.publisher.sent[0].proofs == []
    bench.take(reply(stream.id, "a", end=False))
    assert bench.publisher.sent[0].proofs == []
    bench.take(reply(stream.id, "b"))
    assert await read(stream) == ["a", "b"]


async def test_word_without_an_id_is_nobodys() -> None:
    bench = Bench()
    _, task, line = await bench.ask()
    bench.exchange.on_message(AlteredMessage(b"", {"taken": "1"}))
    bench.exchange.on_message(AlteredMessage(b"", {"taken": "1", "part": "1"}))
    assert line.told == []
    bench.exchange.close()
    await task


async def test_an_instances_word_that_it_is_here_is_no_reply() -> None:
    bench = Bench()
    before = dict(bench.exchange.replies)
    bench.exchange.on_message(AlteredMessage(b"", {"here": "one"}))
    assert bench.exchange.replies == before


async def test_each_chunk_is_a_sign_of_life_and_a_whole_answer_needs_none() -> None:
    bench = Bench()
    stream = bench.open(line=(line := bench.line()))
    await advance(0.25)
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    assert line.told == [("chunk", START + 0.25)]
    assert bench.take(reply(stream.id, "a", end=False, chunk=0)) is Disposition.DUPLICATE
    assert line.told == [("chunk", START + 0.25)] * 2, "a repeated one, too"
    bench.take(reply(stream.id, "b"))
    assert line.told[2:] == [("end", START + 0.25, True)]
    assert await read(stream) == ["a", "b"]


async def test_chunks_of_a_request_to_one_instance_are_its_own_whatever_name_they_bear() -> None:
    bench = Bench()
    stream = bench.open(line=bench.line())
    bench.take(reply(stream.id, "a", end=False, chunk=0, instance="one"))
    bench.take(reply(stream.id, "b", chunk=1, instance="two"))
    assert await read(stream) == ["a", "b"]


async def test_an_answer_that_was_asked_for_says_so_to_the_line() -> None:
    bench = Bench()
    stream = bench.open(line=(line := bench.line()))
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    assert line.resent is False
    bench.take(reply(stream.id, "b", end=False, chunk=1, transmission="2"))
    assert line.resent is True
    bench.take(reply(stream.id, "c", chunk=2))
    assert line.resent is True
    plain = bench.open()
    bench.take(reply(plain.id, "whole", transmission="2"))
    assert await read(plain) == ["whole"]


async def test_a_later_life_that_knows_nothing_is_believed_when_the_former_one_is_silent() -> None:
    bench = Bench(patience=2.0)
    id, task, line = await bench.ask()
    line.silent = False
    line.repair.next_at = START + 0.5
    former = {"refused": str(Refusal.INSTANCE_RESTARTED)}
    assert bench.take(reply(id, error=("instance-restarted", "not me"), **former)) is Disposition.MATCHED
    assert line.told == [("disowned", START)]
    assert bench.exchange._pending[id].alarm_at == START + 0.5, "it is asked soon"
    await advance(0.5)
    assert line.told[1:] == [("ask", START + 0.5, 29.5, "0")]
    line.silent = True
    assert bench.take(reply(id, error=("instance-restarted", "not me"), **former)) is Disposition.MATCHED
    settled = await task
    assert isinstance(settled, Answer)
    assert settled.error_type == "instance-restarted"
    plain = bench.open()
    bench.take(reply(plain.id, error=("instance-restarted", "not me"), **former))
    assert await read(plain) == []
    assert isinstance(plain.settled, Answer)


async def test_another_refusal_ends_the_request() -> None:
    bench = Bench()
    id, task, line = await bench.ask()
    line.silent = False
    bench.take(reply(id, error=("busy", "later"), refused="busy"))
    settled = await task
    assert isinstance(settled, Answer)
    assert line.told == [("end", START, True)]


# -- how it ends ----------------------------------------------------------------------------------------------------


async def test_a_publish_that_fails_ends_it_only_if_the_request_surely_never_left() -> None:
    bench = Bench(patience=2.0)
    id, task, line = await bench.ask()
    bench.publisher.sent[0].on_failure(lost())
    await advance(2.0)
    assert not task.done()
    assert [each[0] for each in line.told] == ["ask"]
    bench.take(reply(id, "ha"))
    assert isinstance(await task, Answer)
    _, task, line = await bench.ask()
    bench.publisher.sent[1].on_failure(error := lost(sent=False))
    assert await task is error
    assert line.told == [("end", START + 2.0, False)]


@pytest.mark.parametrize("queueing", [False, True])
async def test_a_caller_that_goes_says_so_to_a_service_that_may_have_it(queueing: bool) -> None:
    bench = Bench()
    bench.publisher.queueing = queueing
    id, task, line = await bench.ask()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert line.told == [("end", START, False)] + ([] if queueing else [("cancel",)])
    assert bench.take(reply(id)) is Disposition.LATE


async def test_an_abandoned_request_is_one_that_timed_out_for_its_own_reason() -> None:
    bench = Bench()
    stream = bench.open(line=(line := bench.line()))
    for index in range(3):
        bench.take(reply(stream.id, "x", end=False, chunk=index))
    line.told.clear()
    stream.close()
    assert stream.settled == TimedOut("abandoned", sent=True, chunks=3)
    assert line.told == [("end", START, False), ("cancel",)]
    stream.close()
    assert len(line.told) == 2
    plain = bench.open()
    plain.ticket = None
    plain.close()
    assert plain.settled == TimedOut("abandoned", sent=True)


async def test_rubbish_is_an_answer_to_the_line() -> None:
    bench = Bench()
    id, task, line = await bench.ask()
    assert bench.take(AlteredMessage(b"<html>", {"id": id})) is Disposition.MALFORMED
    await task
    assert line.told == [("end", START, True)]
