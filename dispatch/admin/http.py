"""HTTP endpoints of a process: addresses, listeners, and servers on the loop of the process."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Literal

from dispatch._internal import install_extra

if any(importlib.util.find_spec(each) is None for each in ("starlette", "uvicorn")):
    raise ImportError(f"HTTP needs starlette and uvicorn. Install them: {install_extra('http')}", name="uvicorn")

import uvicorn
from starlette.types import Message, Receive

DRAIN_S: Final = 2
"""Seconds for open requests to end when the server stops; after that they are cancelled."""
UNREAD_S: Final = 60
"""Seconds after which the kernel closes a connection whose peer takes nothing of what waits for it: four times the 15 s
between two comments of a stream. A reader that has stopped would keep its connection for ever."""
LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that receives ``body``, which was read already, and then what ``receive`` does."""
    unread: list[Message] = [{"type": "http.request", "body": body}]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


class UvicornServer(uvicorn.Server):
    """A server that leaves the signals of the process to its caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def list_own_hosts(host: str) -> list[str]:
    """Return the values of ``Host`` for a server that is bound to ``host``: to all interfaces, the machine's addresses and
    names. The first one is an address by which other machines reach it, if there is a route: in a container or a pod
    they cannot resolve its name."""
    if host not in ("", "0.0.0.0", "::"):
        return [f"[{host}]" if ":" in host else host]
    name = socket.gethostname()
    found: list[str] = []
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as route:
            route.connect((elsewhere, 9))  # sends nothing; an address of documentation (RFC 5737, RFC 3849)
            found.append(route.getsockname()[0])
    found += [name, socket.getfqdn()]
    with contextlib.suppress(OSError):
        found += sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)})  # often only 127.0.1.1
    return [f"[{each}]" if ":" in each else each for each in dict.fromkeys(found)]


def open_listener(host: str, port: int) -> socket.socket:
    # With the protocol named, which socket.create_server() does not do: asyncio disables Nagle's algorithm only then, and
    # a reply in two parts takes 40 ms with it.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; accepted connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_S * 1000)
        listener.bind((host, port))
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


@contextlib.asynccontextmanager
async def running_app(
    app: Any, listener: socket.socket, lifespan: Literal["on", "off"] = "off", drain: int = DRAIN_S
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve an ASGI application inside the context, and yield the task that serves."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan=lifespan, ws="none", timeout_graceful_shutdown=drain
    )
    server = UvicornServer(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield task
    finally:
        server.should_exit = True
        await task


def describe_address(host: str, port: int) -> str:
    """Return ``http://HOST:PORT``."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
