"""The HTTP server of ``dispatch mcp --http``."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import uvicorn

if TYPE_CHECKING:
    from dispatch.mcp.server.mcp_server import McpServer

DRAIN_S: Final = 2
"""Seconds for open requests to end when the server stops; after that they are cancelled."""


class _Uvicorn(uvicorn.Server):
    """A server that leaves the signals of the process to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``: a name, or an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def list_own_hosts(host: str) -> list[str]:
    """Return the values of ``Host`` for a server that is bound to ``host``: to all interfaces, also the machine's names and
    addresses."""
    if host not in ("", "0.0.0.0", "::"):
        return [f"[{host}]" if ":" in host else host]
    name = socket.gethostname()
    found = [name, socket.getfqdn()]
    with contextlib.suppress(OSError):
        addresses = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
        found += [f"[{address}]" if ":" in address else address for address in sorted(addresses)]
    return found


def open_listener(host: str, port: int) -> socket.socket:
    # With the protocol named, which socket.create_server() does not do: asyncio disables Nagle's algorithm only then, and
    # a reply in two parts takes 40 ms with it.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


async def serve_http(
    server: McpServer,
    host: str,
    port: int,
    *,
    hosts: Collection[str] = (),
    tokens: Mapping[str, str] | None = None,
    path: str = "/mcp",
    on_ready: Callable[[str], object] = lambda _url: None,
) -> None:
    """Serve until the task is cancelled.

    Args:
        server: over a started dispatcher.
        host: to bind to.
        port: 0: any free one.
        hosts: further values of ``Host`` that are accepted.
        tokens: users by their bearer tokens.
        path: of the endpoint.
        on_ready: receives the URL once the server accepts connections.

    Raises:
        ValueError: others reach ``host``, and there are no tokens.
        OSError: the address is in use, or not of this machine.
    """
    if tokens is None and not is_loopback(host):
        raise ValueError(f"other machines reach '{host}', and every caller must name itself there with a bearer token")
    app = server.app(path=path, hosts=[*list_own_hosts(host), *hosts], tokens=tokens)
    with open_listener(host, port) as listener:
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="on", ws="none", timeout_graceful_shutdown=DRAIN_S
        )
        running = _Uvicorn(config)
        task = asyncio.create_task(running.serve([listener]))
        try:
            actual = listener.getsockname()[1]
            on_ready(f"http://{f'[{host}]' if ':' in host else host}:{actual}{path}")
            await asyncio.shield(task)
        finally:
            server.close_listeners()
            running.should_exit = True
            await task
