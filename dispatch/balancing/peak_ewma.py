"""Whoever will probably answer soonest."""

from __future__ import annotations

from math import exp

from dispatch.balancing.instance_state import InstanceState
from dispatch.balancing.twochoices import TwoChoices

UNKNOWN = 1e12
"""The load for each call that an instance already has while nothing is known of it: it gets one, and then no other
until that one has ended."""


class PeakEwma(TwoChoices):
    """Of two drawn at random, the one with the smaller load: how long it takes, times its calls and this one.

    As Finagle's: what is known fades, so that an instance that was slow is tried again. Calls it has are ours, and others'
    as its latest reply counted them, which fade in the same way: another dispatcher's calls, and ours that were given up
    and still run there.

    Args:
        randomness: what they are drawn with.
        decay: seconds in which what is known loses all but 1/e of its weight.
    """

    __slots__ = ()
    peaks = True

    def load(self, instance: InstanceState, now: float) -> float:
        """What taking another call would mean for ``instance``, in seconds for a weight of 1."""
        cost = instance.cost
        if not cost:
            return instance.in_flight * UNKNOWN
        pending: float = instance.in_flight + 1
        if instance.others:
            pending += instance.others * exp((instance.others_at - now) / self.decay)
        return cost * exp((instance.stamp - now) / self.decay) * pending / instance.weight
