"""Arguments and answers beyond a genuine broker's largest message: whole, once, also where messages are lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from tests.helpers.catalogs import catalog_of, queues_of, unique_topic
from tests.helpers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.pulsar

MIB = 1024 * 1024
LARGE = dispatch.Policy(timeout=60)


def text(number: int, size: int) -> str:
    """A text no two parts of which are the same, nor the same as another number's."""
    return random.Random(number).randbytes(-(-size // 2)).hex()[:size]


class Large(dispatch.ToolService):
    """Takes and gives much, and counts."""

    def __init__(self) -> None:
        self.ran: Counter[int] = Counter()
        self.right: set[int] = set()

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        number = arguments["n"]
        self.ran[number] += 1
        if arguments.get("fill", "") == text(number, len(arguments.get("fill", ""))):
            self.right.add(number)
        if arguments.get("chunks"):
            return self._stream(number, arguments["chunks"], arguments["size"])
        return text(number, arguments.get("size", 10))

    async def _stream(self, number: int, chunks: int, size: int) -> AsyncIterator[str]:
        for index in range(chunks):
            yield text(number + index, size)


async def test_many_mebibytes_arrive_whole(pulsar_endpoint: Endpoint) -> None:
    topic, service = unique_topic("large"), Large()
    async with (
        dispatch.ToolServer(service, pulsar_endpoint.service_url, service=topic),
        dispatch.connect(pulsar_endpoint.service_url, catalog_of(topic), policy=LARGE) as dispatcher,
    ):
        await dispatcher.call("echo", {"n": 1})
        for number, (give, take) in enumerate([(12, 0), (0, 12), (20, 20)], start=2):
            arguments = {"n": number, "size": take * MIB, "fill": text(number, give * MIB)}
            result = await dispatcher.execute("echo", arguments)
            assert result.error is None
            assert result.text == text(number, take * MIB)
        assert service.ran == Counter(range(1, 5))
        assert service.right == set(range(1, 5))


async def test_chunks_of_a_stream_keep_their_borders(pulsar_endpoint: Endpoint) -> None:
    topic, service = unique_topic("large"), Large()
    async with (
        dispatch.ToolServer(service, pulsar_endpoint.service_url, service=topic),
        dispatch.connect(pulsar_endpoint.service_url, catalog_of(topic), policy=LARGE) as dispatcher,
    ):
        chunks = [
            len(chunk) async for chunk in dispatcher.stream("echo", {"n": 1, "size": 6 * MIB, "chunks": 3}, timeout=60)
        ]
        assert chunks == [6 * MIB] * 3


async def test_answers_of_persistent_topics_too(pulsar_endpoint: Endpoint) -> None:
    topic = unique_topic("large")
    request_queue, response_queue = queues_of(topic, "persistent")
    async with (
        dispatch.ToolServer(
            Large(), pulsar_endpoint.service_url, request_queue=request_queue, response_queue=response_queue
        ),
        dispatch.connect(
            pulsar_endpoint.service_url, catalog_of(topic, scheme="persistent"), policy=LARGE
        ) as dispatcher,
    ):
        assert await dispatcher.call("echo", {"n": 1, "size": 12 * MIB}) == text(1, 12 * MIB)
        with pytest.raises(dispatch.InvalidArgumentsError, match="no instance is known that accepts more") as caught:
            await dispatcher.call("echo", {"n": 2, "fill": text(2, 6 * MIB)})
        assert caught.value.type == "request-too-large"


async def test_one_message_in_twenty_is_lost_each_way(pulsar_endpoint: Endpoint) -> None:
    topic, service, url = unique_topic("large"), Large(), pulsar_endpoint.service_url
    rng = random.Random(1)
    async with (
        LossyProxy.before(url, loss_out=0.0, loss_in=0.0, rng=rng) as proxy,
        dispatch.ToolServer(service, url, service=topic),
        dispatch.connect(proxy.url, catalog_of(topic), policy=LARGE) as dispatcher,
    ):
        await dispatcher.call("echo", {"n": 0})
        proxy.loss_out = proxy.loss_in = 0.05

        async def call(number: int) -> None:
            size = rng.randrange(5 * MIB, 9 * MIB)
            arguments: dict[str, Any] = {"n": number, "size": size, "fill": text(number, 14 * MIB - size)}
            result = await dispatcher.execute("echo", arguments)
            assert result.error is None
            assert result.text == text(number, size)

        await asyncio.gather(*(call(number) for number in range(1, 5)))
        assert proxy.dropped_sends
        assert proxy.dropped_messages
    assert service.ran == Counter(range(5))
    assert service.right == set(range(5))
