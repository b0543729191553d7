"""Result of a run and its deviations from the expected one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch.devtools.demo.scenarios import Scenario
from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.errors import Outcome


@dataclass(frozen=True, slots=True)
class Summary:
    """Result of a run. Durations are in seconds.

    Attributes:
        broker: URL of the broker.
        seconds: total duration.
        note: which times of the guards were shortened, for people.
        board: the counts.
        scenarios: the scenarios, in order.
        pending: requests still pending in the dispatcher; 0 unless one leaked.
        replies: number of replies by disposition.
    """

    broker: str
    seconds: float
    note: str
    board: Scoreboard
    scenarios: Sequence[Scenario]
    pending: int
    replies: dict[str, int]

    @property
    def deviations(self) -> list[str]:
        """List deviations from the expected run, one line each; empty for a successful run."""
        found = [deviation for scenario in self.scenarios for deviation in scenario.find_deviations()]
        if not self.board.outcomes[Outcome.SUCCESS]:
            found.append("no call succeeded")
        if self.board.wrong_searches:
            found.append(f"{self.board.wrong_searches} of {self.board.searches} searches found another tool first")
        if self.pending:
            found.append(f"{self.pending} requests are still pending")
        return found

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for ``--json``."""
        return {
            "broker": self.broker,
            "seconds": round(self.seconds, 3),
            "calls": self.board.calls,
            "pending": self.pending,
            "replies": self.replies,
            "searches": self.board.searches,
            "tools": {name: score.as_dict() for name, score in self.board.tools.items()},
            "outcomes": {str(outcome): self._outcome(outcome) for outcome in self.board.outcomes},
            "scenarios": [scenario.as_dict() for scenario in self.scenarios],
            "deviations": self.deviations,
        }

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        found: dict[str, Any] = {"count": self.board.outcomes[outcome]}
        example = self.board.examples.get(outcome)
        if example is not None:
            found["example"] = {"tool": example.tool, "type": example.type, "message": example.message}
        return found
