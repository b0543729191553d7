"""Two candidates are drawn, and the one with the smaller load is taken. What load is, a subclass says."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch._internal.permit import Randomness
from dispatch.balancing.instance_state import InstanceState, Learning


def draw_two(candidates: Sequence[InstanceState], randomness: Randomness) -> tuple[InstanceState, InstanceState]:
    """Two different candidates, every ordered pair equally likely, from one number. With replacement the busier of two
    instances would be taken once in four times."""
    rest = len(candidates) - 1
    number = int(randomness() * (rest * (rest + 1)))
    first = number // rest
    second = number % rest
    return candidates[first], candidates[second + 1 if second >= first else second]


class TwoChoices(Learning):
    """For strategies that compare two of all instances: the cost does not grow with their number.

    Args:
        randomness: what the two are drawn with.
        decay: see :class:`Learning`.
    """

    __slots__ = ("_randomness",)
    weighs = True

    def __init__(self, randomness: Randomness, decay: float) -> None:
        super().__init__(decay)
        self._randomness = randomness

    def load(self, instance: InstanceState, now: float) -> float:
        """What taking another call would mean for ``instance``, for a weight of 1."""
        raise NotImplementedError

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """The better one of two; of equals, who has waited longer."""
        one, other = draw_two(candidates, self._randomness)
        ours = self.load(one, now)
        theirs = self.load(other, now)
        if ours == theirs:
            return one if one.order <= other.order else other
        return one if ours < theirs else other
