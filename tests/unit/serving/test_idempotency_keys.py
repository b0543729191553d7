"""Idempotency keys: who asks for the same work again gets the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from dispatch.errors import TransportError
from dispatch.serving.replies import MAX_ANSWER_BYTES, IdempotencyKeys
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import stand


class Till:
    """A tool that must not run twice for the same purchase."""

    def __init__(self) -> None:
        self.sold = 0

    async def __call__(self, arguments: dict[str, Any]) -> Any:
        self.sold += 1
        if arguments.get("fail"):
            raise ValueError("no money")
        if arguments.get("stream"):
            return self._stream(self.sold)
        await asyncio.sleep(arguments.get("seconds", 0))
        return f"receipt {self.sold}"

    async def _stream(self, number: int) -> AsyncIterator[str]:
        for part in ("receipt ", str(number)):
            yield part


async def test_a_repeat_gets_the_first_answer_and_runs_nothing() -> None:
    till = Till()
    async with stand(till) as (dispatcher, _):
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 1"
        await advance(300)
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 1"
        assert await dispatcher.call("work", idempotency_key="two") == "receipt 2"
        assert await dispatcher.call("work") == "receipt 3"
        assert till.sold == 3


async def test_a_repeat_while_the_first_still_runs_waits_for_it() -> None:
    till = Till()
    async with stand(till) as (dispatcher, _):
        calls = [asyncio.create_task(dispatcher.call("work", {"seconds": 5}, idempotency_key="one")) for _ in range(5)]
        assert await asyncio.gather(*calls) == ["receipt 1"] * 5
        assert till.sold == 1


async def test_a_key_belongs_to_its_user() -> None:
    till = Till()
    async with stand(till) as (dispatcher, _):
        assert await dispatcher.call("work", user="alice", idempotency_key="one") == "receipt 1"
        assert await dispatcher.call("work", user="bob", idempotency_key="one") == "receipt 2"


async def test_an_error_is_an_answer_too() -> None:
    till = Till()
    async with stand(till) as (dispatcher, _):
        results = [await dispatcher.execute("work", {"fail": True}, idempotency_key="one") for _ in range(2)]
        assert [result.error.type for result in results if result.error] == ["ValueError"] * 2
        assert till.sold == 1


async def test_a_stream_is_given_again_chunk_by_chunk() -> None:
    till = Till()
    async with stand(till) as (dispatcher, _):
        for _ in range(2):
            chunks = dispatcher.stream("work", {"stream": True}, idempotency_key="one")
            assert [chunk async for chunk in chunks] == ["receipt ", "1"]
        assert till.sold == 1


async def test_keys_get_old() -> None:
    till = Till()
    async with stand(till) as (dispatcher, _):
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 1"
        await advance(601)
        assert await dispatcher.call("work", idempotency_key="one") == "receipt 2"


async def test_an_answer_too_long_to_keep_is_refused_rather_than_run_again() -> None:
    till = Till()

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


async def test_keys_are_bounded_but_what_runs_stays() -> None:
    keys = IdempotencyKeys(max_keys=3, max_bytes=100)
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
