"""What sessions with MCP servers, and functions, have as instances: balancing, ejection, hedging, versions."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import dispatch
from dispatch import McpServers
from dispatch.errors import ErrorType
from dispatch.mcp.server import McpServer
from tests.helpers.mcp_connections import serving
from tests.helpers.mcp_servers.programs import until


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


class Server:
    """An MCP server of this process with one tool.

    Args:
        version: that it declares.
    """

    def __init__(self, version: str = "1.0.0") -> None:
        self.version = version
        self.wait = 0.0
        self.is_failing = False
        self.calls = 0
        self.cancelled = 0

    @dispatch.tool(read_only=True)
    async def work(self) -> str:
        """Work."""
        self.calls += 1
        try:
            await asyncio.sleep(self.wait)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.version


@contextlib.asynccontextmanager
async def calling(*servers: Server, **settings: Any) -> AsyncIterator[dispatch.Dispatcher]:
    """A dispatcher with one MCP server at as many addresses."""
    async with contextlib.AsyncExitStack() as stack:
        urls = []
        for each in servers:
            other = await stack.enter_async_context(dispatch.connect("memory://", [dispatch.Functions(each.work)]))
            server = McpServer(other)
            server.sdk_server.version = each.version
            urls.append(await stack.enter_async_context(serving(server)))
        policy = settings.pop("policy", {})
        config = {"mcpServers": {"lab": {"url": urls, "trusted": True, "policy": policy, **settings}}}
        dispatcher = await stack.enter_async_context(dispatch.connect("memory://", [McpServers(config)]))
        await until(lambda: "work" in dispatcher.catalog.tools)
        await dispatcher.call("work")
        await until(lambda: len(dispatcher.instances("mcp-lab")) == len(servers))
        yield dispatcher


def test_addresses_are_balanced_and_seen() -> None:
    async def test() -> None:
        servers = [Server(), Server(), Server()]
        async with calling(*servers) as dispatcher:
            for each in servers:
                each.calls = 0
            results = [await dispatcher.execute("work") for _ in range(30)]
            assert [each.calls for each in servers] == [10, 10, 10]
            assert set(Counter(result.instance for result in results).values()) == {10}
            assert {view.id for view in dispatcher.instances("mcp-lab")} == {result.instance for result in results}

    run(test)


def test_a_server_that_hangs_is_ejected() -> None:
    async def test() -> None:
        servers = [Server(), Server()]
        policy = {"timeout": 0.2, "retry": 1, "breaker": None}
        async with calling(*servers, policy=policy) as dispatcher:
            servers[0].wait = 60.0
            outcomes = [(await dispatcher.execute("work")).outcome for _ in range(30)]
            assert outcomes.count(dispatch.Outcome.TIMEOUT) < 10
            assert set(outcomes[-10:]) == {dispatch.Outcome.SUCCESS}
            assert [view.state for view in dispatcher.instances("mcp-lab")].count("ejected") == 1

    run(test)


def test_a_slow_server_is_hedged_at_another_one() -> None:
    async def test() -> None:
        servers = [Server("1.0.0"), Server("2.0.0")]
        async with calling(*servers, policy={"hedging": 0.05}) as dispatcher:
            for slow in servers:
                slow.wait = 20.0
                assert {await dispatcher.call("work", timeout=10) for _ in range(2)} != {slow.version}
                slow.wait = 0.0

    run(test)


def test_a_tool_is_called_at_servers_of_the_version_that_it_requires() -> None:
    async def test() -> None:
        servers = [Server("1.4.0"), Server("2.1.0")]
        async with calling(*servers) as dispatcher:
            work = dispatcher.catalog.tools["work"]
            pool = dispatcher._running._pools.of_service(work.service)[0]
            assert pool.versions == ("2.1.0", "1.4.0")

    run(test)


def test_while_no_session_is_open_calls_end_at_once_and_say_when_to_come_back() -> None:
    async def test() -> None:
        server = Server()
        async with contextlib.AsyncExitStack() as stack:
            other = await stack.enter_async_context(dispatch.connect("memory://", [dispatch.Functions(server.work)]))
            async with serving(McpServer(other)) as url:
                config = {"mcpServers": {"lab": {"url": url}}}
                dispatcher = await stack.enter_async_context(dispatch.connect("memory://", [McpServers(config)]))
                assert await dispatcher.call("work") == "1.0.0"
            error: dispatch.DispatchError | None = None
            for _ in range(20):
                began = asyncio.get_running_loop().time()
                error = (await dispatcher.execute("work")).error
                if error is not None and error.type == ErrorType.NO_INSTANCE:
                    break
            assert asyncio.get_running_loop().time() - began < 1
            assert error is not None
            assert error.type == ErrorType.NO_INSTANCE
            assert error.retry_after is not None

    run(test)


def test_a_function_has_slow_start_and_is_seen() -> None:
    async def test() -> None:
        async with dispatch.connect("memory://", [dispatch.Functions(Server().work)]) as dispatcher:
            assert await dispatcher.call("work") == "1.0.0"
            (view,) = dispatcher.instances("functions")
            assert (view.id, view.state in ("warming", "up")) == ("(local)", True)

    run(test)
