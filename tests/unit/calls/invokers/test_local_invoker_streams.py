"""Streams of tools that this process executes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import dispatch
from dispatch.calls.local import LocalCall
from tests.helpers.local_source import chunks, connect, run


def test_a_stream_is_read_as_it_comes_and_joined_for_a_call() -> None:
    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return chunks("a", "", "b")

    async def test() -> None:
        async with connect(execute) as dispatcher:
            assert [each async for each in dispatcher.stream("run")] == ["a", "b"]
            assert await dispatcher.call("run") == "ab"

    run(test)


def test_a_plain_result_is_a_stream_of_one_chunk() -> None:
    async def execute(call: LocalCall) -> str:
        return "whole"

    async def test() -> None:
        async with connect(execute) as dispatcher:
            assert [each async for each in dispatcher.stream("run")] == ["whole"]

    run(test)


def test_a_stream_waits_for_its_reader() -> None:
    produced = 0

    async def endless() -> AsyncIterator[str]:
        nonlocal produced
        while True:
            produced += 1
            yield "x"

    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return endless()

    async def test() -> None:
        async with connect(execute) as dispatcher:
            stream = dispatcher.stream("run")
            for _ in range(200):
                await anext(stream)
            await asyncio.sleep(0.01)
            await stream.aclose()
            assert produced < 300

    run(test)


def test_a_silent_stream_ends_at_its_idle_timeout() -> None:
    async def execute(call: LocalCall) -> AsyncIterator[str]:
        return chunks("a", "b", wait=5)

    async def test() -> None:
        async with connect(execute) as dispatcher:
            stream = dispatcher.stream("run", idle_timeout=0.05)
            assert await anext(stream) == "a"
            with pytest.raises(dispatch.CallTimeoutError) as caught:
                await anext(stream)
            assert caught.value.limit_name == "stream-idle"

    run(test)
