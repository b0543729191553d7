"""Times of the guards and scenarios, scaled to the duration of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dispatch.policy import DEFAULT_POLICY, RateLimit

DEFAULT_SECONDS: Final = 20.0
"""Long enough to read the events, short enough to watch completely."""
MIN_SECONDS: Final = 5.0
"""Minimum duration: below it the guards' times approach the duration of a call and the scenarios fail."""
USER_RATE: Final = RateLimit("5/s", max_wait=0.01)
"""Rate limit per user of the tool that the noisy user calls. The short wait makes rejections visible."""

_WAITED_S: Final = 2.4
"""Duration of timeouts and print jobs, which does not scale."""


@dataclass(frozen=True, slots=True)
class TimeScale:
    """Times in seconds, as shares of the total.

    Args:
        seconds: approximate total duration.
    """

    seconds: float

    @property
    def ejection_time(self) -> float:
        """Return the ejection time of an instance."""
        return self._share(0.1)

    @property
    def slow_start_window(self) -> float:
        """Return the slow-start window after an ejection."""
        return self._share(0.1)

    @property
    def open_duration(self) -> float:
        """Return the open duration of a circuit breaker."""
        return self._share(0.12)

    @property
    def every_outcome(self) -> float:
        """Return the duration of the scenario with every outcome."""
        return self._share(0.2)

    @property
    def noisy_user(self) -> float:
        """Return the duration of the scenario with a noisy user."""
        return self._share(0.17)

    @property
    def steady_period(self) -> float:
        """Return the duration of the steady period before and after each fault."""
        return self._share(0.03)

    @property
    def total(self) -> float:
        """Return the expected total duration."""
        moments = 5 * self.steady_period
        return (
            self.every_outcome
            + self.ejection_time
            + self.slow_start_window
            + self.open_duration
            + self.noisy_user
            + moments
            + _WAITED_S
        )

    @property
    def note(self) -> str:
        """Describe the times that are shorter than the defaults, for people."""
        outliers, breaker = DEFAULT_POLICY.outlier_detection, DEFAULT_POLICY.breaker
        assert breaker is not None  # the defaults have all of them
        assert outliers is not None
        assert outliers.slow_start_window is not None
        return (
            f"Shortened: ejected {self.ejection_time:g} s (default {outliers.base_ejection_time:g}), slow start "
            f"{self.slow_start_window:g} s ({outliers.slow_start_window:g}), open "
            f"{self.open_duration:g} s ({breaker.open_duration:g})"
        )

    def _share(self, share: float) -> float:
        return round(self.seconds * share, 2)
