"""Credit: bytes on their way to a receiver that has not said yet that it has them. Pure bookkeeping.

A broker drops a non-persistent message, and says Ok to its sender, when the receiver's channel holds more than 64 KiB at
that instant: because the receiver reads slowly, or because the broker's own thread for that channel had no processor for
some milliseconds. No count of receipts can see that; only the receiver can say that the way is clear. So between our
dispatchers and our services each side keeps at most a credit of bytes unacknowledged towards the other.
"""

from __future__ import annotations

from collections import deque

CREDIT_BYTES = 48_000
"""Unacknowledged bytes that still leave the broker's channel writable: below its high-water mark of 65,536, with room for
what the broker itself adds. Measured: none lost at any size and load tried (docs/architecture.md)."""

MESSAGE_OVERHEAD = 512
"""What a message takes of that beyond its payload, in bytes: properties and framing (about 300), and what the broker's
network layer accounts for the two buffers it writes a message as (about 200)."""


class Credit:
    """The account of one sender towards one receiver. Acknowledgements are cumulative.

    A message may go while less than ``limit`` bytes are unacknowledged, whatever its own size: the broker looks at what is
    in the channel *before* it. A message that should be acknowledged is marked; there is always a marked one among the
    unacknowledged when no further may go.

    Args:
        limit: bytes.
    """

    __slots__ = ("_marked", "_sent", "_sequence", "_unmarked", "limit", "unacknowledged")

    def __init__(self, limit: int = CREDIT_BYTES) -> None:
        if limit < 1:
            raise ValueError(f"a credit needs one byte at least, not {limit}")
        self.limit = limit
        self.unacknowledged = 0
        self._sequence = 0
        self._marked = 0
        """Sequence number of the last message that was marked."""
        self._unmarked = 0
        self._sent: deque[tuple[int, int]] = deque()

    @property
    def open(self) -> bool:
        """May a message go?"""
        return self.unacknowledged < self.limit

    def send(self, size: int) -> tuple[int, bool]:
        """A message of ``size`` bytes goes. Returns its sequence number, and whether it is to be marked."""
        self._sequence += 1
        self._sent.append((self._sequence, size))
        self.unacknowledged += size
        self._unmarked += size
        # Half the credit: soon enough that the acknowledgement is back before the rest is used up.
        mark = self.unacknowledged >= self.limit // 2 and self._unmarked >= self.limit // 4
        if mark:
            self._marked = self._sequence
            self._unmarked = 0
        return self._sequence, mark

    def acknowledge(self, sequence: int) -> bool:
        """The receiver has the message ``sequence``, so everything before it has arrived or is lost. False: old news."""
        sent = self._sent
        if not sent or sent[0][0] > sequence:
            return False
        while sent and sent[0][0] <= sequence:
            self.unacknowledged -= sent.popleft()[1]
        return True

    def withdraw(self, sequence: int) -> bool:
        """Take back the message ``sequence``, which was never sent. False: it is no longer unacknowledged."""
        for index, (number, size) in enumerate(self._sent):
            if number == sequence:
                del self._sent[index]
                self.unacknowledged -= size
                if sequence == self._marked:
                    self._unmarked = self.unacknowledged  # its acknowledgement would have covered them
                elif sequence > self._marked:
                    self._unmarked -= size
                return True
        return False

    def forgive(self) -> None:
        """Forget what is unacknowledged: time has passed instead."""
        self._sent.clear()
        self.unacknowledged = self._unmarked = 0
