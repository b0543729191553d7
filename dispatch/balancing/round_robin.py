"""Round-robin: each instance in turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from dispatch.balancing.instance_state import InstanceState, Strategy

_PLACE = attrgetter("place")


class RoundRobin(Strategy):
    """Each instance in turn, whatever its weight: the one after the last picked, in the order of places.

    A counter modulo the number of candidates would give all turns of an excluded instance to the same other instance.
    """

    __slots__ = ("_before", "_candidates", "_index", "_place")

    def __init__(self) -> None:
        self._candidates: Sequence[InstanceState] = ()
        self._index = -1
        self._place = self._before = -1

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """Return the next instance. ``candidates`` are in the order of their places, and never modified afterwards."""
        if candidates is self._candidates:
            index = self._index + 1
        else:
            self._candidates = candidates
            index = bisect_right(candidates, self._place, key=_PLACE)
        if index >= len(candidates):
            index = 0
        self._index = index
        picked = candidates[index]
        self._before = self._place
        self._place = picked.place
        return picked

    def undo_pick(self) -> None:
        """Undo the turn: it goes to the instance after the last one that accepted its turn."""
        self._place = self._before
        self._candidates = ()
