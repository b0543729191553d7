"""Sliding windows over calls: how many, how many failed, how many were slow. Adding a call costs the same at any size.

A ring and its totals, of which the call that leaves is subtracted, as resilience4j keeps them: nothing is ever summed up.
Plain calls, which nearly all are, can be added many at once, so that their caller need only count them.
"""

from __future__ import annotations

from array import array

PLAIN = 0
"""A call that neither failed nor was slow."""
FAILED = 1
SLOW = 2
"""``FAILED | SLOW`` is a call that was both."""

SLOTS = 10
"""Parts of a time window, as in Hystrix and Polly: finer ones would cost memory and tell nothing more."""
_STEP = 3  # calls, failures and slow calls of a part lie side by side
_EMPTY = array("Q", bytes(SLOTS * _STEP * 8))
_PLACES = tuple(range(0, SLOTS * _STEP, _STEP)) * 2  # of the parts, twice around the ring


class CountWindow:
    """The last ``size`` calls.

    Args:
        size: calls, at least 1. A byte each.

    Attributes:
        calls: how many there are, at most ``size``.
        failures: of these, how many failed.
        slow: of these, how many were slow.
    """

    __slots__ = ("_at", "_ring", "calls", "failures", "size", "slow")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a window holds one call at least, not {size}")
        self.size = size
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self._ring = bytearray(self.size)  # what is not in the window is PLAIN: add_plain relies on it
        self._at = self.calls = self.failures = self.slow = 0

    def add(self, kind: int) -> None:
        """A call ended; ``kind`` is PLAIN, FAILED, SLOW or both of these."""
        at = self._at
        ring = self._ring
        if self.calls < self.size:
            self.calls += 1
        elif leaving := ring[at]:
            self.failures -= leaving & FAILED
            self.slow -= leaving >> 1
        ring[at] = kind
        if kind:
            self.failures += kind & FAILED
            self.slow += kind >> 1
        at += 1
        self._at = at if at < self.size else 0

    def add_plain(self, count: int) -> None:
        """So many plain calls ended, at least 0, one after the other: in one step, or a few while others are to leave."""
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
            self._leave(at, at + count - beyond)
            self._leave(0, beyond)

    def _leave(self, first: int, end: int) -> None:
        ring = self._ring
        both = ring.count(FAILED | SLOW, first, end)
        self.failures -= ring.count(FAILED, first, end) + both
        self.slow -= ring.count(SLOW, first, end) + both
        ring[first:end] = bytes(end - first)


class TimeWindow:
    """The calls of the last ``span`` seconds, in ten parts: the oldest part leaves as a whole, so that it covers between
    nine tenths of the span and all of it.

    Args:
        span: seconds, above 0.

    Attributes:
        calls: how many there are, as of the last ``add`` or ``advance``.
        failures: of these, how many failed.
        slow: of these, how many were slow.
        ends: when the part ends that calls are added to now.
    """

    __slots__ = ("_counts", "_slot", "_tick", "_width", "calls", "ends", "failures", "slow")

    def __init__(self, span: float) -> None:
        if not span > 0:
            raise ValueError(f"a window spans more than 0 seconds, not {span}")
        self._width = span / SLOTS
        self._slot = self._tick = 0
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.calls = self.failures = self.slow = 0
        self._counts = _EMPTY[:]
        self.ends = float("-inf")  # the next call finds its part by the clock

    def add_plain(self, count: int) -> None:
        """So many plain calls ended, before ``ends`` and not before the last ``advance``."""
        self.calls += count
        self._counts[self._slot] += count

    def add(self, kind: int, now: float) -> None:
        """A call ended at ``now``, which is not before any earlier one; ``kind`` as for :meth:`CountWindow.add`."""
        if now >= self.ends:
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
        """Let go of what is too old at ``now``."""
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
        self.ends = (tick + 1) * self._width
