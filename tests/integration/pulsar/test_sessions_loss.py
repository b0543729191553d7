"""One message in twenty is lost each way between a dispatcher and the broker: every call is answered, and executed once."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.counting_service import Counts, answer, counting_process
from tests.helpers.lossy_proxy import LossyProxy
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar
LOSS = 0.05
TIMEOUT_S = 60.0


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "chunks", "calls", "in_flight"),
    [
        (120, 0, by_profile(short=3_000, long=100_000), 64),
        (100_000, 0, by_profile(short=250, long=7_000), 64),
        (2_000, 50, by_profile(short=150, long=3_000), 16),
    ],
    ids=["120 B", "100 kB", "streams"],
)
async def test_one_message_in_twenty_is_lost_each_way(
    pulsar_endpoint: Endpoint, tmp_path: Path, size: int, chunks: int, calls: int, in_flight: int
) -> None:
    counts = Counts(tmp_path / "counts", calls + 1)
    url, topic = pulsar_endpoint.service_url, unique_topic("counting")
    numbers = iter(range(calls))
    seconds: list[float] = []

    async def caller(dispatcher: dispatch.Dispatcher) -> None:
        for number in numbers:
            arguments = {"n": number, "size": size, "chunks": chunks}
            started = time.perf_counter()
            text = await dispatcher.call("echo", arguments, timeout=TIMEOUT_S)
            seconds.append(time.perf_counter() - started)
            assert text == ("".join(answer(n, size) for n in range(chunks)) if chunks else answer(number, size))

    async with LossyProxy.before(url, loss=0.0, rng=random.Random(1)) as proxy:
        with counting_process(url, topic, counts):
            async with dispatch.connect(proxy.url, catalog_of(topic)) as dispatcher:
                await dispatcher.call("echo", {"n": calls}, timeout=TIMEOUT_S)  # they have met
                proxy.loss_out = proxy.loss_in = LOSS
                started = time.perf_counter()
                await asyncio.gather(*(caller(dispatcher) for _ in range(in_flight)))
                elapsed = time.perf_counter() - started
                proxy.loss_out = proxy.loss_in = 0.0
                assert dispatcher.pending_requests == 0
        # A packet carries many calls, and the replies of many.
        assert proxy.dropped_sends > 1
        assert proxy.dropped_messages > 1
    assert counts.all() == b"\x01" * (calls + 1)
    seconds.sort()
    p50, p999 = (1_000 * seconds[int(len(seconds) * share)] for share in (0.5, 0.999))
    lost = f"{proxy.dropped_sends} + {proxy.dropped_messages} messages lost"
    sys.stdout.write(f"\n{calls / elapsed:,.0f} calls/s, p50 {p50:.1f} ms, p99.9 {p999:.1f} ms, {lost}\n")
