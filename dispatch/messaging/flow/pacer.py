"""Pace: bytes per time towards receivers that acknowledge nothing. Pure bookkeeping, the clock is handed in.

A broker drops a non-persistent message when the receiver's channel holds more than 64 KiB at that instant. There are two
signs that the channel is clear: time, in which a receiver of ordinary speed has read what was sent, and the broker's
receipt. A receipt proves no delivery; but while it is missing, the broker is behind and will deliver everything that arrived
meanwhile in one burst. So a message without a receipt counts in full, and its time begins with its receipt.
"""

from __future__ import annotations

from collections import deque

PACE_RATE = 50_000_000
"""Bytes a second. Measured with TrustGraph's client: the highest at which, with receipts, none of 24,000 answers of 10 kB at
64 in flight was lost; at twice the rate 0.08 % were, without any pace 1.5 %."""
PACE_BURST = 48_000
"""Bytes that may be under way at any time, whatever the rate: they leave a broker's channel writable, whose high-water mark
is 65,536 bytes, with room for what the broker adds."""
MESSAGE_OVERHEAD = 512
"""Bytes of a message beyond its payload: properties and framing (about 300), and what the broker's network layer accounts
for the two buffers that it writes a message as (about 200)."""
GRAIN_S = 1e-6
"""Shorter waits are none: no clock and no timer is that exact."""


class Pace:
    """The account of one sender towards one topic: how much of what it sent is still under way.

    A message may go while that is ``burst`` bytes at most, whatever its own size: the broker looks at what is in the
    channel *before* it. A message is under way, as a whole, until its time has passed, which begins when what went before
    it is through: a channel counts one until its last byte has left. So in any time ``t`` all messages but the last are
    ``burst + rate * t`` bytes at most, small ones cost nothing that is seen, and after one of ``n`` bytes, more than the
    burst, the next waits ``n / rate``.

    Args:
        rate: bytes a second.
        burst: bytes.
    """

    __slots__ = ("_sent", "_through", "_under_way", "burst", "rate", "unreceipted")

    def __init__(self, rate: float = PACE_RATE, burst: float = PACE_BURST) -> None:
        if not rate > 0 or not burst > 0:
            raise ValueError(f"a pace needs a rate and a burst above 0, not {rate} and {burst}")
        self.rate = rate
        self.burst = burst
        self.unreceipted = 0
        """Bytes sent whose receipt is awaited."""
        self._under_way = 0
        self._through = float("-inf")
        self._sent: deque[tuple[float, int]] = deque()

    def wait(self, now: float) -> float | None:
        """Seconds until a message may go; 0.0: now. None: a receipt is awaited, no time will do."""
        sent = self._sent
        while sent and sent[0][0] <= now + GRAIN_S:
            self._under_way -= sent.popleft()[1]
        excess = self.unreceipted + self._under_way - self.burst
        if excess <= 0:
            return 0.0
        for through, size in sent:
            excess -= size
            if excess <= 0:
                return through - now
        return None

    def send(self, size: int, now: float) -> float:
        """Count a message of ``size`` bytes whose receipt is not reported. Returns the end of its time."""
        self._through = max(self._through, now) + size / self.rate
        self._sent.append((self._through, size))
        self._under_way += size
        return self._through

    def take_back(self, size: int, through: float) -> None:
        """Uncount a message that :meth:`send` counted, with what that returned: it was not sent after all. The times of
        those counted after it stay as they are."""
        entry = (through, size)
        if entry in self._sent:
            self._sent.remove(entry)
            self._under_way -= size
            if through == self._through:
                self._through -= size / self.rate

    def hold(self, size: int) -> None:
        """A message of ``size`` bytes goes; :meth:`receipt` or :meth:`withdraw` will follow."""
        self.unreceipted += size

    def receipt(self, size: int, now: float) -> None:
        """The broker has dealt with a message of ``size`` bytes, for good or ill: its time begins."""
        self.withdraw(size)
        self.send(size, now)

    def withdraw(self, size: int) -> None:
        """A message of ``size`` bytes that was held did not go after all."""
        self.unreceipted = max(0, self.unreceipted - size)
