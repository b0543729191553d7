"""The session protocol and its endpoint alone, without dispatcher, guards and metrics: what the call layers add to.

Requests are encoded beforehand and replies are not decoded, as with the bare client.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

from benchmarks.workers.channel import Spec, run_client
from benchmarks.workers.load import Load
from benchmarks.workers.lossy_transport import open_lossy_transport
from benchmarks.workers.session_service import INSTANCE, LARGE
from benchmarks.workers.wire import REQUEST
from dispatch.messaging.endpoint import Endpoint
from dispatch.messaging.wire import derive_key, instance_topic, reply_topic
from dispatch.protocol import OutgoingRequest, Session, SessionTable
from dispatch.protocol.events import Event, ReplyReceived, RequestFailed, SessionClosed, SessionOpened
from dispatch.transports import Mode


class LostRequestError(Exception):
    """A request without a reply."""


class PendingRequest(OutgoingRequest, kw_only=True):
    """A request with the future of its reply."""

    reply: asyncio.Future[bytes]


@asynccontextmanager
async def connect(spec: Spec) -> AsyncIterator[Load]:
    """The client, with an open session."""
    loop = asyncio.get_running_loop()
    secret = os.urandom(8).hex()
    address = f"{derive_key(secret)}-bench"
    inbox = reply_topic(spec.response, address)
    opened: asyncio.Future[bool] = loop.create_future()

    def on_events(_session: Session, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, ReplyReceived):
                assert isinstance(event.request, PendingRequest)
                if not event.request.reply.done():
                    event.request.reply.set_result(event.payload)
            elif isinstance(event, RequestFailed):
                assert isinstance(event.request, PendingRequest)
                if not event.request.reply.done():
                    event.request.reply.set_exception(LostRequestError(event.reason))
            elif isinstance(event, (SessionOpened, SessionClosed)) and not opened.done():
                opened.set_result(isinstance(event, SessionOpened))

    table = SessionTable("bench", os.urandom(8).hex(), [inbox], random_bytes=os.urandom, secret=secret)
    transport = open_lossy_transport(spec)
    await transport.start()
    endpoint = Endpoint(
        transport, table, on_events, path_inbox=lambda number: reply_topic(spec.response, address, number)
    )
    subscription = await transport.subscribe(
        inbox, lambda message: endpoint.receive_packet(message.data()), mode=Mode.FANOUT, name="dispatch-bench"
    )
    try:
        session = await endpoint.connect(instance_topic(spec.request, INSTANCE))
        if not await opened:
            raise LostRequestError("the session could not be opened")
        numbers = count()

        async def send(payload: bytes) -> bytes:
            request = PendingRequest(loop.time() + spec.timeout, reply=loop.create_future())
            if not session.send_request(request, "echo", payload, None, loop.time()):
                raise LostRequestError("the session has ended")
            endpoint.wake(session)
            return await request.reply

        async def call() -> bytes:
            return await send(b"%d" % next(numbers) if spec.is_counting else REQUEST)

        yield Load(
            call,
            spec.text.encode(),
            LostRequestError,
            large_call=lambda: send(LARGE),
            large_answer=spec.large_text.encode(),
        )
    finally:
        await endpoint.close()
        await subscription.close()
        await transport.close()


if __name__ == "__main__":
    run_client(connect)
