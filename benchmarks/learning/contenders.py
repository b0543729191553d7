"""Rankings of the tools of an action, and their recall."""

from __future__ import annotations

import contextvars
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.learning.hidden_workflows import Call, HiddenWorld, Step
from dispatch.toolkit import Learner, Observation, Toolkit, ToolkitService

Rank = Callable[[str], Sequence[str]]
"""From an action to its tools, the most likely first."""

Hits = tuple[int, int]
"""Of a workflow: the steps whose tool is among the best ones, and all."""

BEST: Final = 3
RESAMPLES: Final = 1_000


@dataclass(frozen=True)
class Recall:
    """Share of steps whose tool is among the best three, with a bootstrap interval of 95 % over workflows."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def as_dict(self) -> dict[str, float]:
        """Return the figures for ``--json``."""
        return asdict(self)


class VirtualClock:
    """Seconds that the evaluation sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Agents:
    """Agents that share one toolkit: its learner, and counters of the same calls."""

    def __init__(self, toolkit: Toolkit, half_life_days: float) -> None:
        self.clock = VirtualClock()
        self.toolkit = toolkit
        self.service = ToolkitService(toolkit)
        self.learner: Learner = toolkit.learn(half_life_days=half_life_days, clock=self.clock)
        self.calls: Counter[str] = Counter()
        self.calls_by_action: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def run(self, session: list[Call]) -> None:
        """Learn from a session: before each call, the agent has the tools of its action recommended."""
        contextvars.Context().run(self._run, session)

    def _run(self, session: list[Call]) -> None:
        for call in session:
            self.service.recommend_subgraph([self.service.get_action(call.action)])
            self.learner.record_call(call.tool, Observation.TOOL_ERROR if call.has_error else Observation.SUCCESS)
            self.calls[call.tool] += 1
            self.calls_by_action[call.action][call.tool] += 1

    def rank_learned(self, action: str) -> Sequence[str]:
        """Rank by learned scores, as a recommendation has them."""
        return self._rank_by(self.learner.get_score, action)

    def rank_written(self, action: str) -> Sequence[str]:
        """Rank by written scores."""
        return self._rank_by(self.toolkit.get_score, action)

    def rank_frequent(self, action: str) -> Sequence[str]:
        """Rank by all calls of a tool, whatever the action."""
        return self._rank_by(lambda _action, tool: self.calls[tool], action)

    def rank_frequent_in_action(self, action: str) -> Sequence[str]:
        """Rank by the calls of a tool in the action."""
        return self._rank_by(lambda action, tool: self.calls_by_action[action][tool], action)

    def _rank_by(self, score: Callable[[str, str], float], action: str) -> Sequence[str]:
        tools = [id for id in self.toolkit.successors(action) if self.toolkit.is_tool(id)]
        return sorted(tools, key=lambda tool: (-score(action, tool), tool))


def rank_by_probability(world: HiddenWorld) -> Rank:
    """Return the best possible ranking: by the hidden probabilities."""
    return lambda action: sorted(world.probabilities[action], key=lambda tool: -world.probabilities[action][tool])


def count_hits(rank: Rank, workflows: Sequence[list[Step]]) -> list[Hits]:
    """Return, for each workflow, how many of its tools are among the best three, and its length."""
    best = {action: set(rank(action)[:BEST]) for action in {action for steps in workflows for action, _ in steps}}
    return [(sum(tool in best[action] for action, tool in steps), len(steps)) for steps in workflows]


def compute_recall(counts: Sequence[Hits]) -> Recall:
    """Return the recall over workflows, with its interval."""
    randomness = random.Random(0)
    resampled = sorted(_divide(randomness.choices(counts, k=len(counts))) for _ in range(RESAMPLES))
    return Recall(_divide(counts), resampled[int(RESAMPLES * 0.025)], resampled[int(RESAMPLES * 0.975) - 1])


def _divide(counts: Sequence[Hits]) -> float:
    return sum(hits for hits, _ in counts) / sum(steps for _, steps in counts)
