"""Messages of foreign servers, as the SDK's strict models accept them. No input or output.

An unreadable reply becomes the error of its request, a result in an old or incomplete form is completed, and of a list of
tools only the ones that are not usable are refused. No text of an error has a value of the message.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import anyio
from mcp import MCPError
from mcp.shared.message import SessionMessage
from mcp.types import INTERNAL_ERROR, RequestId
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from mcp_types import (
    CallToolResult,
    DiscoverResult,
    ErrorData,
    InitializeResult,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
    Result,
)
from mcp_types.methods import parse_server_notification, parse_server_request, validate_server_result

from dispatch._internal import excerpt, is_deeper, replace_halves
from dispatch.documents import describe_kind, is_finite

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a message of a server. One that is longer ends the connection: its end cannot be found."""
MAX_SCANNED_BYTES: Final = 1024 * 1024
"""Bytes at the begin of an unreadable message that are searched for its id: 0.1 s of the event loop at most."""
MAX_DEPTH: Final = 190
"""Levels of a message that are read: the parser behind the SDK's HTTP client takes 200, and the SDK writes 255."""
MAX_LIST_DEPTH: Final = 64
"""Levels of a list of tools that are read: more than a schema may have."""
REFUSED_TOOLS: Final = "dispatch/refused-tools"
"""Key of ``_meta`` in a list of tools: name and problem of each tool that was left out."""

INPUT_SCHEMA: Final = "dispatch/input-schema"
"""Key of ``_meta`` in a tool: its input schema, which the SDK's models refuse."""


class TransportFailure(IntEnum):
    """Codes of errors of the transports. An error of a server never has one of them."""

    NOT_SENT = -32981
    """There was no connection: the server did not receive the request."""
    REPLY_LOST = -32982
    """The connection ended before the reply."""
    FORGOTTEN = -32983
    """The server does not know the session, and did not execute the request."""
    UNAUTHORIZED = -32984
    """HTTP status 401: the server did not execute the request."""
    FORBIDDEN = -32985
    """HTTP status 403: the server did not execute the request."""
    THROTTLED = -32986
    """HTTP status 429 or 503: the server did not execute the request; the data are the seconds to wait, or None."""
    HTTP_STATUS = -32987
    """Another HTTP status of an error, without an error of the protocol."""
    MALFORMED = -32988
    """The reply is unreadable."""
    INVALID_RESULT = -32989
    """The result has a number that JSON does not have."""


FAILURES: Final = frozenset(map(int, TransportFailure))


class MessageStream(ABC):
    """The messages of a peer, in the form of the streams that the SDK reads and writes."""

    @abstractmethod
    async def receive(self) -> SessionMessage | Exception:
        """Return the next message.

        Raises:
            anyio.EndOfStream: there are no more.
        """

    @abstractmethod
    async def send(self, item: SessionMessage, /) -> None:
        """Write a message.

        Raises:
            anyio.BrokenResourceError: the peer reads no more.
        """

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:  # noqa: B027 - part of the form
        """Do nothing: the stream belongs to what has opened it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


MAX_ASKED: Final = 64
"""Requests of a server without an answer, beyond which it gets no further ones: each one has a task."""


class AskedRequests:
    """The requests of a server that the SDK has not answered. A server that sends them without an end must not fill the
    memory, nor hold up the calls of its other tools."""

    def __init__(self) -> None:
        self._ids: Counter[str] = Counter()
        self._is_settled = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether there are :data:`MAX_ASKED`."""
        return self._ids.total() >= MAX_ASKED

    async def wait_place(self) -> None:
        """Wait until there are fewer."""
        while self.is_full:
            self._is_settled.clear()
            await self._is_settled.wait()

    def record(self, message: JSONRPCMessage) -> None:
        """Record a message of the server, which may be a request, or withdraw one."""
        if isinstance(message, JSONRPCRequest):
            self._ids[str(message.id)] += 1
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self.settle((message.params or {}).get("requestId"))

    def settle(self, id: object) -> None:
        """Record that a request has its answer, or gets none."""
        if self._ids[str(id)] > 1:
            self._ids[str(id)] -= 1
        else:
            del self._ids[str(id)]
        self._is_settled.set()


class UnreadableMessageError(ValueError):
    """Data of a server are no message, and name no request.

    Attributes:
        is_message: they were meant as one; False: a line of a log, for instance.
        is_request: they were meant as a request or a notification.
        is_cut: their end is missing.
    """

    def __init__(self, problem: str, outline: Outline) -> None:
        super().__init__(problem)
        self.is_message = outline.is_message
        self.is_request = outline.is_request
        self.is_cut = outline.is_cut


def read_messages(data: bytes, *, is_modern: bool) -> list[JSONRPCMessage]:
    """Read a message, or several: a batch, or a line with more than one. A reply that names its request and is unreadable
    becomes an error of that request with the code :attr:`TransportFailure.MALFORMED`.

    Args:
        is_modern: the protocol is 2026-07-28 or later.

    Raises:
        UnreadableMessageError: no request is named.
    """
    if b"{" not in data:  # most lines of a reply over many
        raise UnreadableMessageError("no JSON object", Outline(None, b"jsonrpc" in data, False, False))
    rest = b""
    try:
        text = data.decode("utf-8-sig")
        try:
            value = _decode(text)
        except json.JSONDecodeError:
            values, rest = _find_messages(text)
            if not values:
                raise
        else:
            values = value if isinstance(value, list) else [value]
    except UnicodeDecodeError:
        return [_malformed("not UTF-8", Outline.of(data))]
    except RecursionError:
        return [_malformed("nested too deep", Outline.of(data))]
    except ValueError as error:
        return [_malformed(f"not JSON: {error}", Outline.of(data))]
    if len(values) == 1 and not rest:
        return _read_value(values[0], data, is_modern)
    found: list[JSONRPCMessage] = []
    for each in values:
        with suppress(UnreadableMessageError):
            found += _read_value(each, data, is_modern)
    with suppress(UnreadableMessageError):
        found += read_messages(rest, is_modern=is_modern) if rest else ()
    return found


def _decode(text: str) -> Any:
    """Return the value of a JSON text. Of a list of tools that is nested too deep for it, the deepest parts are null.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError:
        if len(text) > MAX_SCANNED_BYTES:
            raise
        value = json.loads(_flatten(text.encode()))
        if not isinstance(_find_tools(value), list):
            raise
        return value


def _flatten(data: bytes) -> bytes:
    """Return JSON with null in place of what is nested deeper than :data:`MAX_LIST_DEPTH`."""
    parts: list[bytes] = []
    depth = start = 0
    for match in _TOKEN.finditer(data):
        if match[0] in (b"{", b"["):
            depth += 1
            if depth == MAX_LIST_DEPTH + 1:
                parts += (data[start : match.start()], b"null")
        elif match[0] in (b"}", b"]"):
            if depth == MAX_LIST_DEPTH + 1:
                start = match.end()
            depth -= 1
    return b"".join((*parts, data[start:]))


def _find_messages(text: str) -> tuple[list[Any], bytes]:
    """Return the messages in a line with several, or with text around a reply; and the rest of the line from the first one
    that is unreadable. A request behind text is none: servers write what they receive into their logs."""
    found: list[Any] = []
    position = 0
    while (start := text.find("{", position)) >= 0:
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            return found, text[start:].encode() if '"jsonrpc"' in text[start:] else b""
        if "jsonrpc" in value and ("method" not in value or not text[position:start].strip()):
            found.append(value)
        position = end
    return found, b""


def _malformed(problem: str, outline: Outline) -> JSONRPCError:
    """Return the reply of a request whose reply is unreadable.

    Raises:
        UnreadableMessageError: no request is named.
    """
    if outline.id is None or not outline.is_message or outline.is_request:
        raise UnreadableMessageError(problem, outline)
    return failed_reply(outline.id, TransportFailure.MALFORMED, problem)


def _read_value(value: Any, data: bytes, is_modern: bool) -> list[JSONRPCMessage]:
    """Read a message of ``data``; none: it is a notification that dispatch does not use.

    Raises:
        UnreadableMessageError: it is unreadable, and names no request.
    """
    given = value if isinstance(value, dict) else {}
    is_reply = "result" in given or "error" in given
    outline = Outline(
        _as_id(given.get("id")),
        is_reply or "method" in given or "jsonrpc" in given,
        "method" in given and not is_reply,  # some servers repeat the method in their replies
        False,
    )
    if isinstance(given.get("id"), float) and outline.id is not None:
        given = {**given, "id": outline.id}  # 7.0 is the number 7
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH and is_deeper(given, MAX_DEPTH):
        if not isinstance(_find_tools(given), list):
            return [_malformed("nested too deep", outline)]
        given = _cut(given, MAX_LIST_DEPTH)
    replaced, has_half = replace_halves(given) if _SURROGATE.search(data) is not None else (given, False)
    if has_half:
        # JavaScript's JSON.stringify writes them where a text was cut. One description must not cost the other tools.
        if not isinstance(_find_tools(given), list):
            return [_malformed("half of a surrogate pair", outline)]
        given = replaced
    try:
        if outline.is_request:
            message = _read_request(given, is_modern)
            return [] if message is None else [message]
        if given.get("error") is not None:
            return [_complete(JSONRPCError.model_validate({"id": None, **given}, by_name=False), data, is_modern)]
        return [_complete(JSONRPCResponse.model_validate(given, by_name=False), data, is_modern)]
    except ValueError as error:
        problem = describe_invalid(error)
        if is_reply and "id" in given:  # one that no request can have is that of the only request that waits
            return [failed_reply(outline.id, TransportFailure.MALFORMED, problem)]
        return [_malformed(problem, outline)]


def _read_request(value: dict[str, Any], is_modern: bool) -> JSONRPCRequest | JSONRPCNotification | None:
    """Read a request or a notification of the server; None: a notification that dispatch does not use. Parameters that the
    SDK's models refuse are removed where the method needs none, such as ``[]`` of PHP."""
    is_notification = value.get("id") is None
    if is_notification and str(value["method"]).startswith("notifications/") and value["method"] not in _NOTIFICATIONS:
        return None  # the SDK takes 0.3 ms for each, and writes one that it cannot read to its log, with its values
    bare = {key: each for key, each in value.items() if key != "params"}
    if not isinstance(value.get("params"), dict):
        value = bare
    model = JSONRPCNotification if is_notification else JSONRPCRequest
    parse = parse_server_notification if is_notification else parse_server_request
    version = LATEST_MODERN_VERSION if is_modern else LATEST_HANDSHAKE_VERSION
    message = model.model_validate(value, by_name=False)
    for given in (value, bare):
        with suppress(ValueError, KeyError):  # KeyError: a method that the SDK does not know
            parse(message.method, version, given.get("params"))
            return model.model_validate(given, by_name=False)
    return None if is_notification and message.method in _NOTIFICATIONS else message


def _find_tools(value: Any) -> Any:
    """Return the tools in a reply that is a list of tools."""
    result = value.get("result") if isinstance(value, dict) else None
    return result.get("tools") if isinstance(result, dict) else None


def failed_reply(id: RequestId | None, failure: TransportFailure, message: str, data: object = None) -> JSONRPCError:
    """Return the reply that reports a failure of the transport."""
    return JSONRPCError(jsonrpc="2.0", id=id, error=ErrorData(code=failure, message=message, data=data))


def is_malformed(message: JSONRPCMessage) -> bool:
    """Whether the message stands for an unreadable reply."""
    return isinstance(message, JSONRPCError) and message.error.code == TransportFailure.MALFORMED


def find_retry_after(error: BaseException) -> float | None:
    """Return the seconds of the pause that a server has asked for; None: it did not."""
    if isinstance(error, MCPError) and error.code == TransportFailure.THROTTLED:
        return error.error.data if isinstance(error.error.data, float) else None
    return None


def describe_invalid(error: BaseException) -> str:
    """Return what is wrong with a message or a result: of an error of the SDK's models, without any value."""
    if not hasattr(error, "errors"):
        return str(error)
    first = error.errors(include_url=False, include_input=False)[0]
    what = "of no known kind" if first["type"] == "union_tag_invalid" else first["msg"]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), what)))


_NOTIFICATIONS: Final = (
    "notifications/tools/list_changed",
    "notifications/cancelled",
    "notifications/subscriptions/acknowledged",
)

# -- what an unreadable message names ---------------------------------------------------------------------------------

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
_ANY_TOKEN: Final = re.compile(
    rb"""\"(?:[^"\\\n]++|\\.)*+"?|'(?:[^'\\\n]++|\\.)*+'?|[\[\]{}:,]|[^\s\[\]{}:,"']+""", re.DOTALL
)
"""The same in one line, with Python's texts in single quotes, too."""
_OUTER_KEYS: Final = (b"jsonrpc", b"id", b"method", b"result", b"error")
_DECODER: Final = json.JSONDecoder()
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LAST_ID: Final = re.compile(rb'"id"\s*:\s*(-?\d+|"[^"\\]*")\s*\}\s*$')
"""The id behind the result, which may be long."""


class Outline(NamedTuple):
    """The outer object of data that are not readable.

    Attributes:
        id: of the request that is answered; None: none is named.
        is_message: it has keys of JSON-RPC, or its end is missing.
        is_request: it has a method, and is no reply.
        is_cut: its end is missing.
    """

    id: RequestId | None
    is_message: bool
    is_request: bool
    is_cut: bool

    @classmethod
    def of(cls, data: bytes) -> Outline:
        """Find the outline without parsing the values, which may be cut off, nested too deep or no text."""
        if b'"jsonrpc"' in data[:MAX_SCANNED_BYTES]:
            data = data[max(data.find(b"{"), 0) :]  # there may be text in front, or the bracket of a batch
        keys: set[bytes] = set()
        id: RequestId | None = None
        key = previous = b""
        depth = 0
        is_object = data.lstrip()[:1] == b"{"
        for match in _TOKEN.finditer(data, 0, MAX_SCANNED_BYTES) if is_object else ():
            token = match[0]
            if token in (b"{", b"["):
                depth += 1
                key = b""
            elif token in (b"}", b"]"):
                depth -= 1
            elif depth == 1:
                if token == b":":
                    key = previous
                    keys.add(key)
                elif key == b'"id"' and match.end() < len(data):  # the last token may be cut off
                    id = _read_id(token)
                    key = b""
                previous = token
        is_cut = is_object and (depth != 0 or len(data) > MAX_SCANNED_BYTES)
        if is_cut and id is None and (last := _LAST_ID.search(data[-200:])) is not None:
            id = _read_id(last[1])
        names_protocol = b"jsonrpc" in data[:MAX_SCANNED_BYTES]
        is_message = not keys.isdisjoint((b'"result"', b'"error"', b'"method"')) or is_cut or names_protocol
        is_request = b'"method"' in keys and keys.isdisjoint((b'"result"', b'"error"'))
        return cls(id, is_message, is_request, is_cut)


ONE_LINE: Final = "no JSON in one line; MCP has one message per line"
NEVER_SENT: Final = "its id is that of no request; the server must repeat the id of the request as it is"


class UnreadableText:
    """Lines that no message begins on: a log, or a reply over several lines or in Python's form. They are not kept, however
    many they are.

    Args:
        only_waiting: id of the request that waited, if only one did when the text began.
    """

    def __init__(self, only_waiting: str | None) -> None:
        self._only_waiting = only_waiting
        self._values: dict[bytes, bytes] = {}
        """The first token of each value in the outer object."""
        self._key = self._previous = b""
        self._depth = 0

    def feed(self, line: bytes) -> None:
        """Read the next line; the first one begins with ``{``."""
        for match in _ANY_TOKEN.finditer(line):
            token = match[0]
            if self._key:
                self._values[self._key] = token
                self._key = b""
            if token in (b"{", b"["):
                self._depth += 1
            elif token in (b"}", b"]"):
                self._depth -= 1
            elif self._depth == 1:
                if token == b":" and self._previous in _OUTER_KEYS:
                    self._key = self._previous
                self._previous = token.strip(b"\"'")

    @property
    def is_open(self) -> bool:
        """It may be a reply whose end has not been read."""
        return self._depth > 0 and bool(self._values)

    def find_answered(self) -> str | None:
        """Return the id of the request that the text certainly answers; None: it answers none, or it is not known which."""
        values = self._values
        if b"jsonrpc" not in values or b"method" in values or values.keys().isdisjoint((b"result", b"error")):
            return None
        id = values.get(b"id", b"" if self.is_open else b"null")
        return self._only_waiting if id in (b"null", b"None") else id.strip(b"\"'").decode("utf-8", "replace")


def _read_id(token: bytes) -> RequestId | None:
    try:
        return _as_id(json.loads(token))
    except ValueError:
        return None


def _as_id(value: object) -> RequestId | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


# -- results ----------------------------------------------------------------------------------------------------------

_RESULTS: Final[Mapping[str, type[Result]]] = {
    "initialize": InitializeResult,
    "server/discover": DiscoverResult,
    "tools/list": ListToolsResult,
    "tools/call": CallToolResult,
}
MAX_BLOCK_CHARS: Final = 10_000
"""Characters of a block of an unknown kind that a model reads as JSON."""
UNKNOWN_TYPE: Final = "application/octet-stream"
"""Media type of a picture or a sound whose server gives none."""

_UNUSUAL_NUMBER: Final = re.compile(rb"NaN|Infinity|[eE]\+?0*[1-9]\d\d|\d{309}")
"""Found in every JSON text that has a number which is not finite, and in some others."""


def _complete(message: JSONRPCMessage, data: bytes, is_modern: bool) -> JSONRPCMessage:
    if isinstance(message, JSONRPCError):
        if message.error.code in FAILURES:  # they are the transports' own
            message.error.code = INTERNAL_ERROR
        return message
    if not isinstance(message, JSONRPCResponse):
        return message
    result = message.result
    if result.get("resultType") is None:
        result["resultType"] = "complete"  # MCP 2026-07-28: an absent one means this
    if "content" in result or "structuredContent" in result:
        if _UNUSUAL_NUMBER.search(data) and not is_finite(result):
            return failed_reply(message.id, TransportFailure.INVALID_RESULT, "NaN and infinity are no JSON numbers")
        _complete_call(result, is_modern)
    elif "tools" in result:
        _complete_tool_list(result, is_modern)
    elif not result.keys().isdisjoint(("protocolVersion", "supportedVersions", "capabilities", "serverInfo")):
        _complete_handshake(result, is_modern)
        version = result.get("protocolVersion", LATEST_HANDSHAKE_VERSION)
        if not is_modern and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return failed_reply(message.id, TransportFailure.MALFORMED, _OTHER_VERSION.format(excerpt(version, 40)))
    return message


_OTHER_VERSION: Final = (
    f"it speaks the protocol '{{}}', and dispatch {HANDSHAKE_PROTOCOL_VERSIONS[0]} to {LATEST_MODERN_VERSION}. Fix: update "
    "the server or dispatch"
)


def _complete_handshake(result: dict[str, Any], is_modern: bool) -> None:
    """Complete what a server says of itself; where the SDK's models refuse it, only what dispatch uses remains."""
    method = "server/discover" if is_modern else "initialize"
    if not isinstance(result.get("capabilities"), dict):  # it may have tools all the same
        result["capabilities"] = {"tools": {}}
    if not is_modern and not isinstance(result.get("protocolVersion"), str):
        result["protocolVersion"] = LATEST_HANDSHAKE_VERSION
    if _find_mistake(method, result, is_modern) is None:
        return
    tools, info = result["capabilities"].get("tools"), result.get("serverInfo")
    announces = isinstance(tools, dict) and tools.get("listChanged") is True
    result["capabilities"] = {} if tools in (None, False) else {"tools": {"listChanged": announces}}
    texts = {key: each for key, each in (info if isinstance(info, dict) else {}).items() if isinstance(each, str)}
    result["serverInfo"] = {"name": texts.get("name", ""), "version": texts.get("version", "")}
    for key in result.keys() & {"instructions", "_meta"}:
        del result[key]


def _complete_call(result: dict[str, Any], is_modern: bool) -> None:
    """Complete the result of a call: a server in Go writes null for an empty list, others omit it. Where the SDK's models
    refuse it, optional parts with a fault are removed, and a block of no known kind is the text of its JSON: the tool has
    run."""
    for key, kinds in (("structuredContent", object), ("isError", (bool, int, str)), ("_meta", dict)):
        if key in result and (result[key] is None or not isinstance(result[key], kinds)):
            del result[key]
    has_structure = "structuredContent" in result
    content = result.get("content")
    if content is None and (has_structure or "content" in result):
        result["content"] = []
    elif isinstance(content, (str, dict)):
        result["content"] = [content]
    if has_structure and not is_modern and not isinstance(result["structuredContent"], dict):
        structured = result.pop("structuredContent")  # earlier versions of MCP have objects only
        result["content"] = result["content"] or [{"type": "text", "text": compact_json(structured)}]
    if result["resultType"] != "complete" or _find_mistake("tools/call", result, is_modern) is None:
        return
    if isinstance(result.get("content"), list):
        result["content"] = [_complete_block(each, is_modern) for each in result["content"] if each is not None]


def _complete_block(block: object, is_modern: bool) -> dict[str, Any]:
    """Return a block of content that the SDK's models accept."""
    if isinstance(block, dict):
        kind = block.get("type", "text" if "text" in block else None)
        others = {key: each for key, each in block.items() if key not in ("annotations", "_meta")}
        for found in (block, others, {**others, "type": kind, "mimeType": UNKNOWN_TYPE}):
            if _find_mistake("tools/call", {"content": [found], "resultType": "complete"}, is_modern) is None:
                return found
        if kind == "text":
            block = block.get("text") or ""
    text = block if isinstance(block, str) else compact_json(block)
    is_long = len(text) > MAX_BLOCK_CHARS and text is not block  # it may be a film
    return {"type": "text", "text": f"[content of an unknown kind, {len(text):,} characters]" if is_long else text}


def compact_json(value: object) -> str:
    """Return structured content as the text that a model reads."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# -- lists of tools ---------------------------------------------------------------------------------------------------

_OPTIONAL: Final = ("title", "description", "annotations", "icons", "execution", "_meta", "outputSchema")
"""Parts of a tool that it is usable without."""


def _complete_tool_list(result: dict[str, Any], is_modern: bool) -> None:
    """Complete a page of ``tools/list``, and leave the tools out that are not usable."""
    ttl = result.get("ttlMs")
    if not isinstance(ttl, int) or isinstance(ttl, bool) or ttl < 0:
        result["ttlMs"] = 0
    if result.get("cacheScope") not in ("private", "public"):
        result["cacheScope"] = "private"
    cursor = result.get("nextCursor")
    if isinstance(cursor, int) and not isinstance(cursor, bool):
        result["nextCursor"] = str(cursor)
    elif not isinstance(cursor, str):
        result.pop("nextCursor", None)
    if not isinstance(result.get("_meta"), dict):
        result.pop("_meta", None)
    tools = result["tools"]
    if tools is None or tools == {}:  # an empty list of Go, and of PHP
        tools = result["tools"] = []
    if not isinstance(tools, list):
        return
    tools = result["tools"] = _cut(tools, MAX_LIST_DEPTH)
    for tool in tools:
        if isinstance(tool, dict):
            if not isinstance(tool.get("_meta", {}), dict):
                del tool["_meta"]
            tool["inputSchema"] = _complete_schema(tool.get("inputSchema"))
            if tool.get("outputSchema") in ([], {}):  # it demands nothing, not even structured content
                del tool["outputSchema"]
            if not is_modern and tool.get("outputSchema") is not None:
                tool["outputSchema"] = _complete_schema(tool["outputSchema"])
    if _find_mistake("tools/list", result, is_modern) is None:
        return
    kept: list[Any] = []
    refused: list[tuple[str, str]] = []
    for index, tool in enumerate(tools):
        problem = _find_tool_problem(tool, is_modern)
        if problem is None:
            kept.append(tool)
        else:
            given = tool.get("name") if isinstance(tool, dict) else None
            name = given if isinstance(given, str) else ""
            refused.append((name, excerpt(problem if name else f"tools[{index}]: {problem}", 300)))
    result["tools"] = kept
    result["_meta"] = {**result.get("_meta", {}), REFUSED_TOOLS: refused}


def _cut(value: Any, depth: int) -> Any:
    """Return a JSON value with null in place of what is nested deeper."""
    if isinstance(value, dict):
        return {key: _cut(each, depth - 1) for key, each in value.items()} if depth else None
    if isinstance(value, list):
        return [_cut(each, depth - 1) for each in value] if depth else None
    return value


def _find_mistake(method: str, result: dict[str, Any], is_modern: bool) -> Any:
    """Return the error of the SDK's models; None: they accept the result."""
    try:
        validate_server_result(method, LATEST_MODERN_VERSION if is_modern else LATEST_HANDSHAKE_VERSION, result)
        _RESULTS[method].model_validate(result, by_name=False)
    except ValueError as error:
        return error
    return None


def _find_tool_problem(tool: object, is_modern: bool) -> str | None:
    """Return why a tool is not usable, None if it is; remove optional parts that are not valid. An input schema that is not
    valid is hidden from the SDK: the catalogue uses the rest of it."""
    if not isinstance(tool, dict):
        return f"{describe_kind(tool)} instead of an object"
    while True:
        alone = {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        error = _find_mistake("tools/list", alone, is_modern)
        if error is None:
            return None
        place: tuple[Any, ...] = error.errors()[0]["loc"] if hasattr(error, "errors") else ()
        part = place[2] if len(place) > 2 else ""  # of ("tools", 0, "annotations")
        known = tool.get("_meta", {})
        if part == "inputSchema" and isinstance(tool[part], dict) and INPUT_SCHEMA not in known:
            tool["_meta"] = {**known, INPUT_SCHEMA: tool[part]}
            tool[part] = {"type": "object"}
            continue
        if part not in _OPTIONAL or part not in tool:
            return describe_invalid(error).removeprefix("tools.0.")
        del tool[part]  # the tool is usable without it


def _complete_schema(schema: object) -> object:
    """Return the schema of an object with the type that every MCP tool has, and without what means nothing."""
    if schema is None or schema is True or schema == []:
        return {"type": "object"}
    if not isinstance(schema, dict):
        return schema
    found = {key: each for key, each in schema.items() if each is not None}  # null: an empty list or map of Go
    type = found.get("type")
    if type is None or (isinstance(type, list) and "object" in type):
        found["type"] = "object"
    if found.get("properties") == []:  # an empty map of PHP
        found["properties"] = {}
    if found.get("required") == {}:  # an empty list of Lua
        del found["required"]
    return {"type": found.pop("type"), **found}


class RefusedTool(NamedTuple):
    """A tool of a list that is not usable.

    Attributes:
        name: empty: it has none.
        problem: with its place in the page, if it has no name.
    """

    name: str
    problem: str
    fix: str = "correct the definition at the server"


def find_refused_tools(page: ListToolsResult) -> list[RefusedTool]:
    """Return the tools that were left out of a page."""
    return [RefusedTool(name, problem) for name, problem in (page.meta or {}).get(REFUSED_TOOLS, ())]
