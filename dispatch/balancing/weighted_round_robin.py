"""In turn, as often as weights say, evenly mixed."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.balancing.instance_state import InstanceState, Unlearning


class SmoothWeighted(Unlearning):
    """nginx's smooth weighted round-robin: weights 5, 1, 1 give a a b a c a a, never five of a in a row.

    Each instance earns its weight with every pick; the richest is taken and pays what all earned together. A pick looks at
    every candidate.
    """

    __slots__ = ()
    weighs = True

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """The richest; of equals the first."""
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
