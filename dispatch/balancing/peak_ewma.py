"""Peak EWMA: of two instances drawn at random, the one with the lower expected latency (Finagle's ``p2cPeakEwma``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from dispatch._internal.permit import Randomness
from dispatch.balancing.instance_state import DECAY_S, InstanceState, Learning, draw_two

UNKNOWN = 1e12
"""Load per call of an instance whose latency is unknown: it gets one call, and no other until that call has ended."""


class PeakEwma(Learning):
    """Of two instances drawn at random, the one with the smaller load: latency times the calls in flight plus one.

    Latencies decay as in Finagle, so that a slow instance is tried again. The calls are those of this dispatcher, and those
    of other dispatchers according to the latest reply of the instance, which decay in the same way and include calls that
    this dispatcher has cancelled and that still run.

    Args:
        randomness: random numbers.
        decay: time constant of the average, in seconds.
    """

    __slots__ = ("_randomness",)
    peaks = True
    weighs = True

    def __init__(self, randomness: Randomness, decay: float = DECAY_S) -> None:
        super().__init__(decay)
        self._randomness = randomness

    def load(self, instance: InstanceState, now: float) -> float:
        """Return the load of ``instance`` with one more call, in seconds per weight."""
        cost = instance.cost
        if not cost:
            return instance.in_flight * UNKNOWN
        pending: float = instance.in_flight + 1
        if instance.others:
            pending += instance.others * exp((instance.others_at - now) / self.decay)
        return cost * exp((instance.stamp - now) / self.decay) * pending / instance.weight

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the less loaded of two instances; of equals, the one that was picked longer ago."""
        one, other = draw_two(candidates, self._randomness)
        ours = self.load(one, now)
        theirs = self.load(other, now)
        if ours == theirs:
            return one if one.order <= other.order else other
        return one if ours < theirs else other
