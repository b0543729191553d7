"""What the processes of one story share."""

from __future__ import annotations

import random
from collections import Counter

from dispatch.protocol.settings import Settings
from tests.simulation.adversary import Adversary
from tests.simulation.conditions import Conditions
from tests.simulation.ledger import Ledger
from tests.simulation.network import REQUESTS, Network
from tests.simulation.scheduler import Scheduler


class World:
    """Time, network, account and processes; everything random comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.random = r = random.Random(seed)
        self.conditions = Conditions.draw(r)
        self.settings = draw_settings(r)
        self.counts: Counter[str] = Counter()
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, r, self.conditions, self.counts)
        self.ledger = Ledger(self.counts)
        self.adversary = Adversary(self.network, r) if self.conditions.has_adversary else None
        self.instance_names = [f"i{number}" for number in range(r.choice((1, 1, 2, 3)))]

    def inbox_of(self, instance: str) -> str:
        return f"{REQUESTS}{instance}"


def draw_settings(r: random.Random) -> Settings:
    """Return settings in which the limits of a session are reached by a few small calls."""
    return Settings(
        window=r.choice((2_000, 48_000)),
        least_window=r.choice((100, 2_400)),
        senders_at_full_window=r.choice((1, 4)),
        packet_bytes=r.choice((1_000, 40_000, 256_000)),
        large_bytes=r.choice((500, 16_000, 64_000)),
        fragment_bytes=r.choice((300, 5_000, 1_000_000)),
        large_at_once=r.choice((1, 2, 8)),
        data_window=r.choice((5_000, 16_000_000)),
        stream_window=r.choice((100, 3_000, 1_000_000)),
        max_partial_bytes=r.choice((50_000, 128 * 1024 * 1024)),
        max_ack_ranges=r.choice((2, 4, 32)),
        max_half_open=r.choice((8, 1_024)),
    )
