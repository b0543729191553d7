"""``receive_packet`` against hostile packets: it never raises, and its time and memory are bounded.

``make test`` sends 20,000 packets to each of two tables, ``make test-long`` 2,500,000.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tests.helpers.run_profile import by_profile
from tests.simulation.fuzzed_pair import FuzzedPair

SHARDS = by_profile(short=1, long=10)
PACKETS = by_profile(short=20_000, long=2_500_000) // SHARDS
BATCH = 2_000
MAX_BATCH_CPU_S = 10.0
"""For packets that are processed in a twentieth of it: a loop over a number in a packet takes longer."""
MAX_GROWTH_BYTES = 20_000_000


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(SHARDS))
def test_hostile_packets_neither_raise_nor_stall(seed: int) -> None:
    pair = FuzzedPair(seed)
    for _ in range(PACKETS // BATCH):
        started_at = time.process_time()
        pair.run(BATCH)
        assert time.process_time() - started_at < MAX_BATCH_CPU_S, f"seed {seed}: a packet stalls the loop"
    assert pair.counts["packets"] == PACKETS
    assert pair.counts["sessions"] > 1, "no hostile packet has ever ended a session: the fuzzer is too tame"
    assert pair.counts["events"] > 0


@pytest.mark.costly
def test_memory_does_not_grow_with_hostile_packets() -> None:
    pair = FuzzedPair(1)
    pair.run(2_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pair.run(10_000)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < MAX_GROWTH_BYTES
