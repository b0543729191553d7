"""Types of all guards: a guard returns a permit or a rejection at once. A permit has a method ``finish``, which reports the
outcome of the attempt to the guard; only the first call counts."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

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
