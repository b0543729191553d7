"""How fast the story is told: the times of the guards, shortened so that all of it fits into the time there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dispatch.policy import DEFAULT_POLICY, Rate

DEFAULT_SECONDS: Final = 20.0
"""Long enough to read along, short enough to watch to the end."""
LEAST_SECONDS: Final = 5.0
"""Below this the guards' times come near to those of a call, and what is shown is no longer what they do."""
USER_RATE: Final = Rate("5/s", max_wait=0.01)
"""What each user may call the tool that one of them calls without end. Hardly anybody waits in line, so that it can be seen
who is refused."""

_WAITED_S: Final = 2.4
"""What passes in calls that time out, and in a printer that prints: no shorter in a short story."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds, as shares of the whole.

    Args:
        seconds: how long the whole story is to take, about.
    """

    seconds: float

    @property
    def eject_for(self) -> float:
        """How long an instance is ejected (policy ``health``)."""
        return self._share(0.1)

    @property
    def slow_start(self) -> float:
        """How long its slow start takes after that (likewise)."""
        return self._share(0.1)

    @property
    def open_duration(self) -> float:
        """How long a circuit stays open (policy ``breaker``)."""
        return self._share(0.12)

    @property
    def incidents(self) -> float:
        """How long the ways in which a call can end are shown."""
        return self._share(0.2)

    @property
    def hog(self) -> float:
        """How long one user calls as fast as it can."""
        return self._share(0.17)

    @property
    def moment(self) -> float:
        """A moment in which all is well, to be seen before and after."""
        return self._share(0.03)

    @property
    def total(self) -> float:
        """How long the story will take, as nearly as can be said."""
        moments = 5 * self.moment
        return self.incidents + self.eject_for + self.slow_start + self.open_duration + self.hog + moments + _WAITED_S

    @property
    def shortened(self) -> str:
        """What is shorter than it would be by default, for people."""
        health, breaker = DEFAULT_POLICY.health, DEFAULT_POLICY.breaker
        assert breaker is not None  # the defaults have all of them
        assert health is not None
        assert health.slow_start is not None
        return (
            f"Shortened: ejected {self.eject_for:g} s (default {health.eject_for:g}), slow start {self.slow_start:g} s "
            f"({health.slow_start:g}), open {self.open_duration:g} s ({breaker.open_duration:g})"
        )

    def _share(self, share: float) -> float:
        return round(self.seconds * share, 2)
