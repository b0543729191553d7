"""Open duration of a circuit: exponential backoff over openings, which decays while the circuit is closed. Sans-I/O."""

from __future__ import annotations

from dispatch._internal.permit import Randomness
from dispatch.resilience.breaker.rules import BreakerRules


class OpenDuration:
    """Computes the next open duration from the recent openings.

    ``open_duration`` doubles with every opening (Finagle's failure accrual), and one doubling is undone for every
    ``decay_duration`` spent closed (gRPC A50's decay). So the open durations of a breaker that flaps grow; a breaker that
    started again at the shortest duration after each success would flap permanently.

    Args:
        randomness: jitter, so that breakers that open together do not close together.

    Attributes:
        doublings: doublings of the next open duration, before the decay since the last opening.
    """

    __slots__ = ("_closed_at", "_randomness", "doublings")

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self.clear()

    def clear(self) -> None:
        """Forget all openings."""
        self.doublings = 0
        self._closed_at: float | None = None

    def start_healthy_period(self, now: float) -> None:
        """Record that the circuit closed at ``now``: the decay begins."""
        self._closed_at = now

    def end_healthy_period(self, now: float, settings: BreakerRules) -> None:
        """Apply the decay of the time spent closed, if the circuit was closed."""
        if self._closed_at is not None:
            self.doublings = max(0, self.doublings - int((now - self._closed_at) / settings.decay_duration))
            self._closed_at = None

    def record_opening(self, now: float, asked: float, settings: BreakerRules) -> float:
        """Record an opening and return its duration in seconds.

        Args:
            asked: seconds of pause that the service itself asked for (retry-after), or 0.
        """
        self.end_healthy_period(now, settings)
        # The base stays below the maximum by the jitter: clipping jittered values at the maximum would synchronize breakers.
        longest = settings.max_open_duration / (1 + settings.jitter)
        base = settings.open_duration * 2.0**self.doublings
        if base < longest:  # doublings without an effect would only delay the decay
            self.doublings += 1
        else:
            base = longest
        chance = self._randomness()
        drawn = base * (1 - settings.jitter + 2 * settings.jitter * chance)
        # Not before the time that the service asked for, and with jitter after it. Without a retry-after, `drawn` is larger.
        return max(drawn, asked + settings.open_duration * settings.jitter * chance)
