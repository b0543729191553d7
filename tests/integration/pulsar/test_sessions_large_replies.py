"""Large replies over one receiver's channel, which drops messages when it is full: of many instances at once, and beside
small calls.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from tests.helpers.catalogs import catalog_of, unique_topic
from tests.helpers.counting_service import Counts, answer, counting_process
from tests.helpers.fault_lab import FaultLab
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar
INSTANCES = 20
ROUNDS = 200
LARGE_CALLERS = 8
SMALL_CALLS = by_profile(short=150, long=2_000)
TIMEOUT_S = 60.0


@pytest.mark.soak  # in short, tests/integration/pulsar/test_sessions_fan_in.py has as many senders
async def test_twenty_instances_reply_with_100_kb_at_once(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    url, size, in_flight = pulsar_endpoint.service_url, 100_000, 2 * INSTANCES
    calls = ROUNDS * in_flight
    with FaultLab(url, tmp_path, calls + 10 * INSTANCES) as lab:
        await asyncio.to_thread(lab.start_instances, 2, INSTANCES // 2)
        async with dispatch.connect(url, catalog_of(lab.topic)) as dispatcher:
            met: set[str | None] = set()
            numbers = iter(range(calls, calls + 10 * INSTANCES))
            while len(met) < INSTANCES:
                results = [
                    dispatcher.execute("echo", {"n": next(numbers)}, timeout=TIMEOUT_S) for _ in range(INSTANCES)
                ]
                met.update([result.instance for result in await asyncio.gather(*results)])
            started = time.perf_counter()
            for first in range(0, calls, in_flight):
                texts = await asyncio.gather(
                    *(
                        dispatcher.call("echo", {"n": number, "size": size}, timeout=TIMEOUT_S)
                        for number in range(first, first + in_flight)
                    )
                )
                assert texts == [answer(number, size) for number in range(first, first + in_flight)]
            elapsed = time.perf_counter() - started
            assert dispatcher.pending_requests == 0
        assert lab.counts.all()[:calls] == b"\x01" * calls
        sys.stdout.write(f"\n{calls / elapsed:,.0f} calls/s\n")


@pytest.mark.long
async def test_small_calls_beside_large_ones(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    url, topic, size = pulsar_endpoint.service_url, unique_topic("counting"), 1_000_000
    counts = Counts(tmp_path / "counts", 1_000_000)
    large: list[float] = []
    small: list[float] = []
    with counting_process(url, topic, counts):
        async with dispatch.connect(url, catalog_of(topic)) as dispatcher:
            numbers = iter(range(len(counts.all())))

            async def call(size: int, seconds: list[float]) -> None:
                number, started = next(numbers), time.perf_counter()
                assert await dispatcher.call("echo", {"n": number, "size": size}, timeout=TIMEOUT_S) == answer(
                    number, size
                )
                seconds.append(time.perf_counter() - started)

            is_loaded = asyncio.Event()

            async def call_large() -> None:
                while len(small) < SMALL_CALLS:
                    await call(size, large)
                    is_loaded.set()

            async def call_small() -> None:
                await is_loaded.wait()
                for _ in range(SMALL_CALLS):
                    await call(120, small)

            await asyncio.gather(*(call_large() for _ in range(LARGE_CALLERS)), call_small())
        made = next(numbers)
    assert counts.all()[:made] == b"\x01" * made
    small.sort()
    large.sort()
    p50, p99 = (1_000 * small[int(len(small) * share)] for share in (0.5, 0.99))
    sys.stdout.write(
        f"\nsmall: p50 {p50:.1f} ms, p99 {p99:.1f} ms; large: {len(large)}, p50 {1_000 * large[len(large) // 2]:.1f} ms\n"
    )
    assert small[len(small) // 2] < large[len(large) // 2], "a small call waits for no large reply"
