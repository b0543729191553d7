"""Whoever has the fewest calls."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch._internal.permit import Randomness
from dispatch.balancing.instance_state import InstanceState
from dispatch.balancing.power_of_two_choices import PowerOfTwoChoices


class LeastRequest(PowerOfTwoChoices):
    """The one with fewest calls of ours for its weight: of all, if they are few; of two drawn at random, if they are many.

    Args:
        randomness: what the two are drawn with.
        decay: seconds for which an instance that was slow is remembered for it.
        scan: most instances that are all looked at.
    """

    __slots__ = ("_scan",)

    def __init__(self, randomness: Randomness, decay: float, scan: int) -> None:
        super().__init__(randomness, decay)
        self._scan = scan

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """The least busy one; of equals, who has waited longest."""
        if len(candidates) > self._scan:
            return PowerOfTwoChoices.pick(self, candidates, now)
        best = candidates[0]
        least = self.load(best, now)
        remembered = now - self.decay
        for each in candidates:
            # The same as load(), without the call: this runs for every instance.
            load = (each.in_flight + 1) / each.weight
            if each.stamp > remembered:
                load *= each.brake
            if load < least or (load == least and each.order < best.order):
                best = each
                least = load
        return best
