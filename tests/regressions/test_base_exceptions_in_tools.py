"""`sys.exit` in a tool, or any other BaseException, ended the whole instance, and its callers' retries the next one.

It is a tool error, whose type is the name of the class, and the instance serves on.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from dispatch import ToolService
from dispatch.errors import ToolError
from dispatch.messaging.wire import decode_reply
from dispatch.serving.plain import PlainReplies
from dispatch.serving.replies import InboundRequest
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import Peer, Service, catalog, dispatching, read, serving, stand


class HostError(BaseException):
    """A framework's own, as pytest, trio and gevent have them."""


class UnprintableError(BaseException):
    def __str__(self) -> str:
        sys.exit("not even that")


def told(error: BaseException) -> str:
    return type(error).__name__


BASE_EXCEPTIONS = (SystemExit("it is over"), KeyboardInterrupt(), GeneratorExit(), HostError("it broke"))
GROUP = BaseExceptionGroup("two", [SystemExit(1), KeyboardInterrupt()])
every_base_exception = pytest.mark.parametrize("error", [*BASE_EXCEPTIONS, GROUP, UnprintableError()], ids=told)


class Failing(ToolService):
    """Fails in one of the ways in which a tool can be written; ``again`` is a call that is right."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def work(self, arguments: dict[str, Any]) -> str:
        if "again" not in arguments:
            raise self.error
        return "here"


class Coroutine(Failing):
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        await asyncio.sleep(0.1)
        return self.work(arguments)


class Thread(Failing):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
        return self.work(arguments)


class AwaitableOfThread(Failing):
    def invoke(self, config: Any, arguments: Any, user: str = "") -> Any:
        async def work() -> str:
            return self.work(arguments)

        return work()


class Stream(Failing):
    async def invoke(self, config: Any, arguments: Any, user: str = "") -> AsyncIterator[str]:
        yield self.work(arguments)


WAYS = (Coroutine, Thread, AwaitableOfThread, Stream)


@every_base_exception
@pytest.mark.parametrize("way", WAYS)
async def test_a_base_exception_is_a_tool_error_and_the_instance_serves_on(
    way: type[Failing], error: BaseException
) -> None:
    async with stand(way(error)) as (dispatcher, server):
        for _ in range(2):
            with pytest.raises(ToolError) as caught:
                await dispatcher.call("work", timeout=5)
            assert caught.value.type == type(error).__name__
            assert await dispatcher.call("work", {"again": True}, timeout=5) == "here"
        await idle()
        assert server.running == 0


@every_base_exception
async def test_a_stream_that_ends_with_a_base_exception_gives_its_chunks_and_the_error(error: BaseException) -> None:
    async def stream() -> AsyncIterator[str]:
        yield "one"
        raise error

    chunks: list[str] = []
    async with stand(lambda _: stream()) as (dispatcher, server):
        with pytest.raises(ToolError) as caught:
            await read(dispatcher.stream("work", timeout=5), chunks)
        assert (chunks, caught.value.type) == (["one"], type(error).__name__)
        await idle()
        assert server.running == 0


async def test_one_call_of_a_read_only_tool_leaves_all_three_instances_serving() -> None:
    services = [Service(lambda arguments: sys.exit(3) if "exit" in arguments else "here") for _ in range(3)]
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(service)) for service in services]
        dispatcher = await stack.enter_async_context(dispatching(catalog(work={"read-only": True})))
        with pytest.raises(ToolError) as caught:
            await dispatcher.call("work", {"exit": True}, timeout=5)
        assert (caught.value.type, caught.value.message) == ("SystemExit", "3")
        assert sum(len(service.requests) for service in services) == 1
        for _ in range(9):
            assert await dispatcher.call("work", timeout=5) == "here"
        assert all(server.requests >= 3 for server in servers)


@pytest.mark.parametrize("error", BASE_EXCEPTIONS, ids=told)
async def test_what_a_tool_raises_when_it_is_stopped_is_no_end_of_the_instance(error: BaseException) -> None:
    async def work(arguments: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(arguments.get("seconds", 0))
        except asyncio.CancelledError:
            raise error from None
        return "here"

    async with serving(work) as server, Peer.as_caller() as caller:
        await caller.ask(b'{"arguments": "{\\"seconds\\": 60}"}', id="1", remaining_ms="1000")
        reply = decode_reply((await caller.arrived.get()).data())
        assert reply.error is not None
        assert reply.error.type == type(error).__name__
        await caller.ask(b"{}", id="2")
        assert decode_reply((await caller.arrived.get()).data()).response == "here"
        await idle()
        assert server.running == 0


async def test_a_request_that_the_server_cancels_ends_as_cancelled() -> None:
    ends: list[type[BaseException]] = []

    async def work(_: dict[str, Any]) -> None:
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            ends.append(type(error))
            raise

    async with Peer.as_caller() as caller:
        async with serving(work) as server:
            await caller.ask(b"{}", id="1")
            await idle()
            assert server._queue is not None
            [request] = server._queue._places.occupants
        assert ends == [asyncio.CancelledError]
        assert request.task is not None
        assert request.task.cancelled()
        reply = decode_reply((await caller.arrived.get()).data())
        assert reply.error is not None
        assert reply.error.type == "cancelled"


async def test_a_coroutine_that_is_closed_from_outside_answers_nobody() -> None:
    """A task that is collected together with its loop is closed with a GeneratorExit, which is none of the tool's."""
    async with serving(lambda _: asyncio.Event().wait()) as server, Peer.as_caller() as caller:
        assert server._queue is not None
        assert server._plain is not None
        replies = PlainReplies(server._plain._channel, {"id": "1"})
        coroutine = server._queue._run(InboundRequest(replies, {}, b"{}", math.inf))
        coroutine.send(None)
        coroutine.close()
        await idle()
        assert caller.arrived.empty()
