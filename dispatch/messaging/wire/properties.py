"""The message properties: their names, their values and the limits of both. All but ``id`` are optional to a peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MAX_PROPERTY_BYTES: Final = 8 * 1024
"""Largest property value that is sent or read, in bytes of UTF-8, as a broker counts; a larger one counts as malformed."""

PLAIN_LAST: Final = "last"
PLAIN_CHUNK: Final = "chunk"


class Property:
    """Names of the message properties. ``ID`` is TrustGraph's; the rest are ours, and optional to a peer."""

    ID: Final = "id"
    """Correlates a request with each of its responses. Never reused."""

    # On requests.
    REPLY_TO: Final = "reply-to"
    """A whole topic name. A service of ours answers there if its owner allows that namespace."""
    SESSION: Final = "session"
    """The secret of the dispatcher that sends this (:mod:`dispatch.messaging.wire.sessions`), on everything it sends to
    services. A message with another dispatcher's ``id`` or ``reply-to`` is not answered there, nor is one that comes to an
    instance's own topic without the secret."""
    REMAINING_MS: Final = "remaining-ms"
    """Time the caller will still wait, in milliseconds, counted from the moment the message arrives."""
    ATTEMPT: Final = "attempt"
    """Which attempt of its call this request is, from 1; the first leaves it out."""
    IDEMPOTENCY_KEY: Final = "idempotency-key"
    """The caller's own key for "this is the same piece of work"."""

    CREDIT: Final = "credit"
    """Reply bytes that may be on their way to ``reply-to`` unacknowledged. It says that the caller acknowledges."""

    INCARNATION: Final = "incarnation"
    """A random name of one run of an instance. On a request or a challenge to its own topic: the run that is meant. On
    ``here``: the run that announces itself."""
    TRANSMISSION: Final = "transmission"
    """How often the request ``id`` was sent, from 2: a question for an answer that should be here. Without a payload it
    may only be answered, not run. On a reply: which question it answers, when it was sent before."""
    NEXT: Final = "next"
    """With ``transmission``: index of the first chunk that is missing."""
    LARGEST: Final = "largest"
    """The sender takes an answer that is too large for a message in parts (``more``), up to so many bytes in all."""
    PLAIN: Final = "plain"
    """On a request: the sender reads large answers without JSON around them. On a reply: its payload is the text itself, of
    a whole answer or a stream's last chunk (:data:`PLAIN_LAST`), or of another chunk (:data:`PLAIN_CHUNK`)."""
    PARTS: Final = "parts"
    """The request comes in parts, to an instance with the feature ``parts``: their number, a slash, and the bytes in all."""
    REPEATABLE: Final = "repeatable"
    """On a persistent topic: the tool may be repeated, so that another instance may be given the request when the one that
    has it dies."""
    SETTLED: Final = "settled"
    """The sender waits for none of its requests to this instance with a number (the second part of ``id``, hexadecimal)
    below the first of these, except for the others: ``1f3,2a,2c``."""

    CANCEL: Final = "cancel"
    """To an instance's own topic, without a payload: nobody waits for the request ``id`` any more; it may stop."""
    GOODBYE: Final = "goodbye"
    """With ``cancel``: the dispatcher of ``id`` closes. It sends nothing more, and asks for nothing again."""

    # On both.
    PART: Final = "part"
    """On a request: which part of it this is, from 0. On ``taken``: this part has arrived, the request is not complete."""
    ACK: Final = "ack"
    """Asks for an acknowledgement. On a request: say at once that you have it (``taken``). On a reply: send this value
    back (``acked``) to the topic ``control``."""

    # On replies.
    INSTANCE: Final = "instance"
    """Id of the service instance that answered."""
    IN_FLIGHT: Final = "in-flight"
    """How many requests that instance was running when it answered."""
    CHUNK: Final = "chunk"
    """Index of this response in its stream, from 0: a lost or repeated chunk is noticed, not shown."""
    MORE: Final = "more"
    """The text is not whole: the next chunk carries it on."""
    REFUSED: Final = "refused"
    """Why the service did not run the request, or not to its end: one of :class:`Refusal`."""
    RETRY_AFTER_MS: Final = "retry-after-ms"
    """With a refusal: when to come back, in milliseconds."""
    CONTROL: Final = "control"
    """With ``ack``: the instance's own topic, where acknowledgements go."""
    FEATURES: Final = "features"
    """On ``here``: what the instance can do beyond the basic exchange, names with a comma between."""

    # On messages that are neither, without a payload.
    TAKEN: Final = "taken"
    """To ``reply-to``: the request ``id`` has arrived, and is not answered yet."""
    MISSING: Final = "missing"
    """With ``taken``: parts of the request that have not come, as ``0,3-7``."""
    HELLO: Final = "hello"
    """To the hello topic of a request topic, whose name is the value: who serves it?"""
    HERE: Final = "here"
    """To ``reply-to`` or the announcement topic: ``instance`` serves the request topic that is the value; with ``refused``:
    it no longer does. A dispatcher believes it after a challenge."""
    CHALLENGE: Final = "challenge"
    """To an instance's own topic, with ``incarnation``: send ``here`` and this random value to ``reply-to``. So the instance
    proves that it consumes its own topic, which lies in the request namespace. On ``here``: the answer."""
    ACKED: Final = "acked"
    """To ``control``: the replies that asked with these values, separated by commas, have arrived, and so has everything
    before each. Alone, or on a request."""


REPLY_ONLY: Final = frozenset({Property.INSTANCE, Property.REFUSED, Property.TAKEN, Property.HERE})
"""Properties that only what services send has: a message with one of them is no request."""


class Refusal:
    """Values of the property ``refused``: the tool did not run, or was not let finish."""

    OVERLOADED: Final = "overloaded"
    DRAINING: Final = "draining"
    EXPIRED: Final = "expired"
    STOPPED: Final = "stopped"
    """The one that did run: it was cancelled when its caller's time had run out."""
    INVALID_REQUEST: Final = "invalid-request"
    INSTANCE_RESTARTED: Final = "instance-restarted"
    """The request was meant for an earlier incarnation of this instance, which may have executed it."""
    REPLY_EVICTED: Final = "reply-evicted"
    """The instance received the request earlier and may have executed it, but no longer keeps the reply."""


class Feature:
    """Names in the property ``features``."""

    REPAIR: Final = "repair"
    """The instance takes requests on its own topic and remembers them: asking twice never runs a tool twice."""
    PARTS: Final = "parts"
    """It takes requests in parts there."""
    CANCEL: Final = "cancel"
    """It stops what nobody waits for any more."""


def utf8_size(text: str) -> int:
    """Return the bytes of ``text`` as UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


def has_bytes(text: str, least: int) -> bool:
    """Return whether ``text`` has at least ``least`` bytes of UTF-8. Encodes it only if the number of characters does not
    decide."""
    return len(text) >= least or (4 * len(text) >= least and utf8_size(text) >= least)


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
    """The property ``name`` as a whole number ≥ 0, or None when it is missing or not one (never an exception:
    a peer's odd property must not cost a message)."""
    value = properties.get(name)
    if not isinstance(value, str) or len(value) > 18 or not value.isascii() or not value.isdigit():
        return None
    return int(value)
