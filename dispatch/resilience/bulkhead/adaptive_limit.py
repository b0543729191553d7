"""A limit of calls in flight that is learnt from how long calls take. Pure bookkeeping.

Samples are gathered in windows, and each window moves the limit by a step at most:

- Vegas (L. Brakmo, L. Peterson 1994; Netflix's and failsafe-go's limiters): of the calls in flight, the share by which calls
  take longer than they did at best is waiting in a queue inside the service. A short queue: more. A long one: fewer.
- What takes longest best is not known, only learnt; learnt under a standing overload it creeps up, and the limit after it.
  So a second witness is heard (failsafe-go's idea): when more in flight went with longer calls and not with more
  answers, the service is full, whatever the queue seems to be.
- Losses (timeouts, throttling) take from the limit as they took from the calls. While many time out nothing is learnt: a
  stable timeout looks like a stable duration, and a limit that learnt from it would climb to its maximum.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW_SAMPLES = 50
"""Samples that a window has at least, as in failsafe-go's and Envoy's limiters: their median is good to some 15 %."""
WINDOW_S = 1.0
"""Seconds that a window lasts at least, as failsafe-go's."""
SLOW_WINDOW_S = 30.0
"""After this a window may close with fewer samples: a tool that is called seldom learns, too."""
SLOW_WINDOW_SAMPLES = 10
MAX_TIMES = 256
"""Durations kept of a window. When there are more, every second one is dropped, and from then on kept."""
WITNESSES = 10
"""Windows that are compared: fewer are chance, more are the past."""
FEWEST_WITNESSES = 4
RISING = 0.5
"""A correlation from here on says: one goes with the other."""
SPREAD = 0.02
"""Values that differ by less than this share of their mean are the same: nothing can be learnt from noise."""
BASELINE_FALL = 0.25
"""The share of the way that the best duration goes in a window towards a shorter one …"""
BASELINE_RISE = 1 / 30
"""… and towards a longer one: a service that has turned slower for good is believed after half a minute to minutes."""
LOOK_EVERY = 15
"""Windows without a step down after which the limit takes one by itself, to see what that does. Without such a look the
witnesses of a steady overload would all say the same, and nothing could be told from them."""
LOOK_SHARE = 0.2
"""How far down it looks: twice what durations differ by chance. Where the limit was right it is back after a window or two,
which costs some 2 % of the time; where it was too high it costs nothing."""
TOLERATED_LOSS = 0.01
"""A share of losses that costs nothing: one lost message among hundreds says nothing of a limit."""
MAX_BACKOFF = 0.5
"""No window halves the limit more than once."""


class AdaptiveLimit:
    """The limit.

    Args:
        minimum: never less.
        initial: where learning begins.
        maximum: never more.
        max_limit_factor: grow only while the limit is less than this many times what was in flight.
        freeze_at: learn nothing while a larger share of the samples than this are timeouts.
        now: the clock.

    Attributes:
        limit: how many may be in flight.
        frozen: too many of the last window's samples were timeouts.
        baseline: seconds that a call takes when nothing waits, as learnt; None before the first window has closed.
    """

    __slots__ = (
        "_count",
        "_in_flight",
        "_limit",
        "_look",
        "_lost",
        "_opened",
        "_peak",
        "_skip",
        "_stride",
        "_timeouts",
        "_times",
        "_witnesses",
        "baseline",
        "freeze_at",
        "frozen",
        "limit",
        "max_limit_factor",
        "maximum",
        "minimum",
    )

    def __init__(
        self, minimum: int, initial: int, maximum: int, *, max_limit_factor: float, freeze_at: float, now: float
    ) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.max_limit_factor = max_limit_factor
        self.freeze_at = freeze_at
        self.limit = initial
        self.frozen = False
        self.baseline: float | None = None
        self._limit = float(initial)
        self._look = 0
        self._witnesses: deque[tuple[float, float, float]] = deque(maxlen=WITNESSES)
        """In flight, answers a second, and median duration, of each window."""
        self._open(now)

    def _open(self, now: float) -> None:
        self._opened = now
        self._count = 0
        self._lost = 0
        self._timeouts = 0
        self._in_flight = 0
        self._peak = 0
        self._times: list[float] = []
        self._stride = 1
        self._skip = 0

    def reconfigure(self, minimum: int, maximum: int, *, max_limit_factor: float, freeze_at: float) -> None:
        """Take other bounds; what was learnt stays, as far as they allow."""
        self.minimum = minimum
        self.maximum = maximum
        self.max_limit_factor = max_limit_factor
        self.freeze_at = freeze_at
        self._set(self._limit)

    def answered(self, elapsed: float, in_flight: int, now: float) -> None:
        """A call got its answer after ``elapsed`` seconds; ``in_flight`` counts it, too."""
        if self._skip:
            self._skip -= 1
        else:
            self._skip = self._stride - 1
            times = self._times
            times.append(elapsed)
            if len(times) >= MAX_TIMES:
                del times[1::2]
                self._stride *= 2
        self._sampled(in_flight, now)

    def dropped(self, in_flight: int, now: float, *, timed_out: bool) -> None:
        """A call got no answer in time, or the service said that it is too much (``timed_out`` is False)."""
        self._lost += 1
        if timed_out:
            self._timeouts += 1
        self._sampled(in_flight, now)

    def _sampled(self, in_flight: int, now: float) -> None:
        self._count += 1
        self._in_flight += in_flight
        if in_flight > self._peak:
            self._peak = in_flight
        lasted = now - self._opened
        if lasted >= WINDOW_S and (
            self._count >= WINDOW_SAMPLES or (lasted >= SLOW_WINDOW_S and self._count >= SLOW_WINDOW_SAMPLES)
        ):
            self._close(lasted)
            self._open(now)

    def _close(self, lasted: float) -> None:
        count = self._count
        loss = self._lost / count
        self.frozen = self._timeouts > self.freeze_at * count
        step = 0.0
        if self._times and not self.frozen:
            median = sorted(self._times)[len(self._times) // 2]
            mean = self._in_flight / count
            self._witnesses.append((mean, (count - self._lost) / lasted, median))
            full = self._full()
            baseline = self._learn_baseline(median, full)
            queue = mean * (1 - baseline / median) if median > 0 else 0.0
            step = self._step(queue, full)
        if loss > TOLERATED_LOSS:
            step = -self._limit * min(loss, MAX_BACKOFF)
        if step < 0:
            self._look = 0
        self._set(self._limit + step)

    def _learn_baseline(self, median: float, full: bool) -> float:
        baseline = self.baseline
        if baseline is None:
            baseline = median
        elif full:
            # How long calls take now is the limit's own doing: the best of the witnesses is nearest to the truth.
            baseline = min(baseline, *(duration for _, _, duration in self._witnesses))
        else:
            baseline += (BASELINE_FALL if median < baseline else BASELINE_RISE) * (median - baseline)
        self.baseline = baseline
        return baseline

    def _step(self, queue: float, full: bool) -> float:
        """Where to, by Vegas, with ``queue`` calls waiting inside the service, and by the witnesses."""
        scale = max(1.0, math.log10(self._limit))
        if queue > 6 * scale or (full and queue > scale):
            return -scale
        self._look += 1
        if self._look >= LOOK_EVERY and self._peak >= self.limit:
            return -LOOK_SHARE * self._limit
        if full or queue >= 3 * scale or self._limit >= self._peak * self.max_limit_factor:
            return 0.0
        return 6 * scale if queue <= scale else scale

    def _full(self) -> bool:
        """Did more in flight go with longer calls, and not with more answers?"""
        if len(self._witnesses) < FEWEST_WITNESSES:
            return False
        in_flight, answers, durations = zip(*self._witnesses, strict=True)
        return correlation(in_flight, durations) >= RISING and correlation(in_flight, answers) < RISING

    def _set(self, limit: float) -> None:
        self._limit = min(max(limit, float(self.minimum)), float(self.maximum))
        self.limit = int(self._limit)


def correlation(ones: tuple[float, ...], others: tuple[float, ...]) -> float:
    """How far two rows of values of one length go together: Pearson's, from -1 to 1; 0 when one of them does not move."""
    n = len(ones)
    mean_one = sum(ones) / n
    mean_other = sum(others) / n
    together = spread_one = spread_other = 0.0
    for one, other in zip(ones, others, strict=True):
        one -= mean_one
        other -= mean_other
        together += one * other
        spread_one += one * one
        spread_other += other * other
    still_one = n * (SPREAD * mean_one) ** 2
    still_other = n * (SPREAD * mean_other) ** 2
    if spread_one <= still_one or spread_other <= still_other:
        return 0.0
    return together / math.sqrt(spread_one * spread_other)
