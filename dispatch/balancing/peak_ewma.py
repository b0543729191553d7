"""Peak EWMA: of two instances drawn at random, the one that will probably answer sooner (Finagle's ``p2cPeakEwma``)."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from dispatch._internal.permit import Randomness
from dispatch.balancing.instance_state import DECAY_S, InstanceState, Learning, draw_two

UNKNOWN = 1e12
"""The load for each call of an instance whose speed is unknown: it gets one, and no other until that one has ended."""


class PeakEwma(Learning):
    """Of two drawn at random, the one with the smaller load: its duration times its calls and this one.

    Durations decay as in Finagle, so that an instance that was slow is tried again. Calls are those of this dispatcher, and
    other dispatchers' as the instance's latest reply counted them, which decay in the same way: the latter include calls
    that this dispatcher gave up and that still run there.

    Args:
        randomness: draws the two.
        decay: seconds in which an observation loses all but 1/e of its weight.
    """

    __slots__ = ("_randomness",)
    peaks = True
    weighs = True

    def __init__(self, randomness: Randomness, decay: float = DECAY_S) -> None:
        super().__init__(decay)
        self._randomness = randomness

    def load(self, instance: InstanceState, now: float) -> float:
        """The load that one more call would give ``instance``, in seconds for a weight of 1."""
        cost = instance.cost
        if not cost:
            return instance.in_flight * UNKNOWN
        pending: float = instance.in_flight + 1
        if instance.others:
            pending += instance.others * exp((instance.others_at - now) / self.decay)
        return cost * exp((instance.stamp - now) / self.decay) * pending / instance.weight

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """The less loaded of the two; of equals, the one that was picked longer ago."""
        one, other = draw_two(candidates, self._randomness)
        ours = self.load(one, now)
        theirs = self.load(other, now)
        if ours == theirs:
            return one if one.order <= other.order else other
        return one if ours < theirs else other
