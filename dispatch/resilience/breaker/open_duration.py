"""How long a circuit stays open: longer with each opening, less so after every healthy while. Pure bookkeeping."""

from __future__ import annotations

from dispatch._internal.permit import Randomness
from dispatch.resilience.breaker.rules import BreakerRules


class OpenDuration:
    """The next open time, and the memory of recent openings that it grows with.

    ``open_duration`` is doubled for every opening (Finagle's failure accrual), and one doubling is taken back for every
    ``decay_duration`` spent closed (gRPC A50's decay). So a breaker that flaps is open for longer and longer, which
    closing on a success or two and starting again at the shortest time would not see.

    Args:
        randomness: spreads the open times of breakers that open together.

    Attributes:
        doublings: how often the next open time is doubled, health since the last opening not yet looked at.
    """

    __slots__ = ("_closed_at", "_randomness", "doublings")

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self.clear()

    def clear(self) -> None:
        """As if it had never opened."""
        self.doublings = 0
        self._closed_at: float | None = None

    def closed(self, now: float) -> None:
        """The circuit is closed from now on: health begins."""
        self._closed_at = now

    def left(self, now: float, settings: BreakerRules) -> None:
        """The circuit is no longer closed, if it was: what health it had counts."""
        if self._closed_at is not None:
            self.doublings = max(0, self.doublings - int((now - self._closed_at) / settings.decay_duration))
            self._closed_at = None

    def opened(self, now: float, asked: float, settings: BreakerRules) -> float:
        """The circuit opens: for how many seconds. Counts as an opening.

        Args:
            asked: seconds that the service itself asked to be left alone for, or 0.
        """
        self.left(now, settings)
        # Jitter goes both ways, so the base stops short of the longest time: cutting off what is beyond would gather there
        # those that were to be spread.
        longest = settings.max_open_duration / (1 + settings.jitter)
        base = settings.open_duration * 2.0**self.doublings
        if base < longest:  # not beyond: health would have to undo what nobody sees
            self.doublings += 1
        else:
            base = longest
        chance = self._randomness()
        drawn = base * (1 - settings.jitter + 2 * settings.jitter * chance)
        # Never before the service asked for, and not all of its callers at that very moment. Asked for nothing, it is less
        # than what was drawn.
        return max(drawn, asked + settings.open_duration * settings.jitter * chance)
