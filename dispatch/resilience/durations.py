"""Timeout of an attempt: its share of the time until the deadline of the call.

A call has one absolute deadline. If each attempt had all of it, the first attempt that hangs would leave no time for a
retry; with fixed shares, a slow tool would time out although there is time. So attempts that a retry may follow share the
remaining time, and none gets less than the tool usually takes.
"""

from __future__ import annotations

import math
from array import array

from dispatch._internal import Clock

MIN_MULTIPLE = 2.0
"""Minimum timeout, as a multiple of the tool's usual duration (a high percentile): a slow period is no failure."""
MAX_MULTIPLE, MIN_CAP_S = 20.0, 1.0
"""Maximum timeout while a retry may follow: this multiple of the usual duration, or this many seconds if that is more. An
attempt that takes so much longer is lost, or its instance hangs. With one of eight instances accepting requests without
answering, 99.5 % of calls of 25 ms succeeded; without the limit 63 %, because hung attempts occupied the bulkhead."""


def attempt_deadline(
    now: float, deadline: float, *, limit: float | None = None, attempts_left: int = 1, usual: float | None = None
) -> tuple[float, str]:
    """Return the deadline of an attempt that starts ``now``, at most ``deadline``, and the limit that it stands for in the
    error of an attempt that exceeds it: ``attempt`` or ``call``.

    Args:
        now: the start of the attempt, on the clock of ``deadline``.
        deadline: of the whole call.
        limit: the policy's ``attempt-timeout`` in seconds; None: a share of the remaining time.
        attempts_left: this attempt and those that may follow its timeout; 1 for a tool that must not be repeated.
        usual: a high percentile of the tool's durations, in seconds; None when unknown. Ignored with a ``limit``.
    """
    if limit is None:
        limit = (deadline - now) / attempts_left
        if usual is not None:
            if attempts_left > 1:
                enough = MAX_MULTIPLE * usual
                if enough < MIN_CAP_S:
                    enough = MIN_CAP_S
                if limit > enough:
                    limit = enough
            if limit < MIN_MULTIPLE * usual:
                limit = MIN_MULTIPLE * usual
    ends = now + limit
    return (ends, "attempt") if ends < deadline else (deadline, "call")


# Latency histogram: any quantile of a tool's recent durations, in bounded memory, with a bounded relative error.
#
# The buckets grow by a constant factor (DDSketch: Masson, Rim and Lee 2019), in two generations. Not P² (Jain and Chlamtac
# 1985), although it is smaller: it estimates one quantile, forgets nothing and has no error bound. Not a t-digest: adding
# is not O(1), and its error is bounded in rank, not in seconds.


GROWTH = 1.05
"""Factor from one bucket to the next: the maximum relative error of a quantile, upwards."""
SHORTEST_S, LONGEST_S = 1e-4, 1e3
"""Range of durations; shorter and longer ones are clipped."""
_SCALE = 1 / math.log(GROWTH)
_OFFSET = -math.log(SHORTEST_S) * _SCALE
BUCKETS = math.ceil((math.log(LONGEST_S) - math.log(SHORTEST_S)) * _SCALE) + 1
AGE_S = 60.0
"""Age at which a duration is forgotten: long enough for the 95th percentile of a tool called twice a second, and short
enough to follow a change of latency."""
TAIL = 5
"""Durations required beyond a quantile: a median requires 10, a p95 100, a p99.9 5,000."""
FEW = 10
"""Durations from which a p95 is a useful bound, though an uncertain one: up to 19, the longest. A tool that is called every
few seconds never has 100 within :data:`AGE_S`."""


REFRESH_AFTER = 32
"""New durations, or their share of all, after which a quantile is computed again: it costs some ten microseconds and changes
little in between."""
_EPSILON = 1e-9
_EMPTY = array("I", bytes(4 * BUCKETS))


class LatencyHistogram:
    """The recent durations of one tool, in 3 kB.

    A quantile is not below the exact one (nearest rank) of the covered durations and at most 5 % above it, for durations
    from 0.1 ms to 1,000 s. All durations of the last ``age`` / 2 are covered, and none older than ``age``.

    Args:
        clock: seconds.
        age: seconds until a duration is forgotten.

    Attributes:
        turn_at: when the older generation is forgotten next.
        recorded: durations recorded so far.
    """

    __slots__ = ("_before", "_before_count", "_clock", "_half", "_now", "_now_from", "recorded", "turn_at")

    def __init__(self, clock: Clock, age: float = AGE_S) -> None:
        self._clock = clock
        self._half = age / 2
        self._now = _EMPTY[:]
        self._now_from = 0  # `recorded` when the current generation began
        self._before = _EMPTY[:]
        self._before_count = 0
        self.turn_at = clock() + self._half
        self.recorded = 0

    def __len__(self) -> int:
        """Durations covered."""
        self._advance(self._clock())
        return self.recorded - self._now_from + self._before_count

    def record(self, seconds: float, now: float | None = None) -> None:
        """Record a duration.

        Args:
            now: the current time, if it is known.
        """
        if now is None:
            now = self._clock()
        if now >= self.turn_at:
            self._advance(now)
        if seconds <= SHORTEST_S:
            place = 0
        elif seconds >= LONGEST_S:
            place = BUCKETS - 1
        else:
            place = math.ceil(math.log(seconds) * _SCALE + _OFFSET)
        self._now[place] += 1
        self.recorded += 1

    def quantile(self, share: float, least: int | None = None) -> float | None:
        """Return the duration that this ``share`` of durations did not exceed, in seconds; None: there are too few.

        Args:
            share: 0.5 for the median, 0.95 for the 95th percentile; below 1.
            least: number of durations from which it is returned; None: :func:`required_durations`.
        """
        count = len(self)
        if count < (required_durations(share) if least is None else least):
            return None
        rank = math.ceil(share * count - _EPSILON)
        now, before = self._now, self._before
        place = 0
        seen = now[0] + before[0]
        while seen < rank:
            place += 1
            seen += now[place] + before[place]
        return min(SHORTEST_S * GROWTH**place, LONGEST_S)

    def _advance(self, now: float) -> None:
        late = now - self.turn_at
        if late < 0:
            return
        if late < self._half:
            self._before, self._before_count = self._now, self.recorded - self._now_from
            self.turn_at += self._half
        else:
            self._before, self._before_count = _EMPTY[:], 0
            self.turn_at += (int(late / self._half) + 1) * self._half
        self._now, self._now_from = _EMPTY[:], self.recorded


class Quantile:
    """A cached quantile for use in every call: computed again after ``REFRESH_AFTER`` new durations (or that part of
    all, if that is more), and when durations are forgotten.

    Args:
        durations: the histogram.
        share, least: see :meth:`LatencyHistogram.quantile`.
    """

    __slots__ = ("_durations", "_least", "_refresh_at", "_refresh_recorded", "_share", "_value")

    def __init__(self, durations: LatencyHistogram, share: float, least: int | None = None) -> None:
        self._durations = durations
        self._share = share
        self._least = least
        self._value: float | None = None
        self._refresh_at = 0.0
        self._refresh_recorded = 0

    def value(self, now: float) -> float | None:
        """Return the quantile in seconds; None while too few durations are recorded."""
        durations = self._durations
        if self._value is None or durations.recorded >= self._refresh_recorded or now >= self._refresh_at:
            self._value = durations.quantile(self._share, self._least)
            self._refresh_at = durations.turn_at
            self._refresh_recorded = durations.recorded + max(REFRESH_AFTER, len(durations) // REFRESH_AFTER)
        return self._value


def required_durations(share: float) -> int:
    """Return the number of durations that the ``share``-quantile requires."""
    return round(TAIL / (1 - share))
