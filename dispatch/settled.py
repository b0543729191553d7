"""How a request can end, and what can become of a reply: the values that an exchange speaks in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from dispatch.outcome import Throttled, TransportError


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


Tally = Mapping[Disposition, Callable[[], object]]
"""Counts a reply of that disposition, for whoever wants to know it of one service."""


class Answer(msgspec.Struct, frozen=True):
    """A complete answer: the texts of all its chunks, or the service's error; ``properties`` of the last message."""

    text: str
    error_type: str | None
    error_message: str
    properties: Mapping[str, str]
    chunks: int = 1


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


class Overflow(msgspec.Struct, frozen=True):
    """More came than the limits allow: ``limit`` names which."""

    limit: str


class Lost(msgspec.Struct, frozen=True):
    """The instance that has the request gave no sign of life for ``silent`` seconds."""

    silent: float
    received: bool
    """It had said that the request is there."""
    chunks: int = 0


Settled = Answer | TimedOut | Unreadable | Overflow | Lost | TransportError | Throttled
"""How a request ended."""
