"""The entries of these servers in a configuration, and servers over HTTP as processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dispatch

FOLDER = Path(__file__).parent
START_S = 30.0
"""Seconds for a server to start, on a machine with much else to do."""


def stdio(name: str, *args: str, **keys: Any) -> dict[str, Any]:
    """Return the entry of a server on stdin and stdout; ``keys`` are further keys, with ``_`` for ``-``."""
    own = {key.replace("_", "-"): value for key, value in keys.items()}
    return {"command": sys.executable, "args": [str(FOLDER / f"{name}.py"), *args], **own}


def free_port() -> int:
    """Return a port of the loopback interface that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run_program(path: str, arguments: tuple[str, ...]) -> None:
    """Be the program ``path``, in a process that the fork server has made."""
    with open(os.devnull, "w") as nothing:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nothing.fileno(), stream.fileno())
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")


class HttpServer:
    """A server over HTTP, which can be killed and started again.

    Without ``python`` it is a fork of a process that has imported the SDK, which costs 1.7 s of CPU: for all servers once.
    """

    def __init__(self, path: str, *arguments: str, port: int, python: str = "") -> None:
        self.url = f"http://127.0.0.1:{port}/mcp"
        self._port = port
        self._path, self._arguments, self._python = path, arguments, python
        self._process: subprocess.Popen[bytes] | BaseProcess | None = None

    def start(self) -> None:
        if self._python:
            command = [self._python, self._path, *self._arguments]
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        else:
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["mcp.server.mcpserver", "uvicorn", __name__])
            self._process = context.Process(target=_run_program, args=(self._path, self._arguments), daemon=True)
            self._process.start()
        deadline = time.monotonic() + START_S
        while not self._is_listening():
            ended = self._process.poll() if isinstance(self._process, subprocess.Popen) else self._process.exitcode
            assert ended is None
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            wait = self._process.wait if isinstance(self._process, subprocess.Popen) else self._process.join
            wait()
            self._process = None


@contextmanager
def http_server(name: str, *options: str, transport: str = "http") -> Iterator[HttpServer]:
    """A running server: ``changing`` with options, or ``calculator``, whose transport is ``http`` or ``sse``."""
    port = free_port()
    options = (*options, f"http={port}") if name == "changing" else (transport, str(port))
    server = HttpServer(str(FOLDER / f"{name}.py"), *options, port=port)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def connected(servers: Mapping[str, Any], **options: Any) -> AsyncIterator[dispatch.Dispatcher]:
    """A dispatcher with the tools of ``servers``."""
    async with dispatch.connect("memory://", [dispatch.McpServers({"mcpServers": servers}, **options)]) as dispatcher:
        yield dispatcher


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for a condition of another process or of the catalogue."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a file, or the catalogue at any time
            await asyncio.sleep(0.01)


async def call_until_ok(dispatcher: dispatch.Dispatcher, tool: str, arguments: Mapping[str, Any]) -> list[str]:
    """Call a tool until it succeeds; return the types of the errors before."""
    errors: list[str] = []
    async with asyncio.timeout(START_S):
        while True:
            result = await dispatcher.execute(tool, arguments)
            if result.error is None:
                return errors
            errors.append(result.error.type)
            await asyncio.sleep(0.05)
