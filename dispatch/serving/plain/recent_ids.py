"""The ids of recent requests: a copy of a request is not executed again. Pure."""

from __future__ import annotations

MAX_IDS = 10_000
"""Ids of a generation; two are stored. A client that sends a message again after a reconnection does so within seconds."""


class RecentIds:
    """The last :data:`MAX_IDS` ids, and up to as many older ones."""

    def __init__(self) -> None:
        self._newer: set[str] = set()
        self._older: set[str] = set()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def add(self, id: str) -> bool:
        """Add ``id``. Return whether it is new."""
        if id in self._newer or id in self._older:
            return False
        if len(self._newer) >= MAX_IDS:
            self._older, self._newer = self._newer, set()
        self._newer.add(id)
        return True
