"""The payloads on the wire: request, response and error; encode and decode.

TrustGraph's two dialects are spoken in both directions. A request is ``{"user", "config", "arguments"}``, where
``config`` and ``arguments`` are JSON texts inside the JSON (the specification; the published package 2.11.1 sends no
``user``). A response is ``{"error": null | {"type", "message"}, "response": str, "end_of_stream": bool}``. Unknown
fields are ignored, missing ones take TrustGraph's own defaults (``""``, ``null``, ``false``).

Everything of dispatch beyond that travels as message properties (:mod:`dispatch.messaging.wire.properties`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatch.errors import ErrorType, ToolError

PROPERTIES_BYTES: Final = 20 * 1024
"""Bytes of the broker's message limit that are reserved for properties."""

MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024 - PROPERTIES_BYTES
"""Largest payload in bytes for a broker that reports no limit. A Pulsar broker's default limit
(``maxMessageSize``) is 5 MiB over payload *and* metadata."""


MAX_CONFIG_OF_BYTES: Final = 64 * 1024
"""Largest request whose config values are read before it is decoded: larger ones would be read twice, for milliseconds."""


class MalformedMessageError(ValueError):
    """A payload or a property that cannot be decoded. ``str()`` gives the reason, without user data."""


class PayloadTooLargeError(ValueError):
    """A payload above the broker's limit. ``size`` and ``limit`` are in bytes."""

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
    # Some third-party agents send objects instead of JSON texts; both are accepted.
    user: str | None = None
    config: str | dict[str, Any] | None = None
    arguments: str | dict[str, Any] | None = None
    response: str | None = None
    end_of_stream: bool | None = None


class _WireConfig(msgspec.Struct):
    config: msgspec.Raw = msgspec.Raw()


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
_config_decoder = msgspec.json.Decoder(_WireConfig)
_reply_decoder = msgspec.json.Decoder(_WireReply)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def json_text(value: Mapping[str, Any], what: str) -> str:
    """Encode ``value`` as a JSON text, the form config and arguments have inside a request.

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
    """Encode a request payload; ``config`` and ``arguments`` are JSON texts (see :func:`json_text`).

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
    """Decode the request in ``payload``.

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


def config_of(payload: bytes) -> str:
    """Return the config values of the request in ``payload`` as they are written; ``""`` for an unreadable or large request.
    On the plain exchange they tell the tools of a service apart: the values are fixed by the tool's descriptor."""
    if len(payload) > MAX_CONFIG_OF_BYTES:
        return ""
    try:
        return bytes(_config_decoder.decode(payload).config).decode(errors="replace")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


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
    """Encode a response payload.

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes.
        ValueError: the text cannot be written as UTF-8 (a lone surrogate).
    """
    payload = _encode(_OutReply(reply.error, reply.response, reply.end_of_stream))
    if len(payload) > limit:
        raise PayloadTooLargeError(len(payload), limit)
    return payload


def decode_reply(payload: bytes) -> Reply:
    """Decode the response in ``payload``.

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
    """Encode the result of a tool as the text of a response: a string unchanged, any other value as JSON.

    Raises:
        ToolError: ``invalid-result``: it has a number that JSON does not have.
        TypeError: the result cannot be written as JSON.
    """
    if isinstance(result, str):
        return result
    try:
        # json.dumps as TrustGraph does, so that both sides give the same text; but unicode stays readable to a model.
        text = json.dumps(result, ensure_ascii=False)
        if "NaN" in text or "Infinity" in text:  # of numbers, or in a text
            try:
                json.dumps(result, allow_nan=False)
            except ValueError:
                problem = "has NaN or an infinite number, which JSON does not have"
                raise ToolError(ErrorType.INVALID_RESULT, describe_invalid_result(problem)) from None
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the tool returned a {type(result).__name__}, which cannot be written as JSON: {error}"
        ) from None


def check_result_text(text: str) -> None:
    """Check that the text of a result can be sent as UTF-8.

    Raises:
        ToolError: ``invalid-result``: it has half of a surrogate pair.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            problem = f"is not valid text ({error})"
            raise ToolError(ErrorType.INVALID_RESULT, describe_invalid_result(problem)) from None


def describe_invalid_result(problem: str) -> str:
    """Return the message of an ``invalid-result`` error; ``problem``: the predicate of a sentence about the result."""
    return f"The tool was executed, but its result {problem}. Report the failure, or use another tool."
