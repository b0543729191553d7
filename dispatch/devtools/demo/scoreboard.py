"""What the demonstration counts: per tool, per outcome and per user. No I/O, no clock of its own."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch.errors import DispatchError, Outcome

MAX_LATENCIES: Final = 4_096
"""Durations kept for each tool, the latest ones: far more than a demonstration makes."""
SNIPPET_CHARS: Final = 48


@dataclass
class ToolScore:
    """One tool. Durations are in seconds. ``latest`` is the number, over all tools, of its last call to begin."""

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
        """The duration that ``share`` of the successful calls did not exceed (nearest rank); None before the first."""
        return nearest_rank(self.durations, share)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, durations in milliseconds."""
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
    """What became of one user's calls of a tool that has a rate for each user."""

    let_through: int = 0
    refused: int = 0

    def as_dict(self) -> dict[str, int]:
        """As plain values."""
        return {"let_through": self.let_through, "refused": self.refused}


@dataclass(frozen=True, slots=True)
class Example:
    """The first error of an outcome, to show its text."""

    tool: str
    type: str
    message: str


class Scoreboard:
    """Counts calls as they begin and end."""

    def __init__(self) -> None:
        self.tools: dict[str, ToolScore] = {}
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        self.examples: dict[Outcome, Example] = {}
        self.users: dict[str, UserScore] = {}
        self._begun = 0

    def watch_users(self, names: Iterable[str]) -> None:
        """Count these users' calls, from now on."""
        self.users = {name: UserScore() for name in names}

    def begin(self, tool: str) -> None:
        """A call of ``tool`` begins."""
        score = self.tools.setdefault(tool, ToolScore())
        score.calls += 1
        score.in_flight += 1
        self._begun += 1
        score.latest = self._begun

    def chunk(self, tool: str, heard: str, first_after: float | None = None) -> None:
        """A chunk of its answer came.

        Args:
            heard: everything so far.
            first_after: for the first chunk, the seconds since the call began.
        """
        score = self.tools[tool]
        score.chunks += 1
        if first_after is not None:
            score.first_chunks.append(first_after)
        score.last = f"…{snippet(heard[-40:])}"

    def succeed(self, tool: str, text: str, duration: float) -> None:
        """It ended with an answer."""
        score = self._end(tool, Outcome.SUCCESS)
        score.ok += 1
        score.durations.append(duration)
        score.last = snippet(text)

    def fail(self, tool: str, error: DispatchError) -> None:
        """It ended with an error."""
        score = self._end(tool, error.outcome)
        score.errors += 1
        score.last = f"✗ {error.type}"
        self.examples.setdefault(error.outcome, Example(tool, error.type, error.message))

    def abandon(self, tool: str) -> None:
        """Its caller gave up."""
        score = self._end(tool, Outcome.CANCELLED)
        score.errors += 1
        score.last = "✗ cancelled"
        self.examples.setdefault(
            Outcome.CANCELLED, Example(tool, "cancelled", "The agent changed its mind; the call left nothing behind.")
        )

    def _end(self, tool: str, outcome: Outcome) -> ToolScore:
        self.outcomes[outcome] += 1
        score = self.tools[tool]
        score.outcomes[outcome] += 1
        score.in_flight -= 1
        return score

    @property
    def calls(self) -> int:
        """Calls that began."""
        return sum(score.calls for score in self.tools.values())

    @property
    def in_flight(self) -> int:
        """Calls that have not ended."""
        return sum(score.in_flight for score in self.tools.values())


def nearest_rank(values: deque[float], share: float) -> float | None:
    """The smallest of ``values`` that at least ``share`` (0 to 1) of them do not exceed; None if there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def snippet(text: str) -> str:
    """The beginning of ``text`` in one line."""
    line = " ".join(text.split())
    return line if len(line) <= SNIPPET_CHARS else line[: SNIPPET_CHARS - 1] + "…"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
