"""Evaluate learned scores: recall@3 of the next tool on workflows that were not seen in training.

``python -m benchmarks.learning``; no broker, a minute. Sessions come from hidden workflows (hidden_workflows.py), which are
split into those of the training and those of the test. Intervals are bootstrap intervals of 95 % over the workflows of the
test.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Sequence
from typing import Final
from unittest.mock import patch

from benchmarks.harness.programs import Programme, write_figures
from benchmarks.harness.report import aligned
from benchmarks.harness.statistics import percentile
from benchmarks.learning.contenders import Agents, Hits, Recall, compute_recall, count_hits, rank_by_probability
from benchmarks.learning.hidden_workflows import HiddenWorld, Step
from benchmarks.toolkit.__main__ import ACTIONS, HOPS, THRESHOLDS, build_toolkit
from dispatch.toolkit import Observation, ToolkitService, evidence

DAY: Final = 86_400.0
WORLDS: Final = 5
WORKFLOWS: Final = 100
"""Of the training, and of the test, in each world."""
SESSIONS: Final = (20, 100, 500)
NOISES: Final = (0.0, 0.2)
"""Shares of calls of another tool than that of the workflow."""
NOISE: Final = 0.2
SESSIONS_A_DAY: Final = 10
SHIFT_DAY: Final = 60
DAYS_AFTER_SHIFT: Final = (0, 3, 7, 14, 30, 60)
HALF_LIFE: Final = 30.0
HALF_LIVES: Final = {"learned": HALF_LIFE, "half-life 7 days": 7.0, "no decay": 1e6}
CONSTANT_SESSIONS: Final = 100
PRIOR_STRENGTHS: Final = (2.0, 4.0, 8.0, 16.0)
UNUSED_WEIGHTS: Final = (0.03, 0.1, 0.3, 1.0)
BLOCK: Final = 100
"""Recommendations of one contender in a row, from other actions each: the contenders alternate."""
TARGET_RATIO: Final = 1.2
"""Cost of a recommendation with learned scores, at most, relative to one with written scores."""

Table = dict[str, dict[str, Recall]]
"""Recalls by row and contender."""
Counts = dict[str, dict[str, list[Hits]]]
"""Hits of each workflow, by row and contender."""


class Evaluation:
    """One world: agents that learn from workflows of the training, and workflows of the test."""

    def __init__(self, seed: int, half_life_days: float = HALF_LIFE) -> None:
        self.world = HiddenWorld(seed)
        self.agents = Agents(self.world.build_toolkit(), half_life_days)
        self._randomness = random.Random(seed)
        self.draw_workflows()

    def draw_workflows(self) -> None:
        """Draw the workflows of training and test."""
        self.training = self.world.draw_workflows(WORKFLOWS)
        self.test = self.world.draw_workflows(WORKFLOWS)

    def train(self, sessions: int, noise: float) -> None:
        """Run sessions that follow workflows of the training, ten a day."""
        for _ in range(sessions):
            self.agents.run(self.world.play(self._randomness.choice(self.training), noise))
            self.agents.clock.now += DAY / SESSIONS_A_DAY


def compare_amounts(seed: int, amounts: Sequence[int]) -> Counts:
    """Compare the contenders after few and many sessions, without and with noise."""
    counts: Counts = {}
    for noise in NOISES:
        evaluation, done = Evaluation(seed), 0
        agents = evaluation.agents
        for amount in amounts:
            evaluation.train(amount - done, noise)
            done = amount
            ranks = {
                "learned": agents.rank_learned,
                "written": agents.rank_written,
                "most frequent": agents.rank_frequent,
                "most frequent in action": agents.rank_frequent_in_action,
                "best possible": rank_by_probability(evaluation.world),
            }
            counts[f"{amount} sessions, noise {noise:.0%}"] = {
                name: count_hits(rank, evaluation.test) for name, rank in ranks.items()
            }
    return counts


def compare_after_shift(seed: int, shift_day: int, days: Sequence[int]) -> Counts:
    """Compare half-lives when all workflows change on one day."""
    counts: Counts = {}
    for name, half_life in HALF_LIVES.items():
        evaluation = Evaluation(seed, half_life)
        agents = evaluation.agents
        for day in range(shift_day + max(days) + 1):
            if day == shift_day:
                _add_row(counts, "before", name, agents, evaluation.test)
                evaluation.world.shift()
                evaluation.draw_workflows()
            if day - shift_day in days:
                _add_row(counts, f"{day - shift_day} days after", name, agents, evaluation.test)
            evaluation.train(SESSIONS_A_DAY, NOISE)
    return counts


def _add_row(counts: Counts, row: str, name: str, agents: Agents, test: list[list[Step]]) -> None:
    found = counts.setdefault(row, {})
    found[name] = count_hits(agents.rank_learned, test)
    if name == "learned":
        found["written"] = count_hits(agents.rank_written, test)
        found["most frequent in action"] = count_hits(agents.rank_frequent_in_action, test)


def compare_constants(seed: int, sessions: int) -> Counts:
    """Compare values of the two constants of the score."""
    counts: Counts = {}
    for strength in PRIOR_STRENGTHS:
        for weight in UNUSED_WEIGHTS:
            with patch.multiple(evidence, PRIOR_STRENGTH=strength, UNUSED_WEIGHT=weight):
                evaluation = Evaluation(seed)
                evaluation.train(sessions, NOISE)
                row = counts.setdefault(f"prior {strength:g}", {})
                row[f"unused {weight:g}"] = count_hits(evaluation.agents.rank_learned, evaluation.test)
    return counts


def pool(worlds: Sequence[Counts]) -> Table:
    """Return the recalls over the workflows of all worlds."""
    return {
        row: {name: compute_recall([hits for world in worlds for hits in world[row][name]]) for name in names}
        for row, names in worlds[0].items()
    }


def measure_cost(calls: int) -> dict[str, dict[str, float]]:
    """Compare recommendations of the large toolkit of ``benchmarks.toolkit``: with evidence on every edge, and with none."""
    toolkit = build_toolkit(0)
    plain, learning = ToolkitService(toolkit), ToolkitService(build_toolkit(0))
    learner = learning.get_toolkit().learn()
    for u, v in toolkit.get_graph().edges:
        # As many successes as keep the score: both recommend the same.
        score = toolkit.get_score(u, v)
        learner.record(u, v, Observation.SUCCESS, 10 * score + 1e-9)
        learner.record(u, v, Observation.TOOL_ERROR, 10 * (1 - score) + 1e-9)
    learner.freeze()
    for number in range(ACTIONS):  # computes the scores of every action, which lasts a thousandth of a half-life
        learning.recommend_subgraph([learning.get_action(f"action-{number}")], 0.0)
    gc.collect()
    gc.freeze()
    figures = {}
    try:
        for threshold in THRESHOLDS:
            durations: dict[str, list[float]] = {"written": [], "learned": []}
            randomness = random.Random(1)
            for block in range(-(-calls // BLOCK)):
                starts = [plain.get_action(f"action-{randomness.randrange(ACTIONS)}") for _ in range(BLOCK)]
                order = [("written", plain), ("learned", learning)]
                for name, service in order if block % 2 else reversed(order):
                    for start in starts:
                        began = time.thread_time()
                        service.recommend_subgraph([start], threshold, HOPS)
                        durations[name].append((time.thread_time() - began) * 1e3)
            ordered = {name: sorted(values) for name, values in durations.items()}
            figures[f"threshold {threshold:g}"] = {
                "written_p95_ms": percentile(ordered["written"], 0.95),
                "learned_p95_ms": percentile(ordered["learned"], 0.95),
                "ratio_p50": percentile(ordered["learned"], 0.5) / percentile(ordered["written"], 0.5),
                "ratio_p95": percentile(ordered["learned"], 0.95) / percentile(ordered["written"], 0.95),
                "ratio_mean": sum(ordered["learned"]) / sum(ordered["written"]),
            }
    finally:
        gc.unfreeze()
    return figures


def show(title: str, table: Table) -> None:
    """Print a table of recalls."""
    names = list(next(iter(table.values())))
    rows = [("", *names), *((row, *(str(found[name]) for name in names)) for row, found in table.items())]
    print(f"{title}\n{aligned(rows)}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run. Returns the exit code: 0 done, whatever the figures; 2 the results cannot be written."""
    programme = Programme("benchmarks.learning", __doc__)
    programme.add_number("--worlds", WORLDS, "seeds")
    programme.add_argument("--quick", action="store_true", help="few sessions: seconds, and figures not to be quoted")
    programme.add_number("--calls", 2_000, "recommendations")
    options = programme.begin(arguments)
    seeds = range(options.worlds)
    amounts, shift_day, days = (SESSIONS, SHIFT_DAY, DAYS_AFTER_SHIFT) if not options.quick else ((20,), 5, (0, 5))
    constant_sessions = CONSTANT_SESSIONS if not options.quick else 2
    tables = {
        "Recall@3 of the next tool": pool([compare_amounts(seed, amounts) for seed in seeds]),
        f"All workflows change on one day; {SESSIONS_A_DAY} sessions a day, noise {NOISE:.0%}": pool(
            [compare_after_shift(seed, shift_day, days) for seed in seeds]
        ),
        f"Constants of the score; {constant_sessions} sessions, noise {NOISE:.0%}": pool(
            [compare_constants(seed, constant_sessions) for seed in seeds]
        ),
    }
    for title, table in tables.items():
        show(title, table)
    cost = measure_cost(options.calls)
    for name, figures in cost.items():
        verdict = "ok" if figures["ratio_p95"] <= TARGET_RATIO else "MISSED"
        print(
            f"recommendation, {name}: p95 {figures['written_p95_ms']:.2f} ms written, {figures['learned_p95_ms']:.2f} ms "
            f"learned; ratio of p50 {figures['ratio_p50']:.2f}, of p95 {figures['ratio_p95']:.2f} "
            f"(target ≤ {TARGET_RATIO:g}: {verdict}), of means {figures['ratio_mean']:.2f}"
        )
    document = {
        title: {row: {name: recall.as_dict() for name, recall in found.items()} for row, found in table.items()}
        for title, table in tables.items()
    }
    write_figures(options.json, {"recall": document, "cost": cost})
    return 0


if __name__ == "__main__":
    sys.exit(main())
