"""Sliding windows over calls: calls, failures and slow calls of the last N calls or seconds. Adding a call is O(1).

Ring buffers with running totals, from which the oldest entry is subtracted (as in resilience4j). Plain calls, nearly all,
are added in batches, so that the breaker only counts them.
"""

from __future__ import annotations

from array import array

PLAIN = 0
"""A fast success."""
FAILED = 1
SLOW = 2
"""``FAILED | SLOW``: a call that failed and was slow."""

SLOTS = 10
"""Slices of a time window, as in Hystrix and Polly: finer ones cost memory without benefit."""
_STEP = 3  # counters of a slice: calls, failures, slow calls
_EMPTY = array("Q", bytes(SLOTS * _STEP * 8))
_PLACES = tuple(range(0, SLOTS * _STEP, _STEP)) * 2  # offsets of the slices, twice around the ring


class CountWindow:
    """The last ``size`` calls.

    Args:
        size: calls, at least 1. Each takes one byte.

    Attributes:
        calls: calls in the window, at most ``size``.
        failures: calls that failed.
        slow: slow calls.
    """

    __slots__ = ("_at", "_ring", "calls", "failures", "size", "slow")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"the window size must be at least 1 call, not {size}")
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self._ring = bytearray(self.size)  # unused entries are PLAIN: add_plain relies on it
        self._at = self.calls = self.failures = self.slow = 0

    def add(self, kind: int) -> None:
        """Add a call; ``kind`` is PLAIN, FAILED, SLOW or ``FAILED | SLOW``."""
        at = self._at
        ring = self._ring
        if self.calls < self.size:
            self.calls += 1
        elif oldest := ring[at]:
            self.failures -= oldest & FAILED
            self.slow -= oldest >> 1
        ring[at] = kind
        if kind:
            self.failures += kind & FAILED
            self.slow += kind >> 1
        at += 1
        self._at = at if at < self.size else 0

    def add_plain(self, count: int) -> None:
        """Add ``count`` plain calls, at least 0, in one step."""
        size = self.size
        if count >= size:
            self.clear()
            self.calls = size
            return
        at = self._at
        self.calls = min(self.calls + count, size)
        self._at = (at + count) % size
        if self.failures or self.slow:
            beyond = max(0, at + count - size)
            self._clear_range(at, at + count - beyond)
            self._clear_range(0, beyond)

    def _clear_range(self, first: int, end: int) -> None:
        ring = self._ring
        both = ring.count(FAILED | SLOW, first, end)
        self.failures -= ring.count(FAILED, first, end) + both
        self.slow -= ring.count(SLOW, first, end) + both
        ring[first:end] = bytes(end - first)


class TimeWindow:
    """The calls of the last ``span`` seconds, in ten slices: the oldest slice expires as a whole, so that the window covers
    between 0.9 times ``span`` and ``span``.

    Args:
        span: seconds, above 0.

    Attributes:
        calls: calls in the window, as of the last ``add`` or ``advance``.
        failures: calls that failed.
        slow: slow calls.
        slice_end: when the current slice ends.
    """

    __slots__ = ("_counts", "_slot", "_tick", "_width", "calls", "failures", "slice_end", "slow")

    def __init__(self, span: float) -> None:
        if not span > 0:
            raise ValueError(f"the span of a window must be above 0 s, not {span}")
        self._width = span / SLOTS
        self._slot = self._tick = 0
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.calls = self.failures = self.slow = 0
        self._counts = _EMPTY[:]
        self.slice_end = float("-inf")  # the next call determines the slice

    def add_plain(self, count: int) -> None:
        """Add ``count`` plain calls that ended before ``slice_end`` and not before the last ``advance``."""
        self.calls += count
        self._counts[self._slot] += count

    def add(self, kind: int, now: float) -> None:
        """Add a call that ended at ``now``, not before any earlier one; ``kind`` as for :meth:`CountWindow.add`."""
        if now >= self.slice_end:
            self.advance(now)
        slot = self._slot
        counts = self._counts
        self.calls += 1
        counts[slot] += 1
        if kind:
            failed = kind & FAILED
            slow = kind >> 1
            self.failures += failed
            self.slow += slow
            counts[slot + 1] += failed
            counts[slot + 2] += slow

    def advance(self, now: float) -> None:
        """Remove the slices that are too old at ``now``."""
        tick = int(now // self._width)
        if tick - self._tick >= SLOTS:
            self.clear()
        else:
            counts = self._counts
            first = (self._tick + 1) % SLOTS
            for slot in _PLACES[first : first + tick - self._tick]:
                if calls := counts[slot]:
                    self.calls -= calls
                    counts[slot] = 0
                    if self.failures or self.slow:
                        self.failures -= counts[slot + 1]
                        self.slow -= counts[slot + 2]
                        counts[slot + 1] = counts[slot + 2] = 0
        self._tick = tick
        self._slot = tick % SLOTS * _STEP
        self.slice_end = (tick + 1) * self._width
