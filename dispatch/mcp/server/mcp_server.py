"""An MCP server over the tools of a dispatcher."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from dispatch._internal.user_code import type_name
from dispatch._internal.version import __version__
from dispatch.errors import DispatchError
from dispatch.mcp.server.http_app import make_app
from dispatch.mcp.server.list_changes import ListChanges
from dispatch.mcp.server.own_tools import OwnTools
from dispatch.mcp.server.stdio_streams import open_stdio
from dispatch.mcp.server.tool_calls import ToolCalls
from dispatch.mcp.server.tool_listing import ToolListing
from dispatch.telemetry.logs import ExceptionLogger

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from dispatch.dispatcher import Dispatcher

_failures = ExceptionLogger(logging.getLogger("dispatch.mcp"))

UserOf = Callable[[ServerRequestContext[Any]], str]
Search = Literal["auto", "always", "never"]


class McpServerOptions(TypedDict, total=False):
    """Settings of an :class:`McpServer`."""

    user: str | UserOf
    search: Search
    always: Collection[str]
    name: str


class _SdkServer(Server[None]):
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
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        user: str | UserOf = "",
        search: Search = "auto",
        always: Collection[str] = (),
        name: str = "dispatch",
    ) -> None:
        if search not in ("auto", "always", "never"):
            raise ValueError(f"search must be 'auto', 'always' or 'never', not {search!r}")
        self._dispatcher = dispatcher
        self._user = user
        own_tools = OwnTools()
        self._listing = ToolListing(dispatcher, own_tools, search, frozenset(always))
        self._calls = ToolCalls(dispatcher, own_tools)
        self._changes = ListChanges(dispatcher)
        self.sdk_server: Server[None] = _SdkServer(
            name,
            version=__version__,
            # No cache hints, so that a list is stale at once: tools may change at any time, and the server does not know
            # which clients listen for it.
            lifespan=self._watch_changes,
            get_tool_input_schema=self._find_input_schema,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._changes.listen,
        )
        self.sdk_server.middleware.insert(0, self._changes.follow_session)

    async def serve_stdio(self) -> None:
        """Serve one client on stdin and stdout until it closes stdin. Meanwhile other output to stdout goes to stderr."""
        async with open_stdio() as (reading, writing):
            await self.sdk_server.run(reading, writing, self.sdk_server.create_initialization_options())

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
        return make_app(self.sdk_server, path, hosts, tokens)

    def close_listeners(self) -> None:
        """End the open subscriptions, so that an HTTP server can shut down."""
        self._changes.listen.close()

    @contextlib.asynccontextmanager
    async def _watch_changes(self, _server: Server[None]) -> AsyncIterator[None]:
        async with self._changes.watch():
            yield

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
        token = get_access_token()
        return self._user if token is None else token.subject or token.client_id

    def _find_input_schema(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema by which the SDK compares ``Mcp-Param`` headers with arguments. Without this function it lists
        all tools for every call."""
        token = get_access_token()
        user = self._user if isinstance(self._user, str) else ""
        try:
            return self._dispatcher.tool(
                name, user=user if token is None else token.subject or token.client_id
            ).parameters
        except DispatchError:
            return None

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return await self._listing.list_page(self._user_of(context), None if params is None else params.cursor)

    async def _call_tool(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        return await self._calls.call(context, params.name, params.arguments or {}, self._user_of(context))
