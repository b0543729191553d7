"""One contract for everything that can execute a call: sessions, the shared topic, functions, MCP sessions, clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import dispatch
from dispatch import CallResult, Dispatcher, McpServers, Outcome
from dispatch.errors import DispatchError, ErrorType
from dispatch.mcp.server import McpServer
from tests.helpers.clock import cancel_task
from tests.helpers.dispatcher_and_service import tool_of
from tests.helpers.mcp_connections import serving as serving_mcp
from tests.helpers.mcp_servers.programs import until

POLICY = dispatch.Policy(max_response_bytes=30_000, breaker=None, retry=1)
_numbers = itertools.count()


class Tools(dispatch.ToolService):
    """The tools of every kind, with what became of their executions."""

    def __init__(self) -> None:
        self.running = 0
        self.cancelled = 0

    async def work(self, do: str = "echo", text: str = "") -> str:
        """Do what the test wants."""
        self.running += 1
        try:
            if do == "fail":
                raise ValueError(text)
            if do == "hang":
                await asyncio.Event().wait()
            if do == "late":
                for _ in range(2):  # goes on after its cancellation
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.2)
            return text * 20_000 if do == "large" else text
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    async def chunks(self, text: str) -> AsyncIterator[str]:
        """Yield the words of a text."""
        for word in text.split():
            yield f"{word} "

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any]) -> Any:
        return self.chunks(**arguments) if config["tool"] == "chunks" else await self.work(**arguments)


class Client:
    """A client of TrustGraph's kind, which loses the type of an error."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    async def call(self, config: Any, arguments: Any, timeout: float = 600) -> str:
        try:
            return await self.tools.work(**arguments)
        except ValueError as error:
            raise RuntimeError(str(error)) from error

    async def call_streaming(self, config: Any, arguments: Any, callback: Any, timeout: float = 600) -> str:
        words = []
        async for chunk in self.tools.chunks(**arguments):
            words.append(chunk)
            await callback(chunk)
        return "".join(words)


class Stand:
    """A way to call the tools.

    Args:
        kind: of the instance.
        tools: that it executes.
        dispatcher: None: a wrapped client.
    """

    def __init__(self, kind: str, tools: Tools, dispatcher: Dispatcher | None) -> None:
        self.kind = kind
        self.tools = tools
        self.dispatcher = dispatcher
        self.client = dispatch.wrap(Client(tools), tool="work", policy=POLICY) if dispatcher is None else None

    async def execute(self, timeout: float = 20.0, **arguments: str) -> CallResult:
        if self.dispatcher is not None:
            return await self.dispatcher.execute("work", arguments, timeout=timeout)
        try:
            return CallResult("work", Outcome.SUCCESS, await self.client.call({}, arguments, timeout=timeout))
        except DispatchError as error:
            return CallResult("work", error.outcome, error=error)

    async def stream(self, text: str) -> list[str]:
        if self.dispatcher is not None:
            return [chunk async for chunk in self.dispatcher.stream("chunks", {"text": text})]
        found: list[str] = []
        assert await self.client.call_streaming({}, {"text": text}, found.append) == "".join(found)
        return found


@contextlib.asynccontextmanager
async def stand(kind: str) -> AsyncIterator[Stand]:
    tools = Tools()
    async with contextlib.AsyncExitStack() as stack:
        if kind == "client":
            yield Stand(kind, tools, None)
            return
        broker = f"memory://contract-{next(_numbers)}"
        functions = dispatch.Functions(tools.work, tools.chunks)
        catalog: list[Any] = [functions]
        if kind in ("session", "topic"):
            topics = {
                "request_queue": "non-persistent://tg/request/contract",
                # A persistent response topic has the plain exchange.
                "response_queue": f"{'non-' if kind == 'session' else ''}persistent://tg/response/contract",
            }
            service = {"id": "lab", **{key.replace("_", "-"): topic for key, topic in topics.items()}}
            descriptors = [tool_of("lab", name, tool=name) for name in ("work", "chunks")]
            service["config-params"] = [{"name": "tool", "required": True}]  # type: ignore[assignment] # no text
            await stack.enter_async_context(dispatch.ToolServer(tools, broker, **topics, instance="one"))
            catalog = [dispatch.Catalog.of([service], descriptors)]
        elif kind == "mcp":
            other = await stack.enter_async_context(dispatch.connect(broker, [functions]))
            url = await stack.enter_async_context(serving_mcp(McpServer(other)))
            catalog = [McpServers({"mcpServers": {"lab": {"url": url}}})]
        dispatcher = await stack.enter_async_context(dispatch.connect(broker, catalog, policy=POLICY))
        await until(lambda: "work" in dispatcher.catalog.tools)
        yield Stand(kind, tools, dispatcher)


KINDS = ("session", "topic", "function", "mcp", "client")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def check(kind: str, test: Callable[[Stand], Any]) -> None:
    """Run ``test`` on a loop of its own, in real time."""

    async def run() -> None:
        async with stand(kind) as made:
            await test(made)

    asyncio.run(run())


def test_a_reply(kind: str) -> None:
    async def test(made: Stand) -> None:
        result = await made.execute(text="größe 🦊")
        assert (result.outcome, result.text) == (Outcome.SUCCESS, "größe 🦊")
        assert (await made.execute(text="")).text == ""

    check(kind, test)


@pytest.mark.costly
def test_many_calls_at_once_get_their_own_replies(kind: str) -> None:
    async def test(made: Stand) -> None:
        results = await asyncio.gather(*(made.execute(text=str(number)) for number in range(50)))
        assert [result.text for result in results] == [str(number) for number in range(50)]

    check(kind, test)


def test_the_tool_s_own_error(kind: str) -> None:
    async def test(made: Stand) -> None:
        error = (await made.execute(do="fail", text="no such order")).error
        assert isinstance(error, dispatch.ToolError)
        assert "no such order" in error.message
        assert made.tools.running == 0

    check(kind, test)


def test_a_stream(kind: str) -> None:
    async def test(made: Stand) -> None:
        chunks = await made.stream("once upon a time")
        whole = ["once upon a time "] if kind == "mcp" else ["once ", "upon ", "a ", "time "]
        if kind == "mcp":
            assert len(chunks) == 1  # MCP has no streams
        else:
            assert chunks == whole

    check(kind, test)


def test_a_caller_that_leaves_cancels_the_tool(kind: str) -> None:
    async def test(made: Stand) -> None:
        call = asyncio.create_task(made.execute(do="hang"))
        await until(lambda: made.tools.running == 1)
        await cancel_task(call)
        if kind == "topic":
            return  # a message on a topic cannot be taken back
        await until(lambda: made.tools.cancelled == 1)
        assert made.tools.running == 0

    check(kind, test)


@pytest.mark.costly
def test_the_deadline(kind: str) -> None:
    async def test(made: Stand) -> None:
        await made.execute()  # open and connected
        began = asyncio.get_running_loop().time()
        assert (await made.execute(timeout=0.3, do="hang")).outcome is Outcome.TIMEOUT
        assert 0.29 <= asyncio.get_running_loop().time() - began < 5
        await until(lambda: made.tools.running == 0)
        assert (await made.execute(text="here")).text == "here"

    check(kind, test)


@pytest.mark.costly
def test_a_late_reply_is_nobody_else_s(kind: str) -> None:
    async def test(made: Stand) -> None:
        await made.execute()
        assert (await made.execute(timeout=0.1, do="late", text="late")).outcome is Outcome.TIMEOUT
        results = await asyncio.gather(*(made.execute(text=str(number)) for number in range(20)))
        assert [result.text for result in results] == [str(number) for number in range(20)]
        await until(lambda: made.tools.running == 0)

    check(kind, test)


def test_the_largest_reply(kind: str) -> None:
    async def test(made: Stand) -> None:
        assert len((await made.execute(do="large", text="x")).text) == 20_000
        assert (await made.execute(do="large", text="xy")).error.type == ErrorType.RESPONSE_LIMIT_EXCEEDED
        assert (await made.execute(text="here")).text == "here"

    check(kind, test)


def test_the_end_of_the_dispatcher(kind: str) -> None:
    async def test(made: Stand) -> None:
        if made.dispatcher is None:
            return  # a wrapped client is closed by its owner
        call = asyncio.create_task(made.execute(do="hang"))
        await until(lambda: made.tools.running == 1)
        await made.dispatcher.close()
        assert (await call).error.type == ErrorType.CLOSED

    check(kind, test)


def test_what_is_seen_of_it(kind: str) -> None:
    async def test(made: Stand) -> None:
        if made.dispatcher is None:
            return
        await made.execute(text="x")
        (view,) = made.dispatcher.instances(made.dispatcher.catalog.tools["work"].service)
        names = {"session": "one", "topic": "(shared)", "function": "(local)", "mcp": "lab"}
        assert (view.id, view.in_flight) == (names[kind], 0)
        assert view.latency is None or view.latency >= 0

    check(kind, test)
