"""FastMCP's client of an MCP server that stands between the client and the services, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import fastmcp

from benchmarks.harness.processes import ROOT, BenchmarkError
from benchmarks.peers.systems.http import START_S

DIES_WITH_PARENT: Final = (sys.executable, str(ROOT / "tests" / "helpers" / "die_with_parent.py"))
"""The client's process may be killed."""
PROXIES: Final = Path(sys.prefix) / "proxies" / "bin"
"""Programs whose dependencies do not go together with the others': the extra ``proxies``, by ``make faults``."""


def proxy_command(name: str) -> tuple[str, str]:
    """Return the command of one of these programs.

    Raises:
        BenchmarkError: it is not installed.
    """
    if not (PROXIES / name).exists():
        raise BenchmarkError(f"{name} is not installed: run the faults by `make faults`, which installs it")
    return str(PROXIES / "python"), str(PROXIES / name)


class CallTool(Protocol):
    """Call a tool by its name, and return its text."""

    async def __call__(self, name: str, arguments: dict[str, Any], *, timeout: float) -> str: ...


@asynccontextmanager
async def running(*words: str, **options: Any) -> AsyncIterator[None]:
    """Run a program without output until the block ends."""
    null = asyncio.subprocess.DEVNULL
    command = (*DIES_WITH_PARENT, *words)
    process = await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null, **options)
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@asynccontextmanager
async def connected(target: Any) -> AsyncIterator[CallTool]:
    """Connect to a URL or a transport, as soon as it answers; another client follows when the session of one has ended."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await _first_client(target))

        async def call(name: str, arguments: dict[str, Any], *, timeout: float) -> str:
            nonlocal client
            if not client.is_connected():
                client = await fastmcp.Client(target).__aenter__()
            result = await client.call_tool(name, arguments, timeout=timeout)
            return "".join(getattr(each, "text", "") for each in result.content)

        yield call


async def _first_client(target: Any) -> fastmcp.Client[Any]:
    async with asyncio.timeout(2 * START_S):
        while True:
            client = fastmcp.Client(target)
            try:
                async with client:
                    await client.list_tools()
                    return fastmcp.Client(target)
            except RuntimeError:
                await asyncio.sleep(0.1)
