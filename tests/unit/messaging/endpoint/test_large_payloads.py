"""Arguments and results beyond what the broker accepts as one message: whole between a dispatcher and an instance, otherwise
a clear error before anything is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Dispatcher, Policy, ToolServer
from dispatch.errors import InvalidArgumentsError, ToolError, TransportError
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, Peer, Service, catalog, read, serving
from tests.helpers.faults import FaultPlan, FaultyTransport

LIMIT = 10_000
"""Bytes that the broker takes as one message here."""


def memory(limit: int = LIMIT) -> MemoryTransport:
    transport = MemoryTransport(BROKER)
    transport.max_message_bytes = limit
    return transport


def text(size: int) -> str:
    return "".join(f"{index};" for index in range(size))[:size]


@contextlib.asynccontextmanager
async def sides(
    work: Any, *, fault: FaultPlan | None = None, server_options: dict[str, Any] | None = None, **policy: Any
) -> AsyncIterator[tuple[Dispatcher, ToolServer, FaultyTransport]]:
    """Both sides on a broker with a small limit; ``fault`` is what the service's connection does once they have met."""
    network = FaultyTransport(memory(), outgoing=FaultPlan(), incoming=FaultPlan(), seed=1)
    await network.start()
    settings = Policy(**{**UNGUARDED, **policy})
    async with (
        serving(work, broker=network, **(server_options or {})) as server,
        Dispatcher(memory(), catalog(), policy=settings) as dispatcher,
    ):
        await dispatcher.call("work", {"size": 1, "first": True})  # they have met
        if fault is not None:
            network.change(outgoing=fault, incoming=fault)
        yield dispatcher, server, network
        network.heal()
    await network.close()


def sized(arguments: dict[str, Any]) -> str:
    return text(arguments["size"])


# -- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT, LIMIT + 1, 10 * LIMIT, 100 * LIMIT])
async def test_an_answer_of_any_size_arrives_whole(size: int) -> None:
    async with sides(sized) as (dispatcher, _, _):
        result = await dispatcher.execute("work", {"size": size})
        assert result.text == text(size)
        assert result.chunks == 1


@pytest.mark.parametrize("letter", ["ü", "😀", "\x01", '"'])
async def test_letters_that_take_many_bytes(letter: str) -> None:
    async with sides(lambda _: letter * 3_000) as (dispatcher, _, _):
        assert await dispatcher.call("work") == letter * 3_000


@pytest.mark.parametrize("bad", ["\ud800", "x" * 5 * LIMIT + "\ud800"])
async def test_a_large_text_that_is_none_is_an_error(bad: str) -> None:
    async with sides(lambda a: "ok" if a.get("first") else bad) as (dispatcher, _, _):
        with pytest.raises(ToolError) as caught:
            await dispatcher.call("work")
        assert caught.value.type == "invalid-result"


async def test_the_caller_and_the_service_each_have_a_limit() -> None:
    async with sides(sized, max_response_bytes=5_000) as (dispatcher, _, _):
        assert len(await dispatcher.call("work", {"size": 5_000})) == 5_000
        with pytest.raises(TransportError, match="'max-response-bytes'"):
            await dispatcher.call("work", {"size": 5_001})
    async with sides(sized, server_options={"max_payload_bytes": 4_000}) as (dispatcher, _, _):
        assert len(await dispatcher.call("work", {"size": 4_000})) == 4_000
        with pytest.raises(ToolError, match="4,001 bytes, the limit is 4,000"):
            await dispatcher.call("work", {"size": 4_001})


async def test_a_stream_keeps_its_chunks_whatever_their_size() -> None:
    chunks = ["small", text(7 * LIMIT), "", "small again", text(3 * LIMIT)]

    async def items() -> AsyncIterator[str]:
        for chunk in chunks:
            yield chunk

    async def work(arguments: dict[str, Any]) -> Any:
        return "met" if arguments.get("first") else items()

    async with sides(work) as (dispatcher, _, _):
        got: list[str] = []
        await read(dispatcher.stream("work"), got)
        assert got == [chunk for chunk in chunks if chunk]
        assert await dispatcher.call("work") == "".join(chunks)


async def test_a_large_result_is_one_chunk_of_a_stream() -> None:
    async with sides(sized) as (dispatcher, _, _):
        got: list[str] = []
        await read(dispatcher.stream("work", {"size": 9 * LIMIT}), got)
        assert got == [text(9 * LIMIT)]


# -- requests -------------------------------------------------------------------------------------------------------


def told(arguments: dict[str, Any]) -> str:
    return arguments.get("fill", "none")[-20:]


@pytest.mark.parametrize("size", [LIMIT - 200, LIMIT, 10 * LIMIT, 300 * LIMIT])
async def test_arguments_of_any_size_arrive_whole_and_run_once(size: int) -> None:
    service = Service(told)
    async with sides(service) as (dispatcher, _, _):
        result = await dispatcher.execute("work", {"fill": text(size)})
        assert result.text == text(size)[-20:]
        assert [arguments.get("fill") for _, arguments, _ in service.requests[1:]] == [text(size)]


async def test_beyond_the_limit_of_the_policy_nothing_is_sent_and_the_error_names_it() -> None:
    async with sides(told, max_request_bytes=5_000) as (dispatcher, server, _):
        with pytest.raises(InvalidArgumentsError, match="'max-request-bytes'"):
            await dispatcher.call("work", {"fill": text(5_000)})
        assert server.requests == 1
    async with sides(told, max_request_bytes=500) as (dispatcher, server, _):
        with pytest.raises(InvalidArgumentsError, match="'max-request-bytes'"):
            await dispatcher.call("work", {"fill": text(500)})


async def test_nobody_who_takes_parts_is_known() -> None:
    async with (
        Peer.as_service() as peer,
        Dispatcher(memory(), catalog()) as dispatcher,
    ):
        with pytest.raises(InvalidArgumentsError, match="no instance is known") as caught:
            await dispatcher.call("work", {"fill": text(LIMIT)})
        error = caught.value
        assert (error.type, error.retryable) == ("request-too-large", False)
        assert peer.arrived.empty()
        with pytest.raises(InvalidArgumentsError, match="no instance is known"):
            await anext(dispatcher.stream("work", {"fill": text(LIMIT)}))
        assert dispatcher.pending_requests == 0


async def test_an_instance_that_is_gone_in_the_middle_is_noticed_long_before_the_timeout() -> None:
    service = Service(told)
    async with sides(service, timeout=100.0) as (dispatcher, _, network):
        call = asyncio.create_task(dispatcher.execute("work", {"fill": text(900 * LIMIT)}))
        await asyncio.sleep(0)
        network.change(incoming=FaultPlan(drop=1.0))
        result = await call
        assert isinstance(result.error, TransportError)
        assert result.error.type == "instance-lost"
        assert result.duration < 45  # 30 s of it wait for another instance
        assert len(service.requests) == 1
        assert dispatcher.pending_requests == 0
