"""Messages of foreign servers, as the SDK's strict models accept them. No input or output.

An unreadable reply becomes the error of its request, a result in an old or incomplete form is completed, and of a list of
tools only the ones that are not usable are refused. No text of an error has a value of the message.
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from typing import Any, Final, NamedTuple

import msgspec
from mcp import MCPError
from mcp.types import INTERNAL_ERROR, RequestId
from mcp.types.version import LATEST_HANDSHAKE_VERSION, LATEST_MODERN_VERSION
from mcp_types import ErrorData, JSONRPCError, JSONRPCMessage, JSONRPCResponse, ListToolsResult, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result

from dispatch._internal import excerpt, scalar_value
from dispatch.documents import describe_kind

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a message of a server. One that is longer ends the connection: its end cannot be found."""
MAX_SCANNED_BYTES: Final = 1024 * 1024
"""Bytes at the begin of an unreadable message that are searched for its id: 0.1 s of the event loop at most."""
REFUSED_TOOLS: Final = "dispatch/refused-tools"
"""Key of ``_meta`` in a list of tools: name and problem of each tool that was left out."""


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
    """Read a message, or a batch of them. A reply that names its request and is unreadable becomes an error of that request
    with the code :attr:`TransportFailure.MALFORMED`.

    Args:
        is_modern: the protocol is 2026-07-28 or later.

    Raises:
        UnreadableMessageError: no request is named.
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        message = jsonrpc_message_adapter.validate_json(data, by_name=False)
    except ValueError as error:
        return list(_read_unusual(data, describe_invalid(error), is_modern))
    return [_complete(message, data, is_modern)]


def _read_unusual(data: bytes, problem: str, is_modern: bool) -> Iterator[JSONRPCMessage]:
    if (replaced := _replace_half_pairs(data)) is not None and replaced != data:
        yield from read_messages(replaced, is_modern=is_modern)
        return
    with suppress(ValueError, RecursionError):
        if data.lstrip()[:1] == b"[":  # a batch, as in MCP 2025-03-26
            for part in msgspec.json.decode(data, type=list[msgspec.Raw]):
                with suppress(UnreadableMessageError):
                    yield from read_messages(bytes(part), is_modern=is_modern)
            return
        value = msgspec.json.decode(data, type=dict[str, Any])
        if "error" in value and "id" not in value and "method" not in value:  # the server omits an id that is null
            yield _complete(JSONRPCError.model_validate({**value, "id": None}, by_name=False), data, is_modern)
            return
    outline = Outline.of(data)
    if outline.id is None or not outline.is_message or outline.is_request:
        raise UnreadableMessageError(problem, outline)
    yield failed_reply(outline.id, TransportFailure.MALFORMED, problem)


def _replace_half_pairs(data: bytes) -> bytes | None:
    """Return a list of tools without halves of surrogate pairs, which JavaScript's ``JSON.stringify`` writes where a text
    was cut: one description must not cost the other tools; None: there are no such halves, or it is no list."""
    if _SURROGATE.search(data) is None:
        return None
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    result = value.get("result") if isinstance(value, dict) else None
    is_list = isinstance(result, dict) and isinstance(result.get("tools"), list)
    return json.dumps(scalar_value(value), ensure_ascii=False).encode() if is_list else None


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


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
    if first["loc"] and str(first["loc"][0]).startswith("JSONRPC"):
        return "no message of JSON-RPC 2.0"
    if first["type"] == "json_invalid":
        return f"not JSON: {first['ctx']['error']}"
    what = "of no known kind" if first["type"] == "union_tag_invalid" else first["msg"]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), what)))


# -- what an unreadable message names ---------------------------------------------------------------------------------

_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{}:,]|[^\s\[\]{}:,"]+', re.DOTALL)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_LAST_ID: Final = re.compile(rb'"id"\s*:\s*(-?\d+|"[^"\\]*")\s*\}\s*$')
"""The id behind the result, which may be long."""


class Outline(NamedTuple):
    """The outer object of data that are not readable.

    Attributes:
        id: of the request that is answered; None: none is named.
        is_message: it has keys of JSON-RPC, or its end is missing.
        is_request: it has a method.
        is_cut: its end is missing.
    """

    id: RequestId | None
    is_message: bool
    is_request: bool
    is_cut: bool

    @classmethod
    def of(cls, data: bytes) -> Outline:
        """Find the outline without parsing the values, which may be cut off, nested too deep or no text."""
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
        is_batch = not is_object and b'"jsonrpc"' in data[:MAX_SCANNED_BYTES]
        is_message = not keys.isdisjoint((b'"jsonrpc"', b'"result"', b'"error"', b'"method"')) or is_cut or is_batch
        return cls(id, is_message, b'"method"' in keys, is_cut or is_batch)


def _read_id(token: bytes) -> RequestId | None:
    try:
        value = json.loads(token)
    except ValueError:
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


# -- results ----------------------------------------------------------------------------------------------------------

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
    if "tools" in result and "content" not in result:
        _complete_tool_list(result, is_modern)
    else:
        if _UNUSUAL_NUMBER.search(data) and not _is_finite(result):
            return failed_reply(message.id, TransportFailure.INVALID_RESULT, "NaN and infinity are no JSON numbers")
        _complete_call(result, is_modern)
    return message


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        value = list(value.values())
    return not isinstance(value, list) or all(map(_is_finite, value))


def _complete_call(result: dict[str, Any], is_modern: bool) -> None:
    """Complete the result of a call: a server in Go writes null for an empty list, others omit it."""
    for key in ("structuredContent", "isError", "_meta"):
        if key in result and result[key] is None:
            del result[key]
    has_structure = "structuredContent" in result
    if result.get("content") is None and (has_structure or "content" in result):
        result["content"] = []
    if has_structure and not is_modern and not isinstance(result["structuredContent"], dict):
        structured = result.pop("structuredContent")  # earlier versions of MCP have objects only
        result["content"] = result["content"] or [{"type": "text", "text": compact_json(structured)}]


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
    for tool in tools:
        if isinstance(tool, dict):
            tool["inputSchema"] = _complete_schema(tool.get("inputSchema"))
            if tool.get("outputSchema") in ([], {}):  # it demands nothing, not even structured content
                del tool["outputSchema"]
            if not is_modern and tool.get("outputSchema") is not None:
                tool["outputSchema"] = _complete_schema(tool["outputSchema"])
    if _find_mistake(result, is_modern) is None:
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


def _find_mistake(result: dict[str, Any], is_modern: bool) -> Any:
    """Return the error of the SDK's models; None: they accept the page."""
    try:
        validate_server_result("tools/list", LATEST_MODERN_VERSION if is_modern else LATEST_HANDSHAKE_VERSION, result)
        ListToolsResult.model_validate(result, by_name=False)
    except ValueError as error:
        return error
    return None


def _find_tool_problem(tool: object, is_modern: bool) -> str | None:
    """Return why a tool is not usable, None if it is; remove optional parts that are not valid."""
    if not isinstance(tool, dict):
        return f"{describe_kind(tool)} instead of an object"
    while True:
        error = _find_mistake(
            {"tools": [tool], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}, is_modern
        )
        if error is None:
            return None
        place = error.errors()[0]["loc"]  # such as ("tools", 0, "annotations")
        if len(place) < 3 or place[2] not in _OPTIONAL or place[2] not in tool:
            return describe_invalid(error).removeprefix("tools.0.")
        del tool[place[2]]  # the tool is usable without it


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
    return {"type": found.pop("type"), **found}


class RefusedTool(NamedTuple):
    """A tool of a list that is not usable.

    Attributes:
        name: empty: it has none.
        problem: with its place in the page, if it has no name.
    """

    name: str
    problem: str


def find_refused_tools(page: ListToolsResult) -> list[RefusedTool]:
    """Return the tools that were left out of a page."""
    return [RefusedTool(name, problem) for name, problem in (page.meta or {}).get(REFUSED_TOOLS, ())]
