"""Requests in sessions end once, in the values of the plain exchange."""

from __future__ import annotations

from dispatch._internal import Rejection
from dispatch.errors import TransportError
from dispatch.messaging.request import Answer, Closed, Disposition, Lost, Overflow, Settled, TimedOut, Unreadable
from dispatch.messaging.sessions import SessionExchange, SessionRequest, SessionStream
from dispatch.protocol.events import Failure
from dispatch.transports.errors import opening_failed
from tests.helpers.clock import START, advance
from tests.helpers.known_instances import known_instance


def exchange() -> SessionExchange:
    return SessionExchange(dict.fromkeys(Disposition, 0))


def sent(to: SessionExchange, deadline: float = START + 30.0) -> SessionRequest:
    request = SessionRequest(to, known_instance(), deadline, "call", 1_000, None)
    to.send(request, "work", b"{}", None)
    return request


async def test_a_result_an_error_and_a_refusal_are_answers() -> None:
    made = exchange()
    result, error, refusal = sent(made), sent(made), sent(made)
    assert made.pending == 3
    assert result.on_reply(0, "hä".encode()) is Disposition.MATCHED
    assert error.on_reply(1, b'{"type": "Odd", "message": "no"}') is Disposition.MATCHED
    assert refusal.on_refusal("overloaded", 2.5, "busy") is Disposition.MATCHED
    assert await result.waiter == Answer("hä", instance="a", in_flight=0)
    assert await error.waiter == Answer("", "Odd", "no", instance="a", in_flight=0)
    found = await refusal.waiter
    assert isinstance(found, Answer)
    assert (found.refused, found.retry_after) == ("overloaded", 2.5)
    assert made.pending == 0


async def test_what_cannot_be_read_is_malformed() -> None:
    made = exchange()
    for status, payload in ((0, b"\xff"), (1, b"no JSON")):
        request = sent(made)
        assert request.on_reply(status, payload) is Disposition.MALFORMED
        assert isinstance(await request.waiter, Unreadable)
    assert made.pending == 0


async def test_failures_say_whether_the_tool_may_have_run() -> None:
    for reason, ended in (
        (Failure.DEADLINE, TimedOut("call", sent=False)),
        (Failure.SILENT, Lost(Failure.SILENT, sent=False)),
        (Failure.TOO_LARGE, Overflow("max-response-bytes")),
    ):
        request = sent(exchange())
        request.on_failure(reason, may_have_run=False)
        request.on_failure(Failure.CLOSED, may_have_run=True)
        assert await request.waiter == ended, "the first end counts"


async def test_what_is_not_sent_is_settled_at_once() -> None:
    made = exchange()
    made._max_pending = 1
    assert sent(made, deadline=START - 1.0).settled == TimedOut("call", sent=False)
    waiting = sent(made)
    assert isinstance(sent(made).settled, Rejection)
    made.close()
    assert waiting.settled == Closed(sent=False)
    assert sent(made).settled == Closed(sent=False)
    assert made.pending == 0


async def test_a_stream_gives_its_chunks_and_ends_when_it_is_idle() -> None:
    made = exchange()
    stream = SessionStream(made, known_instance(), START + 300.0, 1_000, None, idle=5.0)
    made.send(stream, "work", b"{}", None)
    await advance(4.0)
    stream.on_chunk(b"one")
    await advance(4.0)
    assert stream.settled is None
    assert await anext(stream) == "one"
    await advance(4.0)
    assert stream.settled is None
    await advance(1.5)
    assert stream.settled == TimedOut("stream-idle", sent=False)
    assert [chunk async for chunk in stream] == []
    assert made.pending == 0


async def test_a_stream_whose_reader_has_gone_ends_although_chunks_arrive() -> None:
    made = exchange()
    ends: list[Settled | None] = []
    stream = SessionStream(made, known_instance(), START + 300.0, 1_000, None, idle=5.0)
    stream.on_settled = lambda: ends.append(stream.settled)
    made.send(stream, "work", b"{}", None)
    for chunk in (b"one", b"two", b"three"):
        stream.on_chunk(chunk)
        await advance(2.0)
    assert ends == [TimedOut("stream-reader", sent=False, chunks=0)]
    assert made.pending == 0
    assert [chunk async for chunk in stream] == ["one", "two", "three"], "what arrived is kept"


async def test_a_slow_reader_is_not_idle() -> None:
    made = exchange()
    stream = SessionStream(made, known_instance(), START + 300.0, 1_000, None, idle=5.0)
    made.send(stream, "work", b"{}", None)
    for _ in range(10):
        stream.on_chunk(b"x")
    for _ in range(10):
        await advance(4.0)
        assert await anext(stream) == "x"
    assert stream.settled is None
    stream.close()


async def test_an_inbox_that_the_broker_refuses_is_the_cause_for_requests_that_have_not_left() -> None:
    for may_have_run in (False, True):
        request = sent(exchange())
        error = opening_failed("TopicNotFound", url="pulsar://x", topic="non-persistent://tg/request/work")
        request.peer.session.end_error = error
        request.on_failure(Failure.BROKER_REFUSED, may_have_run=may_have_run)
        ended = await request.waiter
        if may_have_run:
            assert ended == Lost(Failure.BROKER_REFUSED, sent=True)
        else:
            assert isinstance(ended, TransportError)
            assert ended is not error, "each caller may add alternatives to its own"
            assert (ended.type, ended.sent, ended.message) == ("no-such-namespace", False, error.message)
