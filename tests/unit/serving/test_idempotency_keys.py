"""Idempotency keys: a repeat gets the first answer, and runs nothing.

A retry under a key goes to the instance that may have run it, for as long as that is known, and after an explicit refusal to
another one. The key of a call that timed out gets the tool's own answer; requests that wait for it take no place.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher, Policy, ToolServer, ToolService
from dispatch.errors import CallTimeoutError, ThrottledError, ToolError, TransportError
from dispatch.messaging.wire import Refusal
from dispatch.serving import replies
from dispatch.serving.replies import KEY_AGE_S, MAX_ANSWER_BYTES, IdempotencyKeys
from tests.helpers.clock import START, advance, idle, start_task, virtual_loop
from tests.helpers.dispatcher_and_service import UNGUARDED, Peer, catalog, dispatching, read, serving, stand

KEYS = [f"order-{number}" for number in range(12)]
"""Each belongs to one of the instances; a dozen keys are enough for each to have some."""


class World:
    """Instances that count what they run, and the calls of one dispatcher."""

    def __init__(self, dispatcher: Dispatcher, stack: contextlib.AsyncExitStack) -> None:
        self.dispatcher = dispatcher
        self._stack = stack
        self.ran: Counter[tuple[str, str]] = Counter()
        """By the key and the instance."""
        self.go = asyncio.Event()

    async def instance(self, name: str, **options: Any) -> ToolServer:
        async def work(arguments: dict[str, Any]) -> str:
            self.ran[arguments["key"], name] += 1
            if not arguments.get("at-once"):
                await self.go.wait()
            return f"done by {name}"

        return await self._stack.enter_async_context(serving(work, instance=name, **options))

    async def meet(self, *names: str) -> None:
        """Let the dispatcher know these."""
        await self.dispatcher.execute("work", {"key": "", "at-once": True})
        await asyncio.sleep(1)
        assert {view.id for view in self.dispatcher.instances("lab")} == set(names)

    def call(self, key: str, **options: Any) -> asyncio.Task[CallResult]:
        arguments = {"key": key, "at-once": options.pop("at_once", False)}
        call = self.dispatcher.execute("work", arguments, idempotency_key=key, **options)
        return asyncio.create_task(call)

    def runs(self) -> dict[str, int]:
        """How often the work of each key ran, at whichever instances."""
        return {key: sum(count for (name, _), count in self.ran.items() if name == key) for key in KEYS}


@contextlib.asynccontextmanager
async def world(**policy: Any) -> AsyncIterator[World]:
    retry = {"initial-backoff": 0.01, "max-backoff": 0.01, "max-attempts": 4}
    tools = catalog(work={"policy": {"retry": retry, "breaker": None, **policy}})
    async with contextlib.AsyncExitStack() as stack, dispatching(tools) as dispatcher:
        yield World(dispatcher, stack)


def failures(results: list[CallResult]) -> list[str]:
    return [str(result.error) for result in results if not result.ok]


async def test_what_a_leaving_instance_refuses_goes_to_another() -> None:
    async with world() as here:
        leaving = await here.instance("a", concurrency=1)
        busy = here.call("busy")
        await asyncio.sleep(1)
        calls = [here.call(key) for key in KEYS]
        await asyncio.sleep(0.1)
        await here.instance("b")
        await asyncio.sleep(0.1)  # until the dispatcher knows it
        draining = asyncio.create_task(leaving.drain())
        await asyncio.sleep(0.1)
        here.go.set()
        results = await asyncio.gather(busy, *calls)
        assert failures(results) == []
        assert here.runs() == dict.fromkeys(KEYS, 1)
        await draining


async def test_what_an_overloaded_instance_refuses_goes_to_another_that_has_joined() -> None:
    async with world() as here:
        await here.instance("a", concurrency=1, max_queue=0)
        await here.meet("a")
        busy = here.call("busy")
        await asyncio.sleep(0.1)
        calls = [here.call(key, at_once=True) for key in KEYS]
        await asyncio.sleep(0.1)
        await here.instance("b")
        results = await asyncio.gather(*calls)
        assert failures(results) == []
        assert {result.text for result in results} == {"done by b"}
        assert here.runs() == dict.fromkeys(KEYS, 1)
        here.go.set()
        await busy


async def test_what_an_overloaded_instance_refuses_goes_to_another_that_was_there() -> None:
    async with world() as here:
        await here.instance("a", concurrency=1, max_queue=0)
        await here.meet("a")
        busy = here.call("busy")
        await asyncio.sleep(0.1)
        await here.instance("b")
        await asyncio.sleep(1)
        results = [await here.call(key, at_once=True) for key in KEYS]
        assert failures(results) == []
        assert {result.attempts for result in results} == {1, 2}
        # A repeat with the same key goes where its work was done, although it first belonged to another instance.
        here.go.set()
        await busy
        assert failures([await here.call(key, at_once=True) for key in KEYS]) == []
        assert here.runs() == dict.fromkeys(KEYS, 1)


async def test_what_may_have_run_is_repeated_at_its_instance_when_others_join() -> None:
    async with world(**{"attempt-timeout": 1}) as here:
        await here.instance("a")
        await here.meet("a")
        calls = [here.call(key, timeout=10) for key in KEYS]
        await asyncio.sleep(0.5)
        for name in "bcd":
            await here.instance(name)
        await asyncio.sleep(1)
        here.go.set()
        results = await asyncio.gather(*calls)
        assert failures(results) == []
        assert {result.text for result in results} == {"done by a"}
        assert here.runs() == dict.fromkeys(KEYS, 1)


async def test_the_next_call_with_the_key_goes_there_too() -> None:
    async with world() as here:
        await here.instance("a")
        await here.meet("a")
        assert failures(await asyncio.gather(*(here.call(key, at_once=True) for key in KEYS))) == []
        for name in "bcd":
            await here.instance(name)
        await asyncio.sleep(1)
        results = await asyncio.gather(*(here.call(key, at_once=True) for key in KEYS))
        assert failures(results) == []
        assert here.runs() == dict.fromkeys(KEYS, 1)


async def test_an_instance_that_may_have_run_it_is_asked_again_although_it_refuses() -> None:
    async with world(**{"attempt-timeout": 1}) as here:
        first = await here.instance("a", concurrency=len(KEYS), max_queue=0)
        await here.meet("a")
        calls = [here.call(key, timeout=60) for key in KEYS]
        await asyncio.sleep(0.5)
        await here.instance("b")
        await asyncio.sleep(3)
        assert first.refused["overloaded"] > 0
        here.go.set()
        results = await asyncio.gather(*calls)
        assert "done by b" not in {result.text for result in results}
        assert here.runs() == dict.fromkeys(KEYS, 1)


async def test_an_instance_that_has_gone_with_the_key_is_still_told() -> None:
    async with world(**{"attempt-timeout": 1}) as here:
        first = await here.instance("a")
        await here.meet("a")
        call = here.call("order-0", timeout=10)
        await asyncio.sleep(0.5)
        await here.instance("b")
        first.drain_timeout = 5
        draining = asyncio.create_task(first.drain())
        result = await call
        assert not result.ok
        assert "may have been executed" in str(result.error)
        assert here.runs()["order-0"] == 1
        await draining


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


@pytest.fixture
def till() -> Till:
    return Till()


async def test_a_call_that_times_out_leaves_its_key_the_tools_answer(till: Till) -> None:
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


async def test_a_caller_that_was_refused_hears_nothing_more(till: Till) -> None:
    payload = b'{"arguments": "{\\"seconds\\": 5}"}'
    async with serving(till) as server, Peer.as_caller() as caller:
        await caller.ask(payload, id="1", remaining_ms="1000", idempotency_key="one")
        assert (await caller.arrived.get()).properties()["refused"] == Refusal.STOPPED
        await advance(10)
        assert (server.running, caller.arrived.empty()) == (0, True)
        await caller.ask(payload, id="2", remaining_ms="1000", idempotency_key="one")
        assert b"receipt 1" in (await caller.arrived.get()).data()
        assert till.sold == 1


async def test_the_tools_error_is_its_answer_too(till: Till) -> None:
    async with stand(till, TOOLS) as (dispatcher, _):
        for timeout, type in ((1, CallTimeoutError), (30, ToolError), (1, ToolError)):
            with pytest.raises(type):
                await dispatcher.call("work", {"seconds": 5, "fail": 1}, idempotency_key="one", timeout=timeout)
        assert till.sold == 1


async def test_a_stream_that_times_out_leaves_its_key_the_whole_stream(till: Till) -> None:
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


async def test_a_retry_within_a_call_gets_the_answer_of_its_first_attempt(till: Till) -> None:
    policy = Policy(retry=3, attempt_timeout=1.0)
    async with stand(till, policy=policy) as (dispatcher, _):
        assert await dispatcher.call("work", {"seconds": 2.5}, idempotency_key="one", timeout=30) == "receipt 1"
        assert till.sold == 1


async def test_what_never_ends_is_stopped_when_its_key_is_too_old(till: Till) -> None:
    async with stand(till, TOOLS) as (dispatcher, server):
        for timeout in (1, 30):
            with pytest.raises(CallTimeoutError):
                await dispatcher.call("work", {"seconds": 5_000}, idempotency_key="one", timeout=timeout)
        assert (server.running, till.sold) == (1, 1)
        await advance(KEY_AGE_S)
        assert server.running == 0
        assert await dispatcher.call("work", idempotency_key="one", timeout=1) == "receipt 2"


async def test_duplicates_that_wait_take_no_place(till: Till) -> None:
    async with stand(till, TOOLS, concurrency=2, max_queue=4) as (dispatcher, server):
        same = [asyncio.create_task(dispatcher.call("work", {"seconds": 5}, idempotency_key="one")) for _ in range(5)]
        await advance(1)
        assert (server.running, server.queued) == (1, 0)
        assert await dispatcher.call("work", timeout=1) == "receipt 2"
        assert await asyncio.gather(*same) == ["receipt 1"] * 5
        await idle()
        assert (server.running, till.sold) == (0, 2)


async def test_a_duplicate_that_waits_can_be_cancelled_and_what_runs_goes_on(till: Till) -> None:
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


async def test_a_duplicate_waits_no_longer_than_its_caller(till: Till) -> None:
    async with stand(till, TOOLS) as (dispatcher, server):
        first = await start_task(dispatcher.call("work", {"seconds": 5}, idempotency_key="one"))
        with pytest.raises(CallTimeoutError):
            await dispatcher.call("work", {"seconds": 5}, idempotency_key="one", timeout=1)
        await idle()
        assert server.refused[Refusal.STOPPED] + server.cancelled == 1, "by its own clock, or its caller's cancellation"
        assert await first == "receipt 1"


def duplicates(dispatcher: Dispatcher, count: int) -> list[asyncio.Task[CallResult]]:
    """Begin calls of five seconds with one key."""
    calls = (dispatcher.execute("work", {"seconds": 5}, idempotency_key="one") for _ in range(count))
    return [asyncio.create_task(each) for each in calls]


async def test_draining_waits_for_duplicates_and_closing_does_not(till: Till) -> None:
    for close in (False, True):
        async with serving(till) as server, dispatching(TOOLS) as dispatcher:
            calls = duplicates(dispatcher, 2)
            await advance(0.1)
            await (server.close() if close else server.drain())
            results = await asyncio.gather(*calls)
            types = [None if result.error is None else result.error.type for result in results]
            assert types == (["cancelled"] * 2 if close else [None] * 2)
    assert till.sold == 2


async def test_duplicates_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, till: Till) -> None:
    monkeypatch.setattr("dispatch.serving.requests.MAX_DUPLICATES", 2)
    async with stand(till, TOOLS) as (dispatcher, server):
        results = await asyncio.gather(*duplicates(dispatcher, 4))
        assert [result.text for result in results[:3]] == ["receipt 1"] * 3
        assert isinstance(results[3].error, ThrottledError)
        assert server.refused[Refusal.OVERLOADED] == 1
        assert till.sold == 1


async def test_a_repeat_gets_the_first_answer_and_runs_nothing(till: Till) -> None:
    async with stand(till) as (dispatcher, _):
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 1"
        await advance(300)
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 1"
        assert await dispatcher.call("work", idempotency_key="two") == "receipt 2"
        assert await dispatcher.call("work") == "receipt 3"
        assert till.sold == 3
        await advance(301)
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 4", "keys get old"


async def test_a_key_belongs_to_its_user(till: Till) -> None:
    async with stand(till) as (dispatcher, _):
        assert await dispatcher.call("work", user="alice", idempotency_key="one") == "receipt 1"
        assert await dispatcher.call("work", user="bob", idempotency_key="one") == "receipt 2"


async def test_an_error_is_an_answer_too(till: Till) -> None:
    async with stand(till) as (dispatcher, _):
        results = [await dispatcher.execute("work", {"fail": 1}, idempotency_key="one") for _ in range(2)]
        assert [result.error.type for result in results if result.error] == ["no-money"] * 2
        assert till.sold == 1


async def test_a_stream_is_given_again_chunk_by_chunk(till: Till) -> None:
    async with stand(till, TOOLS) as (dispatcher, _):
        for _ in range(2):
            chunks = dispatcher.stream("work", {"chunks": 2}, idempotency_key="one")
            assert [chunk async for chunk in chunks] == ["1.0 ", "1.1 "]
        assert till.sold == 1


async def test_an_answer_too_long_to_keep_is_refused_rather_than_run_again(till: Till) -> None:

    async def long(arguments: dict[str, Any]) -> AsyncIterator[str]:
        till.sold += 1
        return _parts(3, MAX_ANSWER_BYTES // 2)

    async with stand(long) as (dispatcher, _):
        assert (await dispatcher.execute("work", idempotency_key="one", timeout=60)).ok
        again = await dispatcher.execute("work", idempotency_key="one", timeout=60)
        assert isinstance(again.error, TransportError)
        assert again.error.type == "reply-evicted"
        assert till.sold == 1


async def _parts(count: int, size: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield "x" * size


async def test_keys_are_bounded_but_what_runs_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_KEYS", 3)
    monkeypatch.setattr(replies, "MAX_BYTES", 100)
    keys = IdempotencyKeys()
    running, first = keys.claim("u", "running", 0.0)
    assert first
    for number in range(20):
        keyed, first = keys.claim("u", str(number), 1.0)
        assert first
        keys.record(keyed, ("result", "x" * 60, ""))
        assert len(keys) <= 3
    assert keys.claim("u", "running", 2.0) == (running, False)
    assert keys.size <= 160
    await idle()
