"""Stand-ins for the seam to a broker that a test holds in its hand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from dispatch.errors import TransportError
from dispatch.messaging.wire import ErrorInfo, Property, Reply, encode_reply
from dispatch.transports import OnFailure, OnReceipt
from tests.helpers.malformed_messages import AlteredMessage


@dataclass(eq=False)
class FakeTicket:
    """A publish. ``queued``: it waits behind the window, so that it can be withdrawn."""

    payload: bytes
    properties: Mapping[str, str]
    flow: str
    on_failure: OnFailure
    queued: bool = False
    cancelled: bool = False

    @property
    def id(self) -> str:
        return self.properties[Property.ID]

    def cancel(self) -> bool:
        self.cancelled = True
        return self.queued


@dataclass(eq=False)
class FakePublisher:
    """Keeps what is published, and confirms it at once. ``refusal`` is raised instead, if set; ``queueing`` makes tickets
    that wait."""

    topic: str = "non-persistent://tg/request/fake"
    sent: list[FakeTicket] = field(default_factory=list)
    refusal: BaseException | None = None
    queueing: bool = False
    closed: bool = False

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> FakeTicket:
        if self.refusal is not None:
            raise self.refusal
        ticket = FakeTicket(payload, properties, flow, on_failure, self.queueing)
        self.sent.append(ticket)
        if on_receipt is not None:
            asyncio.get_running_loop().call_soon(on_receipt)
        return ticket

    async def writable(self, flow: str) -> None:
        """There is always room."""

    async def close(self) -> None:
        self.closed = True


def reply(
    id: str | None,
    text: str = "",
    *,
    end: bool = True,
    error: tuple[str, str] | None = None,
    chunk: int | None = None,
    **properties: str,
) -> AlteredMessage:
    """A response as a service sends it; further properties with ``_`` for ``-``."""
    named = {key.replace("_", "-"): value for key, value in properties.items()}
    if id is not None:
        named[Property.ID] = id
    if chunk is not None:
        named[Property.CHUNK] = str(chunk)
    return AlteredMessage(encode_reply(Reply(None if error is None else ErrorInfo(*error), text, end)), named)


def lost(*, sent: bool = True) -> TransportError:
    """A failure of the transport."""
    return TransportError("connection-lost", "the connection ended", may_have_run=sent)
