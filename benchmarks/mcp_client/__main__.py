"""Cost of a call of an MCP server's tool beside a bare call of the SDK, and processor time of idle servers:
``python -m benchmarks.mcp_client``.

Servers run on stdin and stdout. Calls are made one after the other, in rounds that alternate, so that both kinds meet the
same load. No broker, a minute.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from mcp import Client, StdioServerParameters

import dispatch
from benchmarks.harness.programs import Programme, write_figures

LIMIT_MS: Final = 1.0
"""Target: p50 of a call above that of a bare call of the SDK, at most."""
LIMIT_CPU: Final = 0.01
"""Target: share of one processor that 50 idle servers cost this process, at most."""
SERVER: Final = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("calculator", log_level="ERROR")
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
server.run()
"""
ARGUMENTS: Final[dict[str, Any]] = {"a": 1, "b": 2}


def entry() -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", SERVER]}


async def measure_calls(call: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Return the duration of each call in milliseconds."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        found.append((time.perf_counter() - began) * 1e3)
    return found


async def compare_calls(rounds: int, calls: int) -> tuple[float, float]:
    """Return the p50 of a bare call of the SDK and of a call through dispatch, in milliseconds."""
    source = dispatch.McpServers({"calc": entry()})
    async with (
        Client(StdioServerParameters(**entry())) as client,
        dispatch.connect("memory://", [source]) as dispatcher,
    ):
        bare: list[float] = []
        guarded: list[float] = []
        kinds: list[tuple[list[float], Callable[[], Awaitable[object]]]] = [
            (bare, lambda: client.call_tool("add", ARGUMENTS)),
            (guarded, lambda: dispatcher.call("add", ARGUMENTS)),
        ]
        for _, call in kinds:
            await measure_calls(call, 50)
        for number in range(rounds):
            for durations, call in kinds if number % 2 else reversed(kinds):
                durations += await measure_calls(call, calls)
    return statistics.median(bare), statistics.median(guarded)


async def measure_idle(servers: int, seconds: float) -> float:
    """Return the share of one processor that this process uses with idle servers."""
    source = dispatch.McpServers({f"calc-{number}": {**entry(), "prefix": "always"} for number in range(servers)})
    async with dispatch.connect("memory://", [source]) as dispatcher:
        while len(dispatcher.registry.list()) < servers:  # noqa: ASYNC110 - the catalogue at any time
            await asyncio.sleep(0.5)
        await asyncio.sleep(3)
        began = time.process_time()
        await asyncio.sleep(seconds)
        return (time.process_time() - began) / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures."""
    programme = Programme("benchmarks.mcp_client", __doc__)
    programme.add_number("--rounds", 20, "rounds")
    programme.add_number("--calls", 100, "of each kind in a round")
    programme.add_argument("--servers", type=int, default=50, help="idle servers; 0: none")
    programme.add_argument("--seconds", type=float, default=20.0, help="of idleness")
    options = programme.begin(arguments)
    bare, guarded = asyncio.run(compare_calls(options.rounds, options.calls))
    print(f"bare call of the SDK    p50 {bare:.3f} ms")
    print(f"call through dispatch   p50 {guarded:.3f} ms ({guarded - bare:+.3f} ms, target {LIMIT_MS:g} ms)")
    figures = {"bare_ms": bare, "dispatch_ms": guarded}
    if options.servers:
        figures["idle_share"] = share = asyncio.run(measure_idle(options.servers, options.seconds))
        print(f"{options.servers} idle servers         {share:.2%} of one processor (target {LIMIT_CPU:.0%})")
    write_figures(options.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
