"""What came of a run, and what of it was not planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dispatch.devtools.demo.scenarios import Act
from dispatch.devtools.demo.scoreboard import Scoreboard
from dispatch.errors import Outcome


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of a run. Durations are in seconds.

    Attributes:
        broker: its address.
        seconds: from the start to the end.
        shortened: which of the guards' times were shortened, for people.
        board: the counts.
        acts: what was played, in its order.
        pending: calls left in the dispatcher's table of those that wait: none, if all is well.
        replies: how many came, by what they were.
    """

    broker: str
    seconds: float
    shortened: str
    board: Scoreboard
    acts: Sequence[Act]
    pending: int
    replies: dict[str, int]

    @property
    def surprises(self) -> list[str]:
        """What should not have been, a line each; empty for a run as it should be."""
        found = [surprise for act in self.acts for surprise in act.surprises()]
        if not self.board.outcomes[Outcome.SUCCESS]:
            found.append("no call succeeded")
        if self.pending:
            found.append(f"{self.pending} calls are left in the table of those that wait")
        return found

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for ``--json``."""
        return {
            "broker": self.broker,
            "seconds": round(self.seconds, 3),
            "calls": self.board.calls,
            "pending": self.pending,
            "replies": self.replies,
            "tools": {name: score.as_dict() for name, score in self.board.tools.items()},
            "outcomes": {str(outcome): self._outcome(outcome) for outcome in self.board.outcomes},
            "acts": [act.as_dict() for act in self.acts],
            "surprises": self.surprises,
        }

    def _outcome(self, outcome: Outcome) -> dict[str, Any]:
        found: dict[str, Any] = {"count": self.board.outcomes[outcome]}
        example = self.board.examples.get(outcome)
        if example is not None:
            found["example"] = {"tool": example.tool, "type": example.type, "message": example.message}
        return found
