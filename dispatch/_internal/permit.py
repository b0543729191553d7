"""What all guards have in common: ``admit`` gives a permit or a rejection, at once; a permit is finished exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from dispatch.errors import Outcome

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""
Randomness = Callable[[], float]
"""The next number of a source of randomness, evenly spread over [0, 1), as :meth:`random.Random.random` gives it."""


class Rejection(msgspec.Struct, frozen=True):
    """A guard's no. A value, so that the chain raises nothing and a rejection retains nothing.

    Attributes:
        by: which guard: ``breaker``, ``rate``, ``bulkhead`` …
        reason: why, in a word for metrics and errors: ``open``, ``probing``, ``queue-full``, ``too-late`` …
        retry_after: seconds after which there may be room, or None when nobody knows.
    """

    by: str
    reason: str
    retry_after: float | None = None


class Permit(Protocol):
    """What a guard gives to a call that may go on."""

    def finish(self, outcome: Outcome, *, retry_after: float | None = None) -> None:
        """Tell the guard how the attempt ended. Exactly once counts: a second call does nothing.

        Args:
            outcome: how it ended.
            retry_after: seconds that the service asked to be left alone for, if it did.
        """
