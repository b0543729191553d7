"""Correlation of requests and replies: how each request ends, and what becomes of each reply.
The exchange's bounds: what may wait, what may come back, what is remembered.
Replies are counted for their service, too, as what they are: while they are waited for, and after.
Answers of which another instance, or another topic, brings a part: none is put together from two.
Streams: chunks in order and once, the two limits, and what a reader that goes away leaves.
Requests in sessions end once, in the values of the plain exchange.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch._internal import Rejection
from dispatch.errors import TransportError
from dispatch.messaging.flow import CountedReplies
from dispatch.messaging.plain import MAX_AHEAD, Correlator, read_properties
from dispatch.messaging.request import (
    PAUSED_S,
    Answer,
    ChunkBuffer,
    Closed,
    Disposition,
    Lost,
    Overflow,
    Request,
    Restarted,
    Settled,
    Tally,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.sessions import SessionExchange
from dispatch.messaging.wire import MAX_PROPERTY_BYTES, Property
from dispatch.protocol.events import ChunkReceived, Event, Failure, ReplyReceived, RequestFailed, RequestRefused
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.transports.errors import opening_failed
from tests.helpers import exchange_harness
from tests.helpers.clock import START, VirtualClockLoop, advance, cancel_task, idle, run, start_task
from tests.helpers.exchange_harness import Bench, read, request
from tests.helpers.fakes import lost, reply
from tests.helpers.known_instances import known_instance
from tests.helpers.malformed_messages import AlteredMessage
from tests.helpers.run_profile import examples


async def asked(**limits: Any) -> tuple[Bench, str, asyncio.Task[Settled]]:
    """An exchange, and the id and the task of a request in it."""
    bench = Bench()
    return bench, *await bench.ask(**limits)


# -- how a request ends ---------------------------------------------------------------------------------------------
async def test_a_reply_answers_its_request() -> None:
    bench, id, task = await asked()
    assert bench.exchange.pending == 1
    assert [ticket.id for ticket in bench.publisher.sent] == [id]
    assert (bench.publisher.sent[0].flow, bench.publisher.sent[0].payload) == ("tool", b"?")
    assert set(bench.exchange.replies.values()) == {0}
    assert bench.take(reply(id, "ha", instance="one")) is Disposition.MATCHED
    assert bench.exchange.pending == 0
    assert await task == Answer("ha", instance="one", trace_context={"id": id, "instance": "one"})


async def test_replies_find_their_own_requests() -> None:
    bench = Bench()
    asked = [await bench.ask() for _ in range(20)]
    for id, _ in reversed(asked):
        bench.take(reply(id, f"answer to {id}"))
    for id, task in asked:
        assert (await task).text == f"answer to {id}"


async def test_an_error_is_an_answer() -> None:
    bench, id, task = await asked()
    assert bench.take(reply(id, error=("Odd", "no"), end=False, retry_after_ms="5")) is Disposition.MATCHED
    settled = await task
    found = (settled.text, settled.error_type, settled.error_message, settled.retry_after)
    assert found == ("", "Odd", "no", 0.005)
    id, task = await bench.ask()
    bench.take(reply(id, error=("Odd", "no"), retry_after_ms="soon"))
    assert (await task).retry_after is None


async def test_chunks_of_a_peer_without_indices_are_put_together_as_they_come() -> None:
    bench, id, task = await asked()
    for text in ("a", "", "b"):
        assert bench.take(reply(id, text, end=False)) is Disposition.MATCHED
        await idle()
        assert not task.done()
    bench.take(reply(id, "c"))
    settled = await task
    assert (settled.text, settled.chunks) == ("abc", 4)


async def test_an_answer_says_of_how_many_chunks_it_is_and_what_came_with_the_last() -> None:
    bench, id, task = await asked()
    bench.take(reply(id, "a", end=False, instance="one"))
    bench.take(reply(id, "b", instance="two"))
    assert await task == Answer("ab", chunks=2, instance="two", trace_context={"id": id, "instance": "two"})
    id, task = await bench.ask()
    bench.take(reply(id, "a", end=False))
    bench.take(reply(id, error=("Odd", "no"), instance="one"))
    assert await task == Answer("", "Odd", "no", 2, instance="one", trace_context={"id": id, "instance": "one"})


async def test_an_answer_says_why_it_was_refused_and_how_busy_its_instance_is() -> None:
    bench, id, task = await asked()
    bench.take(reply(id, error=("Odd", "no"), refused="overloaded", in_flight="3"))
    settled = await task
    assert (settled.refused, settled.in_flight) == ("overloaded", 3)


async def test_the_deadline_ends_it_to_the_moment() -> None:
    bench = Bench()
    _, task = await bench.ask(limit=30, limit_name="attempt")
    await advance(29.999)
    assert not task.done()
    assert await task == TimedOut("attempt", may_have_run=True)
    assert (bench.exchange.loop.time(), bench.exchange.pending) == (pytest.approx(START + 30, abs=1e-3), 0)


async def test_what_still_waits_behind_the_window_at_its_deadline_is_withdrawn() -> None:
    bench = Bench()
    bench.publisher.queueing = True
    _, task = await bench.ask(limit=5)
    assert await task == TimedOut("call", may_have_run=False)
    assert bench.publisher.sent[0].cancelled


async def test_a_deadline_that_has_passed_sends_nothing() -> None:
    bench = Bench()
    _, task = await bench.ask(limit=0)
    assert await task == TimedOut("call", may_have_run=False)
    assert not bench.publisher.sent
    assert (bench.exchange.pending, bench.exchange.tombstones) == (0, 0)


async def test_a_refused_publish_frees_its_slot_at_once() -> None:
    bench = Bench()
    bench.publisher.refusal = error = lost(sent=False)
    _, task = await bench.ask()
    assert await task is error
    assert bench.exchange.pending == 0


async def test_a_publish_that_fails_later_ends_it() -> None:
    bench, id, task = await asked()
    bench.publisher.sent[0].on_failure(error := lost())
    assert await task is error
    assert bench.exchange.pending == 0
    assert bench.take(reply(id)) is Disposition.LATE


async def test_a_failure_after_the_answer_changes_nothing() -> None:
    bench, id, task = await asked()
    bench.take(reply(id, "ha"))
    bench.publisher.sent[0].on_failure(lost())
    assert (await task).text == "ha"


async def test_a_publisher_that_raises_what_it_may_not_leaves_nothing_either() -> None:
    bench = Bench()
    bench.publisher.refusal = RuntimeError("not planned")
    _, task = await bench.ask()
    with pytest.raises(RuntimeError, match="not planned"):
        await task
    assert bench.exchange.pending == 0


async def test_cancellation_propagates_and_leaves_nothing() -> None:
    bench = Bench()
    bench.publisher.queueing = True
    id, task = await bench.ask()
    await cancel_task(task)
    assert bench.exchange.pending == 0
    assert bench.publisher.sent[0].cancelled, "a cancelled call's message must not leave the queue any more"
    assert bench.take(reply(id)) is Disposition.LATE


async def test_cancellation_together_with_the_answer_is_still_cancellation() -> None:
    bench, id, task = await asked()
    bench.take(reply(id))
    task.cancel()
    assert not bench.publisher.sent[0].cancelled
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.take(reply(id)) is Disposition.DUPLICATE


async def test_an_unreadable_reply_ends_it_at_once_without_being_quoted() -> None:
    bench, id, task = await asked()
    assert bench.take(AlteredMessage(b'{"response": ["SECRET"]}', {"id": id})) is Disposition.MALFORMED
    settled = await task
    assert isinstance(settled, Unreadable)
    assert "response" in settled.problem
    assert "SECRET" not in settled.problem
    assert bench.exchange.loop.time() == START, "not a timeout"
    assert bench.take(reply(id)) is Disposition.DUPLICATE


async def test_a_reply_whose_data_cannot_be_read_ends_it_at_once() -> None:
    bench, id, task = await asked()
    assert bench.take(AlteredMessage(b"", {"id": id}, raises="data")) is Disposition.MALFORMED
    assert await task == Unreadable("UnicodeError")


async def test_closing_ends_everything_that_waits() -> None:
    bench = Bench()
    asked = [await bench.ask() for _ in range(3)]
    bench.exchange.close()
    assert bench.exchange.pending == 0
    for id, task in asked:
        assert await task == Closed(may_have_run=True), "the tools may have been executed"
        assert bench.take(reply(id)) is Disposition.LATE


async def test_what_comes_after_closing_is_not_sent() -> None:
    bench = Bench()
    bench.exchange.close()
    id, task = await bench.ask()
    assert await task == Closed(may_have_run=False)
    assert not bench.publisher.sent
    assert bench.take(reply(id)) is Disposition.UNKNOWN


# -- what becomes of a reply ----------------------------------------------------------------------------------------
async def test_a_reply_after_the_timeout_is_late() -> None:
    bench, id, task = await asked(limit=1)
    await task
    assert bench.take(reply(id)) is Disposition.LATE


async def test_a_second_reply_is_a_duplicate() -> None:
    bench, id, task = await asked()
    bench.take(reply(id))
    assert bench.take(reply(id)) is Disposition.DUPLICATE
    await task
    assert bench.take(reply(id)) is Disposition.DUPLICATE


async def test_somebody_elses_reply_is_unknown_and_its_payload_is_never_read() -> None:
    bench = Bench()
    assert bench.take(AlteredMessage(b"", {"id": "somebody-else"}, raises="data")) is Disposition.UNKNOWN
    for length in (1, MAX_PROPERTY_BYTES):
        assert bench.take(AlteredMessage(b"rubbish", {"id": "x" * length})) is Disposition.UNKNOWN


@pytest.mark.costly
@pytest.mark.parametrize(
    "message",
    [
        reply(None),
        reply(""),
        reply("x" * (MAX_PROPERTY_BYTES + 1)),
        AlteredMessage(b"{}", {"id": "x"}, raises="properties"),
        AlteredMessage(b"{}", {"id": 5}),  # type: ignore[dict-item]
        AlteredMessage(b"{}", {"id": ["x"]}),  # type: ignore[dict-item]
    ],
    ids=["no id", "empty id", "oversized id", "raising", "number", "list"],
)
async def test_a_reply_without_a_usable_id_is_malformed(message: AlteredMessage) -> None:
    bench = Bench()
    _, task = await bench.ask()
    assert bench.take(message) is Disposition.MALFORMED
    assert bench.exchange.pending == 1, "nobody else pays for it"
    bench.exchange.close()
    await task


async def test_an_odd_chunk_index_counts_as_none() -> None:
    bench, id, task = await asked()
    bench.take(reply(id, "a", end=False, chunk="-1"))  # type: ignore[arg-type]
    bench.take(reply(id, "b", chunk="first"))  # type: ignore[arg-type]
    assert (await task).text == "ab"


async def test_payloads_of_replies_that_were_waited_for_are_added_up() -> None:
    bench = Bench()
    assert bench.exchange.received_bytes == 0
    id, task = await bench.ask()
    first, last = reply(id, "a", end=False), reply(id, "bb")
    for message in (reply("somebody-else", "ccc"), first, last, reply(id, "dddd")):
        bench.take(message)
    assert bench.exchange.received_bytes == len(first.data()) + len(last.data())
    await task


# -- ids ------------------------------------------------------------------------------------------------------------
async def test_ids_are_never_used_twice_and_fit_into_a_property() -> None:
    exchanges = [Correlator() for _ in range(50)]
    ids = [exchange.new_id() for exchange in exchanges for _ in range(200)]
    assert len(set(ids)) == len(ids)
    assert all(len(id) < 64 and id.isascii() for id in ids)
    for exchange in exchanges[:2]:
        assert re.fullmatch(f"{exchange.identity.key}[.]c9-[0-9a-f]{{12}}", exchange.new_id()), "key, number, chance"


async def test_each_id_has_random_digits_of_its_own() -> None:
    exchange = Correlator()
    digits = [exchange.new_id().rpartition("-")[2] for _ in range(200)]
    assert {len(each) for each in digits} == {12}
    assert len({part for each in digits for part in (each[1:], each[:-1])}) == 400, "the next is no part of the last"


def test_properties_are_read_whatever_the_message_holds() -> None:
    assert read_properties(reply("x", ack="1:2"))["ack"] == "1:2"
    assert read_properties(AlteredMessage(b"", {"id": "x"}, raises="properties")) == {}


async def test_more_than_may_wait_is_refused_without_being_sent_and_has_room_later() -> None:
    bench = Bench(max_pending=2)
    (first, one), (_, two) = await bench.ask(), await bench.ask()
    _, refused = await bench.ask()
    assert await refused == Rejection("exchange", "pending-limit", 1.0)
    assert (len(bench.publisher.sent), bench.exchange.pending) == (2, 2)
    bench.take(reply(first))
    third, three = await bench.ask()
    bench.take(reply(third))
    assert isinstance(await three, Answer)
    bench.exchange.close()
    await asyncio.gather(one, two)


@pytest.mark.parametrize("sizes", [[11], [5, 6], [10, 1], [10], [5, 5], [10, 0]], ids=str)
async def test_an_answer_beyond_its_limit_is_cut_off_and_one_of_just_its_limit_passes(sizes: list[int]) -> None:
    bench, id, task = await asked(max_bytes=10)
    for index, size in enumerate(sizes):
        bench.take(reply(id, "x" * size, end=index == len(sizes) - 1))
    settled = await task
    if sum(sizes) > 10:
        assert settled == Overflow("max-response-bytes")
        assert bench.take(reply(id)) is Disposition.LATE
    else:
        assert isinstance(settled, Answer)


async def test_chunks_kept_for_a_missing_one_are_bounded_in_number() -> None:
    bench, id, task = await asked()
    for index in range(1, MAX_AHEAD + 1):
        assert bench.take(reply(id, "", end=False, chunk=index)) is Disposition.MATCHED
    await idle()
    assert not task.done()
    bench.take(reply(id, "", end=False, chunk=MAX_AHEAD + 1))
    assert await task == Overflow("chunks ahead of a missing one")


async def test_chunks_kept_for_a_missing_one_are_bounded_in_size() -> None:
    bench, id, task = await asked(max_bytes=10)
    bench.take(reply(id, "xxxx", end=False, chunk=0))
    bench.take(reply(id, "xxx", end=False, chunk=3))
    bench.take(reply(id, "xxx", end=False, chunk=2))
    await idle()
    assert not task.done(), "just the limit"
    bench.take(reply(id, "x", end=False, chunk=5))
    assert await task == Overflow("max-response-bytes")


async def test_chunks_that_were_kept_and_then_taken_are_not_counted_twice() -> None:
    bench, id, task = await asked(max_bytes=10)
    bench.take(reply(id, "bbbb", end=False, chunk=1))
    bench.take(reply(id, "aaaa", end=False, chunk=0))
    bench.take(reply(id, "d", chunk=3))
    bench.take(reply(id, "c", end=False, chunk=2))
    assert (await task).text == "aaaabbbbcd"


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


class Place:
    def __init__(self, into: Counter[Disposition], which: Disposition) -> None:
        self._into = into
        self._which = which

    @property
    def value(self) -> float:
        return self._into[self._which]

    @value.setter
    def value(self, value: float) -> None:
        self._into[self._which] = int(value)


def tally(into: Counter[Disposition]) -> Tally:
    return Tally({each: Place(into, each) for each in Disposition})


async def test_what_comes_for_a_call_is_its_services_before_and_after_its_end() -> None:
    bench, counts = Bench(), Counter[Disposition]()
    id, task = await bench.ask(tally=tally(counts))
    bench.take(reply(id))
    await task
    bench.take(reply(id))
    late, timed_out = await bench.ask(limit=1.0, tally=tally(counts))
    await advance(1.0)
    await timed_out
    bench.take(reply(late))
    unreadable, _ = await bench.ask(tally=tally(counts))
    bench.take(AlteredMessage(b"{", {Property.ID: unreadable}))
    assert counts == {Disposition.MATCHED: 1, Disposition.DUPLICATE: 1, Disposition.LATE: 1, Disposition.MALFORMED: 1}


async def test_so_is_what_comes_for_a_stream() -> None:
    bench, counts = Bench(), Counter[Disposition]()
    stream = bench.open(tally=tally(counts))
    id = stream.id
    bench.take(reply(id, "a", end=False, chunk=0))
    bench.take(reply(id, "a", end=False, chunk=0))
    bench.take(reply(id, "b", chunk=1))
    assert [chunk async for chunk in stream] == ["a", "b"]
    bench.take(reply(id, "b", chunk=1))
    assert counts == {Disposition.MATCHED: 2, Disposition.DUPLICATE: 2}


@pytest.mark.parametrize("id", ["nobody's", ""])
async def test_what_belongs_to_nobody_is_nobodys(id: str) -> None:
    strange, counts = Counter[Disposition](), Counter[Disposition]()
    bench = Bench(strange=tally(strange))
    known, task = await bench.ask(tally=tally(counts))
    was = bench.take(reply(id))
    assert strange == {was: 1}
    assert was is (Disposition.UNKNOWN if id else Disposition.MALFORMED)
    assert not counts
    bench.take(reply(known))
    await task
    assert strange == {was: 1}


async def test_a_whole_answer_begun_anew_is_that_of_the_second_instance_alone() -> None:
    bench = Bench()
    id = bench.exchange.new_id()
    task = await start_task(request(bench.exchange, bench.publisher, id=id, max_bytes=9))
    for index, text in ((0, "aaa"), (1, "aaa"), (3, "aaa")):
        assert bench.take(reply(id, text, end=False, chunk=index, instance="one")) is Disposition.MATCHED
    for index, text in ((0, "bbb"), (2, "bbb"), (1, "bbb")):
        assert bench.take(reply(id, text, end=index == 2, chunk=index, instance="two")) is Disposition.MATCHED
    settled = await task
    assert (settled.text, settled.chunks) == ("bbbbbbbbb", 3), "nor does what was forgotten count towards the limit"


async def test_who_began_before_is_never_listened_to_again() -> None:
    bench, stream = streaming()
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
    bench, stream = streaming()
    for index in range(2):
        bench.take(reply(stream.id, str(index), end=False, chunk=index, instance="one"))
    assert bench.take(reply(stream.id, "0", end=False, chunk=0, instance="two")) is Disposition.DUPLICATE
    assert await read(stream) == ["0", "1"]
    assert stream.settled == Restarted(2)


async def test_a_stream_names_the_instance_of_its_last_chunk() -> None:
    bench, stream = streaming()
    for name in ("one", "two"):
        bench.take(reply(stream.id, "a", end=False, instance=name), is_shared=True)
        assert stream.instance == name
    stream.close()


# -- a stream or not ------------------------------------------------------------------------------------------------
def undecided(bench: Bench) -> Request:
    """Send a request whose caller cannot know whether the reply is a stream."""
    request = Request(START + 30.0, 1_000, idle=0.0, waiter=asyncio.get_running_loop().create_future())
    request.id = bench.exchange.new_id()
    bench.exchange.send(request, bench.publisher, {Property.ID: request.id})
    return request


async def test_a_reply_in_parts_of_one_chunk_is_an_answer_with_its_text() -> None:
    bench = Bench()
    request = undecided(bench)
    for index, text in enumerate(("an", "sw")):
        bench.take(reply(request.id, text, end=False, chunk=index, more="1"))
    bench.take(reply(request.id, "er", chunk=2))
    settled = await request
    assert isinstance(settled, Answer)
    assert (settled.text, settled.chunks) == ("answer", 3)


async def test_a_chunk_that_is_not_the_last_makes_the_reply_a_stream() -> None:
    bench = Bench()
    request = undecided(bench)
    bench.take(reply(request.id, "a", end=False))
    assert await request is None
    bench.take(reply(request.id, "b"))
    assert await read(request) == ["a", "b"]
    assert request.settled == Answer("", chunks=2, trace_context={"id": request.id})


async def test_a_stream_is_read_and_a_whole_reply_is_awaited() -> None:
    stream, whole = Request(idle=0.0), Request()
    with pytest.raises(AssertionError, match=r"^a stream is read, not awaited$"):
        await stream
    with pytest.raises(AssertionError, match=r"^the whole reply is awaited, not read$"):
        await anext(whole)


def test_a_caller_that_gives_a_waiter_needs_no_running_loop() -> None:
    loop = VirtualClockLoop()
    request = Request(idle=0.0, waiter=loop.create_future())
    loop.close()
    assert request.is_undecided


# -- two topics -----------------------------------------------------------------------------------------------------
async def test_a_stream_without_numbers_comes_from_the_topic_that_brought_its_first_part() -> None:
    bench, stream = streaming()
    assert bench.take(reply(stream.id, "a", end=False), is_shared=True) is Disposition.MATCHED
    assert bench.take(reply(stream.id, "a", end=False)) is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "b", end=False), is_shared=True) is Disposition.MATCHED
    assert bench.take(reply(stream.id, "b")) is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "c"), is_shared=True) is Disposition.MATCHED
    assert await read(stream) == ["a", "b", "c"]


async def test_a_handler_of_messages_is_that_of_a_shared_topic() -> None:
    bench, stream = streaming()
    CountedReplies(bench.exchange).on_message(reply(stream.id, "a", end=False))
    assert bench.take(reply(stream.id, "b", end=False)) is Disposition.DUPLICATE
    assert bench.take(reply(stream.id, "b"), is_shared=True) is Disposition.MATCHED
    another = bench.open()
    first = reply(another.id, "a", end=False)
    bench.exchange.receive(first, first.properties())
    assert bench.take(reply(another.id, "b")) is Disposition.MATCHED
    assert await read(another) == await read(stream) == ["a", "b"]


async def test_a_stream_with_numbers_comes_from_both_topics() -> None:
    bench, stream = streaming()
    assert bench.take(reply(stream.id, "a", end=False, chunk=0), is_shared=True) is Disposition.MATCHED
    assert bench.take(reply(stream.id, "b", chunk=1)) is Disposition.MATCHED
    assert await read(stream) == ["a", "b"]


async def test_once_the_own_topic_brought_something_a_shared_one_brings_nothing() -> None:
    bench, stream = streaming()
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    assert bench.take(reply(stream.id, "forged"), is_shared=True) is Disposition.UNKNOWN
    bench.take(reply(stream.id, "b", chunk=1))
    assert await read(stream) == ["a", "b"]


class PlaceInBulkhead:
    """The place of a call, with what became of it."""

    since = START

    def __init__(self) -> None:
        self.changes: list[str] = []

    def suspend(self) -> None:
        self.changes.append("suspended")

    def pause(self) -> None:
        self.changes.append("paused")

    def resume(self) -> None:
        self.changes.append("resumed")


async def test_an_instance_that_appears_ends_what_can_be_sent_to_it_and_suspends_the_rest() -> None:
    bench, topic = Bench(), object()

    def send(to: object = topic, **options: Any) -> Request:
        request = Request(START + 30.0, 1_000, id=bench.exchange.new_id(), place=PlaceInBulkhead(), **options)
        bench.exchange.send(request, bench.publisher, {Property.ID: request.id}, to)
        return request

    begun, repeatable, once, elsewhere = send(is_repeatable=True), send(is_repeatable=True), send(), send(object())
    placeless = send()
    placeless.place = None
    bench.take(reply(begun.id, "a", end=False))
    waiting = [begun, repeatable, once, placeless]
    assert bench.exchange.find_requests(topic) == waiting
    bench.exchange.on_instance(topic)
    assert repeatable.settled == Lost(Failure.REPLACED, may_have_run=False)
    assert bench.exchange.find_requests(topic) == [begun, once, placeless]
    assert [each.place.changes for each in (begun, repeatable, once, elsewhere)] == [[], [], ["suspended"], []]
    bench.exchange.close()


# -- chunks that wait for their reader ------------------------------------------------------------------------------
Reports = list[tuple[str, Any]]
ONE = 1 + CHUNK_BYTES
"""What a chunk of one byte counts as."""


def chunk_buffer(read_step: int = 1, full: float = math.inf) -> tuple[ChunkBuffer, Reports]:
    """Return a buffer without a limit of idleness, and what it reports."""
    loop, reports = asyncio.get_running_loop(), Reports()

    def report(what: str) -> Any:
        return lambda value: reports.append((what, value))

    buffer = ChunkBuffer(0.0, report("idle"), report("read"), report("paused"), loop, loop.time)
    buffer.start(read_step, full)
    return buffer, reports


def add(buffer: ChunkBuffer, chunks: int) -> None:
    for _ in range(chunks):
        buffer.add("x", 1)


async def test_the_size_is_that_of_the_chunks_that_wait() -> None:
    buffer, _ = chunk_buffer()
    for text in ("a", "bbb", "cc"):
        buffer.add(text, len(text))
    assert buffer.size == 6 + 3 * CHUNK_BYTES
    assert await buffer.read() == "a"
    assert buffer.size == 5 + 2 * CHUNK_BYTES
    buffer.clear()
    assert buffer.size == 0


async def test_reads_are_reported_in_steps() -> None:
    buffer, reports = chunk_buffer(read_step=2 * ONE)
    add(buffer, 5)
    for steps in (0, 1, 1, 2, 2):
        await buffer.read()
        assert reports == [("read", 2 * ONE)] * steps


async def test_a_reader_that_its_tool_waits_for_has_paused_after_a_second_without_a_read() -> None:
    buffer, reports = chunk_buffer(read_step=9 * ONE, full=2 * ONE)
    add(buffer, 2)
    for seconds in (1, 2):
        await advance(PAUSED_S)
        assert reports == [("paused", True)] * seconds
    reports.clear()
    await buffer.read()
    assert reports == [("paused", False)]
    await advance(PAUSED_S)
    assert reports == [("paused", False), ("paused", True)], "what was read and not reported counts"
    reports.clear()
    await buffer.read()
    add(buffer, 1)
    await buffer.read()
    assert reports == [("paused", False)], "once"
    buffer.end()


@pytest.mark.parametrize(("full", "pauses"), [(2 * ONE, [0, 1]), (3 * ONE + 1, [0, 0])], ids=["full", "not full"])
async def test_a_reader_that_has_read_or_need_not_has_not_paused(full: int, pauses: list[int]) -> None:
    buffer, reports = chunk_buffer(full=full)
    add(buffer, 3)
    await advance(PAUSED_S / 2)
    await buffer.read()
    reports.clear()
    await advance(PAUSED_S / 2)
    assert reports == [("paused", True)] * pauses[0]
    await advance(PAUSED_S)
    assert reports == [("paused", True)] * pauses[1]
    buffer.end()


async def test_without_a_limit_there_is_no_timer() -> None:
    buffer, _ = chunk_buffer()
    assert buffer._timer is None


class RecordingExecutor:
    """Records the bytes that are read of its requests."""

    def __init__(self) -> None:
        self.reads: list[tuple[Request, int]] = []

    def cancel(self, request: Request) -> bool:
        return True

    def on_settled(self, request: Request) -> None:
        pass

    def on_read(self, request: Request, size: int) -> None:
        self.reads.append((request, size))


async def test_text_that_no_reader_waits_for_counts_as_read() -> None:
    executor, whole, stream = RecordingExecutor(), Request(), Request(idle=0.0)
    for each in (whole, stream):
        each.begin(executor)
    whole.add_text("ab", 2)
    assert executor.reads.pop() == (whole, 2 + CHUNK_BYTES)
    stream.add_text("", 0)
    assert executor.reads.pop() == (stream, CHUNK_BYTES)
    stream.add_text("abc", 3)
    assert not executor.reads
    assert await anext(stream) == "abc"
    assert executor.reads.pop() == (stream, 3 + CHUNK_BYTES)
    stream.close()
    stream.add_text("late", 4)
    assert executor.reads == [(stream, 4 + CHUNK_BYTES)]
    assert await read(stream) == []


async def test_a_call_has_no_place_while_its_reader_pauses() -> None:
    place = PlaceInBulkhead()
    stream = Request(idle=0.0, place=place)
    stream.begin(RecordingExecutor(), 1, ONE)
    stream.add_text("a", 1)
    await advance(PAUSED_S)
    assert place.changes == ["paused"]
    await anext(stream)
    assert place.changes == ["paused", "resumed"]
    stream.close()


async def test_a_stream_that_has_begun_has_limits_of_its_own() -> None:
    executor = RecordingExecutor()
    stream = Request(START + 10.0, limit_name="attempt", idle=0.0)
    stream.begin(executor, 2 * ONE, 9 * ONE)
    for _ in range(2):
        stream.add_text("a", 1)
    await anext(stream)
    await advance(4.25)
    stream.begin_stream(START + 300.0, "stream", 5.0)
    assert (stream.deadline, stream.last_deadline, stream.limit_name) == (START + 300.0, START + 300.0, "stream")
    await anext(stream)
    assert executor.reads == [(stream, 2 * ONE)], "in the same steps"
    await advance(4.9)
    assert stream.settled is None
    await advance(0.1)
    assert stream.settled == TimedOut("stream-idle", may_have_run=True)


async def test_a_stream_that_has_ended_has_no_limits() -> None:
    stream = Request(START + 10.0, limit_name="attempt", idle=0.0)
    stream.settle(ended := Closed(may_have_run=True))
    stream.begin_stream(START + 300.0, "stream", 5.0)
    assert (stream.deadline, stream.limit_name, stream.settled) == (START + 10.0, "attempt", ended)


class StreamBench(exchange_harness.Bench):
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


def streaming(**limits: Any) -> tuple[StreamBench, Request]:
    bench = StreamBench(**limits)
    return bench, bench.open()


async def test_chunks_are_given_as_they_come() -> None:
    bench, stream = streaming()
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
    assert (stream.settled.chunks, bench.exchange.pending) == (4, 0)


async def test_the_last_chunk_may_carry_text_and_empty_ones_are_not_shown() -> None:
    bench, stream = streaming()
    for text, end in (("", False), ("a", False), ("", False), ("z", True)):
        bench.take(reply(stream.id, text, end=end))
    assert await read(stream) == ["a", "z"]


async def test_the_end_of_a_stream_is_an_answer_without_a_text() -> None:
    bench, stream = streaming()
    assert bench.publisher.sent[0].flow == "tool"
    bench.take(reply(stream.id, "a", end=False))
    bench.take(reply(stream.id, "b", instance="one"))
    assert stream.settled == Answer("", chunks=2, instance="one", trace_context={"id": stream.id, "instance": "one"})
    stream = bench.open()
    bench.take(reply(stream.id, "a", end=False))
    bench.take(reply(stream.id, error=("Odd", "no"), instance="one"))
    found = stream.settled
    assert found == Answer("", "Odd", "no", 2, instance="one", trace_context={"id": stream.id, "instance": "one"})


async def test_the_idle_limit_has_a_timer_of_its_own_until_the_end() -> None:
    bench, stream = streaming(idle=10)
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
    bench, stream = streaming()
    bench.take(reply(stream.id, "all at once"))
    assert await read(stream) == ["all at once"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
async def test_chunks_are_put_in_order(order: tuple[int, ...]) -> None:
    bench, stream = streaming()
    for index in order:
        assert bench.take(reply(stream.id, "abcd"[index], end=index == 3, chunk=index)) is Disposition.MATCHED
    assert "".join(await read(stream)) == "abcd"


@settings(max_examples=examples(24), deadline=None)
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
        bench, stream = streaming()
        seen = [bench.take(reply(stream.id, f"<{i}>", end=i == size - 1, chunk=i)) for i in arriving]
        assert await read(stream) == [f"<{i}>" for i in range(size)]
        assert seen.count(Disposition.MATCHED) == size
        assert seen.count(Disposition.DUPLICATE) == len(extra)

    run(scene)


async def test_the_idle_limit_counts_from_the_request_and_then_from_each_chunk() -> None:
    bench, stream = streaming(limit=1_000, idle=10)
    reading = asyncio.create_task(read(stream))
    for index in range(5):
        await advance(9.9)
        bench.take(reply(stream.id, "x", end=False, chunk=index))
    assert await reading == ["x"] * 5
    assert stream.settled == TimedOut("stream-idle", may_have_run=True, chunks=5)
    assert bench.exchange.loop.time() == pytest.approx(START + 5 * 9.9 + 10, abs=0.01)


async def test_the_idle_limit_counts_for_the_reader_while_chunks_wait() -> None:
    """An abandoned stream of a tool that goes on ends as one whose tool hangs."""
    bench, stream = streaming(limit=1_000, idle=10)
    for index in range(4):
        bench.take(reply(stream.id, str(index), end=False, chunk=index))
        await advance(4)
    assert stream.settled == TimedOut("stream-reader", may_have_run=True, chunks=3)
    assert bench.exchange.pending == 0
    assert await read(stream) == ["0", "1", "2"]


async def test_a_stream_that_ended_waits_for_its_reader_without_a_limit() -> None:
    bench, stream = streaming(idle=10)
    for index in range(3):
        bench.take(reply(stream.id, str(index), end=index == 2, chunk=index))
    await advance(1_000)
    assert await read(stream) == ["0", "1", "2"]
    assert isinstance(stream.settled, Answer)


async def test_the_idle_limit_before_the_first_chunk() -> None:
    bench = StreamBench(idle=10)
    bench.publisher.queueing = True
    stream = bench.open()
    assert await read(stream) == []
    assert stream.settled == TimedOut("stream-idle", may_have_run=False)
    assert bench.exchange.loop.time() == pytest.approx(START + 10, abs=0.01)


async def test_the_absolute_limit_ends_a_stream_that_keeps_talking() -> None:
    bench, stream = streaming(limit=20, idle=10)
    reading = asyncio.create_task(read(stream))
    for index in range(4):
        await advance(4.5)
        bench.take(reply(stream.id, "x", end=False, chunk=index))
    assert await reading == ["x"] * 4
    assert stream.settled == TimedOut("stream", may_have_run=True, chunks=4)
    assert bench.exchange.loop.time() == pytest.approx(START + 20, abs=0.01)


async def test_a_chunk_that_never_came_is_named_and_nothing_after_it_is_shown() -> None:
    bench, stream = streaming(idle=10)
    for index in (0, 1, 3, 4):
        bench.take(reply(stream.id, str(index), end=index == 4, chunk=index))
    assert await read(stream) == ["0", "1"]
    assert stream.settled == TimedOut("stream-idle", may_have_run=True, chunks=2, missing=2)


async def test_an_error_counts_even_if_a_chunk_before_it_was_lost() -> None:
    bench, stream = streaming()
    bench.take(reply(stream.id, "0", end=False, chunk=0))
    bench.take(reply(stream.id, "2", end=False, chunk=2))
    bench.take(reply(stream.id, error=("Odd", "broke")))
    assert await read(stream) == ["0"]
    assert (stream.settled.error_type, stream.settled.error_message) == ("Odd", "broke")
    assert bench.exchange.loop.time() == START


async def test_a_reader_that_falls_behind_gets_what_was_kept_and_then_the_limit() -> None:
    bench, stream = streaming(max_buffer=3 * (1 + CHUNK_BYTES))
    for index in range(3):
        bench.take(reply(stream.id, str(index), end=False, chunk=index))
    assert stream.settled is None
    bench.take(reply(stream.id, "3", end=False, chunk=3))
    assert (stream.settled, bench.exchange.pending) == (Overflow("stream buffer"), 0)
    assert await read(stream) == ["0", "1", "2"]


@pytest.mark.parametrize(("texts", "fits"), [(["x" * 10], True), (["x" * 11], False), (["x" * 9, "xx"], False)])
async def test_the_size_of_a_stream_is_bounded(texts: list[str], fits: bool) -> None:
    bench, stream = streaming(max_bytes=10)
    for index, text in enumerate(texts):
        bench.take(reply(stream.id, text, end=index == len(texts) - 1))
    await read(stream)
    assert isinstance(stream.settled, Answer) if fits else stream.settled == Overflow("max-response-bytes")


async def test_a_reader_that_leaves_early_may_leave_a_running_tool() -> None:
    _, stream = streaming()
    stream.close()
    assert stream.settled == TimedOut("abandoned", may_have_run=True)


async def test_a_reader_that_leaves_early_leaves_nothing() -> None:
    bench = StreamBench()
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
    bench, stream = streaming()
    await cancel_task(await start_task(read(stream)))
    bench.take(reply(stream.id, "a"))
    assert await read(stream) == ["a"]
    stream.close()
    assert isinstance(stream.settled, Answer), "closing what has ended changes nothing"


async def test_a_publish_that_fails_ends_the_stream() -> None:
    bench, stream = streaming()
    reading = await start_task(read(stream))
    bench.publisher.sent[0].on_failure(error := lost())
    assert await reading == []
    assert stream.settled is error


async def test_a_failure_after_the_end_changes_nothing() -> None:
    bench, stream = streaming()
    bench.take(reply(stream.id, "a"))
    bench.publisher.sent[0].on_failure(lost())
    assert await read(stream) == ["a"]
    assert isinstance(stream.settled, Answer)


async def test_a_publish_that_is_refused_never_opens_it() -> None:
    bench = StreamBench()
    bench.publisher.refusal = error = lost(sent=False)
    stream = bench.open()
    assert await read(stream) == []
    assert stream.settled is error
    assert bench.exchange.pending == 0


async def test_a_stream_too_many_is_refused() -> None:
    bench = StreamBench(max_pending=1)
    first, second = bench.open(), bench.open()
    assert await read(second) == []
    assert second.settled == Rejection("exchange", "pending-limit", 1.0)
    first.close()


async def test_rubbish_ends_the_stream_at_once() -> None:
    bench, stream = streaming()
    assert bench.take(AlteredMessage(b"<html>", {"id": stream.id})) is Disposition.MALFORMED
    assert await read(stream) == []
    assert isinstance(stream.settled, Unreadable)
    assert bench.exchange.loop.time() == START


async def test_closing_the_exchange_ends_the_stream() -> None:
    bench, stream = streaming()
    reading = await start_task(read(stream))
    bench.exchange.close()
    assert await reading == []
    assert stream.settled == Closed(may_have_run=True)


async def test_after_the_end_every_chunk_is_a_duplicate() -> None:
    bench, stream = streaming()
    bench.take(reply(stream.id, "a", end=False, chunk=0))
    bench.take(reply(stream.id, "", chunk=1))
    assert bench.take(reply(stream.id, "a", end=False, chunk=0)) is Disposition.DUPLICATE
    assert await read(stream) == ["a"]


async def test_a_chunk_in_parts_is_given_when_it_is_whole() -> None:
    bench, stream = streaming(max_buffer=2 * CHUNK_BYTES)
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
    bench, stream = streaming(max_bytes=5)
    for index in range(3):
        bench.take(reply(stream.id, "xx", end=False, chunk=index, more="1"))
    assert stream.settled == Overflow("max-response-bytes")
    assert await read(stream) == []


async def test_an_error_in_the_middle_of_a_chunk_gives_nothing_of_it() -> None:
    bench, stream = streaming()
    bench.take(reply(stream.id, "half a ", end=False, chunk=0, more="1"))
    bench.take(reply(stream.id, error=("oops", "it broke")))
    assert await read(stream) == []
    assert stream.settled.error_type == "oops"


async def test_another_instance_may_begin_a_chunk_anew_of_which_nothing_was_given() -> None:
    bench, stream = streaming()
    for index in range(2):
        bench.take(reply(stream.id, "half ", end=False, chunk=index, more="1", instance="a"))
    bench.take(reply(stream.id, "an", end=False, chunk=0, more="1", instance="b"))
    assert bench.take(reply(stream.id, "half ", end=False, chunk=2, more="1", instance="a")) is Disposition.DUPLICATE
    bench.take(reply(stream.id, "swer", end=True, chunk=1, instance="b"))
    assert await read(stream) == ["answer"]


def exchange() -> SessionExchange:
    return SessionExchange(dict.fromkeys(Disposition, 0))


def sent(to: SessionExchange, deadline: float = START + 30.0, *, idle: float | None = None) -> Request:
    request = Request(deadline, 1_000, limit_name="call" if idle is None else "stream", idle=idle)
    request.tool, request.payload = "work", b"{}"
    known_instance(exchange=to).send(request)
    return request


def handle(to: SessionExchange, request: Request, event: Event) -> Disposition | None:
    """Have the exchange process an event of a request. Return the disposition that it counts, if any."""
    before = dict(to._replies)
    to.handle_events(request.executor.session, [event])
    return next((each for each, count in to._replies.items() if count != before[each]), None)


async def test_a_result_an_error_and_a_refusal_are_answers() -> None:
    made = exchange()
    result, error, refusal = sent(made), sent(made), sent(made)
    assert made.pending == 3
    for each, event in (
        (result, ReplyReceived(result, 0, "hä".encode(), None)),
        (error, ReplyReceived(error, 1, b'{"type": "Odd", "message": "no"}', None)),
        (refusal, RequestRefused(refusal, "overloaded", 2.5, "busy", None)),
    ):
        assert handle(made, each, event) is Disposition.MATCHED
    assert await result == Answer("hä", instance="a", in_flight=0)
    assert await error == Answer("", "Odd", "no", instance="a", in_flight=0)
    found = await refusal
    assert (found.refused, found.retry_after) == ("overloaded", 2.5)
    assert made.pending == 0


async def test_what_cannot_be_read_is_malformed() -> None:
    made = exchange()
    for status, payload in ((0, b"\xff"), (1, b"no JSON")):
        request = sent(made)
        assert handle(made, request, ReplyReceived(request, status, payload, None)) is Disposition.MALFORMED
        assert isinstance(await request, Unreadable)
    assert made.pending == 0


async def test_failures_say_whether_the_tool_may_have_run() -> None:
    for reason, ended in (
        (Failure.DEADLINE, TimedOut("call", may_have_run=False)),
        (Failure.SILENT, Lost(Failure.SILENT, may_have_run=False)),
        (Failure.TOO_LARGE, Overflow("max-response-bytes")),
    ):
        made = exchange()
        request = sent(made)
        handle(made, request, RequestFailed(request, reason, False))
        handle(made, request, RequestFailed(request, Failure.CLOSED, True))
        assert await request == ended, "the first end counts"


async def test_what_is_not_sent_is_settled_at_once() -> None:
    made = exchange()
    made._max_pending = 1
    assert sent(made, deadline=START - 1.0).settled == TimedOut("call", may_have_run=False)
    waiting = sent(made)
    assert isinstance(sent(made).settled, Rejection)
    made.close()
    assert waiting.settled == Closed(may_have_run=False)
    assert sent(made).settled == Closed(may_have_run=False)
    assert made.pending == 0


async def test_a_stream_gives_its_chunks_and_ends_when_it_is_idle() -> None:
    made = exchange()
    stream = sent(made, START + 300.0, idle=5.0)
    await advance(4.0)
    handle(made, stream, ChunkReceived(stream, b"one"))
    await advance(4.0)
    assert stream.settled is None
    assert await anext(stream) == "one"
    await advance(4.0)
    assert stream.settled is None
    await advance(1.5)
    assert stream.settled == TimedOut("stream-idle", may_have_run=False)
    assert [chunk async for chunk in stream] == []
    assert made.pending == 0


async def test_a_stream_whose_reader_has_gone_ends_although_chunks_arrive() -> None:
    made = exchange()
    ends: list[Settled | None] = []
    stream = sent(made, START + 300.0, idle=5.0)
    stream.on_settled = lambda: ends.append(stream.settled)
    for chunk in (b"one", b"two", b"three"):
        handle(made, stream, ChunkReceived(stream, chunk))
        await advance(2.0)
    assert ends == [TimedOut("stream-reader", may_have_run=False, chunks=0)]
    assert made.pending == 0
    assert [chunk async for chunk in stream] == ["one", "two", "three"], "what arrived is kept"


async def test_a_slow_reader_is_not_idle() -> None:
    made = exchange()
    stream = sent(made, START + 300.0, idle=5.0)
    for _ in range(10):
        handle(made, stream, ChunkReceived(stream, b"x"))
    for _ in range(10):
        await advance(4.0)
        assert await anext(stream) == "x"
    assert stream.settled is None
    stream.close()


async def test_an_inbox_that_the_broker_refuses_is_the_cause_for_requests_that_have_not_left() -> None:
    for may_have_run in (False, True):
        made = exchange()
        request = sent(made)
        error = opening_failed("TopicNotFound", url="pulsar://x", topic="non-persistent://tg/request/work")
        request.executor.session.end_error = error
        handle(made, request, RequestFailed(request, Failure.BROKER_REFUSED, may_have_run))
        ended = await request
        if may_have_run:
            assert ended == Lost(Failure.BROKER_REFUSED, may_have_run=True)
        else:
            assert isinstance(ended, TransportError)
            assert ended is not error, "each caller may add alternatives to its own"
            assert (ended.type, ended.may_have_run, ended.message) == ("no-such-namespace", False, error.message)
