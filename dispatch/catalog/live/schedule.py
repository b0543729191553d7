"""When a changed catalogue comes into force: changes are coalesced, and the number of activations is limited."""

from __future__ import annotations

from typing import Final

COALESCE_S: Final = 0.05
"""Seconds from the first change to its activation: changes meanwhile are part of it. A folder that is copied is one change,
and an operator does not notice the delay."""
MIN_INTERVAL_S: Final = 0.1
"""Seconds between two activations: at most ten per second, however fast a source changes."""


class ActivationSchedule:
    """Computes when the next activation is due. Times are in seconds on one clock."""

    def __init__(self) -> None:
        self._last: float | None = None

    def due_at(self, changed_at: float) -> float:
        """Return when a change at ``changed_at``, the first since the last activation, is due."""
        due = changed_at + COALESCE_S
        return due if self._last is None else max(due, self._last + MIN_INTERVAL_S)

    def record_activation(self, now: float) -> None:
        """Record an activation."""
        self._last = now
