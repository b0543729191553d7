"""Third-party services over a broker's non-persistent topics, as fast as a service can be: dispatch paces the requests, and
sends no more than the replies fit into a channel, so that few are lost although the service has no flow control. With the
pace alone up to one in a hundred is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from benchmarks.harness.processes import start
from dispatch.messaging.request import Disposition
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar

IN_FLIGHT = 64
LIMIT_S = 2.0
ROUNDS = 5
"""Attempts to stay within the bound: other processes on the machine delay the receiver."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "calls", "lost_of_1000"),
    [(10_000, by_profile(short=1_000, long=5_000), 1), (100_000, by_profile(short=400, long=1_500), 10)],
)
async def test_answers_of_a_fast_service_of_others(
    pulsar_endpoint: Endpoint, size: int, calls: int, lost_of_1000: int
) -> None:
    topic, may_be_lost = unique_topic("stranger"), calls * lost_of_1000 // 1_000
    spec = {
        "url": pulsar_endpoint.service_url,
        "token": pulsar_endpoint.token,
        "topic": topic,
        "request": f"non-persistent://tg/request/{topic}",
        "response": f"non-persistent://tg/response/{topic}",
        "timeout": LIMIT_S,
        "answer": size,
    }
    with ExitStack() as stack:
        start("echo_service", stack).begin(spec)
        async with dispatch.connect(pulsar_endpoint.service_url, catalog_of(topic)) as dispatcher:

            async def caller(numbers: Iterator[int]) -> int:
                lost = 0
                for _ in numbers:
                    result = await dispatcher.execute("echo", timeout=LIMIT_S)
                    if result.ok:
                        assert len(result.text) == size
                    else:
                        assert result.outcome is dispatch.Outcome.TIMEOUT, result.error
                        lost += 1
                return lost

            lost = calls
            for _ in range(ROUNDS):
                numbers = iter(range(calls))
                lost = sum(await asyncio.gather(*(caller(numbers) for _ in range(IN_FLIGHT))))
                if lost <= may_be_lost:
                    break
            assert lost <= may_be_lost
            assert dispatcher.reply_counts()[Disposition.DUPLICATE] == 0, "one subscription receives each reply once"
            assert dispatcher.pending_requests == 0
