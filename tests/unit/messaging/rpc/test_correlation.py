"""Correlation of requests and replies: how each request ends, and what becomes of each reply."""

from __future__ import annotations

import asyncio
import re

import pytest

from dispatch.messaging.plain import Correlator, read_properties
from dispatch.messaging.request import Answer, Closed, Disposition, TimedOut, Unreadable
from dispatch.messaging.wire import MAX_PROPERTY_BYTES
from tests.helpers.clock import START, advance, idle
from tests.helpers.exchange_harness import Bench
from tests.helpers.fakes import lost, reply
from tests.helpers.malformed_messages import AlteredMessage

# -- how a request ends ---------------------------------------------------------------------------------------------


async def test_a_reply_answers_its_request() -> None:
    bench = Bench()
    id, task = await bench.ask()
    assert bench.exchange.pending == 1
    assert [ticket.id for ticket in bench.publisher.sent] == [id]
    assert (bench.publisher.sent[0].flow, bench.publisher.sent[0].payload) == ("tool", b"?")
    assert set(bench.exchange.replies.values()) == {0}
    assert bench.take(reply(id, "ha", instance="one")) is Disposition.MATCHED
    assert bench.exchange.pending == 0
    settled = await task
    assert settled == Answer("ha", instance="one", trace_context={"id": id, "instance": "one"})


async def test_replies_find_their_own_requests() -> None:
    bench = Bench()
    asked = [await bench.ask() for _ in range(20)]
    for id, _ in reversed(asked):
        bench.take(reply(id, f"answer to {id}"))
    for id, task in asked:
        settled = await task
        assert isinstance(settled, Answer)
        assert settled.text == f"answer to {id}"


async def test_an_error_is_an_answer() -> None:
    bench = Bench()
    id, task = await bench.ask()
    assert bench.take(reply(id, error=("Odd", "no"), end=False, retry_after_ms="5")) is Disposition.MATCHED
    settled = await task
    assert isinstance(settled, Answer)
    assert (settled.text, settled.error_type, settled.error_message) == ("", "Odd", "no")
    assert settled.retry_after == 0.005
    id, task = await bench.ask()
    bench.take(reply(id, error=("Odd", "no"), retry_after_ms="soon"))
    settled = await task
    assert isinstance(settled, Answer)
    assert settled.retry_after is None


async def test_chunks_of_a_peer_without_indices_are_put_together_as_they_come() -> None:
    bench = Bench()
    id, task = await bench.ask()
    for text in ("a", "", "b"):
        assert bench.take(reply(id, text, end=False)) is Disposition.MATCHED
        await idle()
        assert not task.done()
    bench.take(reply(id, "c"))
    settled = await task
    assert isinstance(settled, Answer)
    assert (settled.text, settled.chunks) == ("abc", 4)


async def test_an_answer_says_of_how_many_chunks_it_is_and_what_came_with_the_last() -> None:
    bench = Bench()
    id, task = await bench.ask()
    bench.take(reply(id, "a", end=False, instance="one"))
    bench.take(reply(id, "b", instance="two"))
    assert await task == Answer("ab", chunks=2, instance="two", trace_context={"id": id, "instance": "two"})
    id, task = await bench.ask()
    bench.take(reply(id, "a", end=False))
    bench.take(reply(id, error=("Odd", "no"), instance="one"))
    assert await task == Answer("", "Odd", "no", 2, instance="one", trace_context={"id": id, "instance": "one"})


async def test_an_answer_says_why_it_was_refused_and_how_busy_its_instance_is() -> None:
    bench = Bench()
    id, task = await bench.ask()
    bench.take(reply(id, error=("Odd", "no"), refused="overloaded", in_flight="3"))
    settled = await task
    assert isinstance(settled, Answer)
    assert (settled.refused, settled.in_flight) == ("overloaded", 3)


async def test_the_deadline_ends_it_to_the_moment() -> None:
    bench = Bench()
    _, task = await bench.ask(limit=30, limit_name="attempt")
    await advance(29.999)
    assert not task.done()
    assert await task == TimedOut("attempt", may_have_run=True)
    assert bench.exchange.loop.time() == pytest.approx(START + 30, abs=1e-3)
    assert bench.exchange.pending == 0


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
    bench = Bench()
    id, task = await bench.ask()
    bench.publisher.sent[0].on_failure(error := lost())
    assert await task is error
    assert bench.exchange.pending == 0
    assert bench.take(reply(id)) is Disposition.LATE


async def test_a_failure_after_the_answer_changes_nothing() -> None:
    bench = Bench()
    id, task = await bench.ask()
    bench.take(reply(id, "ha"))
    bench.publisher.sent[0].on_failure(lost())
    settled = await task
    assert isinstance(settled, Answer)
    assert settled.text == "ha"


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
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.exchange.pending == 0
    assert bench.publisher.sent[0].cancelled, "a cancelled call's message must not leave the queue any more"
    assert bench.take(reply(id)) is Disposition.LATE


async def test_cancellation_together_with_the_answer_is_still_cancellation() -> None:
    bench = Bench()
    id, task = await bench.ask()
    bench.take(reply(id))
    task.cancel()
    assert not bench.publisher.sent[0].cancelled
    with pytest.raises(asyncio.CancelledError):
        await task
    assert bench.take(reply(id)) is Disposition.DUPLICATE


async def test_an_unreadable_reply_ends_it_at_once_without_being_quoted() -> None:
    bench = Bench()
    id, task = await bench.ask()
    assert bench.take(AlteredMessage(b'{"response": ["SECRET"]}', {"id": id})) is Disposition.MALFORMED
    settled = await task
    assert isinstance(settled, Unreadable)
    assert "response" in settled.problem
    assert "SECRET" not in settled.problem
    assert bench.exchange.loop.time() == START, "not a timeout"
    assert bench.take(reply(id)) is Disposition.DUPLICATE


async def test_a_reply_whose_data_cannot_be_read_ends_it_at_once() -> None:
    bench = Bench()
    id, task = await bench.ask()
    assert bench.take(AlteredMessage(b"", {"id": id}, raises="data")) is Disposition.MALFORMED
    assert await task == Unreadable("UnicodeError")


async def test_closing_ends_everything_that_waits() -> None:
    bench = Bench()
    asked = [await bench.ask() for _ in range(3)]
    bench.exchange.close()
    assert bench.exchange.pending == 0
    for id, task in asked:
        settled = await task
        assert settled == Closed(may_have_run=True), "the tools may have been executed"
        assert bench.take(reply(id)) is Disposition.LATE


async def test_what_comes_after_closing_is_not_sent() -> None:
    bench = Bench()
    bench.exchange.close()
    id, task = await bench.ask()
    settled = await task
    assert settled == Closed(may_have_run=False)
    assert not bench.publisher.sent
    assert bench.take(reply(id)) is Disposition.UNKNOWN


# -- what becomes of a reply ----------------------------------------------------------------------------------------


async def test_a_reply_after_the_timeout_is_late() -> None:
    bench = Bench()
    id, task = await bench.ask(limit=1)
    await task
    assert bench.take(reply(id)) is Disposition.LATE


async def test_a_second_reply_is_a_duplicate() -> None:
    bench = Bench()
    id, task = await bench.ask()
    bench.take(reply(id))
    assert bench.take(reply(id)) is Disposition.DUPLICATE
    await task
    assert bench.take(reply(id)) is Disposition.DUPLICATE


async def test_somebody_elses_reply_is_unknown_and_its_payload_is_never_read() -> None:
    bench = Bench()
    assert bench.take(AlteredMessage(b"", {"id": "somebody-else"}, raises="data")) is Disposition.UNKNOWN
    for length in (1, MAX_PROPERTY_BYTES):
        assert bench.take(AlteredMessage(b"rubbish", {"id": "x" * length})) is Disposition.UNKNOWN


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
    bench = Bench()
    id, task = await bench.ask()
    bench.take(reply(id, "a", end=False, chunk="-1"))  # type: ignore[arg-type]
    bench.take(reply(id, "b", chunk="first"))  # type: ignore[arg-type]
    settled = await task
    assert isinstance(settled, Answer)
    assert settled.text == "ab"


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


def test_properties_are_read_whatever_the_message_holds() -> None:
    assert read_properties(reply("x", ack="1:2"))["ack"] == "1:2"
    assert read_properties(AlteredMessage(b"", {"id": "x"}, raises="properties")) == {}
