"""Smooth weighted round-robin."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.balancing.instance_state import InstanceState, Strategy


class SmoothWeighted(Strategy):
    """nginx's smooth weighted round-robin: weights 5, 1, 1 give a a b a c a a, not five of a in a row.

    With every pick, the current weight of each instance grows by its weight; the highest is picked, and the sum of all
    weights is subtracted from it. A pick visits every candidate.
    """

    __slots__ = ()
    weighs = True

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the instance with the highest current weight; of equals, the first."""
        best = candidates[0]
        total = 0.0
        for each in candidates:
            weight = each.weight
            total += weight
            each.current = current = each.current + weight
            if current > best.current:
                best = each
        best.current -= total
        return best
