"""Types of all guards: a guard returns a permit or a rejection at once; a permit is finished exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from dispatch.errors import Outcome

Clock = Callable[[], float]
"""Returns seconds on a monotonic clock."""
Randomness = Callable[[], float]
"""Returns a random number, uniform over [0, 1), as :meth:`random.Random.random`."""


class Rejection(msgspec.Struct, frozen=True):
    """A guard's rejection of an attempt. A value, not an exception: it retains no frames.

    Attributes:
        by: the guard: ``breaker``, ``rate-limit``, ``bulkhead`` …
        reason: a word for metrics and errors: ``open``, ``probing``, ``queue-full``, ``too-late`` …
        retry_after: seconds after which an attempt may be admitted; None: unknown.
    """

    by: str
    reason: str
    retry_after: float | None = None


class Permit(Protocol):
    """A guard's admission of an attempt."""

    def finish(self, outcome: Outcome, *, retry_after: float | None = None) -> None:
        """Report the outcome of the attempt to the guard. Only the first call counts.

        Args:
            outcome: of the attempt.
            retry_after: seconds that the service asked callers to wait; None: it did not ask.
        """
