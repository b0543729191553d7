"""An MCP server over the tools of a dispatcher."""

from __future__ import annotations

import asyncio
import base64
import binascii
import bisect
import contextlib
import logging
import os
import queue
import re
import select
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import msgspec
import pydantic_core
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware, get_access_token
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, BearerAuthBackend
from mcp.server.auth.provider import AccessToken
from mcp.server.context import CallNext, HandlerResult
from mcp.server.models import InitializationOptions
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, check_accept_headers
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
    PaginatedRequestParams,
    RequestId,
    TextContent,
    ToolAnnotations,
    jsonrpc_message_adapter,
)
from mcp_types import Tool as McpTool
from mcp_types.methods import validate_client_request
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dispatch import __version__
from dispatch._internal import (
    as_set,
    cancel_and_wait,
    check_function,
    check_instance,
    encode_text,
    excerpt,
    explain_keywords,
    scalar_value,
    type_name,
    wait_set,
    wait_shared,
)
from dispatch.admin import TOKEN_RULE, hash_token, is_loopback, is_usable_token
from dispatch.admin.http import LOOPBACK_HOSTS, describe_address, list_own_hosts, open_listener, replay, running_app
from dispatch.catalog import ToolDescriptor
from dispatch.dispatcher import BoundTool
from dispatch.documents import DocumentError, FileWatch, parse_typed, read_regular_file, thaw
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError
from dispatch.mcp.conversion import describe_block
from dispatch.mcp.replies import MAX_MESSAGE_BYTES, MAX_SCANNED_BYTES, MessageStream, describe_invalid
from dispatch.results import CallResult, ReadResultTool, ResultFormatter, ResultStore
from dispatch.schemas import SchemaValidator, join_mistakes
from dispatch.telemetry.events import CatalogChanged, Event, ExceptionLogger

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


# The HTTP server of ``dispatch mcp --http``.


async def serve_http(
    server: McpServer,
    host: str,
    port: int,
    *,
    hosts: Collection[str] = (),
    tokens: Mapping[str, str] | BearerTokens | None = None,
    path: str = "/mcp",
    on_ready: Callable[[str], object] = lambda _url: None,
) -> None:
    """Serve until the task is cancelled.

    Args:
        server: over a started dispatcher.
        host: to bind to.
        port: 0: any free one.
        hosts: further values of ``Host`` that are accepted.
        tokens: users by their bearer tokens; those of :meth:`BearerTokens.load` follow their file.
        path: of the endpoint.
        on_ready: receives the URL once the server accepts connections.

    Raises:
        ValueError: others reach ``host``, and there are no tokens.
        OSError: the address is in use, or not of this machine.
    """
    if tokens is None and not is_loopback(host):
        raise ValueError(f"other machines reach '{host}', and every caller must name itself there with a bearer token")
    verifier = BearerTokens(tokens) if isinstance(tokens, Mapping) else tokens
    closing = asyncio.Event()
    app = make_app(server.sdk_server, path, [*list_own_hosts(host), *hosts], verifier, closing)
    with open_listener(host, port) as listener:
        async with running_app(app, listener, "on") as task:
            try:
                on_ready(f"{describe_address(host, listener.getsockname()[1])}{path}")
                await wait_shared(task)
            finally:
                if verifier is not None:
                    verifier.close()
                server.close_listeners()
                closing.set()


# Messages of JSON-RPC 2.0 as a server reads and writes them: an unreadable request has an answer, and no message is too odd
# to be written. No input or output.


MAX_TOKENS: Final = 10_000
"""Texts and brackets that are searched for the id of an unreadable message, in its first :data:`MAX_SCANNED_BYTES`: some
milliseconds on the event loop. Clients write the id in front of the arguments."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]+|[\]}]+', re.DOTALL)
"""A text that does not end goes to the end of the data, and is searched once."""
_ID: Final = re.compile(rb'\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*[,}]', re.DOTALL)


BATCH_VERSIONS: Final = ("2024-11-05", "2025-03-26")
"""Versions of the protocol that have batches: the second one by its own text, the first one by that of JSON-RPC."""
MAX_BATCH: Final = 100
"""Messages of a batch: a few bytes must not start ten thousand calls."""
_NO_BATCH: Final = (
    f"The message is a JSON array. Batches exist in MCP {' and '.join(BATCH_VERSIONS)} only, after 'initialize': send each "
    "message by itself"
)

_NO_HANDSHAKE: Final = "The handshake is missing: send 'initialize' first, then 'notifications/initialized'"


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
    if isinstance(value, list):
        raise UnreadableMessageError(INVALID_REQUEST, _NO_BATCH, b"null")
    if not isinstance(value, dict):
        raise UnreadableMessageError(INVALID_REQUEST, "The message is no JSON object", b"null")
    is_request = "method" in value and "id" in value
    _complete_params(value)
    problem = _find_problem(value) if is_request else None
    if problem is None:
        try:
            return jsonrpc_message_adapter.validate_python(value, by_name=False)
        except ValueError:
            problem = _find_problem(value) or "no 'method'"
    is_answered = is_request or ("method" not in value and "result" not in value and "error" not in value)
    reason = f"The message is no request of JSON-RPC 2.0: {problem}"
    raise UnreadableMessageError(INVALID_REQUEST, reason, find_id(data), is_answered=is_answered)


def _complete_params(message: dict[str, Any]) -> None:
    """Write ``{}`` for the ``[]`` that PHP has for an empty object, and remove null from the metadata."""
    if message.get("params") == []:
        message["params"] = {}
    params = message.get("params")
    if not isinstance(params, dict):
        return
    for key in ("arguments", "capabilities", "_meta"):
        if params.get(key) == []:
            params[key] = {}
    meta = params.get("_meta")
    if isinstance(meta, dict) and meta.get("progressToken", "") is None:
        del meta["progressToken"]


def read_batch(data: bytes) -> list[JSONRPCMessage | UnreadableMessageError]:
    """Read a batch; a message that is unreadable costs no other one. ``initialize`` is never part of one.

    Raises:
        UnreadableMessageError: no JSON in UTF-8 (-32700), or no list of 1 to :data:`MAX_BATCH` messages (-32600).
    """
    try:
        values = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise UnreadableMessageError(PARSE_ERROR, f"The batch is not valid JSON ({error})", b"null") from None
    if not 1 <= len(values) <= MAX_BATCH:
        reason = f"A batch has 1 to {MAX_BATCH} messages, not {len(values):,}"
        raise UnreadableMessageError(INVALID_REQUEST, reason, b"null")
    found: list[JSONRPCMessage | UnreadableMessageError] = []
    for each in map(pydantic_core.to_json, values):
        try:
            message = read_message(each)
            if isinstance(message, JSONRPCRequest) and message.method == "initialize":
                raise UnreadableMessageError(INVALID_REQUEST, "'initialize' is no part of a batch", find_id(each))
            found.append(message)
        except UnreadableMessageError as error:
            found.append(error)
    return found


def is_batch(data: bytes) -> bool:
    """Return whether ``data`` is a JSON array."""
    return data.lstrip()[:1] == b"["


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
    for token in islice(_TOKEN.finditer(data, 0, MAX_SCANNED_BYTES), MAX_TOKENS):
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


# The standard streams of this process as an MCP connection: stdout carries the protocol and nothing else.


logger = logging.getLogger("dispatch.mcp")

CHUNK_BYTES: Final = 65_536
MAX_WRITING: Final = 1_000
"""Answers that the client has not read, beyond which its requests are not read either: each has 12 kB beside its text."""
READER_CHECK_S: Final = 0.2
"""Seconds between two checks, after the client has closed stdin, whether it still reads the answers."""


class DescriptorLines:
    """Reads lines in a daemon thread: unlike the threads of the SDK, it delays neither a cancellation nor the exit while the
    client sends nothing.

    Args:
        source: descriptor.
    """

    def __init__(self, source: int) -> None:
        self._source = source
        self._queue: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._room = threading.Semaphore(2)  # chunks of lines: a fast client waits
        self._loop = asyncio.get_running_loop()
        self._lines: Iterator[bytes] = iter(())
        self._is_ended = False
        threading.Thread(target=self._read, name="dispatch-mcp-stdin", daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            rest = bytearray()
            while chunk := self._read_chunk():
                del rest[MAX_MESSAGE_BYTES:]
                rest += chunk
                if b"\n" in chunk:
                    *lines, end = bytes(rest).split(b"\n")
                    rest = bytearray(end)
                    self._hand_over(lines)
            if rest:  # without a line end
                self._hand_over([bytes(rest)])
            self._hand_over([])

    def _read_chunk(self) -> bytes:
        try:
            return os.read(self._source, CHUNK_BYTES)
        except OSError:
            return b""

    def _hand_over(self, lines: list[bytes]) -> None:
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._queue.put_nowait, lines)

    def __aiter__(self) -> DescriptorLines:
        return self

    async def __anext__(self) -> bytes:
        line = next(self._lines, None)
        if line is None:
            lines = [] if self._is_ended else await self._queue.get()
            if not lines:
                self._is_ended = True  # a server asks again
                raise StopAsyncIteration
            self._room.release()
            self._lines = iter(lines)
            line = next(self._lines)
        return line

    def end(self) -> None:
        """End the lines behind those that have arrived."""
        self._queue.put_nowait([])


class DescriptorWriter:
    """Writes whole messages in a daemon thread: a client that stops reading blocks no other work.

    Args:
        target: descriptor.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._write_all, name="dispatch-mcp-stdout", daemon=True).start()

    async def write(self, text: str | bytes) -> None:
        """Write a message, with its line end.

        Raises:
            OSError: the client has closed stdout.
        """
        written: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((encode_text(text) if isinstance(text, str) else text, written))
        await written

    @property
    def has_reader(self) -> bool:
        """Whether the client can still read. Known for pipes and sockets."""
        poll = select.poll()
        poll.register(self._target, 0)  # the errors are reported all the same
        return not poll.poll(0)

    def _write_all(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            while True:
                data, written = self._queue.get()
                error: OSError | None = None
                try:
                    while data:
                        data = data[os.write(self._target, data) :]
                except OSError as failure:
                    error = failure
                self._loop.call_soon_threadsafe(_settle, written, error)


def _settle(future: asyncio.Future[None], error: OSError | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


@contextlib.contextmanager
def claim_standard_streams() -> Iterator[tuple[int, int]]:
    """Yield descriptors of stdin and stdout for the protocol. Meanwhile descriptor 0 is empty and descriptor 1 is stderr, so
    that neither a ``print`` nor a child process reaches the protocol.

    The descriptors stay open afterwards: a thread may still read or write there, and their numbers must not be used again.
    """
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        os.dup2(2, 1)
        yield source, target
    finally:
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(target, 1)
        os.close(null)


class Batch(msgspec.Struct, eq=False):
    """The answers to a batch, which are written together once all of them are there.

    Attributes:
        answers: as JSON.
        expected: number of answers.
    """

    answers: list[bytes]
    expected: int


class StdioMessages(MessageStream):
    """Messages, one or a batch on each line: the stream that a server of the SDK reads, and the one that it writes.

    The SDK's own streams drop a request that they cannot read, and end the server at a message that they cannot write.

    Args:
        source: descriptor to read.
        target: descriptor to write.
    """

    def __init__(self, source: int, target: int) -> None:
        self._lines = DescriptorLines(source)
        self._writer = DescriptorWriter(target)
        self._unread: deque[JSONRPCMessage] = deque()
        """The rest of a batch."""
        self._has_batches = False
        self._unanswered: dict[RequestId, deque[Batch | None]] = {}
        """Requests by their ids, which a client may use twice, and the batches that they are in."""
        self._writing = 0
        """Answers that are being written."""
        self._all_answered = asyncio.Event()
        self._has_written = asyncio.Event()

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message of the client; a request that is not readable is answered.

        Raises:
            anyio.EndOfStream: the client has closed stdin and has all answers, each one within the limits of its call; or
                it has closed stdout, too, and reads none.
        """
        while not self._unread:
            while self._writing >= MAX_WRITING:
                self._has_written.clear()
                await self._has_written.wait()
            try:
                line = await anext(self._lines)
            except StopAsyncIteration:
                await self._wait_answered()
                raise anyio.EndOfStream from None
            if line.strip():
                await self._read(line)
        message = self._unread.popleft()
        if not isinstance(message, JSONRPCRequest):
            return SessionMessage(message)
        unanswered = partial(self._answer, message.id, None)  # it was cancelled
        return SessionMessage(message, ServerMessageMetadata(on_request_unanswered=unanswered))

    async def _read(self, line: bytes) -> None:
        try:
            if len(line) > MAX_MESSAGE_BYTES:
                reason = f"The message has more than {MAX_MESSAGE_BYTES:,} bytes"
                raise UnreadableMessageError(INVALID_REQUEST, reason, find_id(line))
            if self._has_batches and is_batch(line):
                await self._read_batch(line)
                return
            message = read_message(line)
        except UnreadableMessageError as error:
            logger.debug("a message of the client is not readable: %s", error)
            if error.is_answered:
                with contextlib.suppress(anyio.BrokenResourceError):
                    await self._write(error.answer)
            return
        if isinstance(message, JSONRPCRequest):
            if message.method == "initialize":  # each version that has batches is accepted as it is
                self._has_batches = (message.params or {}).get("protocolVersion") in BATCH_VERSIONS
            if message.method != "subscriptions/listen":  # has no end
                self._unanswered.setdefault(message.id, deque()).append(None)
        self._unread.append(message)

    async def _read_batch(self, line: bytes) -> None:
        found = read_batch(line)
        answers = [each.answer for each in found if isinstance(each, UnreadableMessageError) and each.is_answered]
        ids = [each.id for each in found if isinstance(each, JSONRPCRequest)]
        batch = Batch(answers, len(answers) + len(ids))
        for id in ids:
            self._unanswered.setdefault(id, deque()).append(batch)
        self._unread += (each for each in found if not isinstance(each, UnreadableMessageError))
        if not ids:
            with contextlib.suppress(anyio.BrokenResourceError):
                await self._write_batch(batch)

    async def _wait_answered(self) -> None:
        while (self._unanswered or self._writing) and self._writer.has_reader:
            self._all_answered.clear()
            await wait_set(self._all_answered, READER_CHECK_S)

    async def _answer(self, id: RequestId, answer: bytes | None) -> None:
        """Write the answer to a request, or record that it has none."""
        batches = self._unanswered.get(id, deque())
        batch = batches.popleft() if batches else None
        if not batches:
            self._unanswered.pop(id, None)
        self._writing += 1
        try:
            if batch is not None:
                batch.answers += [] if answer is None else [answer]
                batch.expected -= answer is None
                await self._write_batch(batch)
            elif answer is not None:
                await self._write(answer)
        finally:
            self._writing -= 1
            self._has_written.set()
            if not self._unanswered and not self._writing:
                self._all_answered.set()

    async def _write_batch(self, batch: Batch) -> None:
        if batch.answers and len(batch.answers) == batch.expected:
            await self._write(b"[%b]" % b",".join(batch.answers))

    async def send(self, item: SessionMessage, /) -> None:
        """Write a message to the client.

        Raises:
            anyio.BrokenResourceError: the client has closed stdout.
        """
        message = write_message(item.message)
        if isinstance(item.message, (JSONRPCResponse, JSONRPCError)) and item.message.id is not None:
            await self._answer(item.message.id, message)
        else:
            await self._write(message)

    async def _write(self, message: bytes) -> None:
        try:
            await self._writer.write(message + b"\n")
        except OSError:  # a client that reads nothing has no use for the answers to further requests
            self._lines.end()
            self._unanswered.clear()
            self._all_answered.set()
            raise anyio.BrokenResourceError from None


# Tools of the server itself: ``find_tools`` and ``call_tool`` in place of a long list, and ``read_result``.


FIND_TOOLS: Final = "find_tools"
CALL_TOOL: Final = "call_tool"
READ_RESULT: Final = ReadResultTool.name
MAX_FOUND: Final = 20
"""Tools that one search shows, at most: their schemas fill the context of a model."""

_OTHER_NAMES: Final = {FIND_TOOLS: "find_all_tools", CALL_TOOL: "call_any_tool"}
_READ_ONLY: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True)
_SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    FIND_TOOLS: {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1, "description": "What the tool should do, in a few words"},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_FOUND,
                "default": 5,
                "description": "Tools to show, at most",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    CALL_TOOL: {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": f"Name of the tool, as {FIND_TOOLS} shows it"},
            "arguments": {"type": "object", "default": {}, "description": "Its arguments, by its parameters"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    READ_RESULT: ReadResultTool(ResultStore()).parameters,
}


def _describe(own: str, name: str, description: str, *, annotations: ToolAnnotations | None = None) -> McpTool:
    return McpTool(name=name, description=description, input_schema=_SCHEMAS[own], annotations=annotations)


def write_found(tools: Iterable[BoundTool]) -> str:
    """Return what ``find_tools`` shows of tools, as JSON."""
    shown = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "read_only": tool.read_only,
            "destructive": tool.destructive,
        }
        for tool in tools
    ]
    return msgspec.json.encode({"tools": shown}).decode()


# Tools of a dispatcher in the form of MCP, and their pages.


Search = Literal["auto", "always", "never"]
MAX_LISTED: Final = 40
"""Tools that are listed without a search: with more of them, models choose worse and their contexts fill up."""
PAGE_SIZE: Final = 50
"""Tools of a page: more than :data:`MAX_LISTED`, because many clients read the first page only."""


def describe_tool(tool: BoundTool) -> McpTool:
    """Return the tool as MCP lists it."""
    return McpTool(
        name=tool.name,
        description=tool.description,
        input_schema=complete_schema(tool.parameters),
        output_schema=thaw(tool.descriptor.output_schema) if has_structured_content(tool.descriptor) else None,
        annotations=ToolAnnotations(
            read_only_hint=tool.read_only,
            idempotent_hint=tool.idempotent,
            # It has no meaning for a tool that only reads. A tool that does not declare it may be destructive, also in MCP.
            destructive_hint=None if tool.read_only else tool.destructive,
        ),
    )


def complete_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments with ``"type": "object"`` at its root, which MCP requires."""
    return schema if schema.get("type") == "object" else {**schema, "type": "object"}


def has_structured_content(descriptor: ToolDescriptor) -> bool:
    """Return whether the tool has structured content. Handshake versions of MCP allow objects only; the rest are texts."""
    return descriptor.output_schema is not None and descriptor.output_schema.get("type") == "object"


def cut_page(names: Iterable[str], cursor: str | None) -> tuple[list[str], str | None]:
    """Return the names of a page, in their order, and the cursor of the next page (None: there is none).

    A cursor is the last name of the page before it: a tool that is added or removed between two pages moves no other one.

    Args:
        cursor: of the page; None: the first one.

    Raises:
        MCPError: the cursor is none of this server (-32602).
    """
    ordered = sorted(names)
    start = 0 if cursor is None else bisect.bisect_right(ordered, _decode_cursor(cursor))
    page = ordered[start : start + PAGE_SIZE]
    return page, _encode_cursor(page[-1]) if start + PAGE_SIZE < len(ordered) else None


def _encode_cursor(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode_cursor(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise MCPError(INVALID_PARAMS, "The cursor is not one of this server: list the tools from the start.") from None


# Notifications that the list of tools has changed, in both generations of the protocol.


COALESCE_S: Final = 0.25
"""Seconds from a change to the notification of all changes meanwhile: a client fetches the whole list for each one."""


class ListChanges:
    """Notifies clients: those of 2026-07-28 by ``subscriptions/listen``, those of the handshake on their session.

    Args:
        dispatcher: whose tools and permissions change.

    Attributes:
        listen: the handler of ``subscriptions/listen``.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)
        self._version = 0
        self._changed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._watchers = 0
        self._remove: tuple[Callable[[], object], ...] = ()

    @contextlib.asynccontextmanager
    async def watch(self, _server: Server[set[str]]) -> AsyncIterator[set[str]]:
        """Notify clients of changes inside the context; it may be entered several times, once for each transport. Yields the
        set of the sessions that are notified."""
        loop = asyncio.get_running_loop()
        if self._watchers == 0:
            self._remove = (
                self._dispatcher.on_event(self._on_event),
                # The file of the permissions is read in a thread.
                self._dispatcher._authorizer.subscribe(lambda: loop.call_soon_threadsafe(self.schedule)),
            )
        self._watchers += 1
        try:
            yield set()
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._stop()

    def _stop(self) -> None:
        for remove in self._remove:
            remove()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.listen.close()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, CatalogChanged) and event.added_count + event.changed_count + event.removed_count:
            self.schedule()

    def schedule(self) -> None:
        """Notify the clients soon, once for all changes until then."""
        if self._timer is None and self._watchers:
            self._timer = asyncio.get_running_loop().call_later(COALESCE_S, self._publish)

    def _publish(self) -> None:
        self._timer = None
        self._version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        task = asyncio.ensure_future(self._bus.publish(ToolsListChanged()))
        self._publishing.add(task)
        task.add_done_callback(self._publishing.discard)

    async def follow_session(self, ctx: ServerRequestContext[Any], call_next: CallNext) -> HandlerResult:
        """Middleware of the SDK: after the handshake of a session, notify its client until the SDK cancels the handler, at
        the end of the session; once, however often the client says that it is initialized. It is outside of the span of the
        notification, which ends at once."""
        result = await call_next(ctx)
        session = "" if ctx.request is None else ctx.request.headers.get(MCP_SESSION_ID_HEADER, "")
        followed: set[str] = ctx.lifespan_context
        if ctx.method != "notifications/initialized" or session in followed:
            return result
        followed.add(session)
        seen = self._version
        try:
            while True:
                while self._version == seen:
                    await self._changed.wait()
                seen = self._version
                await ctx.session.send_tool_list_changed()
        finally:
            followed.discard(session)


# Calls of MCP clients: each becomes a call of the dispatcher, and each outcome a result.


MAX_PROGRESS_CHARS: Final = 4_000
"""Characters of a chunk in a progress notification. The result has the whole text."""


class ServedTools:
    """The tools of a dispatcher for MCP clients: lists those that a user may call, or the search in their place, and calls
    them. Each failure of a call is a result: the SDK hides the exceptions of handlers from a model.

    A tool of the catalogue keeps its name: beside it ``find_tools`` is ``find_all_tools``. ``read_result`` keeps its
    name, because cut results name it: a handle decides whose result is read.

    Args:
        dispatcher: that has the tools.
        search: see :class:`dispatch.mcp.server.McpServer`.
        always: names of tools that are listed also beside a search.
    """

    def __init__(self, dispatcher: Dispatcher, search: Search, always: frozenset[str]) -> None:
        self._dispatcher = dispatcher
        self._search = search
        self._always = always
        self._validators = {name: SchemaValidator(schema) for name, schema in _SCHEMAS.items()}

    def _name_of(self, own: str) -> str:
        """Return the name under which a tool of the server is listed."""
        tools = self._dispatcher.catalog.tools
        name = own if own not in tools else _OTHER_NAMES[own]
        while name in tools:
            name += "_"
        return name

    async def list_page(self, user: str, cursor: str | None) -> ListToolsResult:
        """Return a page of the list for ``user``.

        Raises:
            MCPError: the cursor is none of this server, or the permissions of the user could not be resolved.
        """
        try:
            visible = await self._dispatcher.tools(user=user)
        except DispatchError as error:  # of any other class of exception a client sees no text
            raise MCPError(INTERNAL_ERROR, error.message, error.as_dict()) from None
        own = [_describe(READ_RESULT, READ_RESULT, ReadResultTool.description, annotations=_READ_ONLY)]
        if self._search == "always" or (self._search == "auto" and len(visible) > MAX_LISTED):
            find, call = self._name_of(FIND_TOOLS), self._name_of(CALL_TOOL)
            about = f"Find tools for a task among {len(visible):,}: names, descriptions and parameters."
            own.append(_describe(FIND_TOOLS, find, f"{about} Call one with {call}.", annotations=_READ_ONLY))
            own.append(_describe(CALL_TOOL, call, f"Call a tool that {find} has shown."))
            visible = tuple(tool for tool in visible if tool.name in self._always)
        listed: dict[str, BoundTool | McpTool] = {each.name: each for each in own}
        listed |= {each.name: each for each in visible}
        names, next_cursor = cut_page(listed, cursor)
        page = [listed[name] for name in names]
        return ListToolsResult(
            tools=[describe_tool(each) if isinstance(each, BoundTool) else each for each in page],
            next_cursor=next_cursor,
        )

    async def call(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallToolResult:
        """Call a tool, of the catalogue or of the server, and return its result."""
        is_own = name not in self._dispatcher.catalog.tools
        try:
            if is_own and name == self._name_of(CALL_TOOL):
                self._check(CALL_TOOL, arguments)
                return await self._call_listed(context, arguments["name"], arguments.get("arguments", {}), user)
            if is_own and name == self._name_of(FIND_TOOLS):
                self._check(FIND_TOOLS, arguments)
                limit = arguments.get("limit", 5)
                found = await self._dispatcher.find(arguments["query"], limit=limit, user=user)
                return _write_texts(write_found(each.tool for each in found))
            return await self._call_listed(context, name, arguments, user)
        except DispatchError as error:
            return _write_texts(ResultFormatter.format_error(error), is_error=True)

    def _check(self, own: str, arguments: Mapping[str, Any]) -> None:
        """Check the arguments of a tool of the server.

        Raises:
            InvalidArgumentsError: they do not match its schema; the message has every mistake.
        """
        mistakes = self._validators[own].find_mistakes(arguments)
        if mistakes:
            raise InvalidArgumentsError(
                ErrorType.INVALID_ARGUMENTS,
                f"Tool '{own}' was not executed: {join_mistakes(mistakes)}. Correct the arguments.",
            )

    async def _call_listed(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallToolResult:
        """Call a tool of the catalogue, or ``read_result``."""
        if name == READ_RESULT:
            # A server whose tools are in the catalogue may have a tool of this name: its handles are not in the store.
            try:
                self._check(READ_RESULT, arguments)
                return _write_texts(await ReadResultTool(self._dispatcher.results, user).invoke(**arguments))
            except InvalidArgumentsError:
                if READ_RESULT not in self._dispatcher.catalog.tools:
                    raise
        if context.meta is not None and context.meta.get("progress_token") is not None:
            result = await self._stream(context, name, arguments, user)
        else:
            result = await self._dispatcher.execute(name, arguments, user=user, by_model=True)
        return self._format(context, result, user)

    async def _stream(
        self, context: ServerRequestContext[Any], name: str, arguments: Mapping[str, Any], user: str
    ) -> CallResult:
        """Call a tool. If its reply is a stream, report each chunk as progress: clients ask for that with any call."""
        chunks: list[str] = []
        results: list[CallResult] = []
        whole: list[bool] = []
        stream = self._dispatcher.stream(
            name, arguments, user=user, by_model=True, on_begin=whole.append, on_result=results.append
        )
        try:
            async with contextlib.aclosing(stream):
                async for chunk in stream:
                    chunks.append(chunk)
                    if not whole[0]:
                        if (exchange := _exchange.get()) is not None:
                            await exchange.wait_room()
                        await context.session.report_progress(float(len(chunks)), message=chunk[:MAX_PROGRESS_CHARS])
        except DispatchError as error:
            return CallResult(name, error.outcome, error=error)
        return msgspec.structs.replace(results[0], text="".join(chunks))

    def _format(self, context: ServerRequestContext[Any], result: CallResult, user: str) -> CallToolResult:
        content = self._dispatcher.format_result(result, user=user)
        formatted = _write_texts(*(block["text"] for block in content["content"]), is_error="isError" in content)
        descriptor = self._dispatcher.catalog.tools.get(result.tool)
        if formatted.is_error or descriptor is None:
            return formatted
        if result.content:
            _add_parts(formatted, result)
        structured = result.structured_content
        if structured is not None:
            if isinstance(structured, Mapping) or context.protocol_version in MODERN_PROTOCOL_VERSIONS:
                formatted.structured_content = structured  # handshake versions have objects only
        elif has_structured_content(descriptor):
            formatted.structured_content = msgspec.json.decode(result.text)
        return formatted


def _add_parts(formatted: CallToolResult, result: CallResult) -> None:
    """Replace the text by all parts of a result from an MCP server; a text that was cut stays, with the other parts."""
    (text,) = formatted.content
    given = CallToolResult.model_validate({"content": [dict(block) for block in result.content]}).content
    parts = [part if _has_address(part) else TextContent(text=describe_block(part)) for part in given]
    if isinstance(text, TextContent) and text.text != result.text:
        parts = [text, *(each for each in parts if not isinstance(each, TextContent))]
    formatted.content = parts


def _has_address(part: ContentBlock) -> bool:
    """Whether a link or a resource has an absolute URI: many clients refuse the whole result otherwise."""
    resource = part.resource if isinstance(part, EmbeddedResource) else part
    return _SCHEME.match(getattr(resource, "uri", "a:")) is not None  # other parts have none


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def _write_texts(*texts: str, is_error: bool = False) -> CallToolResult:
    content: list[Any] = [TextContent(text=text) for text in texts]
    return CallToolResult(content=content, is_error=is_error)


# The ASGI application of an MCP server: streamable HTTP, protected against DNS rebinding, with bearer tokens.


class BearerTokens:
    """Verifies bearer tokens for the SDK.

    Args:
        users: by their tokens.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._watch: FileWatch[dict[str, str]] | None = None
        self._replace(users)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BearerTokens:
        """Return the tokens in a file (see :func:`read_tokens`), which is followed until :meth:`close`."""
        tokens, file = cls(read_tokens(path)), Path(path)
        parse = partial(_parse_tokens, file)
        tokens._watch = FileWatch(file, _read_token_file, parse, tokens._replace, "tokens", logger)
        tokens._watch.start()
        return tokens

    def _replace(self, users: Mapping[str, str]) -> None:
        self._users = {hash_token(token): user for token, user in users.items()}

    def close(self) -> None:
        """Stop following the file."""
        if self._watch:
            self._watch.close()

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the access that ``token`` gives; None: it is unknown."""
        user = self._users.get(hash_token(token))
        return None if user is None else AccessToken(token=token, client_id=user, scopes=[], subject=user)


_NO_TOKEN: Final = (
    "This server requires a bearer token, and has no login (OAuth): send the header 'Authorization: Bearer TOKEN' with a "
    "token from its operator"
)
_UNKNOWN_TOKEN: Final = "The bearer token is unknown, or was replaced: ask the operator of this server for another one"


def require_token(app: ASGIApp) -> ASGIApp:
    """Return ``app`` without requests that have no known bearer token: they are refused, as RFC 6750 says: only one with a
    token has an error code. MCP's ``resource_metadata`` names an authorization server; there is none."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if isinstance(scope.get("user"), AuthenticatedUser):
            await app(scope, receive, send)
            return
        has_token = Request(scope).headers.get("authorization", "").lower().startswith("bearer ")
        reason = _UNKNOWN_TOKEN if has_token else _NO_TOKEN
        challenge = 'Bearer realm="dispatch"' + f', error="invalid_token", error_description="{reason}"' * has_token
        body = _write_error(INVALID_REQUEST, f"{reason}. Nothing was executed.", b"null")
        headers = {"www-authenticate": challenge}
        await Response(body, 401, headers, "application/json")(scope, receive, send)

    return checked


_REFUSED_BY: Final = {421: "host", 403: "origin"}
_OWN_NAMES: Final = "use the address of this server, or have its operator allow the name with --allow-host"
_REFUSALS: Final = {
    "host": f"The host '{{}}' is not a name of this server: {_OWN_NAMES}",
    "origin": f"The origin '{{}}' is not a name of this server: {_OWN_NAMES}",
    "content-type": "The content type '{}' is not that of MCP: send the header 'Content-Type: application/json'",
}
"""Why a request is refused, by the header that is the reason."""
_NO_SESSION: Final = (
    "This server speaks streamable HTTP, not the HTTP+SSE transport of MCP 2024-11-05: choose 'http' or 'streamable-http' "
    "in the client, which begins with a POST of 'initialize' to this address"
)


def _refuse_id(request: JSONRPCRequest) -> bytes:
    text = "A request with this id is in flight: give each request of a session another id. This one was not executed."
    return _write_error(INVALID_REQUEST, text, msgspec.json.encode(request.id))


class UnreadableRequests:
    """ASGI application that answers requests which are no messages; the SDK answers them without their ids, and takes a
    request whose id is no integer for a notification. It would never answer the first of two requests of a session that
    have one id: the second one is refused. A batch is passed on message by message. A client of the HTTP+SSE transport
    begins with a GET without a session, and is told what to use.

    Args:
        app: receives all others.
        security: settings by which a request is refused before it is read.
        closing: set when the server shuts down: streams of notifications, which have no end, are ended.
    """

    def __init__(self, app: ASGIApp, security: TransportSecuritySettings, closing: asyncio.Event) -> None:
        self._app = app
        self._security = TransportSecurityMiddleware(security)
        self._closing = closing
        self._in_flight: dict[tuple[str, str], _Exchange] = {}
        """By session and id."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, is_post = Request(scope), scope["method"] == "POST"
        if (refusal := await self._find_refusal(request, is_post)) is not None:
            await refusal(scope, receive, send)
            return
        if scope["method"] == "GET":
            await self._stream(scope, receive, send)
            return
        if not is_post:
            await self._app(scope, receive, send)
            return
        data = (await receive()).get("body", b"")
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER, BATCH_VERSIONS[-1])  # earlier ones have no header
        try:
            is_allowed = version in BATCH_VERSIONS and is_batch(data)
            found = read_batch(data) if is_allowed else [read_message(data)]
            is_first = isinstance(found[0], JSONRPCRequest) and found[0].method == "initialize"
            if version in HANDSHAKE_PROTOCOL_VERSIONS and not is_first and MCP_SESSION_ID_HEADER not in request.headers:
                reason = f"{_NO_HANDSHAKE}, and this message with the header 'Mcp-Session-Id' of the first answer"
                raise UnreadableMessageError(INVALID_REQUEST, reason, find_id(data))
            if is_allowed:
                await BatchResponse(self._pass_on, found)(scope, receive, send)
                return
        except UnreadableMessageError as error:
            await Response(error.answer, 400, media_type="application/json")(scope, receive, send)
            return
        [message] = found
        assert not isinstance(message, UnreadableMessageError)
        if b"[]" in data or b"null" in data:  # it may be completed
            data = write_message(message)
        await self._pass_on(message, scope, replay(data, receive), send)

    async def _find_refusal(self, request: Request, is_post: bool) -> Response | None:
        """Return the response to a request that is not for this server, or not in its form; it says what to send."""
        refusal = await self._security.validate_request(request, is_post=is_post)
        if refusal is not None:
            status, header = refusal.status_code, _REFUSED_BY.get(refusal.status_code, "content-type")
            text = _REFUSALS[header].format(excerpt(request.headers.get(header, "")))
        elif is_post and not all(check_accept_headers(request)):
            status, text = 406, "A POST must accept both: send the header 'Accept: application/json, text/event-stream'"
        elif (
            request.method in ("GET", "DELETE")
            and MCP_SESSION_ID_HEADER not in request.headers
            and request.headers.get(MCP_PROTOCOL_VERSION_HEADER) not in MODERN_PROTOCOL_VERSIONS
        ):
            status, text = 400, _NO_SESSION
        else:
            return None
        body = _write_error(INVALID_REQUEST, f"{text}. Nothing was executed.", b"null")
        return Response(body, status, media_type="application/json")

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request for a stream of notifications, which ends when the server shuts down."""
        is_open = False

        async def receive_end() -> Message:
            received, closed = asyncio.ensure_future(receive()), asyncio.ensure_future(self._closing.wait())
            try:
                await asyncio.wait((received, closed), return_when=asyncio.FIRST_COMPLETED)
                return {"type": "http.disconnect"} if self._closing.is_set() else received.result()
            finally:
                await cancel_and_wait((received, closed))

        async def forward(part: Message) -> None:
            nonlocal is_open
            is_open = part["type"] == "http.response.start" or part.get("more_body", False)
            await send(part)

        await self._app(scope, receive_end, forward)
        if is_open:
            await send({"type": "http.response.body", "body": b""})

    async def _pass_on(self, message: JSONRPCMessage, scope: Scope, receive: Receive, send: Send) -> None:
        session = Request(scope).headers.get(MCP_SESSION_ID_HEADER)
        if session is None or not isinstance(message, JSONRPCRequest):
            await self._app(scope, receive, send)
            return
        key = session, str(message.id)  # the SDK takes 5 and "5" for one id
        while (former := self._in_flight.get(key)) is not None:
            if not former.is_answered:
                await Response(_refuse_id(message), 400, media_type="application/json")(scope, receive, send)
                return
            await former.has_ended.wait()
        this = self._in_flight[key] = _Exchange(send)
        _exchange.set(this)
        try:
            await self._app(scope, receive, this.send)
        finally:
            del self._in_flight[key]
            this.end()


MAX_AHEAD: Final = 8
"""Notifications of a request that its client has not received: fewer than the SDK's queue of a request has places (16)."""


class _Exchange:
    """A request that the SDK has.

    Attributes:
        is_answered: the whole answer was sent; the SDK may still have the id.
        has_ended: the SDK has not.
    """

    def __init__(self, send: Send) -> None:
        self.is_answered = False
        self.has_ended = asyncio.Event()
        self._send = send
        self._ahead = 0
        """Notifications that the client has not received."""
        self._has_room = asyncio.Event()

    async def send(self, part: Message) -> None:
        """Send a part of the answer, when the client has read enough of what was sent."""
        is_body = part["type"] == "http.response.body"
        self.is_answered = is_body and not part.get("more_body", False)
        await self._send(part)
        if is_body and not part.get("body", b"").startswith(b":"):  # a comment is no message
            self._ahead = max(0, self._ahead - 1)
            self._has_room.set()

    async def wait_room(self) -> None:
        """Wait until one more notification may be sent. The SDK has one queue for all requests of a session: a client that
        does not read one answer must not hold up the others."""
        while self._ahead >= MAX_AHEAD and not self.has_ended.is_set():
            self._has_room.clear()
            await self._has_room.wait()
        self._ahead += 1

    def end(self) -> None:
        """Record that the SDK has it no more."""
        self.has_ended.set()
        self._has_room.set()


_exchange: ContextVar[_Exchange | None] = ContextVar("_exchange", default=None)
"""That of the request whose handler runs."""


class BatchResponse:
    """Response to a batch: one stream with the events of all its requests, and the errors of unreadable messages. If the
    first of its requests is refused, for instance because the session is unknown, its response is that to the batch.

    Args:
        app: receives each message as a request of its own.
        found: the messages.
    """

    def __init__(
        self,
        app: Callable[[JSONRPCMessage, Scope, Receive, Send], Coroutine[Any, Any, None]],
        found: Sequence[JSONRPCMessage | UnreadableMessageError],
    ) -> None:
        self._app = app
        self._messages: list[JSONRPCMessage] = []
        self._errors: list[bytes] = []
        ids: set[str] = set()
        for each in found:
            if isinstance(each, UnreadableMessageError):
                self._errors += [each.answer] if each.is_answered else []
            elif isinstance(each, JSONRPCRequest) and str(each.id) in ids:
                self._errors.append(_refuse_id(each))
            else:
                self._messages.append(each)
                ids |= {str(each.id)} if isinstance(each, JSONRPCRequest) else set()
        self._start: Message | None = None
        """Of the first response with a body for the client."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:
            for message in self._messages:
                body = replay(write_message(message), receive)
                tasks.start_soon(self._app, message, scope, body, self._sender(send))
        if self._start is None:
            errors = b"[%b]" % b",".join(self._errors)
            only = Response(errors, 400, media_type="application/json") if self._errors else Response(status_code=202)
            await only(scope, receive, send)
            return
        events = b"" if self._start["status"] != 200 else b"".join(b"data: %b\n\n" % each for each in self._errors)
        await send({"type": "http.response.body", "body": events})

    def _sender(self, send: Send) -> Send:
        """Return what receives the response to one message."""
        is_forwarded = False

        async def forward(part: Message) -> None:
            nonlocal is_forwarded
            if part["type"] != "http.response.start":
                if is_forwarded and part.get("body"):
                    await send({**part, "more_body": True})
            elif self._start is not None:
                is_forwarded = self._start["status"] == part["status"] == 200
            elif part["status"] != 202:
                is_forwarded = True
                headers = [each for each in part["headers"] if each[0] != b"content-length"]
                self._start = {**part, "headers": headers}
                await send(self._start)

        return forward


def make_app(
    server: Server[Any],
    path: str,
    hosts: Collection[str],
    tokens: Mapping[str, str] | BearerTokens | None,
    closing: asyncio.Event,
) -> Starlette:
    """Return the application; see :meth:`dispatch.mcp.server.McpServer.app`.

    Args:
        closing: see :class:`UnreadableRequests`.
    """
    verifier = BearerTokens(tokens) if isinstance(tokens, Mapping) else tokens
    security = protect_against_rebinding(hosts)
    app = server.streamable_http_app(streamable_http_path=path, transport_security=security)
    limited = server.session_manager.asgi_app  # reads the whole body, which is limited
    limited.app = UnreadableRequests(limited.app, security, closing)
    for route in app.routes:
        assert isinstance(route, Route)
        route.app = read_bodies(route.app, limited.max_body_size)
        if verifier is not None:
            route.app = require_token(route.app)
    if verifier is not None:
        # The SDK adds them only with the settings of an OAuth server; the last one is the outermost.
        app.add_middleware(AuthContextMiddleware)
        app.add_middleware(AuthenticationMiddleware, backend=BearerAuthBackend(verifier))
    app.add_middleware(trim_headers)

    async def refuse_path(request: Request, _error: Exception) -> Response:
        endpoint = f"{request.scope.get('root_path', '')}{path}"
        return PlainTextResponse(f"Not found: the MCP endpoint is {endpoint}, by streamable HTTP.\n", 404)

    app.add_exception_handler(404, refuse_path)
    return app


def protect_against_rebinding(hosts: Collection[str]) -> TransportSecuritySettings:
    """Return settings that accept requests to the loopback interface and to ``hosts`` only, with any port."""
    accepted = list(dict.fromkeys([*LOOPBACK_HOSTS, *hosts]))
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[form for host in accepted for form in _with_port(host)],
        allowed_origins=[
            f"{scheme}://{form}" for host in accepted for scheme in ("http", "https") for form in _with_port(host)
        ],
    )


def _with_port(host: str) -> Iterator[str]:
    yield host
    yield f"{host}:*"


MAX_DISCARDED: Final = 64 * 1024 * 1024
"""Bytes of a message that are read for the client to see that the message is too large."""


def read_bodies(app: ASGIApp, limit: int) -> ASGIApp:
    """Return ``app`` with requests whose bodies of at most ``limit`` bytes were read before. The rest of one that is too
    large is read, too: a connection that is closed before is reset, and its client sees no answer."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        data, size, has_more = bytearray(), 0, True
        while has_more and size <= MAX_DISCARDED:
            part = await receive()
            if part["type"] != "http.request":
                return  # the client has gone
            data += part.get("body", b"")[: limit - len(data)]
            size += len(part.get("body", b""))
            has_more = part.get("more_body", False)
        if size <= limit:
            await app(scope, replay(bytes(data), receive), send)
            return
        text = f"The message has more than {limit:,} bytes. Nothing was executed: send less, or several messages."
        body = _write_error(INVALID_REQUEST, text, find_id(bytes(data)))
        await Response(body, 413, media_type="application/json")(scope, receive, send)

    return read


def trim_headers(app: ASGIApp) -> ASGIApp:
    """Return ``app`` without the blanks around the values of headers. They are no part of a value (RFC 9110, section 5.5),
    but httptools keeps those behind it, and the SDK compares ``mcp-name`` and others with the message."""

    async def trimmed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await app(scope, receive, send)

    return trimmed


# An MCP server over the tools of a dispatcher.


_failures = ExceptionLogger(logging.getLogger("dispatch.mcp"))

UserOf = Callable[[ServerRequestContext[Any]], str]


class _SdkServer(Server[set[str]]):
    """The SDK's low-level server. It announces ``listChanged`` to clients of the handshake on every transport, which the SDK
    does for those that it is told about at the start of a connection."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


async def explain_refusals(ctx: ServerRequestContext[Any], call_next: CallNext) -> HandlerResult:
    """Middleware of the SDK: a request before the handshake is told to send it, and one whose parameters are not valid what
    is wrong. The SDK answers both with one error, which says neither."""
    try:
        return await call_next(ctx)
    except pydantic_core.ValidationError:
        try:
            validate_client_request(ctx.method, ctx.protocol_version, ctx.params)
        except ValueError as error:
            text = f"The parameters of '{ctx.method}' are not valid ({describe_invalid(error)})"
            raise MCPError(INVALID_PARAMS, f"{text}. Nothing was executed: correct them.") from None
        raise
    except MCPError as error:
        is_early = ctx.session.client_params is None and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS
        if is_early and (error.error.code, error.error.data) == (INVALID_PARAMS, ""):
            text = f"{_NO_HANDSHAKE}. Nothing was executed: send this request again after them."
            raise MCPError(INVALID_REQUEST, text) from None
        raise


class McpServer:
    """Serves the tools of a dispatcher to MCP clients of both generations of the protocol.

    Args:
        dispatcher: started before the first request.
        user: on whose behalf tools are listed and called where the request has no bearer token: a name, or a function of the
            request, which is asked in every case.
        search: ``auto``: above 40 tools of a user, list ``find_tools``, ``call_tool`` and ``read_result`` in their place;
            ``always`` or ``never`` do so.
        always: names of tools that are listed also beside ``find_tools``.
        name: of the server, for clients.

    Attributes:
        sdk_server: the low-level server of MCP's SDK.

    Raises:
        ValueError: ``search`` has another value.
        TypeError: ``user`` is a coroutine function, or neither a name nor a function.
    """

    @explain_keywords
    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        user: str | UserOf = "",
        search: Search = "auto",
        always: Collection[str] = (),
        name: str = "dispatch",
    ) -> None:
        if callable(user):
            check_function("user", user, "return the name without waiting")
        else:
            check_instance("user", user, str, "the name of a user, or a function of the request")
        if search not in ("auto", "always", "never"):
            raise ValueError(f"search must be 'auto', 'always' or 'never', not {search!r}")
        self._dispatcher = dispatcher
        self._user = user
        self._tools = ServedTools(dispatcher, search, as_set("always", always))
        self._changes = ListChanges(dispatcher)
        self.sdk_server: Server[set[str]] = _SdkServer(
            name,
            version=__version__,
            # No cache hints, so that a list is stale at once: tools may change at any time, and the server does not know
            # which clients listen for it.
            lifespan=self._changes.watch,
            get_tool_input_schema=self._find_input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._changes.listen,
        )
        self.sdk_server.middleware.insert(0, self._changes.follow_session)
        self.sdk_server.middleware.append(explain_refusals)

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout until it closes stdin. Meanwhile other output to stdout goes to stderr."""
        with claim_standard_streams() as descriptors:
            messages = StdioMessages(*descriptors)
            await self.sdk_server.run(messages, messages, self.sdk_server.create_initialization_options())

    def app(
        self, *, path: str = "/mcp", hosts: Collection[str] = (), tokens: Mapping[str, str] | None = None
    ) -> Starlette:
        """Return an ASGI application that serves streamable HTTP. Its lifespan must run; that of a mounted application is
        ``app.router.lifespan_context(app)``. One application for each server.

        Args:
            path: of the endpoint.
            hosts: hosts without a port that ``Host`` and ``Origin`` may name besides the loopback interface: protection
                against DNS rebinding.
            tokens: users by their bearer tokens; requests without one of them are refused. None: no token is required.
        """
        return make_app(self.sdk_server, path, hosts, tokens, asyncio.Event())

    def close_listeners(self) -> None:
        """End the open subscriptions, so that an HTTP server can shut down."""
        self._changes.listen.close()

    def _user_of(self, context: ServerRequestContext[Any]) -> str:
        if callable(self._user):
            try:
                return self._user(context)
            except MCPError:
                raise
            except BaseException as raised:  # SystemExit, for example, would end the server
                _failures.log("the function that names the user of a request failed", raised)
                message = f"No tool was executed: the user of the request is not known ({type_name(raised)})."
                raise MCPError(INTERNAL_ERROR, message) from None
        return _find_user(self._user)

    def _find_input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema by which the SDK compares ``Mcp-Param`` headers with arguments. Without this function it lists
        all tools for every call."""
        user = _find_user(self._user if isinstance(self._user, str) else "")
        try:
            return self._dispatcher.tool(name, user=user).parameters
        except DispatchError:
            return None

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return await self._tools.list_page(self._user_of(context), None if params is None else params.cursor)

    async def _call_tool(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return await self._tools.call(context, params.name, params.arguments or {}, self._user_of(context))


def _find_user(otherwise: str) -> str:
    """Return the user of the bearer token of the request; ``otherwise``: it has none."""
    token = get_access_token()
    return otherwise if token is None else token.subject or token.client_id


# The file of the bearer tokens of ``dispatch mcp --tokens``.


class TokenFileError(ValueError):
    """A file of tokens cannot be used; the message has the mistake and its fix, and no token."""


def read_tokens(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read ``{"USER": "TOKEN"}`` and return the users by their tokens. A user may have a list of tokens, so that one can be
    replaced without an interruption.

    Raises:
        TokenFileError: the file cannot be read, or is invalid; it lists every mistake.
    """
    return _parse_tokens(Path(path), _read_token_file(Path(path)))


MAX_TOKEN_FILE_BYTES: Final = 4 * 1024 * 1024


def _read_token_file(path: Path) -> bytes:
    try:
        return read_regular_file(path, MAX_TOKEN_FILE_BYTES, "")[0]
    except (OSError, DocumentError) as error:
        raise TokenFileError(
            f"The token file '{path}' cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None


def _parse_tokens(path: Path, content: bytes) -> dict[str, str]:
    form = 'write {"alice": "TOKEN"}, a token or a list of tokens for each user'
    try:
        given = parse_typed(content, path, dict[str, str | list[str]])
    except DocumentError:  # its text may have a value of the file
        raise TokenFileError(f"The token file '{path}' is invalid: {form}.") from None
    users: dict[str, str] = {}
    mistakes = []
    for user, tokens in given.items():
        for token in [tokens] if isinstance(tokens, str) else tokens:
            if not is_usable_token(token):
                mistakes.append(f"A token of user '{user}' in '{path}' is not usable: {TOKEN_RULE}")
            elif users.setdefault(token, user) != user:
                mistakes.append(f"The users '{users[token]}' and '{user}' in '{path}' have the same token: change one.")
    if not users and not mistakes:
        mistakes.append(f"The token file '{path}' has no tokens: {form}.")
    if mistakes:
        raise TokenFileError("\n".join(mistakes))
    return users


__all__ = ["McpServer"]
