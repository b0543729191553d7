"""Streamable HTTP with the headers of a server's configuration, where one failed request fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final

import httpx2
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client

CONNECT_S: Final = 5.0
"""Seconds to connect to a server. There is no limit of the time between two parts of a reply: the calls have deadlines."""
MAX_IDLE_CONNECTIONS: Final = 100
LAST_REPLIES_S: Final = 0.05
"""Seconds in which calls in flight receive their errors before a session that is of no use is closed."""
NOT_SENT: Final = -32981
"""Code of the error of a request for which there was no connection: the server did not receive it."""
REPLY_LOST: Final = -32982
"""Code of the error of a request whose connection ended before the reply."""

_NOT_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class HttpTransport:
    """A transport of :class:`mcp.Client`.

    Args:
        url: address of the server.
        headers: of each request.

    Attributes:
        ended: set when the session is of no use any more.
        is_unknown: the server does not know the session: it has restarted. A request that it answered with an error after
            that was not executed.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.ended = asyncio.Event()
        self.is_unknown = False
        self._url = url
        self._headers = dict(headers)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> tuple[Any, Any]:
        http = HttpClient(self._on_unreachable, self._on_unknown, self._headers)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(http)
            streams = await stack.enter_async_context(streamable_http_client(self._url, http_client=http))
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
        self._on_unreachable()


class HttpClient(httpx2.AsyncClient):
    """A client that answers a POST itself where the server cannot: an exception would end the SDK's session, and with it all
    other calls in flight.

    Args:
        on_unreachable: called when there is no connection to the server.
        on_unknown: called when the server does not know the session.
        headers: of each request.
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

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; see :meth:`httpx2.AsyncClient.send`."""
        try:
            response = await super().send(request, **options)
        except httpx2.TransportError as error:
            is_sent = not isinstance(error, _NOT_SENT)
            if not is_sent:
                self._on_unreachable()
            if request.method != "POST":
                raise
            return _error_response(request, REPLY_LOST if is_sent else NOT_SENT, error)
        # MCP: the status 404 for a session means that the client has to open another one. The SDK shows no status.
        if response.status_code == HTTPStatus.NOT_FOUND and MCP_SESSION_ID in request.headers:
            self._on_unknown()
        return response


def _error_response(request: httpx2.Request, code: int, error: Exception) -> httpx2.Response:
    message = f"{type(error).__name__}: {error}"
    body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(HTTPStatus.SERVICE_UNAVAILABLE, json=body, request=request)
