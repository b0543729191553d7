"""``dispatch mcp``: serve all tools over MCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher
    from dispatch.mcp.server import McpServer


@with_settings(
    "broker", "catalog", "policy", "grants", "token_file", "trust_certs", "trustgraph", "workspace", "approvals"
)
def mcp(
    settings: Settings,
    user: Annotated[
        str, typer.Option("--user", "-u", help="User on whose behalf tools are called.", show_default=False)
    ] = "",
) -> None:
    """Serve all tools over MCP (Model Context Protocol), on stdin and stdout.

    [bold]dispatch mcp --catalog tools/[/bold]

    It ends when the client closes stdin, and at Ctrl-C.
    """
    from dispatch.cli.catalog.given_sources import list_sources
    from dispatch.dispatcher.connection import connect

    dispatcher = connect(
        settings.broker_url,
        list_sources(settings, watch=True),
        policy=settings.load_policy(),
        grants=settings.load_grants(),
        approvals=settings.approvals_file,
        security=settings.security(),
    )
    run_async(_serve_stdio(dispatcher, dispatcher.mcp_server(user=user)))


async def _serve_stdio(dispatcher: Dispatcher, server: McpServer) -> None:
    async with dispatcher:
        await server.serve_stdio()
