"""The wire format: payloads, message properties, topic names, fragments."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import PurePath
from typing import Any, Final, Literal, NamedTuple, NoReturn

import msgspec

from dispatch._internal import describe_type, excerpt, find_near_names
from dispatch.errors import ErrorType, ToolError

# Which dispatcher a message comes from: a secret that it shows to services, and a public key derived from the secret.
#
# The key is part of each request's id and of the dispatcher's reply topics, which other agents may see in the response
# namespace. The secret (property ``session``) is sent to the request namespace alone, which only services consume. A
# service checks ``derive_key(secret) == key`` before it answers on a dispatcher's reply topic or changes anything that it
# remembers of the dispatcher, so that another agent can neither redirect, repeat, settle nor cancel a request. The check
# needs no state.


SECRET_BYTES: Final = 16
KEY_CHARS: Final = 24
"""96 bits: a second secret with the same key cannot be found by trying."""
MAX_SECRET_CHARS: Final = 64
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_CACHED: Final = 8_192
"""Keys kept: twice the dispatchers that a service remembers."""


@lru_cache(maxsize=_CACHED)
def derive_key(secret: str) -> str:
    """Return the public key, :data:`KEY_CHARS` hexadecimal digits, of a dispatcher's ``secret``."""
    return blake2b(secret.encode("utf-8", "surrogatepass"), digest_size=KEY_CHARS // 2).hexdigest()


def is_sender(secret: str | None, id: str) -> bool:
    """Return whether ``secret`` is that of the dispatcher which made the request ``id``."""
    if secret is None or len(secret) > MAX_SECRET_CHARS:
        return False
    return id[KEY_CHARS : KEY_CHARS + 1] == "." and id[:KEY_CHARS] == derive_key(secret)


def is_dispatchers(id: str) -> bool:
    """Return whether ``id`` has the form of the ids that dispatchers give to their requests."""
    return id[KEY_CHARS : KEY_CHARS + 1] == "." and _HEXADECIMAL.issuperset(id[:KEY_CHARS])


class Identity:
    """The secret and the key of one dispatcher.

    Args:
        secret: random text, new in each dispatcher.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.key = derive_key(secret)
        self.prefix = f"{self.key}."
        """Prefix of the ids of all requests."""


# The payloads on the wire: request, response and error; encode and decode.
#
# TrustGraph's two dialects are spoken in both directions. A request is ``{"user", "config", "arguments"}``, where
# ``config`` and ``arguments`` are JSON texts inside the JSON (the specification; the published package 2.11.1 sends no
# ``user``). A response is ``{"error": null | {"type", "message"}, "response": str, "end_of_stream": bool}``. Unknown fields
# are ignored, missing ones take TrustGraph's own defaults (``""``, ``null``, ``false``).
#
# Everything of dispatch beyond that travels as message properties (:mod:`dispatch.messaging.wire`).


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
    """A decoded request: config values and arguments as objects, and the user (``""`` in the 2.11.1 dialect).

    ``is_finite``: False if the arguments have NaN or infinity, which TrustGraph's ``json.dumps`` writes.
    """

    config: dict[str, Any]
    arguments: dict[str, Any]
    user: str = ""
    is_finite: bool = True


class Reply(msgspec.Struct, frozen=True):
    """A response, or one chunk of a stream, as it is encoded."""

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


_encode = msgspec.json.Encoder().encode
_request_decoder = msgspec.json.Decoder(_WireRequest)
_config_decoder = msgspec.json.Decoder(_WireConfig)
_reply_decoder = msgspec.json.Decoder(_WireReply)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


HALF_PAIR: Final = "half of a surrogate pair in a text; write both halves, or the character"


def _describe(error: Exception, content: bytes | str = b"") -> str:
    """Return why a value cannot be written, or ``content`` not be read, as JSON in UTF-8. Of half of a surrogate pair
    msgspec says that the input was truncated."""
    if isinstance(error, msgspec.DecodeError):
        try:
            json.dumps(json.loads(content), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return HALF_PAIR
        except (ValueError, RecursionError):
            pass
    return HALF_PAIR if isinstance(error, UnicodeEncodeError) else str(error)


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
            json.dumps(as_builtins(value), allow_nan=False)  # msgspec would say null for NaN and infinities
        if text.count("{") > 1 and (problem := find_equal_keys(value)) is not None:
            raise TypeError(problem)
        return text
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(f"{what} cannot be written as JSON: {_describe(error)}") from None


_TEXT: Final = frozenset({str})
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def find_equal_keys(value: object, path: str = "") -> str | None:
    """Return which keys of an object in ``value`` are one key in JSON, such as 1 and '1': only the value of the last one
    would arrive. None: there are none. ``value`` can be written as JSON, so it does not hold itself."""
    if type(value) is dict or isinstance(value, Mapping):
        if not _TEXT.issuperset(map(type, value)) and len(set(map(_write_key, value))) < len(value):
            first: dict[str, object] = {}
            for key in value:
                if (other := first.setdefault(_write_key(key), key)) is not key:
                    where = path or "the whole object"
                    return f"the keys {other!r} and {key!r} of {where} are one key in JSON; keep one of them"
        if _SCALARS.issuperset(map(type, value.values())):  # perf: most objects, at the speed of C
            return None
        items: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, list | tuple):
        if _SCALARS.issuperset(map(type, value)):
            return None
        items = enumerate(value)
    elif value is None or isinstance(value, (str, int, float, bytes, bytearray, memoryview)):
        return None
    else:  # a dataclass, a date
        return find_equal_keys(msgspec.to_builtins(value, enc_hook=encode_custom), path)
    for key, item in items:
        if type(item) not in _SCALARS and (problem := find_equal_keys(item, f"{path}/{key}")) is not None:
            return problem
    return None


def _write_key(key: object) -> str:
    """Return ``key`` as the text that it is in JSON."""
    if type(key) is str:
        return key
    # msgspec writes dates, for example; json None and booleans.
    encoded = json.dumps({key: 0}) if key is None or type(key) is bool else _encode({key: 0})
    return next(iter(_object_decoder.decode(encoded)))


def encode_request(config: str, arguments: str, user: str = "", *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """Encode a request payload; ``config`` and ``arguments`` are JSON texts (see :func:`json_text`).

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes.
        TypeError: ``user`` is no text.
    """
    if not isinstance(user, str):
        raise TypeError(f"user must be a text, not {type(user).__name__}")
    try:
        payload = _encode(_OutRequest(user, config, arguments))
    except UnicodeEncodeError:
        raise TypeError(f"user has {HALF_PAIR}") from None
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
        raise MalformedMessageError(f"the request is not readable: {_describe(error, payload)}") from None
    if wire.config is None and wire.arguments is None and (wire.response, wire.end_of_stream) != (None, None):
        raise MalformedMessageError("the message is a reply, not a request")
    config, _ = _object(wire.config, "config")
    arguments, is_finite = _object(wire.arguments, "arguments")
    return Request(config, arguments, wire.user or "", is_finite)


def config_of(payload: bytes) -> str:
    """Return the config values of the request in ``payload`` as they are written; ``""`` for an unreadable or large request.
    On the plain exchange they tell the tools of a service apart: the values are fixed by the tool's descriptor."""
    if len(payload) > MAX_CONFIG_OF_BYTES:
        return ""
    try:
        return bytes(_config_decoder.decode(payload).config).decode(errors="replace")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def _object(value: str | dict[str, Any] | None, what: str) -> tuple[dict[str, Any], bool]:
    """Return the object, and whether all its numbers are finite."""
    if not value:
        return {}, True
    if isinstance(value, dict):
        return value, True
    try:
        return _object_decoder.decode(value), True
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        if "NaN" in value or "Infinity" in value:  # not JSON, but what TrustGraph's json.dumps writes and reads
            with contextlib.suppress(ValueError, RecursionError):
                lenient = json.loads(value)
                if isinstance(lenient, dict):
                    return lenient, False
        raise MalformedMessageError(f"'{what}' of the request is no JSON object: {_describe(error, value)}") from None


def encode_reply(reply: Reply, *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    """Encode a response payload.

    Raises:
        PayloadTooLargeError: more than ``limit`` bytes.
        ValueError: the text cannot be written as UTF-8 (a lone surrogate).
    """
    return _limit(_encode(reply), limit)


def _limit(payload: bytes, limit: int) -> bytes:
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


class InvalidResultError(ToolError):
    """A tool has returned what cannot be sent.

    Args:
        problem: the predicate of a sentence about the result.
        result: of the tool.
        tool: its name; empty: it has none in its service.
    """

    def __init__(self, problem: str, result: object, tool: str = "") -> None:
        message = f"The tool was executed, but its result {problem}. Report the failure, or use another tool."
        super().__init__(ErrorType.INVALID_RESULT, message)
        self.result = result
        self.tool = tool

    def name_types(self) -> str:
        """Return the type of the result, and the type within it that JSON cannot express, if there is one."""
        unknown = ""

        def encode(value: object) -> Any:
            nonlocal unknown
            try:
                return encode_custom(value)
            except BaseException:  # of the code of its class, too
                unknown = "" if value is self.result else f" with {describe_type(value)} in it"
                raise

        with contextlib.suppress(BaseException):
            msgspec.to_builtins(self.result, str_keys=True, enc_hook=encode)
        return f"{describe_type(self.result)}{unknown}"


def write_result(result: Any, tool: str = "") -> str:
    """Return the result of a tool as the text of a response: a string unchanged, any other value as JSON.

    Dataclasses, models of pydantic, dates, enumerations, decimals, UUIDs and bytes (base64) are written as msgspec does, and
    paths as texts.

    Raises:
        InvalidResultError: JSON cannot express it, or it has half of a surrogate pair, a number that JSON does not have, or
            two keys that are one in JSON.
    """
    is_text = isinstance(result, str)
    try:
        text = _text_of(result) if is_text else _write_value(result)
    except _NotFiniteError:
        raise InvalidResultError("has NaN or an infinite number, which JSON does not have", result, tool) from None
    except (TypeError, ValueError, RecursionError) as error:
        problem = (
            f"cannot be written as JSON ({_describe(error)}): its code has to return a text, a number, a list, a dict, or a "
            "dataclass of such values"
        )
        raise InvalidResultError(problem, result, tool) from None
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidResultError(f"has {HALF_PAIR}", result, tool) from None
    if is_text or "{" not in text or _is_plain(result, text):
        return text
    try:
        found = find_equal_keys(result)
    except RecursionError:
        found = "it is nested too deeply"
    if found is not None:
        raise InvalidResultError(f"cannot be written as JSON ({found})", result, tool)
    return text


class _NotFiniteError(ValueError):
    """A value has NaN or an infinite number."""


def _text_of(result: str) -> str:
    """Return a text of type ``str``: an enumeration's member is formatted as 'Color.RED'."""
    return result if type(result) in (str, JsonText) else str.__str__(result)


def _write_value(result: Any) -> str:
    """Encode a value as JSON as json.dumps does in TrustGraph, so that both sides give the same text; but unicode stays
    readable to a model."""
    try:
        text = _encode_result(result)
    except TypeError:  # keys that are no texts
        result = as_builtins(result)
        text = _encode_result(result)
    if "NaN" in text or "Infinity" in text:  # of numbers, or in a text
        try:
            json.dumps(result, allow_nan=False, default=as_builtins)
        except ValueError:
            raise _NotFiniteError from None
    return text


def _is_plain(result: object, text: str) -> bool:
    """Return whether ``result`` is equal to its JSON ``text`` when that is read, so that all its keys are texts. perf: this
    takes a fifth of the time of a search for equal keys, and most results are plain."""
    try:
        return bool(msgspec.json.decode(text) == result)
    except Exception:  # of a comparison in user code; of a number too large or a nesting too deep to be read
        return False


def as_builtins(value: Any) -> Any:
    """Return a dataclass, a date, a set or another object that the standard library cannot write as JSON values."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=encode_custom)


def _as_json_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not is_pydantic(type(value)):
        # msgspec leaves out fields whose values are the defaults of the class, as in dataclasses that it has decoded.
        names = (field.name for field in dataclasses.fields(value))
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    return as_builtins(value)


_encode_result = json.JSONEncoder(ensure_ascii=False, default=_as_json_value).encode


def encode_custom(value: Any) -> Any:
    """Return a model of pydantic as JSON values, and a path as its text: msgspec's ``enc_hook``.

    Raises:
        TypeError: any other value.
    """
    if isinstance(value, PurePath):
        return str(value)
    if is_pydantic(type(value)):
        model: Any = type(value)
        return pydantic_adapter(model).dump_python(value, mode="json")
    raise TypeError(f"JSON cannot express {describe_type(value)}")


def is_pydantic(annotation: Any) -> bool:
    """Return whether ``annotation`` is a class of pydantic."""
    # A class of pydantic implies that the program has imported pydantic, which dispatch does not need.
    return "pydantic" in sys.modules and isinstance(annotation, type) and hasattr(annotation, "__pydantic_validator__")


@lru_cache(256)
def pydantic_adapter(model: Any) -> Any:
    """Return pydantic's adapter of a class of pydantic."""
    return sys.modules["pydantic"].TypeAdapter(model)


# The dialects of third-party requests and replies: that of tool services above, and that of TrustGraph's ``mcp-tool``.


class JsonText(str):
    """A result that is a JSON value, as text."""

    __slots__ = ()


class Dialect(NamedTuple):
    """How requests and replies are written.

    Attributes:
        decode_request: see :func:`decode_request`. The config values of :data:`MCP_TOOL` are the name of the tool.
        encode_reply: see :func:`encode_reply`.
    """

    decode_request: Callable[[bytes], Request]
    encode_reply: Callable[..., bytes]


class _McpToolRequest(msgspec.Struct):
    name: str = ""
    parameters: str | dict[str, Any] | None = None


class _McpToolReply(msgspec.Struct):
    error: ErrorInfo | None
    text: str | None
    object: str | None


_mcp_tool_decoder = msgspec.json.Decoder(_McpToolRequest)


def _decode_mcp_tool(payload: bytes) -> Request:
    try:
        wire = _mcp_tool_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessageError(f"the request is not readable: {error}") from None
    arguments, is_finite = _object(wire.parameters, "parameters")
    return Request({"name": wire.name}, arguments, "", is_finite)


def _encode_mcp_tool(reply: Reply, *, limit: int = MAX_MESSAGE_BYTES) -> bytes:
    text = reply.response
    if reply.error is not None:
        payload = _encode(_McpToolReply(reply.error, None, None))
    elif isinstance(text, JsonText) or not text:  # TrustGraph's client reads an empty text as missing
        payload = _encode(_McpToolReply(None, None, str(text) or '""'))
    else:
        payload = _encode(_McpToolReply(None, text, None))
    return _limit(payload, limit)


TOOL_SERVICE: Final = Dialect(decode_request, encode_reply)
MCP_TOOL: Final = Dialect(_decode_mcp_tool, _encode_mcp_tool)


# The message properties: their names, their values and the limits of both. All but ``id`` are optional to a peer.


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
    SECRET: Final = "session"
    """The secret of the dispatcher that sends this (:mod:`dispatch.messaging.wire`), on everything it sends to
    services. A message with another dispatcher's ``id`` is ignored; one with its ``reply-to`` is not answered there."""
    REMAINING_MS: Final = "remaining-ms"
    """Milliseconds until the caller's deadline, counted from the arrival of the message."""
    ATTEMPT: Final = "attempt"
    """Number of the attempt within its call, from 1; omitted for the first."""
    IDEMPOTENCY_KEY: Final = "idempotency-key"
    """The caller's idempotency key."""
    LARGEST: Final = "largest"
    """The sender accepts a reply in fragments (``more``), up to so many bytes in all."""
    USER: Final = "user"
    """On whose behalf the tool is called, where the payload has no user: read by relays."""
    VIA: Final = "via"
    """The public request topics that the request has passed, each through a relay, separated by blanks."""
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
    INVALID_ARGUMENTS: Final = "invalid-arguments"
    """The function that is the tool does not accept the arguments."""
    UNKNOWN_TOOL: Final = "unknown-tool"
    """The service has no function of the name in the request's config values."""
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
        TypeError: no text, none in UTF-8, or larger than :data:`MAX_PROPERTY_BYTES`.
    """
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, not {type(value).__name__}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise TypeError(f"{what} has {HALF_PAIR}") from None
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


# Names of Pulsar topics: parse, check, expand TrustGraph's short form.


EXAMPLE: Final = "non-persistent://tg/request/joke"

MAX_TOPIC_CHARS: Final = 1_000
"""A broker uses topic names in file and metadata paths, whose lengths are limited."""

_SCHEMES: Final = {"persistent": True, "non-persistent": False}
# TrustGraph's classes of queue: flows are persistent, requests, responses and notifications are not.
_CLASSES: Final = {"flow": True, "request": False, "response": False, "notify": False}
# The characters that a broker allows in tenant and namespace.
_ENTITY: Final = re.compile(r"[-=:.\w]+", re.ASCII)


class TopicError(ValueError):
    """An invalid topic name: ``problem`` says why, ``fix`` what to write."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem}. Fix: {fix}.")
        self.problem = problem
        self.fix = fix

    def __reduce__(self) -> tuple[type[TopicError], tuple[str, str]]:
        return type(self), (self.problem, self.fix)


class TopicName(msgspec.Struct, frozen=True):
    """A parsed topic name; ``str()`` returns the full name.

    Attributes:
        persistent: the broker retains messages until they are acknowledged; otherwise it delivers them to the
            connected consumers and drops them.
        tenant: such as ``tg``.
        namespace: such as ``request``; with its tenant it is the :attr:`namespace_path`.
        name: such as ``joke``.
    """

    persistent: bool
    tenant: str
    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str, *, example: str = EXAMPLE) -> TopicName:
        """Parse ``text``: ``persistent://tenant/namespace/name``, ``non-persistent://…``, or
        TrustGraph's short form ``class:topicspace:topic`` (``request:tg:joke`` is
        ``non-persistent://tg/request/joke``; only the class ``flow`` is persistent).

        Raises:
            TopicError: it names none; ``example`` is what the error's fix shows.
        """
        whole = f"write a whole name, for example {example!r}"
        if not text:
            raise TopicError("the topic name is empty", whole)
        if len(text) > MAX_TOPIC_CHARS:
            raise TopicError(f"the topic name has {len(text):,} characters, the limit is {MAX_TOPIC_CHARS:,}", whole)
        if not text.isprintable() or any(c.isspace() for c in text):
            raise TopicError(f"'{excerpt(text)}' has a blank or a control character in it", "take it out")
        if "://" not in text:
            return cls._short(text, whole)
        scheme, path = text.split("://", 1)
        if scheme not in _SCHEMES:
            _wrong("scheme", scheme, tuple(_SCHEMES), whole)
        parts = path.split("/")
        if len(parts) == 4:
            raise TopicError(
                f"'{excerpt(text)}' has four parts: the old form with a cluster, or a '/' in the topic's own name",
                "leave the cluster out, and write another character for '/'",
            )
        if len(parts) != 3 or not all(parts):
            raise TopicError(
                f"'{excerpt(text)}' is not of the form {scheme}://tenant/namespace/name",
                f"write all three parts, for example {example!r}",
            )
        return cls._checked(_SCHEMES[scheme], *parts, whole=whole)

    @classmethod
    def _short(cls, text: str, whole: str) -> TopicName:
        parts = text.split(":", 2)
        if len(parts) != 3 or not all(parts):
            raise TopicError(f"'{excerpt(text)}' is no whole topic name", whole)
        queue_class, topicspace, topic = parts
        if queue_class not in _CLASSES:
            _wrong("queue class", queue_class, tuple(_CLASSES), whole)
        return cls._checked(_CLASSES[queue_class], topicspace, queue_class, topic, whole=whole)

    @classmethod
    def _checked(cls, persistent: bool, tenant: str, namespace: str, name: str, *, whole: str) -> TopicName:
        for what, part in (("tenant", tenant), ("namespace", namespace)):
            if not _ENTITY.fullmatch(part):
                raise TopicError(
                    f"the {what} '{excerpt(part)}' has a character that Pulsar does not allow there",
                    "use letters, digits and - = : . _ only",
                )
        if "/" in name:
            raise TopicError(f"the topic's own name '{excerpt(name)}' has a '/' in it", whole)
        return cls(persistent, tenant, namespace, name)

    @property
    def namespace_path(self) -> str:
        """Tenant and namespace, as in Pulsar's tools: ``tg/response``."""
        return f"{self.tenant}/{self.namespace}"

    def sibling(self, name: str) -> TopicName:
        """Return another topic in the same namespace, persistent if this one is.

        Raises:
            TopicError: ``name`` is no topic's own name.
        """
        return type(self).parse(str(msgspec.structs.replace(self, name=name)))

    def __str__(self) -> str:
        scheme = "persistent" if self.persistent else "non-persistent"
        return f"{scheme}://{self.namespace_path}/{self.name}"


def _wrong(what: str, given: str, allowed: tuple[str, ...], whole: str) -> NoReturn:
    meant = find_near_names(given, allowed, 1)
    fix = f"write {meant[0]!r}" if meant else f"{whole}; the {what} is one of {', '.join(allowed)}"
    raise TopicError(f"'{excerpt(given)}' is no {what} of a topic", fix)


# Names of the topics that dispatchers and instances use beside a service's own.
#
# They follow TrustGraph's permissions: agents produce to the request namespace and consume from the response namespace,
# services the reverse. Topics from dispatchers to instances are therefore in the namespace of the service's request topic,
# topics from instances to dispatchers in the namespace of its response topic.


_REPLY = "dispatch-reply-"
_INSTANCE = "dispatch-instance-"


REQUEST_NAMESPACE, RESPONSE_NAMESPACE = "tg/request", "tg/response"
"""TrustGraph's namespaces."""


def service_queues(service: str) -> tuple[str, str]:
    """Return the request topic and the response topic of a service of this name, as in TrustGraph."""
    return f"non-persistent://{REQUEST_NAMESPACE}/{service}", f"non-persistent://{RESPONSE_NAMESPACE}/{service}"


def reply_topic(response_queue: str, dispatcher: str, connection: int = 0) -> str:
    """Return the topic on which a dispatcher receives its own replies.

    Args:
        dispatcher: the key of its session, a hyphen and its name.
        connection: number of the reply connection, 0 for the first.
    """
    return str(TopicName.parse(response_queue).sibling(f"{_REPLY}{dispatcher}{f'-{connection}' if connection else ''}"))


def is_inbox(topic: str) -> bool:
    """Return whether ``topic`` belongs to one process, a dispatcher or an instance, and is of no use after its end."""
    return topic.rpartition("/")[2].startswith((_REPLY, _INSTANCE))


def is_reply_inbox(topic: str) -> bool:
    """Return whether ``topic`` is the inbox of a dispatcher."""
    return topic.rpartition("/")[2].startswith(_REPLY)


def reply_key(topic: TopicName) -> str | None:
    """Return the dispatcher's key in the name of a reply topic; None: it is no reply topic."""
    if not topic.name.startswith(_REPLY):
        return None
    key, _, _ = topic.name.removeprefix(_REPLY).partition("-")
    return key if len(key) == KEY_CHARS else None


def instance_prefix(request_queue: str) -> str:
    """Return the beginning of the names of all instances' own topics in the namespace of ``request_queue``."""
    return str(TopicName.parse(request_queue).sibling(_INSTANCE))


def instance_topic(request_queue: str, instance: str) -> str:
    """Return the topic of one instance: for requests, challenges and acknowledgements that are meant for it alone."""
    name = TopicName.parse(request_queue).name
    # With the length of its first part a name is unambiguous: instance `web-1` of `search` is not `1` of `search-web`.
    return f"{instance_prefix(request_queue)}{len(name)}-{name}-{instance}"


def hello_topic(request_queue: str) -> str:
    """Return the topic on which the instances that serve ``request_queue`` receive hellos of dispatchers. It is never
    persistent: an old hello needs no answer."""
    topic = TopicName.parse(request_queue)
    return str(TopicName(False, topic.tenant, topic.namespace, f"dispatch-hello-{topic.name}"))


def announcement_topic(request_queue: str, response_queue: str) -> str:
    """Return the topic on which the instances that serve ``request_queue`` announce that they start and stop."""
    name = TopicName.parse(request_queue).name
    return str(TopicName.parse(response_queue).sibling(f"dispatch-announce-{name}"))


# Fragments of large plain replies: chunks of a stream that are marked as the text of one. Sessions have their own.


PART_BYTES = 256 * 1024
"""Bytes of a fragment: so large that the cost of a message is small, so small that other messages pass in between."""
MAX_PARTS = 1_000
"""Fragments of one payload; larger payloads have larger fragments. Fewer than a receiver keeps behind a missing one."""
MAX_PAYLOAD_BYTES = 64 * 1024 * 1024
"""Default limit in bytes of a request or a reply of a service."""
_LARGEST_CHAR = 4
"""Bytes of a character in UTF-8, at most."""


def split_text(text: str, size: int, limit: int) -> Iterator[tuple[str, bool]]:
    """Yield the fragments of ``text``, each with whether another one follows.

    Args:
        size: of the text, in bytes.
        limit: bytes of a message. Parts are much smaller, because JSON can make six of one.

    Parts of a text that is not ASCII can be up to three bytes shorter, so that there can be one more than
    :data:`MAX_PARTS`.
    """
    length = min(max(PART_BYTES, -(-size // MAX_PARTS)), limit // 8)
    if text.isascii():
        length = max(1, length)
        for start in range(0, len(text), length):
            yield text[start : start + length], start + length < len(text)
        return
    length = max(_LARGEST_CHAR, length)
    data = text.encode()
    end = 0
    while end < len(data):
        start, end = end, min(end + length, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # a part ends before a character that would not fit
            end -= 1
        yield data[start:end].decode(), end < len(data)


# Names of request topics whose tools this process executes itself. They are never opened at a broker.
#
# The namespace is the type of the tools, as OpenTelemetry names it in ``gen_ai.tool.type``.


ToolType = Literal["function", "extension"]
"""``function``: a function of this process; ``extension``: an interface to another system, such as an MCP server."""

_LOCAL: Final = "non-persistent://dispatch-local/"


def local_queue(id: str, tool_type: ToolType) -> str:
    """Return the request topic of the local tool service ``id``."""
    return f"{_LOCAL}{tool_type}/{id}"


def local_reply_queue(id: str, tool_type: ToolType) -> str:
    """Return the response topic of the local tool service ``id``, which its descriptor must have."""
    return f"{_LOCAL}{tool_type}/{id}-reply"


def is_local_queue(request_queue: str) -> bool:
    """Return whether the tools of a service with that request topic are executed in this process."""
    return request_queue.startswith(_LOCAL)


def tool_type_of(request_queue: str) -> str:
    """Return the type of the tools of a service: an ``extension``, unless they are functions of this process."""
    return "function" if request_queue.startswith(f"{_LOCAL}function/") else "extension"
