"""Messages of JSON-RPC 2.0 as a server reads and writes them: an unreadable request has an answer, and no message is too
odd to be written. No input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import msgspec
import pydantic_core
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, JSONRPCMessage, jsonrpc_message_adapter

from dispatch._internal.utf8 import encode_text, scalar_value

MAX_TOKENS: Final = 10_000
"""Texts and brackets that are searched for the id of an unreadable message: some milliseconds on the event loop. Clients
write the id in front of the arguments."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[{]+|[\]}]+', re.DOTALL)
_ID: Final = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*[,}]', re.DOTALL)


class UnreadableMessageError(ValueError):
    """A message that is no request, notification or response. ``str()`` gives the reason, without data of the message.

    Attributes:
        answer: the error for the sender, as JSON.
        is_answered: the sender waits for an answer. A notification has none, and a response neither: two peers would
            answer each other's errors without an end.
    """

    def __init__(self, code: int, reason: str, id: bytes, *, is_answered: bool = True) -> None:
        super().__init__(reason)
        text = f"{reason}. Nothing was executed: correct the message and send it again."
        self.answer = _write_error(code, text, id)
        self.is_answered = is_answered


def read_message(data: bytes) -> JSONRPCMessage:
    """Read one message.

    Raises:
        UnreadableMessageError: no JSON in UTF-8 (-32700), or no message of JSON-RPC 2.0 (-32600).
    """
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise UnreadableMessageError(PARSE_ERROR, f"The message is not valid JSON ({error})", find_id(data)) from None
    if not isinstance(value, dict):
        reason = "The message is no JSON object, and batches are not supported"
        raise UnreadableMessageError(INVALID_REQUEST, reason, b"null")
    is_request = "method" in value and "id" in value
    problem = _find_problem(value) if is_request else None
    if problem is None:
        try:
            return jsonrpc_message_adapter.validate_python(value, by_name=False)
        except ValueError:
            problem = _find_problem(value) or "no 'method'"
    is_answered = is_request or ("method" not in value and "result" not in value and "error" not in value)
    reason = f"The message is no request of JSON-RPC 2.0: {problem}"
    raise UnreadableMessageError(INVALID_REQUEST, reason, find_id(data), is_answered=is_answered)


def _find_problem(value: Mapping[str, Any]) -> str | None:
    """Return why ``value`` is no request or notification; None: it is one. The SDK reads a request whose id has another type
    as a notification."""
    if value.get("jsonrpc") != "2.0":
        return "'jsonrpc' is not \"2.0\""
    id = value.get("id", 0)
    if not isinstance(id, (int, str)) or isinstance(id, bool):
        return "'id' is neither a text nor an integer"
    if "method" in value and not isinstance(value["method"], str):
        return "'method' is no text"
    return None if isinstance(value.get("params"), (dict, type(None))) else "'params' is no object"


def find_id(data: bytes) -> bytes:
    """Return the ``id`` of a message as JSON, also of one that is cut off or not valid; ``null``: it has none that is a text
    or a number."""
    depth = 0
    found = b"null"
    for token in islice(_TOKEN.finditer(data), MAX_TOKENS):
        text = token[0]
        if text[:1] in b"[{":
            depth += len(text)
        elif text[:1] in b"]}":
            depth -= len(text)
            if depth <= 0:
                break
        elif depth == 1 and text == b'"id"' and (id := _ID.match(data, token.end())):
            found = id[1]
    try:
        msgspec.json.decode(found)
    except (msgspec.DecodeError, UnicodeError):
        return b"null"
    return found


def write_message(message: JSONRPCMessage) -> bytes:
    """Return ``message`` as JSON on one line. Cannot fail: a message that JSON cannot express is written as far as it can
    be, or as an error."""
    try:
        return encode_text(message.model_dump_json(by_alias=True, exclude_unset=True))
    except Exception:  # half of a surrogate pair, or a value of an application's handler
        try:
            values = message.model_dump(by_alias=True, exclude_unset=True)
            return msgspec.json.encode(scalar_value(values), enc_hook=repr)
        except Exception:
            id = getattr(message, "id", None)
            return _write_error(INTERNAL_ERROR, "The answer cannot be written as JSON.", msgspec.json.encode(id))


def _write_error(code: int, message: str, id: bytes) -> bytes:
    error = msgspec.json.encode({"code": code, "message": message})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, error)
