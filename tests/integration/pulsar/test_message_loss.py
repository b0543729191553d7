"""A tool that changes state and counts, over non-persistent topics of a Pulsar broker: each call is answered, and runs once.

The large test makes 1,500 calls in ``make test``, and 200,000 in ``make test-long``; ``DISPATCH_DELIVERY_CALLS`` sets
another number. A million calls, with faults, are in tests/integration/pulsar/test_sessions_kills.py.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch.transports.base import Mode, Security
from dispatch.transports.pulsar.client import PulsarClient, close_opened
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.counting_service import Counts, answer, counting_process
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar

CALLS = int(os.environ.get("DISPATCH_DELIVERY_CALLS", by_profile(short=1_500, long=100_000)))
SIZES = (1_000, 10_000, 100_000, 1_000_000)
IN_FLIGHT = (4, 16, 64, 256)
TIMEOUT_S = 60.0


def shares(calls: int) -> dict[tuple[int, int], int]:
    """How many calls of each size at each number in flight: the small ones are the many."""
    weights = {1_000: 60, 10_000: 30, 100_000: 9, 1_000_000: 1}
    return {(size, many): max(many, calls * weight // 400) for size, weight in weights.items() for many in IN_FLIGHT}


@pytest.mark.slow
@pytest.mark.long
async def test_answers_of_all_sizes_arrive_and_each_call_runs_once(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    plan = shares(CALLS)
    total = sum(plan.values())
    counts = Counts(tmp_path / "counts", total)
    numbers = iter(range(total))
    url, topic = pulsar_endpoint.service_url, unique_topic("counting")
    problems: list[str] = []
    with counting_process(url, topic, counts):
        async with dispatch.connect(url, catalog_of(topic)) as dispatcher:
            for (size, many), calls in plan.items():
                mine = iter([next(numbers) for _ in range(calls)])

                async def caller(size: int = size, mine: object = mine) -> None:
                    for number in mine:  # type: ignore[attr-defined] # an iterator that all callers share
                        result = await dispatcher.execute("echo", {"n": number, "size": size}, timeout=TIMEOUT_S)
                        if result.text != answer(number, size):
                            problems.append(f"{number} ({size:,} bytes): {result.error}")

                await asyncio.gather(*(caller() for _ in range(many)))
            assert problems == []
            assert dispatcher.pending_requests == 0
        assert Counter(counts.all()) == {1: total}


async def test_mixed_sizes_at_once(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    rng = random.Random(1)
    total = 600
    counts = Counts(tmp_path / "counts", total)
    sizes = rng.choices(SIZES, (60, 30, 9, 1), k=total)
    url, topic = pulsar_endpoint.service_url, unique_topic("counting")
    with counting_process(url, topic, counts):
        async with dispatch.connect(url, catalog_of(topic)) as dispatcher:
            texts = await asyncio.gather(
                *(
                    dispatcher.call("echo", {"n": number, "size": size}, timeout=TIMEOUT_S)
                    for number, size in enumerate(sizes)
                )
            )
        assert texts == [answer(number, size) for number, size in enumerate(sizes)]
        assert Counter(counts.all()) == {1: total}


async def test_streams_side_by_side_bring_every_chunk_in_order(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    chunks, streams = 300, 64
    counts = Counts(tmp_path / "counts", streams)
    url, topic = pulsar_endpoint.service_url, unique_topic("counting")

    async def read(dispatcher: dispatch.Dispatcher, number: int) -> int:
        index = 0
        async for chunk in dispatcher.stream("echo", {"n": number, "size": 100, "chunks": chunks}, timeout=120):
            assert chunk == answer(index, 100)
            index += 1
        return index

    with counting_process(url, topic, counts):
        async with dispatch.connect(url, catalog_of(topic)) as dispatcher:
            assert await asyncio.gather(*(read(dispatcher, n) for n in range(streams))) == [chunks] * streams
        assert Counter(counts.all()) == {1: streams}


async def test_a_broker_says_whether_it_delivers_to_a_subscription(pulsar_endpoint: Endpoint) -> None:
    topic, url = f"non-persistent://tg/response/{unique_topic()}", pulsar_endpoint.service_url
    got: asyncio.Queue[bytes] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    link = PulsarClient(url, Security())

    def take(_: Any, message: Any) -> None:
        loop.call_soon_threadsafe(got.put_nowait, message.data())

    try:
        consumer = await link.consumer(topic, Mode.FANOUT, "agent", take)
        producer = await link.producer(topic)
        assert await link.is_attached(consumer) is True
        for number in range(100):
            if number % 10 == 0:
                asked = asyncio.create_task(link.is_attached(consumer))
            producer.send_async(b"%d" % number, lambda *_: None)
            if number % 10 == 9:
                assert await asked is True
        async with asyncio.timeout(30):
            assert [await got.get() for _ in range(100)] == [b"%d" % number for number in range(100)]
        topics = await asyncio.to_thread(pulsar_endpoint.admin().request, "GET", f"{topic.replace('://', '/')}/stats")
        assert list(topics["subscriptions"]) == [consumer.subscription_name()], "the question leaves nothing behind"
        await close_opened(consumer)
        assert await link.is_attached(consumer) is False
    finally:
        await link.close()
