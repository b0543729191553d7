"""Requests in sessions end once, in the values of the plain exchange."""

from __future__ import annotations

from dispatch._internal import Rejection
from dispatch.errors import TransportError
from dispatch.messaging.request import (
    Answer,
    Closed,
    Disposition,
    Lost,
    Overflow,
    Request,
    Settled,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.sessions import SessionExchange
from dispatch.protocol.events import (
    ChunkReceived,
    Event,
    Failure,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
)
from dispatch.routing.instance import SessionInstance
from dispatch.transports.errors import opening_failed
from tests.helpers.clock import START, advance
from tests.helpers.known_instances import known_instance


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
    assert isinstance(request.executor, SessionInstance)
    to.handle_events(request.executor.session, [event])
    return next((each for each, count in to._replies.items() if count != before[each]), None)


async def test_a_result_an_error_and_a_refusal_are_answers() -> None:
    made = exchange()
    result, error, refusal = sent(made), sent(made), sent(made)
    assert made.pending == 3
    for request, event in (
        (result, ReplyReceived(result, 0, "hä".encode(), None)),
        (error, ReplyReceived(error, 1, b'{"type": "Odd", "message": "no"}', None)),
        (refusal, RequestRefused(refusal, "overloaded", 2.5, "busy", None)),
    ):
        assert handle(made, request, event) is Disposition.MATCHED
    assert await result == Answer("hä", instance="a", in_flight=0)
    assert await error == Answer("", "Odd", "no", instance="a", in_flight=0)
    found = await refusal
    assert isinstance(found, Answer)
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
        assert isinstance(request.executor, SessionInstance)
        request.executor.session.end_error = error
        handle(made, request, RequestFailed(request, Failure.BROKER_REFUSED, may_have_run))
        ended = await request
        if may_have_run:
            assert ended == Lost(Failure.BROKER_REFUSED, may_have_run=True)
        else:
            assert isinstance(ended, TransportError)
            assert ended is not error, "each caller may add alternatives to its own"
            assert (ended.type, ended.may_have_run, ended.message) == ("no-such-namespace", False, error.message)
