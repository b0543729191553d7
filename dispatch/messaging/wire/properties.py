"""The message properties: their names, their values and the limits of both. All but ``id`` are optional to a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_PROPERTY_BYTES: Final = 8 * 1024
"""Largest property value that is sent or read, in bytes of UTF-8, as a broker counts; a larger one counts as malformed."""


class Property:
    """Names of the message properties. ``ID`` is TrustGraph's; the others are dispatch's, and optional to a peer."""

    ID: Final = "id"
    """Correlates a request with each of its responses. Never reused."""

    # On requests.
    REPLY_TO: Final = "reply-to"
    """A whole topic name. An instance of dispatch's service base replies there if its configuration allows that
    namespace."""
    SESSION: Final = "session"
    """The secret of the dispatcher that sends this (:mod:`dispatch.messaging.wire.sessions`), on everything it sends to
    services. A message with another dispatcher's ``id`` is ignored; one with its ``reply-to`` is not answered there."""
    REMAINING_MS: Final = "remaining-ms"
    """Milliseconds until the caller's deadline, counted from the arrival of the message."""
    ATTEMPT: Final = "attempt"
    """Number of the attempt within its call, from 1; omitted for the first."""
    IDEMPOTENCY_KEY: Final = "idempotency-key"
    """The caller's idempotency key."""
    LARGEST: Final = "largest"
    """The sender accepts a reply in fragments (``more``), up to so many bytes in all."""
    REPEATABLE: Final = "repeatable"
    """On a persistent topic: the tool may be repeated, so the broker may redeliver the request to another instance when the
    first one is lost."""

    # On replies.
    INSTANCE: Final = "instance"
    """Id of the instance that replies."""
    IN_FLIGHT: Final = "in-flight"
    """Requests that the instance was executing when it replied."""
    CHUNK: Final = "chunk"
    """Index of the chunk in its stream, from 0: detects lost and duplicate chunks."""
    MORE: Final = "more"
    """The text continues in the next chunk."""
    REFUSED: Final = "refused"
    """Why the service did not execute the request, or not to its end: one of :class:`Refusal`."""
    RETRY_AFTER_MS: Final = "retry-after-ms"
    """With a refusal: milliseconds until a retry makes sense."""
    FEATURES: Final = "features"
    """On ``here``: the instance's features, separated by commas."""
    INCARNATION: Final = "incarnation"
    """On ``here``: a random name of this run of the instance."""

    # On messages that are neither, without a payload.
    HELLO: Final = "hello"
    """To the hello topic of a request topic, whose name is the value: asks its instances to announce themselves."""
    HERE: Final = "here"
    """To ``reply-to`` or the announcement topic: ``instance`` serves the request topic that is the value; with ``refused``:
    it no longer does. A dispatcher verifies it: it opens a session."""


REPLY_ONLY: Final = frozenset({Property.INSTANCE, Property.REFUSED, Property.HERE})
"""Properties that only services send: a message with one of them is no request."""


class Refusal:
    """Values of the property ``refused``: the tool was not executed, or not to its end."""

    OVERLOADED: Final = "overloaded"
    DRAINING: Final = "draining"
    EXPIRED: Final = "expired"
    STOPPED: Final = "stopped"
    """The tool was cancelled at the caller's deadline; it may have been executed in part."""
    INVALID_REQUEST: Final = "invalid-request"
    TOO_LARGE: Final = "request-too-large"
    """The request is larger than the instance accepts."""
    REPLY_EVICTED: Final = "reply-evicted"
    """The instance received the request earlier and may have executed it, but no longer keeps the reply."""


class Feature:
    """Names in the property ``features``."""

    SESSION: Final = "session"
    """The instance accepts sessions on its own topic."""


def utf8_size(text: str) -> int:
    """Return the bytes of ``text`` as UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def check_property(value: object, what: str) -> None:
    """Check that ``value`` may travel as a message property; None is no property at all.

    Raises:
        TypeError: no text, or larger than :data:`MAX_PROPERTY_BYTES`.
        UnicodeError: it cannot be written as UTF-8.
    """
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, not {type(value).__name__}")
    size = len(value.encode())
    if size > MAX_PROPERTY_BYTES:
        raise TypeError(f"{what} has {size:,} bytes, the limit is {MAX_PROPERTY_BYTES:,}: give a shorter one")


def is_oversized(value: str) -> bool:
    """Return whether a property value is larger than :data:`MAX_PROPERTY_BYTES`."""
    return len(value) > MAX_PROPERTY_BYTES // 4 and utf8_size(value) > MAX_PROPERTY_BYTES  # 4 bytes a character at most


def whole_number(properties: Mapping[str, str], name: str) -> int | None:
    """Return the property ``name`` as a whole number ≥ 0; None if it is missing or malformed, so that an unexpected property
    of a peer costs no message."""
    value = properties.get(name)
    if not isinstance(value, str) or len(value) > 18 or not value.isascii() or not value.isdigit():
        return None
    return int(value)
