"""Each in turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from dispatch.balancing.instance_state import InstanceState, Unlearning

_PLACE = attrgetter("place")


class RoundRobin(Unlearning):
    """Each in turn, whatever its weight: whoever comes after the last one in the order of places.

    A mere count, modulo the number of candidates, would give the turns of one that is left out to always the same other.
    """

    __slots__ = ("_before", "_candidates", "_index", "_place")
    weighs = False

    def __init__(self) -> None:
        self._candidates: Sequence[InstanceState] = ()
        self._index = -1
        self._place = self._before = -1

    def pick(self, candidates: Sequence[InstanceState], now: float) -> InstanceState:
        """The next one. ``candidates`` are in the order of their places, and a sequence is never changed afterwards."""
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

    def refused(self) -> None:
        """The turn is still to be had: by whoever comes after the last one that took it."""
        self._place = self._before
        self._candidates = ()
