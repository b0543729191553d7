"""What a ledger remembers of dispatchers that it evicted: up to which number their requests may have run. Pure."""

from __future__ import annotations

MAX_NAMES = 65_536
"""About 10 MB."""


class EvictedDispatchers:
    """The highest request number of each evicted dispatcher, kept for at least ``age`` seconds unless there are too many.

    Two generations of plain dictionaries: a pair with its time for each name would cost the garbage collector a look at
    each of them.

    Args:
        age: seconds after which no copy of a request is on its way any more.
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
        """Remember that requests of ``name`` may have run up to ``number``."""
        self._forget_old(now)
        if len(self._recent) >= max(1, self.max_names // 2):
            if self._older:
                self._uncertain_until = now + self._age
            self._older, self._recent, self._began = self._recent, {}, now
        self._recent[name] = number

    def pop(self, name: str, now: float) -> int | None:
        """Return and forget the number of ``name``; None: it is not known."""
        self._forget_old(now)
        number = self._recent.pop(name, None)
        return self._older.pop(name, None) if number is None else number

    def is_uncertain(self, now: float) -> bool:
        """Was any dispatcher forgotten whose requests may still be on their way?"""
        return now < self._uncertain_until

    def _forget_old(self, now: float) -> None:
        passed = now - self._began
        if passed >= self._age:
            self._older = self._recent if passed < 2 * self._age else {}
            self._recent, self._began = {}, now
