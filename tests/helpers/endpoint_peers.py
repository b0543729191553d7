"""A caller and callees: endpoints of the session protocol on any transport, with a record of what happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from dispatch.messaging.endpoint import Endpoint, ReplyPermission
from dispatch.messaging.wire import derive_key, instance_topic, reply_topic
from dispatch.protocol import CalleeSession, CallerSession, OutgoingRequest, Session, SessionTable, Settings
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    ReplyReceived,
    RequestCancelled,
    RequestFailed,
    RequestReceived,
    RequestRefused,
    SessionClosed,
    SessionOpened,
)
from dispatch.protocol.frames import CHUNK_BYTES
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.transports import Message, Mode, Subscription, Transport, open_transport

URL = "memory://endpoint"
"""An embedded broker for peers."""
_numbers = itertools.count()


def new_topics() -> tuple[str, str]:
    """A request topic and a response topic that no other test has."""
    name = f"endpoint-{os.getpid()}-{next(_numbers)}"
    return f"non-persistent://tg/request/{name}", f"non-persistent://tg/response/{name}"


class Request(OutgoingRequest):
    """A request with the future of its outcome: the payload of its reply, or the event that ended it otherwise."""

    outcome: asyncio.Future[bytes | RequestFailed | RequestRefused] = msgspec.field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    chunk_payloads: list[bytes] = msgspec.field(default_factory=list)

    async def failure(self) -> tuple[str, bool]:
        """Return why it failed, and whether it may have run."""
        outcome = await self.outcome
        assert isinstance(outcome, RequestFailed), outcome
        return outcome.reason, outcome.may_have_run


class Peer:
    """One process: its transport, its table and its endpoint."""

    def __init__(self, transport: Transport, inbox: str) -> None:
        self.transport = transport
        self.inbox = inbox
        self.closed: list[tuple[str, str]] = []
        """Name of the peer and reason of each session that has ended."""
        self.endpoint: Endpoint
        self._subscription: Subscription

    @property
    def table(self) -> SessionTable:
        return self.endpoint.table

    def on_message(self, message: Message) -> None:
        self.endpoint.receive_packet(message.data())

    async def start(self) -> None:
        await self.transport.start()
        self._subscription = await self.transport.subscribe(
            self.inbox, self.on_message, mode=Mode.FANOUT, name="dispatch-test"
        )

    async def stop(self) -> None:
        await self.endpoint.close()
        await self._subscription.close()
        await self.transport.close()


class Callee(Peer):
    """Answers ``NUMBER:BYTES`` with a payload of so many bytes that begins with the number. ``runs`` counts the requests
    by their numbers."""

    def __init__(
        self, transport: Transport, topics: tuple[str, str], name: str = "one", *, settings: Settings = DEFAULT_SETTINGS
    ) -> None:
        super().__init__(transport, instance_topic(topics[0], name))
        self.name = name
        self.runs: Counter[bytes] = Counter()
        self.cancelled: list[int] = []
        self.is_holding = False
        self.held: list[tuple[CalleeSession, RequestReceived]] = []
        table = SessionTable(
            name,
            os.urandom(8).hex(),
            [self.inbox],
            random_bytes=os.urandom,
            may_reply_to=ReplyPermission(topics[1]),
            settings=settings,
            max_message_bytes=lambda: transport.max_message_bytes,
        )
        self.endpoint = Endpoint(transport, table, self.on_events)

    def on_events(self, session: Session, events: list[Event]) -> None:
        assert isinstance(session, CalleeSession)
        for event in events:
            if isinstance(event, RequestReceived):
                number = event.payload.partition(b":")[0]
                self.runs[number] += 1
                if self.is_holding:
                    self.held.append((session, event))
                else:
                    self.reply(session, event)
            elif isinstance(event, RequestCancelled):
                self.cancelled.append(event.number)
            elif isinstance(event, SessionClosed):
                self.closed.append((session.peer_name, event.reason))

    def reply(self, session: CalleeSession, event: RequestReceived) -> None:
        number, _, size = event.payload.partition(b":")
        session.consume(len(event.payload))
        session.send_reply(event.number, number.ljust(int(size or 0), b"."))
        self.endpoint.wake(session)

    def release(self) -> None:
        """Answer the held requests."""
        held, self.held = self.held, []
        for session, event in held:
            self.reply(session, event)


class Caller(Peer):
    """Sends requests over sessions with callees."""

    def __init__(
        self,
        transport: Transport,
        topics: tuple[str, str],
        *,
        settings: Settings = DEFAULT_SETTINGS,
        has_paths: bool = False,
    ) -> None:
        secret = os.urandom(8).hex()
        address = f"{derive_key(secret)}-caller"
        super().__init__(transport, reply_topic(topics[1], address))
        self.opened: dict[Session, asyncio.Future[None]] = {}
        self.failures: list[RequestFailed] = []
        table = SessionTable(
            "caller",
            os.urandom(8).hex(),
            [self.inbox],
            random_bytes=os.urandom,
            secret=secret,
            settings=settings,
            max_message_bytes=lambda: transport.max_message_bytes,
        )

        def path_inbox(number: int) -> str:
            return reply_topic(topics[1], address, number)

        self.endpoint = Endpoint(transport, table, self.on_events, path_inbox=path_inbox if has_paths else None)

    def on_events(self, session: Session, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, (SessionOpened, SessionClosed)):
                if isinstance(event, SessionClosed):
                    self.closed.append((session.peer_name, event.reason))
                opened = self.opened.get(session)
                if opened is not None and not opened.done():
                    opened.set_result(None)
            elif isinstance(event, (ReplyReceived, EndReceived, ChunkReceived, RequestFailed, RequestRefused)):
                request = event.request
                assert isinstance(request, Request)
                if isinstance(event, ChunkReceived):
                    request.chunk_payloads.append(event.payload)
                    assert isinstance(session, CallerSession)
                    if session.consume_chunks(request, len(event.payload) + CHUNK_BYTES):
                        self.endpoint.wake(session)
                elif not request.outcome.done():
                    is_reply = isinstance(event, (ReplyReceived, EndReceived))
                    request.outcome.set_result(event.payload if is_reply else event)
                if isinstance(event, RequestFailed):
                    self.failures.append(event)

    async def connect(self, callee: str) -> CallerSession:
        """Open a session with the callee that consumes this inbox."""
        session = await self.endpoint.connect(callee)
        self.opened[session] = asyncio.get_running_loop().create_future()
        if not session.is_open:
            await self.opened[session]
        assert session.is_open
        return session

    def send(self, session: CallerSession, payload: bytes, deadline: float = math.inf) -> Request:
        request = Request(deadline)
        now = asyncio.get_running_loop().time()
        assert session.send_request(request, "tool", payload, None, now)
        self.endpoint.wake(session)
        return request

    async def call(self, session: CallerSession, payload: bytes) -> bytes:
        """Send a request and return its reply."""
        outcome = await self.send(session, payload).outcome
        assert isinstance(outcome, bytes), outcome
        return outcome


@contextlib.asynccontextmanager
async def peers(
    url: str,
    callees: int = 1,
    *,
    settings: Settings = DEFAULT_SETTINGS,
    has_paths: bool = False,
    wrap: Callable[[Transport], Transport] = lambda transport: transport,
) -> AsyncIterator[tuple[Caller, list[Callee]]]:
    """A caller and callees on one broker. ``wrap`` puts faults around their transports."""
    topics = new_topics()
    caller = Caller(wrap(open_transport(url)), topics, settings=settings, has_paths=has_paths)
    others = [
        Callee(wrap(open_transport(url)), topics, f"callee-{number}", settings=settings) for number in range(callees)
    ]
    started: list[Peer] = []
    try:
        for peer in (caller, *others):
            await peer.start()
            started.append(peer)
        yield caller, others
    finally:
        for peer in started:
            await peer.stop()


@contextlib.asynccontextmanager
async def pair(**options: Any) -> AsyncIterator[tuple[Caller, Callee, CallerSession]]:
    """A caller and a callee on the broker of :data:`URL`, with an open session."""
    async with peers(URL, **options) as (caller, [callee]):
        yield caller, callee, await caller.connect(callee.inbox)
