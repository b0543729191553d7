"""How a request can end, and what can become of a reply: the values that an exchange speaks in."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from dispatch._internal.permit import Rejection
from dispatch.errors import TransportError
from dispatch.protocol.events import Failure
from dispatch.result import ResultContent
from dispatch.telemetry.call_observer import NO_PROPERTIES, Counter


class Disposition(StrEnum):
    """What became of a reply."""

    MATCHED = "matched"
    LATE = "late"
    """Its caller had given up (timeout, cancellation)."""
    DUPLICATE = "duplicate"
    """Its request was answered already, or this chunk was here before."""
    UNKNOWN = "unknown"
    """No request of ours that we remember; on a shared response topic also everybody else's replies."""
    MALFORMED = "malformed"
    """No id, or not readable."""


class Tally:
    """Counts replies by disposition, for whoever wants to know it of one service.

    Attributes:
        counts: what is added to.
        answered, given_up: the fates of its requests. One of each for all of them: a hundred thousand are remembered, and a
            pair of its own for each would be looked through in every collection of garbage.
    """

    __slots__ = ("answered", "counts", "given_up")

    def __init__(self, counts: Mapping[Disposition, Counter]) -> None:
        self.counts = counts
        self.answered: Fate = (Disposition.DUPLICATE, self)
        self.given_up: Fate = (Disposition.LATE, self)


Fate = tuple[Disposition, Tally | None]
"""What a reply is that comes for a request which has ended, and who counts it."""
ANSWERED: Final[Fate] = (Disposition.DUPLICATE, None)
GIVEN_UP: Final[Fate] = (Disposition.LATE, None)
"""Of requests whose service counts nothing."""


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete reply.

    Attributes:
        text: of the whole result; ``""`` for a stream, and for an error.
        error_type, error_message: the service's error; the type is None for a result.
        chunks: in which the reply arrived.
        refused: why the service did not execute the request, or not to its end: a value of
            :class:`~dispatch.messaging.wire.properties.Refusal`.
        retry_after: seconds until a retry makes sense, with a refusal.
        instance: name of the instance that replied.
        in_flight: requests that the instance was executing when it replied.
        content: what a local tool returned besides the text.
        trace_context: of the span that sent the reply, as ``traceparent`` and ``tracestate``; other keys are ignored.
    """

    text: str
    error_type: str | None = None
    error_message: str = ""
    chunks: int = 1
    refused: str | None = None
    retry_after: float | None = None
    instance: str | None = None
    in_flight: int | None = None
    content: ResultContent | None = None
    trace_context: Mapping[str, str] = NO_PROPERTIES


class TimedOut(msgspec.Struct, frozen=True):
    """A limit ran out. ``clock`` names it; ``sent`` is False when the request had not even left; ``chunks`` came."""

    clock: str
    sent: bool
    chunks: int = 0
    missing: int | None = None
    """Index of the chunk that never came while later ones did."""


class Unreadable(msgspec.Struct, frozen=True):
    """The reply was no reply. ``problem`` says why, without quoting it."""

    problem: str


STREAM_BUFFER_LIMIT = "stream buffer"
"""The limit of an :class:`Overflow` that a slow reader caused."""


class Overflow(msgspec.Struct, frozen=True):
    """More came than the limits allow: ``limit`` names which."""

    limit: str


class Lost(msgspec.Struct, frozen=True):
    """The session with the instance of the request ended for ``reason``. ``sent`` is False if the tool was not executed and
    never will be; ``chunks`` had arrived."""

    reason: Failure
    sent: bool
    chunks: int = 0


class Restarted(msgspec.Struct, frozen=True):
    """Another instance began a stream anew of which the caller has ``chunks`` chunks already."""

    chunks: int


class Closed(msgspec.Struct, frozen=True):
    """The dispatcher was closed; ``sent`` is False when it was closed before the request was sent."""

    sent: bool


Settled = Answer | TimedOut | Unreadable | Overflow | Lost | Restarted | Closed | Rejection | TransportError
"""How a request ended."""
