"""Numbers that have arrived: of packets, as ranges for acknowledgements; of requests, each once."""

from __future__ import annotations


class ReceivedPackets:
    """The packet numbers of one path that have arrived, as ascending ranges ``[low, high]``.

    Args:
        most: ranges that are remembered. A number below the oldest one counts as a duplicate; its sender learns from the
            acknowledgement that it has not arrived, and sends its frames again.
    """

    __slots__ = ("_floor", "_most", "ranges")

    def __init__(self, most: int) -> None:
        self._most = most
        self._floor = 0
        self.ranges: list[list[int]] = []

    def add(self, number: int) -> bool:
        """Add ``number``. Return False for a duplicate."""
        ranges = self.ranges
        if not ranges:
            if number < self._floor:
                return False
            ranges.append([number, number])
            return True
        last = ranges[-1]
        if number == last[1] + 1:
            last[1] = number
            return True
        if number > last[1]:
            ranges.append([number, number])
            if len(ranges) > self._most:
                self._floor = ranges.pop(0)[1] + 1
            return True
        return self._insert(number)

    def _insert(self, number: int) -> bool:
        """Add a number below the highest one."""
        if number < self._floor:
            return False
        ranges = self.ranges
        at = len(ranges) - 1
        while at >= 0 and number < ranges[at][0]:
            at -= 1
        if at >= 0 and number <= ranges[at][1]:
            return False
        if at >= 0 and ranges[at][1] == number - 1:
            ranges[at][1] = number
        else:
            at += 1
            ranges.insert(at, [number, number])
        if ranges[at + 1][0] == number + 1:  # there is a higher range
            ranges[at][1] = ranges.pop(at + 1)[1]
        if len(ranges) > self._most:
            self._floor = ranges.pop(0)[1] + 1
        return True

    @property
    def largest(self) -> int:
        """The highest number; -1: none has arrived."""
        return self.ranges[-1][1] if self.ranges else -1

    def newest_first(self) -> list[int]:
        """Return the ranges as an acknowledgement has them: ``[low, high, low, high …]``."""
        flat: list[int] = []
        for low, high in reversed(self.ranges):
            flat += (low, high)
        return flat

    def forget(self, below: int) -> None:
        """Drop the numbers below ``below``: the sender knows of them. The highest one stays."""
        if below <= self._floor:
            return
        self._floor = below
        ranges = self.ranges
        while len(ranges) > 1 and ranges[0][1] < below:
            ranges.pop(0)
        if ranges and ranges[0][0] < below:
            ranges[0][0] = min(below, ranges[0][1])

    def clear(self) -> None:
        """Drop all numbers."""
        self.ranges.clear()


class SeenNumbers:
    """Numbers that have been seen: all below a floor, and a set above it, empty without gaps."""

    __slots__ = ("above", "floor")

    def __init__(self) -> None:
        self.floor = 0
        self.above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number < self.floor or number in self.above

    def add(self, number: int) -> bool:
        """Add ``number``. Return False if it was there."""
        if number == self.floor:
            self.floor = number + 1
            above = self.above
            while above and self.floor in above:
                above.discard(self.floor)
                self.floor += 1
            return True
        if number < self.floor or number in self.above:
            return False
        self.above.add(number)
        return True
