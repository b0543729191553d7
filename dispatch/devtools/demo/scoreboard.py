"""Counts of the demo by tool, outcome and user. No I/O, no clock."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch.errors import DispatchError, Outcome

MAX_LATENCIES: Final = 4_096
"""Latest durations stored per tool: more than a demo makes calls."""
SNIPPET_CHARS: Final = 48


@dataclass
class ToolScore:
    """Counts of one tool. Durations are in seconds. ``latest``: number, over all tools, of its last call that began."""

    calls: int = 0
    latest: int = 0
    ok: int = 0
    errors: int = 0
    in_flight: int = 0
    chunks: int = 0
    last: str = ""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))
    first_chunks: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))

    def percentile(self, share: float) -> float | None:
        """Return the percentile ``share`` (0 to 1) of successful durations, by nearest rank; None without any."""
        return nearest_rank(self.durations, share)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; durations in milliseconds."""
        return {
            "calls": self.calls,
            "ok": self.ok,
            "errors": self.errors,
            "p50_ms": _milliseconds(self.percentile(0.5)),
            "p95_ms": _milliseconds(self.percentile(0.95)),
            "chunks": self.chunks,
            "first_chunk_p50_ms": _milliseconds(nearest_rank(self.first_chunks, 0.5)),
        }


@dataclass
class UserScore:
    """Calls of one user to a tool with a rate limit per user."""

    admitted: int = 0
    rejected: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return plain values."""
        return {"admitted": self.admitted, "rejected": self.rejected}


@dataclass(frozen=True, slots=True)
class Example:
    """The first error of an outcome, as an example of its message."""

    tool: str
    type: str
    message: str


class Scoreboard:
    """Counts calls as they start and end."""

    def __init__(self) -> None:
        self.tools: dict[str, ToolScore] = {}
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.examples: dict[Outcome, Example] = {}
        self.users: dict[str, UserScore] = {}
        self.searches = 0
        self.wrong_searches = 0
        self._begun = 0

    def record_search(self, is_right: bool) -> None:
        """Record a search for a tool. ``is_right``: the first tool found is the expected one."""
        self.searches += 1
        self.wrong_searches += not is_right

    def track_users(self, names: Iterable[str]) -> None:
        """Start counting the calls of these users."""
        self.users = {name: UserScore() for name in names}

    def record_start(self, tool: str) -> None:
        """Record the start of a call of ``tool``."""
        score = self.tools.setdefault(tool, ToolScore())
        score.calls += 1
        score.in_flight += 1
        self._begun += 1
        score.latest = self._begun

    def record_chunk(self, tool: str, text: str, first_after: float | None = None) -> None:
        """Record a chunk.

        Args:
            text: the reply so far.
            first_after: for the first chunk, seconds since the start of the call.
        """
        score = self.tools[tool]
        score.chunks += 1
        if first_after is not None:
            score.first_chunks.append(first_after)
        score.last = f"…{snippet(text[-40:])}"

    def record_success(self, tool: str, text: str, duration: float) -> None:
        """Record a successful call."""
        score = self._end(tool, Outcome.SUCCESS)
        score.ok += 1
        score.durations.append(duration)
        score.last = snippet(text)

    def record_failure(self, tool: str, error: DispatchError) -> None:
        """Record a failed call."""
        score = self._end(tool, error.outcome)
        score.errors += 1
        score.last = f"✗ {error.type}"
        self.examples.setdefault(error.outcome, Example(tool, error.type, error.message))

    def record_cancellation(self, tool: str) -> None:
        """Record a cancelled call."""
        score = self._end(tool, Outcome.CANCELLED)
        score.errors += 1
        score.last = "✗ cancelled"
        self.examples.setdefault(Outcome.CANCELLED, Example(tool, "cancelled", "The agent cancelled the call."))

    def _end(self, tool: str, outcome: Outcome) -> ToolScore:
        self.outcomes[outcome] += 1
        score = self.tools[tool]
        score.outcomes[outcome] += 1
        score.in_flight -= 1
        return score

    @property
    def calls(self) -> int:
        """Return the number of calls started."""
        return sum(score.calls for score in self.tools.values())

    @property
    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return sum(score.in_flight for score in self.tools.values())


def nearest_rank(values: deque[float], share: float) -> float | None:
    """Return the smallest value that at least ``share`` (0 to 1) of ``values`` do not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def snippet(text: str) -> str:
    """Return the beginning of ``text`` in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else line[: SNIPPET_CHARS - 1] + "…"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
