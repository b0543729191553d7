"""Streamable HTTP with the headers of a server's configuration, where one failed request fails alone."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final

import httpx2
import msgspec
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.types import METHOD_NOT_FOUND, ErrorData, RequestId
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

from dispatch._internal.suggestions import excerpt
from dispatch.mcp.client.configuration import find_header_problem
from dispatch.mcp.client.transports.replies import (
    FAILURES,
    MAX_MESSAGE_BYTES,
    TransportFailure,
    UnreadableMessageError,
    failed_reply,
    is_malformed,
    read_messages,
)

CONNECT_S: Final = 5.0
"""Seconds to connect to a server. There is no limit of the time between two parts of a reply: the calls have deadlines."""
MAX_IDLE_CONNECTIONS: Final = 100
LAST_REPLIES_S: Final = 0.05
"""Seconds in which calls in flight receive their errors before a session that is of no use is closed."""
REFUSALS_S: Final = 1.0
"""Seconds in which a server that has forgotten a session has to refuse the calls in flight, which are then sent again."""
PING_S: Final = 2.0
"""Seconds in which a server has to answer the ping that shows whether it knows the session."""

_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_REPLIES: Final = (JSONRPCResponse, JSONRPCError)
_BODY_HEADERS: Final = ("content-length", "content-encoding", "content-type", "transfer-encoding")
_ABOUT_SESSIONS: Final = re.compile("session|initiali[sz]", re.IGNORECASE)
_OF_CREDENTIALS: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Statuses that concern a session only where their text says so."""
_NEVER_OF_A_SESSION: Final = (
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
_OF_THE_SESSION: Final = (MCP_SESSION_ID, MCP_PROTOCOL_VERSION_HEADER)
_FORGOTTEN: Final = "the session is unknown"


class InvalidHeaderError(ValueError):
    """A header cannot be sent; the message has its name, and not its value, which may be a secret."""


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers without blanks and line ends around their values, as a secret from a file has one.

    Raises:
        InvalidHeaderError: HTTP cannot express a name or a value.
    """
    found = {name: value.strip() for name, value in headers.items()}
    for name, value in found.items():
        problem = find_header_problem(name, value)
        if problem:
            raise InvalidHeaderError(f"the header '{excerpt(name)}': {problem}")
    return found


class HttpTransport:
    """A transport of :class:`mcp.Client`.

    Args:
        url: address of the server.
        headers: of each request.

    Attributes:
        ended: set when the session is of no use any more.
        is_unknown: the server does not know the session: it has restarted.

    Raises:
        InvalidHeaderError: a header cannot be sent.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.ended = asyncio.Event()
        self.is_unknown = False
        self._url = url
        self._headers = check_headers(headers)
        self._stack = AsyncExitStack()
        self._http: HttpClient | None = None

    async def __aenter__(self) -> tuple[Any, Any]:
        http = self._http = HttpClient(self._on_unreachable, self._on_unknown, self._headers)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(http)
            streams = await stack.enter_async_context(
                streamable_http_client(self._url, http_client=http, max_sse_event_size=None)  # HttpClient has a limit
            )
            self._stack = stack.pop_all()
        return streams

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.ended.set()
        return await self._stack.__aexit__(exc_type, exc, traceback)

    def _on_unreachable(self) -> None:
        asyncio.get_running_loop().call_later(LAST_REPLIES_S, self.ended.set)

    def _on_unknown(self) -> None:
        self.is_unknown = True
        self._await_refusals(asyncio.get_running_loop().time() + REFUSALS_S)

    def _await_refusals(self, deadline: float) -> None:
        """End the session when the server has refused the other calls in flight, too, or at the deadline."""
        loop = asyncio.get_running_loop()
        if self._http is None or not self._http.in_flight or loop.time() >= deadline:
            self._on_unreachable()
        else:
            loop.call_later(LAST_REPLIES_S, self._await_refusals, deadline)


class HttpClient(httpx2.AsyncClient):
    """A client whose replies are messages that the SDK accepts, whatever the server answers. An exception would end the
    SDK's session, and with it all other calls in flight; a reply that the SDK cannot read would be in its log.

    Args:
        on_unreachable: called when there is no connection to the server.
        on_unknown: called when the server does not know the session.
        headers: of each request.

    Attributes:
        in_flight: requests without a reply.
    """

    def __init__(
        self, on_unreachable: Callable[[], object], on_unknown: Callable[[], object], headers: Mapping[str, str]
    ) -> None:
        super().__init__(
            headers=dict(headers),
            timeout=httpx2.Timeout(None, connect=CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS),
        )
        self._on_unreachable = on_unreachable
        self._on_unknown = on_unknown
        self.in_flight = 0
        self._is_forgotten = False
        self._checking = asyncio.Lock()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; see :meth:`httpx2.AsyncClient.send`."""
        if request.method == "DELETE" and self._is_forgotten:  # the end of the session
            return httpx2.Response(HTTPStatus.NO_CONTENT, request=request)
        exchange = Exchange.of(request)
        is_request = exchange is not None and exchange.id is not None
        self.in_flight += is_request
        try:
            response = await super().send(request, **options)
            if exchange is None or response.has_redirect_location:
                return response
            if response.is_success and _is_event_stream(response):
                return _stream(response, self._read_events(exchange, response))
            if exchange.id is not None:
                return await self._read_reply(exchange, response)
            if response.is_error:
                await self._check_session(request, response.status_code)
            return response
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            is_sent = not isinstance(error, _NOT_SENT)
            if not is_sent:
                self._on_unreachable()
            if request.method != "POST":
                raise
            failure = TransportFailure.REPLY_LOST if is_sent else TransportFailure.NOT_SENT
            id = None if exchange is None else exchange.id
            reply = failed_reply(id, failure, f"{type(error).__name__}: {error}")
            return _response(httpx2.Response(HTTPStatus.OK, request=request), reply)
        finally:
            self.in_flight -= is_request

    async def _read_reply(self, exchange: Exchange, response: httpx2.Response) -> httpx2.Response:
        try:
            body = await response.aread()
        finally:
            await response.aclose()
        reply = exchange.find_reply(body)
        if response.is_error:
            text = reply.error.message if isinstance(reply, JSONRPCError) else body[:10_000].decode(errors="replace")
            reply = _failure_of(exchange, response, reply)
            if await self._check_session(response.request, response.status_code, text):
                reply = exchange.fail(TransportFailure.FORGOTTEN, _FORGOTTEN)
        elif reply is None:
            status = f"HTTP status {response.status_code} without a reply"
            reply = exchange.fail(
                TransportFailure.MALFORMED, exchange.problem if body.strip() and exchange.problem else status
            )
        return _response(response, await self._check_reply(response.request, exchange, reply))

    async def _read_events(self, exchange: Exchange, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream, with readable messages only."""
        awaits_reply = is_request = exchange.id is not None
        self.in_flight += is_request
        try:
            async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
                messages = exchange.read(event.data.encode()) if event.event == "message" and event.data else []
                if awaits_reply:
                    messages = [await self._check_reply(response.request, exchange, each) for each in messages]
                    awaits_reply = not any(isinstance(each, _REPLIES) for each in messages)
                for data in _encode_event(event, messages):
                    yield data
        except httpx2.SSEError as error:  # an event that is too large
            exchange.problem = str(error)
        finally:
            self.in_flight -= is_request
        if awaits_reply and exchange.problem:
            for data in _encode_event(
                httpx2.ServerSentEvent(), [exchange.fail(TransportFailure.MALFORMED, exchange.problem)]
            ):
                yield data

    async def _check_reply(self, request: httpx2.Request, exchange: Exchange, reply: JSONRPCMessage) -> JSONRPCMessage:
        """Return ``reply``, or the failure of a request in a session that the server has forgotten."""
        if not isinstance(reply, JSONRPCError) or reply.error.code in FAILURES:
            return reply
        is_forgotten = await self._check_session(request, HTTPStatus.OK, reply.error.message)
        return exchange.fail(TransportFailure.FORGOTTEN, _FORGOTTEN) if is_forgotten else reply

    # -- the session --------------------------------------------------------------------------------------------

    async def _check_session(self, request: httpx2.Request, status: int, text: str = "") -> bool:
        """Find out whether a server that has refused a request knows its session; return whether it does not, and has not
        executed the request. Servers say so with many statuses and texts, which they also use for other reasons: a ping in
        the same session shows what is meant.

        Args:
            status, text: of the refusal.
        """
        version = request.headers.get(MCP_PROTOCOL_VERSION_HEADER)
        has_id = MCP_SESSION_ID in request.headers
        if status in _NEVER_OF_A_SESSION or version is None or version in MODERN_PROTOCOL_VERSIONS:
            return False
        if status >= 500 and not has_id:
            return False
        if (status < 400 or status in _OF_CREDENTIALS) and not _ABOUT_SESSIONS.search(text):
            return False
        async with self._checking:
            if not self._is_forgotten and await self._is_ping_refused(request, status):
                self._is_forgotten = True
                self._on_unknown() if status < 500 else self._on_unreachable()
        return self._is_forgotten and status < 500  # after an error of the server the request may have been executed

    async def _is_ping_refused(self, request: httpx2.Request, status: int) -> bool:
        """Whether a ping in the session of ``request`` is refused in the same way."""
        headers = {name: request.headers[name] for name in _OF_THE_SESSION if name in request.headers}
        headers["accept"] = "application/json, text/event-stream"
        message = {"jsonrpc": "2.0", "id": "dispatch-ping", "method": "ping"}
        ping = self.build_request("POST", request.url, headers=headers, json=message)
        exchange = Exchange("dispatch-ping", is_modern=False)
        with suppress(TimeoutError, httpx2.TransportError):
            async with asyncio.timeout(PING_S):
                response = await super().send(ping, stream=True, follow_redirects=False)
                try:
                    if response.status_code != status:
                        return False
                    reply = exchange.find_reply(await _read_body(response))
                finally:
                    await response.aclose()
            if not isinstance(reply, JSONRPCError):
                return status >= 400
            is_meant = status >= 400 or _ABOUT_SESSIONS.search(reply.error.message) is not None
            return is_meant and reply.error.code != METHOD_NOT_FOUND
        return False


class Exchange:
    """One request and its reply.

    Args:
        id: of the request; None: there is none, the server sends messages of its own.
        is_modern: the protocol is 2026-07-28 or later.

    Attributes:
        problem: of the last data that were not readable; empty: there were none.
    """

    def __init__(self, id: RequestId | None, is_modern: bool) -> None:
        self.id = id
        self.problem = ""
        self._is_modern = is_modern

    @classmethod
    def of(cls, request: httpx2.Request) -> Exchange | None:
        """Return the exchange of a request; None: it carries no request of MCP."""
        is_modern = request.headers.get(MCP_PROTOCOL_VERSION_HEADER) in MODERN_PROTOCOL_VERSIONS
        if request.method != "POST":
            return cls(None, is_modern) if request.method == "GET" else None
        head = msgspec.json.decode(request.content, type=_Head)
        return cls(head.id, is_modern) if head.method and head.id is not None else None

    def fail(self, failure: TransportFailure, message: str, data: object = None) -> JSONRPCError:
        """Return the reply that reports a failure of this request."""
        return failed_reply(self.id, failure, message, data)

    def read(self, data: bytes) -> list[JSONRPCMessage]:
        """Return the messages in ``data``; a reply has the id of the request."""
        try:
            messages = read_messages(data, is_modern=self._is_modern)
        except UnreadableMessageError as error:
            if error.is_request:
                return []
            self.problem = str(error)
            is_reply = error.is_message and self.id is not None
            return [self.fail(TransportFailure.MALFORMED, self.problem)] if is_reply else []
        return messages if self.id is None else list(map(self._assign_id, messages))

    def find_reply(self, data: bytes) -> JSONRPCMessage | None:
        """Return the reply in ``data``; None: there is none."""
        return next((message for message in self.read(data) if isinstance(message, _REPLIES)), None)

    def _assign_id(self, message: JSONRPCMessage) -> JSONRPCMessage:
        if isinstance(message, _REPLIES):
            if message.id is not None and str(message.id) != str(self.id):
                return self.fail(TransportFailure.MALFORMED, "the reply names another request")
            assert self.id is not None
            message.id = self.id  # a server that could not read the request writes null
        return message


class _Head(msgspec.Struct):
    """What is read of a request."""

    id: int | str | None = None
    method: str = ""


class _EventBytes(httpx2.AsyncByteStream):
    """The body of a response whose events were read and written again."""

    def __init__(self, response: httpx2.Response, events: AsyncGenerator[bytes, None]) -> None:
        self._response = response
        self._events = events

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._events

    async def aclose(self) -> None:
        """End the connection."""
        await self._events.aclose()
        await self._response.aclose()


async def _read_body(response: httpx2.Response) -> bytes:
    """Return the body: of a stream of events, the data of the first one."""
    if not _is_event_stream(response):
        return await response.aread()
    async for event in httpx2.EventSource(response, max_event_size=MAX_MESSAGE_BYTES):
        if event.data:
            return event.data.encode()
    return b""


def _is_event_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _response(response: httpx2.Response, reply: JSONRPCMessage) -> httpx2.Response:
    """Return ``response`` with another body and without its status, of which the SDK reports nothing."""
    headers = {**_other_headers(response), "content-type": "application/json"}
    return httpx2.Response(HTTPStatus.OK, headers=headers, content=_encode(reply), request=response.request)


def _stream(response: httpx2.Response, events: AsyncGenerator[bytes, None]) -> httpx2.Response:
    headers = {**_other_headers(response), "content-type": "text/event-stream"}
    stream = _EventBytes(response, events)
    return httpx2.Response(response.status_code, headers=headers, stream=stream, request=response.request)


def _other_headers(response: httpx2.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in _BODY_HEADERS}


def _encode(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _encode_event(event: httpx2.ServerSentEvent, messages: Sequence[JSONRPCMessage]) -> Iterator[bytes]:
    head = f"id: {event.id}\n" if event.id else ""
    if event.retry is not None:
        head += f"retry: {event.retry}\n"
    if head and not messages:
        yield f"{head}data:\n\n".encode()
    for message in messages:
        yield b"%bdata: %b\n\n" % (head.encode(), _encode(message))


def _failure_of(exchange: Exchange, response: httpx2.Response, reply: JSONRPCMessage | None) -> JSONRPCMessage:
    """Return the reply of a request that was refused with an HTTP status."""
    status = response.status_code
    error = reply if isinstance(reply, JSONRPCError) and not is_malformed(reply) else None
    text = f"HTTP status {status} {response.reason_phrase}".rstrip()
    if error is not None:
        text = f"{text}: {error.error.message}"
    if status == HTTPStatus.UNAUTHORIZED:
        return exchange.fail(TransportFailure.UNAUTHORIZED, text)
    if status == HTTPStatus.FORBIDDEN:
        return exchange.fail(TransportFailure.FORBIDDEN, text)
    retry_after = read_retry_after(response.headers.get("retry-after", ""), time.time())
    if status == HTTPStatus.TOO_MANY_REQUESTS or (status == HTTPStatus.SERVICE_UNAVAILABLE and retry_after is not None):
        return exchange.fail(TransportFailure.THROTTLED, text, retry_after)
    if error is not None:
        return error
    if status == HTTPStatus.NOT_FOUND and MCP_SESSION_ID not in response.request.headers:
        return JSONRPCError(jsonrpc="2.0", id=exchange.id, error=ErrorData(code=METHOD_NOT_FOUND, message=text))
    return exchange.fail(TransportFailure.HTTP_STATUS, text)


def read_retry_after(value: str, now: float) -> float | None:
    """Return the seconds of a header ``Retry-After``, which is a number or a date; None: it is neither.

    Args:
        now: Unix time.
    """
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
