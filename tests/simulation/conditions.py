"""The network and the faults of one story, drawn from its seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

LOSS_WITHOUT_FAILURE = 0.2
"""Up to this share of lost packets no request fails while both processes live."""
LATE_S, LATE_WITHOUT_FAILURE = 0.5, 0.3
"""Up to this share of packets that are lost, or late by that many seconds: a callee whose packets stay away for a second is
taken for dead."""
OUTAGE_WITHOUT_FAILURE_S = 0.5
"""Unannounced outages of the network up to this length fail no request: half of the silence after which a callee is gone. An
endpoint notices longer ones, because the broker confirms no packet."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """All shares are from 0 to 1, all times in seconds."""

    loss: float
    large_loss: float
    """Loss of packets above 30 kB, where it is higher than ``loss``: the broker drops what does not fit into a channel."""
    duplicates: float
    reordering: float
    max_overtaken_s: float
    """Delay of a packet that others overtake."""
    delay_to_instances: float
    delay_to_dispatchers: float
    outage_s: float
    """One outage of the network that no process notices."""
    disconnection_s: float
    """One outage of the broker that every process notices: sessions are suspended meanwhile."""
    restarts: int
    has_twin: bool
    """Two live processes answer for the name of the first instance."""
    drains: int
    closes: int
    has_adversary: bool
    has_deadlines: bool
    cancelled: float
    """Share of calls whose caller gives up."""
    coalesce_s: float
    """Delay between a change and the packets that it causes: the turn of the event loop."""

    @classmethod
    def draw(cls, r: random.Random) -> Conditions:
        return cls(
            loss=r.choice((0, 0, 0.01, 0.05, 0.2, 0.4)),
            large_loss=r.choice((0, 0, 0.3)),
            duplicates=r.choice((0, 0, 0.02, 0.2)),
            reordering=r.choice((0, 0, 0.02, 0.3)),
            max_overtaken_s=r.choice((0.001, 0.05, 1.0, 20.0)),
            delay_to_instances=r.choice((0.0002, 0.002, 0.02)),
            delay_to_dispatchers=r.choice((0.0002, 0.002, 0.02)),
            outage_s=r.choice((0.05, 1.0, 5.0, 5.0, 14.0)) if r.random() < 0.2 else 0.0,
            disconnection_s=r.choice((0.05, 2.0, 15.0, 60.0)) if r.random() < 0.15 else 0.0,
            restarts=r.choice((0, 0, 0, 0, 1, 3)),
            has_twin=r.random() < 0.08,
            drains=r.choice((0, 0, 0, 0, 1, 2)),
            closes=r.choice((0, 0, 0, 0, 0, 0, 1)),
            has_adversary=r.random() < 0.3,
            has_deadlines=r.random() < 0.4,
            cancelled=r.choice((0.05, 0.05, 0.6)),
            coalesce_s=r.choice((0.0, 0.0, 0.0005)),
        )

    @property
    def may_fail(self) -> bool:
        """Requests may fail here. Where this is false, every request must end with what the instance answered."""
        return bool(
            self.loss > LOSS_WITHOUT_FAILURE
            or self.large_loss > LOSS_WITHOUT_FAILURE
            or self._late > LATE_WITHOUT_FAILURE
            or self.outage_s > OUTAGE_WITHOUT_FAILURE_S
            or self.restarts
            or self.closes
            or self.has_deadlines
            or (self.has_twin and self._delays_answers)
        )

    @property
    def _late(self) -> float:
        """Share of packets that do not arrive in time to show that their sender lives."""
        late = self.reordering if self.max_overtaken_s >= LATE_S else 0.0
        return 1.0 - (1.0 - self.loss) * (1.0 - late)

    @property
    def _delays_answers(self) -> bool:
        """Answers of a live process to several probes in a row may be lost: a RESET of its twin is then believed."""
        has_outage = self.outage_s > 0.0 or self.disconnection_s > 0.0
        return has_outage or self.loss > 0.01 or self.large_loss > 0.0 or self.reordering > 0.02
