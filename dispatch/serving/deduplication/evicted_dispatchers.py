"""Evicted dispatchers: the highest request number of each that may have been executed. Pure."""

from __future__ import annotations

MAX_NAMES = 65_536
"""About 10 MB."""


class EvictedDispatchers:
    """The highest request number of each evicted dispatcher, kept for at least ``age`` seconds unless there are too many.

    Two generations of plain dictionaries: a timestamped pair for each name would burden the garbage collector.

    Args:
        age: seconds after which no copy of a request can arrive any more.
        max_names: dispatchers.
    """

    def __init__(self, age: float, max_names: int = MAX_NAMES) -> None:
        self._age = age
        self.max_names = max_names
        self._recent: dict[str, int] = {}
        self._older: dict[str, int] = {}
        self._began = 0.0
        self._uncertain_until = float("-inf")

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def add(self, name: str, number: int, now: float) -> None:
        """Record that requests of ``name`` up to ``number`` may have been executed."""
        self._forget_old(now)
        if len(self._recent) >= max(1, self.max_names // 2):
            if self._older:
                self._uncertain_until = now + self._age
            self._older, self._recent, self._began = self._recent, {}, now
        self._recent[name] = number

    def pop(self, name: str, now: float) -> int | None:
        """Remove and return the number of ``name``; None if unknown."""
        self._forget_old(now)
        number = self._recent.pop(name, None)
        return self._older.pop(name, None) if number is None else number

    def is_uncertain(self, now: float) -> bool:
        """Return whether a dispatcher was dropped whose requests may still arrive."""
        return now < self._uncertain_until

    def _forget_old(self, now: float) -> None:
        passed = now - self._began
        if passed >= self._age:
            self._older = self._recent if passed < 2 * self._age else {}
            self._recent, self._began = {}, now
