"""When the exchange asks again for an answer, and with one timer for all."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.messaging.rpc.exchange_outcome import Answer, Disposition, Lost, Settled, TimedOut
from dispatch.messaging.rpc.pending import Single
from tests.helpers.clock import START, advance, virtual_loop
from tests.helpers.fakes import FakeTicket, reply
from tests.helpers.retransmission_harness import Bench, read


async def test_it_asks_when_its_patience_is_over_and_again_when_the_line_says() -> None:
    bench = Bench(patience=2.0)
    id, task, line = await bench.ask(limit=5.5)
    await advance(1.999)
    assert line.told == []
    await advance(3.4)
    assert line.told == [("ask", START + n, 5.5 - n, "0") for n in (2.0, 3.0, 4.0, 5.0)]
    assert await task == TimedOut("call", sent=True), "its deadline comes before the next question"
    assert bench.exchange.loop.time() == START + 5.5
    assert line.told[4:] == [("end", START + 5.5, False)]
    assert bench.take(reply(id)) is Disposition.LATE


async def test_a_question_that_would_be_due_at_the_deadline_is_not_asked() -> None:
    bench = Bench(patience=3.0)
    _, task, line = await bench.ask(limit=3.0)
    assert await task == TimedOut("call", sent=True)
    assert line.told == [("end", START + 3.0, False)]


async def test_an_instance_that_is_given_up_ends_the_request() -> None:
    bench = Bench(patience=2.0)
    _, task, line = await bench.ask()
    line.there = False
    assert await task == Lost(2.0, received=False)
    assert line.told == [("ask", START + 2.0, 28.0, "0"), ("end", START + 2.0, False)]
    _, task, line = await bench.ask()
    line.there = False
    line.repair.received = True
    line.repair.heard_at += 0.5
    assert await task == Lost(1.5, received=True)
    stream = bench.open(line=(line := bench.line()))
    line.there = False
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    assert await read(stream) == ["a"]
    assert stream.settled == Lost(2.0, received=False, chunks=1)


async def test_what_it_asks_for_is_what_is_missing() -> None:
    bench = Bench(patience=2.0)
    stream = bench.open(line=(line := bench.line()))
    for index in (0, 1, 4, 6):
        bench.take(reply(stream.id, str(index), end=False, chunk=index))
    line.told.clear()
    await advance(2.0)
    assert {each[3] for each in line.told} == {"2-3"}
    bench.take(reply(stream.id, "2", end=False, chunk=2))
    bench.take(reply(stream.id, "3", end=False, chunk=3))
    line.told.clear()
    await advance(1.0)
    assert [each[3] for each in line.told] == ["5-5"]
    bench.take(reply(stream.id, "5", end=False, chunk=5))
    line.told.clear()
    await advance(1.0)
    assert [each[3] for each in line.told] == ["7"]
    stream.close()


async def test_a_gap_hurries_the_next_question() -> None:
    bench = Bench(patience=2.0)
    stream = bench.open(line=(line := bench.line()))
    bench.take(reply(stream.id, "b", end=False, chunk=1))
    soon = line.repair.next_at
    assert soon < START + 0.1
    assert stream.alarm_at == soon
    await advance(0.1)
    assert [each[0] for each in line.told] == ["chunk", "ask"]
    assert line.told[1] == ("ask", soon, pytest.approx(START + 30.0 - soon), "0-0")
    assert stream.alarm_at == soon + 1.0
    bench.take(reply(stream.id, "d", end=False, chunk=3))
    assert stream.alarm_at == line.repair.next_at
    later = line.repair.next_at = virtual_loop().time() + 0.01
    bench.take(reply(stream.id, "e", end=False, chunk=4))
    assert line.repair.next_at == later, "sooner than that it cannot be"
    stream.close()


async def test_what_was_put_off_is_not_asked_for_at_the_former_time() -> None:
    bench = Bench(patience=2.0)
    _, task, line = await bench.ask(limit=9.0)
    line.repair.next_at = START + 7.0
    await advance(2.0)
    assert line.told == [], "the alarm of before finds that it is not due yet"
    await advance(4.999)
    assert line.told == []
    await advance(0.001)
    assert [each[:2] for each in line.told] == [("ask", START + 7.0)]
    assert await task == TimedOut("call", sent=True)


async def test_a_request_that_was_looked_at_sooner_is_not_looked_at_twice() -> None:
    bench = Bench(patience=2.0)
    id, task, line = await bench.ask()
    slot = bench.exchange._pending[id]
    line.repair.next_at = START + 1.0
    bench.exchange.schedule(slot, START + 1.0)
    await advance(1.0)
    assert [each[:2] for each in line.told] == [("ask", START + 1.0)]
    line.repair.next_at = START + 1.5
    await advance(0.999)
    assert len(line.told) == 1, "it is looked at when that was said, and at no time of before"
    line.repair.next_at = START + 5.0
    bench.exchange.schedule(slot, START + 5.0)
    line.repair.next_at = START
    await advance(2.0)
    assert len(line.told) == 1
    bench.take(reply(id, "ha"))
    await task


async def test_nothing_is_asked_while_the_broker_is_out_of_reach() -> None:
    bench = Bench(patience=2.0)
    id, task, line = await bench.ask()
    bench.connected = False
    line.repair.unanswered = 3
    await advance(2.5)
    assert line.told == []
    assert line.repair.unanswered == 0, "that is no sign about the instance"
    assert START + 2.4 < line.repair.heard_at <= START + 2.5
    bench.connected = True
    await advance(0.1)
    assert [each[0] for each in line.told] == ["ask"]
    bench.take(reply(id, "ha"))
    await task


@pytest.mark.parametrize("what", ["request", "question"])
async def test_what_has_not_left_yet_is_not_asked_for(what: str) -> None:
    bench = Bench(patience=2.0)
    id, task, line = await bench.ask()
    if what == "request":
        ticket = bench.publisher.sent[0]
    else:
        ticket = line.ticket = FakeTicket(b"", {}, "tool", lambda error: None)
    ticket.waits = True  # type: ignore[misc] # of this one
    await advance(2.5)
    assert line.told == []
    ticket.waits = False  # type: ignore[misc]
    await advance(0.1)
    assert [each[0] for each in line.told] == ["ask"]
    bench.take(reply(id, "ha"))
    await task


async def test_one_timer_serves_all_and_ends_with_the_last_of_them() -> None:
    bench = Bench()
    loop = virtual_loop()
    before = len(loop.list_timers())
    first, one, _ = await bench.ask(limit=1.0)
    second, two, _ = await bench.ask(limit=1.5)
    _, three, _ = await bench.ask(limit=1.5)
    assert len(loop.list_timers()) == before + 1
    assert await one == TimedOut("call", sent=True)
    assert loop.time() == START + 1.0
    assert len(loop.list_timers()) == before + 1
    bench.take(reply(second, "ha"))
    assert len(loop.list_timers()) == before + 1
    assert isinstance(await two, Answer)
    assert await three == TimedOut("call", sent=True)
    assert loop.time() == START + 1.5
    assert len(loop.list_timers()) == before
    third, four, _ = await bench.ask(limit=5.0)
    assert len(loop.list_timers()) == before + 1
    bench.take(reply(third, "ha"))
    assert len(loop.list_timers()) == before, "nobody waits"
    await four
    assert bench.take(reply(first)) is Disposition.LATE


async def test_a_sooner_deadline_moves_the_timer() -> None:
    bench = Bench(patience=100.0)
    later, one, _ = await bench.ask(limit=20.0)
    _, two, _ = await bench.ask(limit=1.0)
    assert await two == TimedOut("call", sent=True)
    assert bench.exchange.loop.time() == START + 1.0
    bench.take(reply(later, "ha"))
    assert isinstance(await one, Answer)


async def test_an_end_that_ends_another_at_the_same_moment_costs_nobody_else_his() -> None:
    """Two are due at once; the first one's caller, told so at once, gives the second one up."""
    bench = Bench(patience=100.0)
    ended: list[Settled] = []
    slots = [bench.exchange._pending[(await bench.ask(limit=1.0))[0]] for _ in range(3)]
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    first, second, third = slots
    assert isinstance(first, Single)
    first.line.end = lambda now, answered: second.abandon()  # type: ignore[union-attr, method-assign, assignment]
    ended = await asyncio.gather(*tasks)
    assert sorted(settled.clock for settled in ended if isinstance(settled, TimedOut)) == ["abandoned", "call", "call"]
    assert bench.exchange.loop.time() == START + 1.0
    assert third.settled == TimedOut("call", sent=True)
