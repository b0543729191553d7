"""A retry under an idempotency key failed with ``instance-lost`` when another instance had joined, or when the instance had
refused the request because it was leaving or overloaded. Now the retry goes to the instance that may have run it, for as
long as that is known, and after an explicit refusal to another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from dispatch import CallResult, Dispatcher, ToolServer
from tests.helpers.dispatcher_and_service import catalog, dispatching, serving

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
