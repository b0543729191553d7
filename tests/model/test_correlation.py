"""The exchange against a plain model of itself, on virtual time: whatever happens in whatever order, every request is
settled once and every reply is counted once, as what it is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from dispatch._internal import Rejection
from dispatch.errors import TransportError
from dispatch.messaging.plain import Correlator, read_properties
from dispatch.messaging.request import Answer, Closed, Disposition, Request, TimedOut, Unreadable
from tests.helpers.clock import VirtualClockLoop, advance, idle
from tests.helpers.exchange_harness import request, stream
from tests.helpers.fakes import FakePublisher, FakeTicket, lost, reply
from tests.helpers.malformed_messages import MALFORMED_PAYLOADS, AlteredMessage
from tests.helpers.state_machine_settings import machine

MAX_PENDING, MAX_TOMBSTONES, AGE = 5, 6, 40.0
LATE, DUPLICATE, MATCHED = Disposition.LATE, Disposition.DUPLICATE, Disposition.MATCHED


@dataclass(eq=False)
class ExpectedRequest:
    """What the model knows of a request."""

    id: str
    deadline: float
    idle: float | None
    """None: a call; else a stream with that idle limit."""
    queued: bool
    last: float = 0.0
    next: int = 0
    ahead: dict[int, tuple[str, bool]] = field(default_factory=dict)
    text: str = ""
    chunks: int = 0
    end: str = ""
    """How it has to end; "" while it waits."""
    task: asyncio.Task[Any] | None = None
    stream: Request | None = None
    ticket: FakeTicket | None = None

    @property
    def due(self) -> float:
        return self.deadline if self.idle is None else min(self.deadline, self.last + self.idle)


WITHOUT_AN_ID = [reply(None), reply(""), reply("x" * 9_000), AlteredMessage(b"", {}, raises="properties")]


class ExchangeMachine(RuleBasedStateMachine):
    asked = Bundle("asked")

    @initialize()
    def start(self) -> None:
        self.loop = VirtualClockLoop()
        self.closed = False
        self.problems: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.publisher = FakePublisher()
        self.counts: Counter[Disposition] = Counter()
        self.waiting: dict[str, ExpectedRequest] = {}
        self.ids: set[str] = set()
        self.graves: list[tuple[float, str, Disposition]] = []
        self.exchange = self.do(self._make())

    async def _make(self) -> Correlator:
        return Correlator(max_pending=MAX_PENDING, max_tombstones=MAX_TOMBSTONES, tombstone_age=AGE)

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    # -- the model's own steps --------------------------------------------------------------------------------------

    def bury(self, asked: ExpectedRequest, end: str, why: Disposition, now: float | None = None) -> None:
        asked.end = end
        del self.waiting[asked.id]
        if now is None:
            now = self.loop.time()
        self.graves.append((now + AGE, asked.id, why))
        while self.graves and (len(self.graves) > MAX_TOMBSTONES or self.graves[0][0] <= now):
            self.graves.pop(0)

    def remembered(self, id: str) -> Disposition:
        return next((why for _, grave, why in self.graves if grave == id), Disposition.UNKNOWN)

    def take(self, message: Any, disposition: Disposition) -> None:
        async def hand_over() -> None:
            self.exchange.receive(message, read_properties(message), is_shared=True)
            await idle()

        self.counts[disposition] += 1
        self.do(hand_over())

    def expire(self) -> None:
        """End what is due by now, in the order of time."""
        for asked in sorted(self.waiting.values(), key=lambda each: each.due):
            if asked.due <= self.loop.time():
                clock = "call" if asked.idle is None else ("stream" if asked.due == asked.deadline else "stream-idle")
                missing = asked.next if asked.ahead else None
                self.bury(asked, f"timed out {clock} sent={not asked.queued} {asked.chunks} {missing}", LATE, asked.due)

    # -- rules ------------------------------------------------------------------------------------------------------

    @rule(target=asked, limit=st.integers(0, 20), idle_limit=st.none() | st.integers(1, 8), queued=st.booleans(),
          refused=st.sampled_from([False, False, False, True]))  # fmt: skip
    def send(self, limit: int, idle_limit: int | None, queued: bool, refused: bool) -> ExpectedRequest:
        async def open_it() -> ExpectedRequest:
            exchange, now = self.exchange, self.loop.time()
            # Fractions, so that no limit falls on the instant of anything else.
            deadline = now + limit + 0.5 if limit else now
            asked = ExpectedRequest(
                exchange.new_id(), deadline, None if idle_limit is None else idle_limit + 0.25, queued, now
            )
            if asked.idle is None:
                requested = request(exchange, self.publisher, id=asked.id, seconds=deadline - now, max_bytes=10**6)
                asked.task = asyncio.create_task(requested)
            else:
                asked.stream = stream(
                    exchange, self.publisher, id=asked.id, seconds=deadline - now, max_bytes=10**6, idle=asked.idle
                )
                asked.task = asyncio.create_task(self._read(asked.stream))
            await idle()
            return asked

        self.publisher.queueing = queued
        self.publisher.refusal = lost(sent=False) if refused else None
        before = len(self.publisher.sent)
        asked = self.do(open_it())
        assert asked.id not in self.ids, "an id came twice"
        self.ids.add(asked.id)
        if self.closed:
            asked.end = "transport"
        elif len(self.waiting) >= MAX_PENDING:
            asked.end = "throttled"
        elif limit == 0:
            asked.end = f"timed out {'call' if idle_limit is None else 'stream'} sent=False 0 None"
        else:
            self.waiting[asked.id] = asked
            if refused:
                self.bury(asked, "transport", LATE)
        if asked.end:
            assert len(self.publisher.sent) == before, "nothing was sent for it"
        else:
            asked.ticket = self.publisher.sent[-1]
        return asked

    async def _read(self, stream: Request) -> tuple[str, Any]:
        text = "".join([chunk async for chunk in stream])
        return text, stream.settled

    @rule(asked=asked, error=st.booleans(), text=st.sampled_from(["", "x", "yy"]))
    def answer(self, asked: ExpectedRequest, error: bool, text: str) -> None:
        """A complete answer, or an error, without an index: it settles whatever waits, and is known for what it is else."""
        message = reply(asked.id, text, error=("Odd", "no") if error else None)
        if asked.id not in self.waiting:
            self.take(message, self.remembered(asked.id))
            return
        asked.chunks += 1
        asked.text += "" if error else text
        self.bury(asked, "error" if error else "answer", DUPLICATE)
        self.take(message, MATCHED)

    @rule(asked=asked, index=st.integers(0, 4), end=st.sampled_from([False, False, False, True]))
    def chunk(self, asked: ExpectedRequest, index: int, end: bool) -> None:
        """One chunk of a stream, in any order and any number of times."""
        message = reply(asked.id, f"<{index}>", end=end, chunk=index)
        if asked.id not in self.waiting:
            self.take(message, self.remembered(asked.id))
            return
        if index < asked.next or index in asked.ahead:
            self.take(message, DUPLICATE)
            return
        asked.ahead[index] = (f"<{index}>", end)
        while asked.next in asked.ahead and not asked.end:
            text, ends = asked.ahead.pop(asked.next)
            asked.next += 1
            asked.chunks += 1
            asked.text += text
            asked.last = self.loop.time()
            if ends:
                self.bury(asked, "answer", DUPLICATE)
        self.take(message, MATCHED)

    @rule(asked=asked, payload=st.sampled_from(MALFORMED_PAYLOADS), raises=st.booleans())
    def rubbish(self, asked: ExpectedRequest, payload: bytes, raises: bool) -> None:
        message = AlteredMessage(payload, {"id": asked.id}, raises="data" if raises else "")
        if asked.id not in self.waiting:
            self.take(message, self.remembered(asked.id))
            return
        self.bury(asked, "unreadable", DUPLICATE)
        self.take(message, Disposition.MALFORMED)

    @rule(message=st.sampled_from(WITHOUT_AN_ID))
    def without_an_id(self, message: Any) -> None:
        self.take(message, Disposition.MALFORMED)

    @rule(id=st.sampled_from(["", "somebody-else", "-1"]).filter(bool))
    def somebody_elses(self, id: str) -> None:
        self.take(reply(id), Disposition.UNKNOWN)

    async def _hand_over(self, message: Any) -> None:
        self.exchange.receive(message, read_properties(message), is_shared=True)
        await idle()

    @rule(asked=asked, sent=st.booleans())
    def fail(self, asked: ExpectedRequest, sent: bool) -> None:
        """The transport reports a failure, perhaps of something that ended long ago."""
        if asked.ticket is None:
            return
        if asked.id in self.waiting:
            self.bury(asked, "transport", LATE)
        asked.ticket.on_failure(lost(sent=sent))

    @rule(asked=asked)
    def cancel(self, asked: ExpectedRequest) -> None:
        async def cancel_it() -> None:
            asked.task.cancel()
            await idle()
            if asked.stream is not None:
                asked.stream.close()

        if asked.id in self.waiting:
            self.bury(asked, "cancelled", LATE)
            self.do(cancel_it())
            assert asked.ticket.cancelled, "what still waited to go out was not withdrawn"

    @rule(seconds=st.integers(1, 30))
    def wait(self, seconds: int) -> None:
        # In steps: what ends on the way is buried at its own instant.
        for _ in range(seconds):
            self.do(advance(1))
            self.expire()

    @precondition(lambda self: len(self.waiting) > 3)
    @rule()
    def close(self) -> None:
        """The dispatcher goes. Replies and callers come all the same."""
        self.closed = True
        for asked in list(self.waiting.values()):
            self.bury(asked, "transport", LATE)
        self.exchange.close()

    # -- what is always so ------------------------------------------------------------------------------------------

    @invariant()
    def those_that_wait_are_those_that_should(self) -> None:
        assert self.exchange.pending == len(self.waiting) <= MAX_PENDING

    @invariant()
    def every_reply_is_counted_once_as_what_it_is(self) -> None:
        assert {what: count for what, count in self.exchange.replies.items() if count} == dict(self.counts)

    @invariant()
    def the_tombstones_are_those_that_should_be(self) -> None:
        assert self.exchange.tombstones == len(self.graves) <= MAX_TOMBSTONES

    @rule(asked=asked)
    def look(self, asked: ExpectedRequest) -> None:
        """A request ends exactly as it should, and not before."""
        self.do(idle())
        assert asked.task is not None
        if asked.id in self.waiting:
            assert not asked.task.done()
            return
        assert asked.task.done()
        assert ended(asked) == (asked.end, asked.text if asked.end == "answer" or asked.idle else "")

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.exchange.close()
        self.do(idle())
        left = asyncio.all_tasks(self.loop)
        timers = self.loop.list_timers()
        self.loop.close()
        assert not left
        assert not timers
        assert not self.problems


def ended(asked: ExpectedRequest) -> tuple[str, str]:
    """How a request did end, in the model's words, and its text."""
    assert asked.task is not None
    if asked.task.cancelled():
        return "cancelled", asked.text if asked.idle else ""
    text, settled = asked.task.result() if asked.idle is not None else ("", asked.task.result())
    match settled:
        case Answer():
            return ("answer" if settled.error_type is None else "error"), text or settled.text
        case TimedOut():
            return (
                f"timed out {settled.limit_name} sent={settled.may_have_run} {settled.chunks} {settled.missing}",
                text,
            )
        case Unreadable():
            return "unreadable", text
        case Rejection():
            return "throttled", text
        case Closed() | TransportError():
            return "transport", text
    raise AssertionError(f"not an end: {settled!r}")


TestExchangeMachine = pytest.mark.costly(ExchangeMachine.TestCase)
TestExchangeMachine.settings = machine(40, 50)
