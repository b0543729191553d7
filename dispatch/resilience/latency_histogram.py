"""How long a tool takes: any quantile of its recent durations, in bounded memory, with a bounded error.

A histogram whose buckets grow by a constant factor (DDSketch: Masson, Rim and Lee 2019), in two generations that take
turns. Not P² (Jain and Chlamtac 1985), although that is smaller: it follows one quantile only, forgets nothing, and bounds
no error. Not a t-digest: to add to it is not O(1), and its error is bounded in rank, not in seconds.
"""

from __future__ import annotations

import math
from array import array

from dispatch._internal.permit import Clock

GROWTH = 1.05
"""From one bucket to the next: what a quantile may be told too high, at most."""
SHORTEST_S, LONGEST_S = 1e-4, 1e3
"""Whatever is shorter, or longer, is taken for this."""
_SCALE = 1 / math.log(GROWTH)
_OFFSET = -math.log(SHORTEST_S) * _SCALE
BUCKETS = math.ceil((math.log(LONGEST_S) - math.log(SHORTEST_S)) * _SCALE) + 1
AGE_S = 60.0
"""After so long a duration is forgotten: long enough for a tool called twice a second to show its 95th percentile, and
short enough to notice that it has become slower or faster."""
TAIL = 5
"""Durations beyond a quantile for it to mean something: a median takes 10, a p95 100, a p99.9 5,000."""


RELOOK = 32
"""To work a quantile out costs some ten microseconds; so many durations later, or as large a part of those that are known,
it is hardly another one."""
_EPSILON = 1e-9
_EMPTY = array("I", bytes(4 * BUCKETS))


class LatencyHistogram:
    """The recent durations of one tool, in 3 kB, whatever happens.

    A quantile is never below the exact one (nearest rank) of the durations it covers and at most 5 % above, for durations
    from 0.1 ms to 1,000 s. Those of the last ``age`` / 2 are covered, and none that is older than ``age``.

    Args:
        clock: seconds.
        age: seconds until a duration is forgotten.

    Attributes:
        turn_at: when the next ones are forgotten.
        learned: durations, since the start.
    """

    __slots__ = ("_before", "_before_count", "_clock", "_half", "_now", "_now_from", "learned", "turn_at")

    def __init__(self, clock: Clock, age: float = AGE_S) -> None:
        self._clock = clock
        self._half = age / 2
        self._now = _EMPTY[:]
        self._now_from = 0  # as many had been learned before
        self._before = _EMPTY[:]
        self._before_count = 0
        self.turn_at = clock() + self._half
        self.learned = 0

    def __len__(self) -> int:
        """Durations covered."""
        self._turn(self._clock())
        return self.learned - self._now_from + self._before_count

    def learn(self, seconds: float) -> None:
        """Something took ``seconds``."""
        now = self._clock()
        if now >= self.turn_at:
            self._turn(now)
        if seconds <= SHORTEST_S:
            place = 0
        elif seconds >= LONGEST_S:
            place = BUCKETS - 1
        else:
            place = math.ceil(math.log(seconds) * _SCALE + _OFFSET)
        self._now[place] += 1
        self.learned += 1

    def quantile(self, share: float) -> float | None:
        """What this ``share`` of durations did not exceed, in seconds; None while too few are known to say (see ``TAIL``).

        Args:
            share: 0.5 for the median, 0.95 for the 95th percentile; below 1.
        """
        count = len(self)
        if count < needed(share):
            return None
        rank = math.ceil(share * count - _EPSILON)
        now, before = self._now, self._before
        place = 0
        seen = now[0] + before[0]
        while seen < rank:
            place += 1
            seen += now[place] + before[place]
        return min(SHORTEST_S * GROWTH**place, LONGEST_S)

    def _turn(self, now: float) -> None:
        late = now - self.turn_at
        if late < 0:
            return
        if late < self._half:
            self._before, self._before_count = self._now, self.learned - self._now_from
            self.turn_at += self._half
        else:
            self._before, self._before_count = _EMPTY[:], 0
            self.turn_at += (int(late / self._half) + 1) * self._half
        self._now, self._now_from = _EMPTY[:], self.learned


class Quantile:
    """One quantile of the durations, for whoever asks with every call: worked out anew after ``RELOOK`` of them (a
    ``RELOOK``-th of those that are known, if that is more), and when some are forgotten.

    Args:
        durations: what it is a quantile of.
        share: see :meth:`LatencyHistogram.quantile`.
    """

    __slots__ = ("_durations", "_look_at", "_look_learned", "_share", "_value")

    def __init__(self, durations: LatencyHistogram, share: float) -> None:
        self._durations = durations
        self._share = share
        self._value: float | None = None
        self._look_at = 0.0
        self._look_learned = 0

    def value(self, now: float) -> float | None:
        """Seconds; None while too few durations are known."""
        durations = self._durations
        if self._value is None or durations.learned >= self._look_learned or now >= self._look_at:
            self._value = durations.quantile(self._share)
            self._look_at = durations.turn_at
            self._look_learned = durations.learned + max(RELOOK, len(durations) // RELOOK)
        return self._value


def needed(share: float) -> int:
    """Durations that must be known before their ``share``-quantile is told."""
    return round(TAIL / (1 - share))
