"""``dispatch mcp``: serve all tools over MCP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dispatch.cli.exit_codes import CliError
from dispatch.cli.output import print_err
from dispatch.cli.run_async import run_async
from dispatch.cli.settings import Settings, with_settings

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


class Search(StrEnum):
    """Values of ``--search``."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@with_settings(
    "broker", "catalog", "policy", "grants", "token_file", "trust_certs", "trustgraph", "workspace", "approvals"
)
def mcp(
    settings: Settings,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Serve streamable HTTP at http://HOST:PORT/mcp. Port 0: any free port. Default: stdin and stdout.",
            show_default=False,
        ),
    ] = None,
    search: Annotated[
        Search,
        typer.Option("--search", help="List find_tools and call_tool in place of the tools: auto: above 40 tools."),
    ] = Search.AUTO,
    always: Annotated[
        list[str] | None,
        typer.Option(
            "--always", metavar="NAME", help="List this tool also beside find_tools; repeatable.", show_default=False
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            "--user",
            "-u",
            help="User on whose behalf tools are listed and called without --tokens.",
            show_default=False,
        ),
    ] = "",
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help='JSON file of bearer tokens, {"USER": "TOKEN"}. Required if other machines reach HOST.',
            show_default=False,
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Name under which clients reach the server, such as that of a proxy; repeatable.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve all tools over MCP (Model Context Protocol).

    [bold]dispatch mcp --catalog tools/[/bold]

    [bold]dispatch mcp --http 127.0.0.1:8080 --tokens tokens.json[/bold]

    On stdin and stdout it serves one client and ends when the client closes stdin. Only the protocol is written to stdout.

    The exit code after SIGTERM is 0, after Ctrl-C 130.
    """
    from dispatch.cli.catalog.given_sources import list_sources
    from dispatch.dispatcher.connection import connect

    address = None if http is None else parse_address(http)
    if address is None and (tokens is not None or allow_host):
        raise CliError("--tokens and --allow-host are for HTTP.", "add --http 127.0.0.1:8080, or use --user")
    try:
        from dispatch.mcp.server import McpServer
        from dispatch.mcp.server.http_server import is_loopback, serve_http
        from dispatch.mcp.server.token_file import TokenFileError, read_tokens
    except ImportError as error:
        raise CliError(str(error)) from None
    try:
        users = None if tokens is None else read_tokens(tokens)
    except TokenFileError as error:
        raise CliError(str(error)) from None
    if address is not None and users is None and not is_loopback(address[0]):
        raise CliError(
            f"Other machines reach '{address[0]}', and every client must name itself there with a bearer token.",
            "add --tokens FILE, or listen at 127.0.0.1",
        )
    dispatcher = connect(
        settings.broker_url,
        list_sources(settings, watch=True),
        policy=settings.load_policy(),
        grants=settings.load_grants(),
        approvals=settings.approvals_file,
        security=settings.security(),
    )
    server = McpServer(dispatcher, user=user, search=search.value, always=always or ())
    serving = (
        server.serve_stdio()
        if address is None
        else serve_http(server, *address, hosts=allow_host or (), tokens=users, on_ready=_report_ready)
    )
    run_async(_serve(dispatcher, serving))


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; an IPv6 address is in brackets.

    Raises:
        CliError: it has another form.
    """
    host, separator, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise CliError(f"--http '{text}' is not HOST:PORT.", "write for instance --http 127.0.0.1:8080")
    if ":" in host and not is_bracketed:
        raise CliError(f"The address in --http '{text}' is not unambiguous.", f"write --http [{host}]:{port}")
    return host.strip("[]"), int(port)


def _report_ready(url: str) -> None:
    print_err(f"MCP: {url}")


async def _serve(dispatcher: Dispatcher, serving: Coroutine[Any, Any, None]) -> None:
    """Serve until the client leaves, or SIGTERM. Ctrl-C cancels this coroutine."""
    try:
        async with dispatcher:
            task = asyncio.create_task(serving)
            stopped = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, stopped.set)
            stopping = asyncio.create_task(stopped.wait())
            try:
                await asyncio.wait([task, stopping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                loop.remove_signal_handler(signal.SIGTERM)
                stopping.cancel()
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.result()
    finally:
        serving.close()
