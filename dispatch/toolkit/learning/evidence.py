"""Evidence of an edge, and the score that it implies."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

PRIOR_STRENGTH: Final = 4.0
"""Pseudo-observations of a written score: after as many observations, written and observed rates count the same. From 2 to
16 the recall is about the same (``make bench-learning``); a small value learns sooner after a change."""
UNUSED_WEIGHT: Final = 0.1
"""Weight of an observation ``unused``, others weigh 1: an edge falls below the threshold 0.5 when it is used less than once
in eleven recommendations. 0.03 gives the same recall, 1 much less (``make bench-learning``): tools that are used equally
often would all fall below the threshold."""


class Observation(StrEnum):
    """The result of one use of an edge."""

    SUCCESS = "success"
    """The tool was called and succeeded, or the action followed."""
    TOOL_ERROR = "tool-error"
    """The tool was called and reported an error."""
    UNUSED = "unused"
    """The tool or action was recommended, and not used before the next recommendation."""


class Evidence(NamedTuple):
    """Decayed numbers of observations of one edge: an observation counts half after one half-life."""

    success: float = 0.0
    tool_error: float = 0.0
    unused: float = 0.0

    @property
    def weight(self) -> float:
        """All observations, each with its weight."""
        return self.success + self.tool_error + UNUSED_WEIGHT * self.unused

    def multiply(self, factor: float) -> Evidence:
        """Return the evidence after a decay by ``factor``."""
        return Evidence(self.success * factor, self.tool_error * factor, self.unused * factor)

    def add(self, other: Evidence) -> Evidence:
        """Return both together; they are of the same time."""
        return Evidence(self.success + other.success, self.tool_error + other.tool_error, self.unused + other.unused)


ONE: Final = {
    Observation.SUCCESS: Evidence(success=1.0),
    Observation.TOOL_ERROR: Evidence(tool_error=1.0),
    Observation.UNUSED: Evidence(unused=1.0),
}
"""A single observation of each kind."""


def compute_score(written: float, success: float, weight: float) -> float:
    """Return the posterior mean of a beta distribution whose prior has the mean ``written`` and :data:`PRIOR_STRENGTH`.

    Args:
        written: score in [0, 1].
        success: decayed number of successes.
        weight: of all observations; at least ``success``.
    """
    score = (PRIOR_STRENGTH * written + success) / (PRIOR_STRENGTH + weight)
    return score if score <= 1.0 else 1.0  # rounding
