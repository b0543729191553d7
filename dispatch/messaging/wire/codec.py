"""The wire: request, response, error and properties; encode and decode.

TrustGraph's two dialects are spoken in both directions. A request is ``{"user", "config", "arguments"}``, where
``config`` and ``arguments`` are JSON texts inside the JSON (the specification; the published package 2.11.1 sends no
``user``). A response is ``{"error": null | {"type", "message"}, "response": str, "end_of_stream": bool}``. Unknown
fields are ignored, missing ones take TrustGraph's own defaults (``""``, ``null``, ``false``).

Everything of ours beyond that travels as message properties, all of them optional to a peer.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

PROPERTIES_BYTES: Final = 20 * 1024
"""What is kept for the properties of what a broker takes as one message."""

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024 - PROPERTIES_BYTES
"""Largest payload we publish to a broker that says nothing else, in bytes. A Pulsar broker's default limit
(``maxMessageSize``) is 5 MiB over payload *and* metadata."""

MAX_PROPERTY_BYTES: Final = 8 * 1024
"""Largest property value that is sent or read, in bytes of UTF-8, as a broker counts; a larger one counts as malformed."""


PLAIN_FROM: Final = 4_096
"""Characters from which a text is worth more than the JSON around it: to write and read that takes longer than all else that
is done with a text of 100 kB, and one that is JSON itself would be escaped for it."""
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
    FORMER: Final = "former"
    """It was meant for a former life of this instance, which may have run it."""
    FORGOTTEN: Final = "forgotten"
    """It was here, and ran perhaps, but its answer is no longer kept."""


class Feature:
    """Names in the property ``features``."""

    REPAIR: Final = "repair"
    """The instance takes requests on its own topic and remembers them: asking twice never runs a tool twice."""
    PARTS: Final = "parts"
    """It takes requests in parts there."""
    CANCEL: Final = "cancel"
    """It stops what nobody waits for any more."""


class MalformedMessageError(ValueError):
    """A payload or a property that cannot be read. ``str()`` says what is wrong, without quoting user data."""


class PayloadTooLargeError(ValueError):
    """A payload beyond what the broker takes. ``size`` and ``limit`` are in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"{size:,} bytes, the limit is {limit:,}")
        self.size = size
        self.limit = limit


class ErrorInfo(msgspec.Struct, frozen=True):
    """The error of a response: ``type`` is a name to act on, ``message`` a text to read."""

    type: str = ""
    message: str = ""


class Request(msgspec.Struct, frozen=True):
    """A decoded request: config values and arguments as objects, and the user (``""`` in the 2.11.1 dialect)."""

    config: dict[str, Any]
    arguments: dict[str, Any]
    user: str = ""


class Reply(msgspec.Struct, frozen=True):
    """A decoded response, or one chunk of a stream."""

    error: ErrorInfo | None = None
    response: str = ""
    end_of_stream: bool = False


class _WireRequest(msgspec.Struct):
    # A few hand-written agents send the objects themselves instead of JSON texts; both are understood.
    user: str | None = None
    config: str | dict[str, Any] | None = None
    arguments: str | dict[str, Any] | None = None
    response: str | None = None
    end_of_stream: bool | None = None


class _WireReply(msgspec.Struct):
    error: ErrorInfo | str | None = None
    response: str | None = None
    end_of_stream: bool | None = None


class _OutRequest(msgspec.Struct):
    user: str
    config: str
    arguments: str


class _OutReply(msgspec.Struct):
    error: ErrorInfo | None
    response: str
    end_of_stream: bool


_encode = msgspec.json.Encoder().encode
_request_decoder = msgspec.json.Decoder(_WireRequest)
_reply_decoder = msgspec.json.Decoder(_WireReply)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def json_text(value: Mapping[str, Any], what: str) -> str:
    """``value`` as a JSON text, the form config and arguments have inside a request.

    Raises:
        TypeError: ``value`` is no mapping, or holds something that JSON cannot say. The message names ``what``.
    """
    if type(value) is not dict and not isinstance(value, Mapping):
        raise TypeError(
            f"{what} must be an object of named values, for instance {{'topic': 'cats'}}, not {type(value).__name__}"
        )
    try:
        # A key of another type would silently become a text; JSON objects have text keys.
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"the key {key!r} is {type(key).__name__}, not a text")
        text = _encode(value if type(value) is dict else dict(value)).decode()
        if "null" in text:
            json.dumps(value, allow_nan=False, default=str)  # msgspec would say null for NaN and infinities
        return text
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{what} cannot be written as JSON: {error}") from None


def encode_request(config: str, arguments: str, user: str = "", *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """A request payload; ``config`` and ``arguments`` are JSON texts (see :func:`json_text`).

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes.
        TypeError: ``user`` is no text.
    """
    if not isinstance(user, str):
        raise TypeError(f"user must be a text, not {type(user).__name__}")
    payload = _encode(_OutRequest(user, config, arguments))
    if len(payload) > limit:
        raise PayloadTooLargeError(len(payload), limit)
    return payload


def decode_request(payload: bytes) -> Request:
    """The request in ``payload``.

    Raises:
        MalformedMessageError: not UTF-8 JSON, not of the request's shape, or config or arguments are no JSON objects.
    """
    try:
        wire = _request_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessageError(f"the request is not readable: {error}") from None
    if wire.config is None and wire.arguments is None and (wire.response, wire.end_of_stream) != (None, None):
        raise MalformedMessageError("the message is a reply, not a request")
    return Request(_object(wire.config, "config"), _object(wire.arguments, "arguments"), wire.user or "")


def _object(value: str | dict[str, Any] | None, what: str) -> dict[str, Any]:
    if not value:
        return {}
    if isinstance(value, dict):
        return value
    try:
        return _object_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if "NaN" in value or "Infinity" in value:  # not JSON, but what TrustGraph's json.dumps writes and reads
            with contextlib.suppress(ValueError, RecursionError):
                lenient = json.loads(value)
                if isinstance(lenient, dict):
                    return lenient
        raise MalformedMessageError(f"'{what}' of the request is no JSON object: {error}") from None


def encode_reply(reply: Reply, *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """A response payload.

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes.
        ValueError: the text cannot be written as UTF-8 (a lone surrogate).
    """
    payload = _encode(_OutReply(reply.error, reply.response, reply.end_of_stream))
    if len(payload) > limit:
        raise PayloadTooLargeError(len(payload), limit)
    return payload


def encode_plain(text: str, *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """The payload of a reply with the property ``plain``.

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes.
        ValueError: the text cannot be written as UTF-8 (a lone surrogate).
    """
    payload = text.encode()
    if len(payload) > limit:
        raise PayloadTooLargeError(len(payload), limit)
    return payload


def decode_plain(payload: bytes, *, last: bool) -> Reply:
    """The response that such a payload is.

    Raises:
        MalformedMessageError: not UTF-8.
    """
    try:
        return Reply(None, payload.decode(), last)
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"the response is not readable: {error}") from None


def decode_reply(payload: bytes) -> Reply:
    """The response in ``payload``.

    Raises:
        MalformedMessageError: not UTF-8 JSON, or not of the response's shape.
    """
    try:
        wire = _reply_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessageError(f"the response is not readable: {error}") from None
    failure = wire.error
    if isinstance(failure, str):
        failure = ErrorInfo("", failure)
    return Reply(failure, wire.response or "", bool(wire.end_of_stream))


def result_text(result: object) -> str:
    """What a tool returned, as the text of a response: a string as it is, anything else as JSON.

    Raises:
        TypeError: the result cannot be written as JSON.
    """
    if isinstance(result, str):
        return result
    try:
        # json.dumps as TrustGraph does, so that both sides give the same text; but unicode stays readable to a model.
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the tool returned a {type(result).__name__}, which cannot be written as JSON: {error}"
        ) from None


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
    """The property ``name`` as a whole number ≥ 0, or None when it is missing or not one (never an exception:
    a peer's odd property must not cost a message)."""
    value = properties.get(name)
    if not isinstance(value, str) or len(value) > 18 or not value.isascii() or not value.isdigit():
        return None
    return int(value)
