"""What a session reports. Events of a caller name the request; those of a callee its ``number``.

Each request of a caller ends with exactly one of: :class:`ReplyReceived`, :class:`EndReceived`, :class:`RequestRefused`,
:class:`RequestFailed`; unless the caller cancels it, which has no event.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from dispatch.protocol.delivery import LargePayload
    from dispatch.protocol.frames import End


# A request of a caller until its final event. The asyncio layer derives from it what its own caller waits for.


class OutgoingRequest(msgspec.Struct, eq=False):
    """One request.

    Attributes:
        deadline: on the caller's clock, after which it fails; ``math.inf``: never.
        max_reply_bytes: largest reply; a stream's chunks are counted together.
        last_deadline: the deadline instead, should the callee be suspected when the first one passes; if later.
        postpone: returns the deadline instead, when the first one has passed; None: that one holds.
        number: in its session; -1 before it is sent.
        chunks: of a stream, that were delivered in order.
        reply_bytes: payloads of the chunks that have arrived.
        read_bytes: of chunks that the application has read, as flow control counts them.
        credited_bytes: those of them that the callee has learned of.
        ahead: chunks that arrived before an earlier one.
        end: of the stream, if it arrived before a chunk.
        large: its payload, if that travels in fragments.
    """

    deadline: float = math.inf
    max_reply_bytes: int = 64 * 1024 * 1024
    last_deadline: float = -math.inf
    postpone: Callable[[float], float] | None = None
    number: int = -1
    chunks: int = 0
    reply_bytes: int = 0
    read_bytes: int = 0
    credited_bytes: int = 0
    ahead: dict[int, bytes] | None = None
    end: End | None = None
    large: LargePayload | None = None

    def is_over(self, now: float) -> bool:
        """Return whether the deadline has passed and is not postponed."""
        if self.deadline <= now and self.postpone is not None:
            self.deadline = self.postpone(now)
        return self.deadline <= now


class Failure(StrEnum):
    """Why a request, or a session, ended without an answer."""

    DEADLINE = "deadline"
    """The request's deadline passed."""
    SILENT = "silent"
    """No packet of the peer for :attr:`Settings.give_up` seconds, although it was probed: it is gone, or frozen."""
    RESTARTED = "restarted"
    """The peer does not know the session."""
    IDLE = "idle"
    """No packet of the caller for :attr:`Settings.idle` seconds."""
    CLOSED = "closed"
    """One of the peers has ended the session."""
    REPLACED = "replaced"
    """The caller has opened another session."""
    BROKER_REFUSED = "broker-refused"
    """The broker refuses to open the peer's inbox (its namespace was deleted, or the rights were withdrawn), or a packet
    exceeds the broker's limit, which was higher when the session was opened."""
    EVICTED = "evicted"
    """The callee has too many sessions, and this one was idle longest."""
    TOO_LARGE = "too-large"
    """The reply is larger than the request allows."""
    VERSION = "version"
    """The peers have no version of the protocol in common."""
    VIOLATION = "violation"
    """The peer does not follow the protocol."""


class SessionOpened(msgspec.Struct, gc=False):
    """The callee has answered HELLO, and proved that it consumes its inbox."""


class SessionClosed(msgspec.Struct, gc=False):
    """The session has ended; the last event of it."""

    reason: Failure


class PeerDraining(msgspec.Struct, gc=False):
    """The callee accepts no further requests."""

    reason: str


class PeerSuspected(msgspec.Struct, gc=False):
    """The peer has not acknowledged :attr:`Settings.suspect_after` probes, or nothing since an outage: it may be gone, or
    its event loop blocked."""


class PeerRecovered(msgspec.Struct, gc=False):
    """A suspected peer has acknowledged a packet."""


class PeerConflict(msgspec.Struct, gc=False):
    """Two processes consume the callee's inbox: they have one name."""


class RequestReceived(msgspec.Struct, gc=False):
    """A request, once. ``deadline`` on the callee's clock; ``math.inf``: none."""

    number: int
    deadline: float
    target: str
    headers: dict[str, str] | None
    payload: bytes


class RequestDeclined(msgspec.Struct, gc=False):
    """The session has refused a request by itself: it is past its deadline or too large, its caller has begun more large
    payloads than may be incomplete, or the callee is draining."""

    number: int
    reason: str


class RequestCancelled(msgspec.Struct, gc=False):
    """Its caller no longer waits, or the session has ended."""

    number: int


class ReplyReceived(msgspec.Struct):
    """A complete reply. ``status``: see :class:`~dispatch.protocol.frames.Status`. ``trace``: the trace context of the
    span that sent it; None: there is none."""

    request: OutgoingRequest
    status: int
    payload: bytes
    trace: dict[str, str] | None = None


class ChunkReceived(msgspec.Struct):
    """The next chunk of a stream."""

    request: OutgoingRequest
    payload: bytes


class EndReceived(msgspec.Struct):
    """The end of a stream; ``payload`` is empty, or an error. ``trace`` as of :class:`ReplyReceived`."""

    request: OutgoingRequest
    status: int
    payload: bytes
    trace: dict[str, str] | None = None


class RequestRefused(msgspec.Struct):
    """The tool was not executed, or not to its end. ``retry_after`` in seconds; None: unknown. ``trace`` as of
    :class:`ReplyReceived`."""

    request: OutgoingRequest
    reason: str
    retry_after: float | None
    message: str
    trace: dict[str, str] | None = None


class RequestFailed(msgspec.Struct):
    """There will be no answer. ``may_have_run`` is exact where it is False: the tool was not executed, and never will be."""

    request: OutgoingRequest
    reason: Failure
    may_have_run: bool


Event = (
    SessionOpened
    | SessionClosed
    | PeerDraining
    | PeerConflict
    | PeerSuspected
    | PeerRecovered
    | RequestReceived
    | RequestDeclined
    | RequestCancelled
    | ReplyReceived
    | ChunkReceived
    | EndReceived
    | RequestRefused
    | RequestFailed
)
