"""A hand-made dispatcher that has a session with one instance: what it sends and what comes back, without guards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from dispatch import ToolServer
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.wire import derive_key, encode_request, instance_topic, reply_topic
from dispatch.protocol.events import (
    ChunkReceived,
    EndReceived,
    Event,
    OutgoingRequest,
    PeerDraining,
    ReplyReceived,
    RequestFailed,
    RequestRefused,
    SessionOpened,
)
from dispatch.protocol.frames import CHUNK_BYTES, Status
from dispatch.protocol.session import CallerSession, Session
from dispatch.protocol.table import SessionTable
from dispatch.transports import Message, Mode, Transport
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, RESPONSES
from tests.helpers.session import SECRET


class Sent(OutgoingRequest):
    """A request with everything that came for it; ``final`` has its final event."""

    chunks_received: list[str] = msgspec.field(default_factory=list)
    final: asyncio.Future[Event] = msgspec.field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def text(self) -> str:
        """Return the result, that of a stream joined."""
        event = await self.final
        if isinstance(event, EndReceived):
            assert (event.status, event.payload) == (Status.TEXT, b""), event
            return "".join(self.chunks_received)
        assert isinstance(event, ReplyReceived), event
        assert event.status == Status.TEXT, event.payload
        return event.payload.decode()

    async def error(self) -> tuple[str, str]:
        """Return the type and the message of the error."""
        event = await self.final
        assert isinstance(event, ReplyReceived | EndReceived), event
        assert event.status == Status.ERROR, event.payload
        error = json.loads(event.payload)
        return error["type"], error["message"]

    async def refusal(self) -> RequestRefused:
        """Return the refusal."""
        event = await self.final
        assert isinstance(event, RequestRefused), event
        return event

    async def failure(self) -> RequestFailed:
        """Return the failure."""
        event = await self.final
        assert isinstance(event, RequestFailed), event
        return event


class SessionCaller:
    """Use :func:`calling`."""

    def __init__(self, transport: Transport, secret: str, inbox: str) -> None:
        self.table = SessionTable("peer", "1", [inbox], random_bytes=os.urandom, secret=secret)
        self.endpoint = Endpoint(transport, self.table, self._on_events)
        self.session: CallerSession
        self.opened = asyncio.Event()
        self.is_draining = False

    def _on_events(self, session: Session, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case SessionOpened():
                    self.opened.set()
                case PeerDraining():
                    self.is_draining = True
                case ChunkReceived(request=Sent() as request):
                    request.chunks_received.append(event.payload.decode())
                    if self.session.consume_chunks(request, len(event.payload) + CHUNK_BYTES):
                        self.endpoint.wake(self.session)
                case (
                    ReplyReceived(request=Sent() as request)
                    | EndReceived(request=Sent() as request)
                    | RequestRefused(request=Sent() as request)
                    | RequestFailed(request=Sent() as request)
                ):
                    request.final.set_result(event)
                case _:
                    pass

    def send(
        self,
        arguments: Mapping[str, Any] | None = None,
        *,
        seconds: float = math.inf,
        key: str | None = None,
        payload: bytes | None = None,
        user: str = "",
        run_for: float | None = None,
    ) -> Sent:
        """Send a request.

        Args:
            arguments: of the tool.
            seconds: until its deadline.
            key: its idempotency key.
            payload: in place of the encoded arguments.
            user: of the request.
            run_for: seconds until the deadline that the instance learns; None: the same.
        """
        now = asyncio.get_running_loop().time()
        request = Sent(now + seconds)
        data = encode_request("{}", json.dumps(arguments or {}), user, limit=1 << 30) if payload is None else payload
        headers = None if key is None else {"idempotency-key": key}
        run_until = None if run_for is None else now + run_for
        self.session.send_request(request, "work", data, headers, now, run_until=run_until)
        self.endpoint.wake(self.session)
        return request

    def cancel(self, request: Sent) -> bool:
        """Cancel a request. Return whether it may have run."""
        may_have_run = self.session.cancel(request)
        self.endpoint.wake(self.session)
        return may_have_run


@contextlib.asynccontextmanager
async def calling(
    server: ToolServer, *, transport: Transport | None = None, secret: str = SECRET, key: str | None = None
) -> AsyncIterator[SessionCaller]:
    """A caller with an open session with ``server``. ``key``: in the name of its inbox; None: that of its ``secret``."""
    transport = MemoryTransport(BROKER) if transport is None else transport
    await transport.start()
    inbox = reply_topic(RESPONSES, f"{derive_key(secret) if key is None else key}-peer")
    caller = SessionCaller(transport, secret, inbox)

    def on_message(message: Message) -> None:
        caller.endpoint.receive_packet(message.data())

    await transport.subscribe(inbox, on_message, mode=Mode.FANOUT, name="peer")
    try:
        caller.session = await caller.endpoint.connect(instance_topic(server.request_queue, server.instance))
        await caller.opened.wait()
        yield caller
    finally:
        await caller.endpoint.close()
        await transport.close()
