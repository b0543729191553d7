"""A call with an idempotency key that timed out left its refusal as the key's answer for ten minutes; requests with the same
key that waited for it took places of those that run, and could not be cancelled. The key gets the tool's own answer, and
whoever waits for it takes no place.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Policy, ToolService
from dispatch.errors import CallTimeoutError, ThrottledError, ToolError
from dispatch.messaging.wire import Refusal
from dispatch.serving.replies import KEY_AGE_S
from tests.helpers.clock import START, advance, idle, virtual_loop
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, dispatching, read, serving, stand

TOOLS = catalog(work={"policy": UNGUARDED})


class Till:
    """A tool that must not run twice for the same purchase."""

    def __init__(self) -> None:
        self.sold = 0

    async def __call__(self, arguments: dict[str, Any]) -> Any:
        self.sold += 1
        number = self.sold
        if "chunks" in arguments:
            return self._stream(number, arguments["chunks"])
        await asyncio.sleep(arguments.get("seconds", 0))
        if "fail" in arguments:
            raise ToolError("no-money", "The card was refused.")
        return f"receipt {number}"

    async def _stream(self, number: int, chunks: int) -> AsyncIterator[str]:
        for index in range(chunks):
            await asyncio.sleep(1)
            yield f"{number}.{index} "


async def test_a_call_that_times_out_leaves_its_key_the_tools_answer() -> None:
    till = Till()
    async with stand(till, TOOLS) as (dispatcher, server):
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", {"seconds": 5}, idempotency_key="one", timeout=1)
        await idle()
        assert (server.running, server.refused[Refusal.STOPPED]) == (1, 1)
        assert await dispatcher.call("work", {"seconds": 5}, idempotency_key="one", timeout=30) == "receipt 1"
        assert asyncio.get_running_loop().time() == pytest.approx(START + 5, abs=0.2)
        await advance(300)
        assert await dispatcher.call("work", {"seconds": 5}, idempotency_key="one", timeout=1) == "receipt 1"
        assert till.sold == 1


async def test_a_caller_that_was_refused_hears_nothing_more() -> None:
    till = Till()
    payload = b'{"arguments": "{\\"seconds\\": 5}"}'
    async with serving(till) as server, Peer.as_caller() as caller:
        await caller.ask(payload, id="1", remaining_ms="1000", idempotency_key="one")
        assert (await caller.arrived.get()).properties()["refused"] == Refusal.STOPPED
        await advance(10)
        assert (server.running, caller.arrived.empty()) == (0, True)
        await caller.ask(payload, id="2", remaining_ms="1000", idempotency_key="one")
        assert b"receipt 1" in (await caller.arrived.get()).data()
        assert till.sold == 1


async def test_the_tools_error_is_its_answer_too() -> None:
    till = Till()
    async with stand(till, TOOLS) as (dispatcher, _):
        for timeout, type in ((1, CallTimeoutError), (30, ToolError), (1, ToolError)):
            with pytest.raises(type):
                await dispatcher.call("work", {"seconds": 5, "fail": 1}, idempotency_key="one", timeout=timeout)
        assert till.sold == 1


async def test_a_stream_that_times_out_leaves_its_key_the_whole_stream() -> None:
    till = Till()
    policy = Policy(**UNGUARDED, stream_timeout=1.5)
    async with serving(till), dispatching(policy=policy) as hurried, dispatching() as patient:
        some: list[str] = []
        with pytest.raises(CallTimeoutError):
            await read(hurried.stream("work", {"chunks": 4}, idempotency_key="one"), some)
        assert some == ["1.0 "]
        whole: list[str] = []
        await read(patient.stream("work", {"chunks": 4}, idempotency_key="one"), whole)
        assert (whole, till.sold) == (["1.0 ", "1.1 ", "1.2 ", "1.3 "], 1)


async def test_a_thread_that_times_out_leaves_its_key_the_tools_answer() -> None:
    release = threading.Event()
    sold: list[str] = []

    class Slow(ToolService):
        def invoke(self, config: Any, arguments: Any, user: str = "") -> str:
            release.wait(20)
            sold.append("receipt")
            return f"receipt {len(sold)}"

    async with stand(Slow(), TOOLS) as (dispatcher, server):
        virtual_loop().threads_may_hang = True
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", idempotency_key="one", timeout=1)
        virtual_loop().threads_may_hang = False
        release.set()
        assert await dispatcher.call("work", idempotency_key="one", timeout=30) == "receipt 1"
        assert (len(sold), server.abandoned_threads) == (1, 0)


async def test_a_retry_within_a_call_gets_the_answer_of_its_first_attempt() -> None:
    till = Till()
    policy = Policy(retry=3, attempt_timeout=1.0)
    async with stand(till, policy=policy) as (dispatcher, _):
        assert await dispatcher.call("work", {"seconds": 2.5}, idempotency_key="one", timeout=30) == "receipt 1"
        assert till.sold == 1


async def test_what_never_ends_is_stopped_when_its_key_is_too_old() -> None:
    till = Till()
    async with stand(till, TOOLS) as (dispatcher, server):
        for timeout in (1, 30):
            with pytest.raises(CallTimeoutError):
                await dispatcher.call("work", {"seconds": 5_000}, idempotency_key="one", timeout=timeout)
        assert (server.running, till.sold) == (1, 1)
        await advance(KEY_AGE_S)
        assert server.running == 0
        assert await dispatcher.call("work", idempotency_key="one", timeout=1) == "receipt 2"


async def test_duplicates_that_wait_take_no_place() -> None:
    till = Till()
    async with stand(till, TOOLS, concurrency=2, max_queue=4) as (dispatcher, server):
        same = [asyncio.create_task(dispatcher.call("work", {"seconds": 5}, idempotency_key="one")) for _ in range(5)]
        await advance(1)
        assert (server.running, server.queued) == (1, 0)
        assert await dispatcher.call("work", timeout=1) == "receipt 2"
        assert await asyncio.gather(*same) == ["receipt 1"] * 5
        await idle()
        assert (server.running, till.sold) == (0, 2)


async def test_a_duplicate_that_waits_can_be_cancelled_and_what_runs_goes_on() -> None:
    till = Till()
    async with stand(till, TOOLS) as (dispatcher, server):
        same = [asyncio.create_task(dispatcher.call("work", {"seconds": 5}, idempotency_key="one")) for _ in range(3)]
        await advance(1)
        same[1].cancel()
        await idle()
        assert server.cancelled == 1
        same[0].cancel()
        await idle()
        assert (server.cancelled, server.running) == (1, 1), "the tool runs on: a duplicate waits for it"
        assert await same[2] == "receipt 1"
        assert till.sold == 1


async def test_a_duplicate_waits_no_longer_than_its_caller() -> None:
    till = Till()
    async with stand(till, TOOLS) as (dispatcher, server):
        first = asyncio.create_task(dispatcher.call("work", {"seconds": 5}, idempotency_key="one"))
        await idle()
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", {"seconds": 5}, idempotency_key="one", timeout=1)
        await idle()
        assert server.refused[Refusal.STOPPED] + server.cancelled == 1, "by its own clock, or its caller's cancellation"
        assert await first == "receipt 1"


async def test_draining_waits_for_duplicates_and_closing_does_not() -> None:
    till = Till()
    for close in (False, True):
        async with serving(till) as server, dispatching(TOOLS) as dispatcher:
            calls = [
                asyncio.create_task(dispatcher.execute("work", {"seconds": 5}, idempotency_key="one")) for _ in range(2)
            ]
            await advance(0.1)
            await (server.close() if close else server.drain())
            results = await asyncio.gather(*calls)
            types = [None if result.error is None else result.error.type for result in results]
            assert types == (["cancelled"] * 2 if close else [None] * 2)
    assert till.sold == 2


async def test_duplicates_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.serving.requests.MAX_DUPLICATES", 2)
    till = Till()
    async with stand(till, TOOLS) as (dispatcher, server):
        same = [
            asyncio.create_task(dispatcher.execute("work", {"seconds": 5}, idempotency_key="one")) for _ in range(4)
        ]
        results = await asyncio.gather(*same)
        assert [result.text for result in results[:3]] == ["receipt 1"] * 3
        assert isinstance(results[3].error, ThrottledError)
        assert server.refused[Refusal.OVERLOADED] == 1
        assert till.sold == 1
