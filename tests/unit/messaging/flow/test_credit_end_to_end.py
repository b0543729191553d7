"""Thousands of calls at once between our dispatcher and our service, over channels that lose what they cannot hold."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch import Dispatcher, Outcome, Policy, ToolServer, ToolService
from dispatch.messaging.flow.publisher import Gate
from dispatch.messaging.rpc.exchange_outcome import Disposition
from dispatch.messaging.wire.properties import Property
from dispatch.routing import channel, channel_registry
from dispatch.routing.instance_pool import SHARED
from dispatch.transports import Publisher
from dispatch.transports.memory import MemoryTransport
from tests.helpers.bounded_channel import Channel, ChannelTransport, stalls
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, dispatching, serving

MANY = 2_000
TIMEOUT_S = 120.0
LONGEST_STALL_S = 0.04


class Worker(ToolService):
    """Answers with as many bytes, after as many seconds, and in as many chunks, as it is told."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        if arguments.get("chunks"):
            return self._stream(arguments["chunks"], arguments["size"])
        if arguments.get("seconds"):
            await asyncio.sleep(arguments["seconds"])
        return "x" * arguments["size"]

    async def _stream(self, chunks: int, size: int) -> AsyncIterator[str]:
        for index in range(chunks):
            yield str(index % 10) * size


class Lab:
    """A dispatcher and a server; ``to_service`` and ``to_caller`` are the ways between them."""

    def __init__(self, seed: int, without: frozenset[str]) -> None:
        rng = random.Random(seed)
        self.to_service = Channel(stalls(rng, LONGEST_STALL_S))
        self.to_caller = Channel(stalls(rng, LONGEST_STALL_S))
        self.network = ChannelTransport(MemoryTransport(BROKER), self.to_caller, without)
        # An instance without the feature `repair` is not known by name: its requests are never sent again.
        self.service_network = ChannelTransport(
            MemoryTransport(BROKER), self.to_service, frozenset({Property.FEATURES})
        )
        self.dispatcher: Dispatcher
        self.server: ToolServer

    @property
    def lost(self) -> int:
        return self.to_service.lost + self.to_caller.lost

    async def call(self, arguments: dict[str, Any]) -> Outcome:
        """Make one call. Requests are never sent again here: the test shows what credit does alone."""
        result = await self.dispatcher.execute("work", arguments, timeout=TIMEOUT_S)
        if result.ok:
            assert len(result.text) == arguments["size"] * (arguments.get("chunks") or 1)
        return result.outcome

    async def all_at_once(self, calls: list[dict[str, Any]]) -> Counter[Outcome]:
        return Counter(await asyncio.gather(*(self.call(arguments) for arguments in calls)))


@contextlib.asynccontextmanager
async def lab(seed: int = 1, *, without: frozenset[str] = frozenset(), concurrency: int = MANY) -> AsyncIterator[Lab]:
    made = Lab(seed, without)
    await made.service_network.start()
    try:
        async with (
            serving(Worker(), broker=made.service_network, concurrency=concurrency, max_queue=MANY) as made.server,
            dispatching(transport=made.network, policy=Policy(**UNGUARDED)) as made.dispatcher,
        ):
            yield made
            await advance(1)  # the last acknowledgements are under way
            assert made.dispatcher.pending_requests == 0
            assert [each.id for each in made.dispatcher.instances("lab")] == [SHARED]
    finally:
        await made.service_network.close()


def many(rng: random.Random, **more: Any) -> list[dict[str, Any]]:
    """Answers from 10 bytes to 100 kB, small ones as often as large ones."""
    return [{"size": int(10 ** rng.uniform(1, 5)), **more} for _ in range(MANY)]


@pytest.mark.parametrize("concurrency", [64, MANY])
@pytest.mark.parametrize("seconds", [0.0, 2.0])
async def test_calls_at_once_are_all_answered_and_nothing_is_lost(concurrency: int, seconds: float) -> None:
    async with lab(concurrency=concurrency) as made:
        calls = many(random.Random(2))
        for number, arguments in enumerate(calls):
            arguments["seconds"] = seconds * (number % 5) / 4  # fast ones among them
        assert await made.all_at_once(calls) == {Outcome.SUCCESS: MANY}
        assert made.lost == 0
        counted = made.dispatcher.reply_counts()
        assert counted[Disposition.MATCHED] == sum(counted.values()) == MANY


async def test_the_same_calls_without_credit_lose_answers() -> None:
    async with lab(without=frozenset({Property.CREDIT})) as made:
        outcomes = await made.all_at_once(many(random.Random(2), seconds=1.0))
        assert made.to_caller.lost > MANY // 10
        assert outcomes[Outcome.TIMEOUT] == made.to_caller.lost, "this is what losing looks like to a caller"


async def test_the_same_calls_without_a_gate_for_requests_lose_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gate(publisher: Publisher, *_args: object, **_options: object) -> Gate:
        return Gate(publisher, lambda sequence: {}, None)  # no credit: everything passes

    monkeypatch.setattr(channel, "Gate", no_gate)
    monkeypatch.setattr(channel_registry, "PacedPublisher", lambda publisher, **_options: publisher)
    async with lab() as made:
        await made.all_at_once(many(random.Random(2)))
        assert made.to_service.lost > MANY // 10


async def test_large_requests_lose_nothing_either() -> None:
    async with lab() as made:
        rng = random.Random(3)
        calls = [{"size": 10, "text": "y" * int(10 ** rng.uniform(1, 5))} for _ in range(MANY // 2)]
        assert await made.all_at_once(calls) == {Outcome.SUCCESS: MANY // 2}
        assert made.lost == 0
        # Acknowledgements pass no gate: those that meet a large request on its way are lost, and that costs nothing else.
        assert made.to_service.lost_words < MANY // 20
        assert made.to_caller.lost_words == 0


async def test_streams_among_calls_are_whole() -> None:
    async with lab(concurrency=256) as made:
        rng = random.Random(4)
        calls = [
            {"size": int(10 ** rng.uniform(0, 4)), "chunks": rng.randrange(1, 30) if number % 4 == 0 else 0}
            for number in range(MANY // 4)
        ]
        assert await made.all_at_once(calls) == {Outcome.SUCCESS: len(calls)}
        assert made.lost == 0


async def test_streams_read_chunk_by_chunk_are_whole_and_in_order() -> None:
    async def read(dispatcher: Dispatcher, chunks: int) -> list[str]:
        arguments = {"size": 500, "chunks": chunks}
        return [chunk[0] async for chunk in dispatcher.stream("work", arguments, timeout=TIMEOUT_S)]

    async with lab(seed=5) as made:
        got = await asyncio.gather(*(read(made.dispatcher, 1 + number % 40) for number in range(200)))
        assert got == [[str(index % 10) for index in range(1 + number % 40)] for number in range(200)]
        assert made.lost == 0


async def test_callers_that_give_up_cost_the_others_nothing() -> None:
    async with lab(seed=6, concurrency=64) as made:
        calls = many(random.Random(7), seconds=0.5)
        tasks = [asyncio.create_task(made.call(arguments)) for arguments in calls]
        await advance(0.2)
        for task in tasks[::3]:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::3])
        assert Counter(outcome for number, outcome in enumerate(outcomes) if number % 3) == {
            Outcome.SUCCESS: MANY - len(outcomes[::3])
        }
        assert made.lost == 0


async def test_small_calls_are_not_kept_waiting_by_large_ones() -> None:
    """Each answer is a flow of its own at the gate, so that a stream of large chunks takes its turn like any other."""
    loop = asyncio.get_running_loop()
    async with lab(seed=8) as made:
        await made.call({"size": 1})
        started = loop.time()
        large = asyncio.create_task(made.call({"size": 40_000, "chunks": 400}))
        await advance(0.01)
        waits = []
        for _ in range(20):
            before = loop.time()
            assert await made.call({"size": 10}) == Outcome.SUCCESS
            waits.append(loop.time() - before)
        assert not large.done()
        assert max(waits) < 4 * LONGEST_STALL_S, "a turn or two, and the stalls in it"
        assert await large == Outcome.SUCCESS
        assert loop.time() - started > 2 * sum(waits), "the large one was under way all the time"
        assert made.lost == 0
