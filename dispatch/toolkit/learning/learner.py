"""The learner of a toolkit: scores of its edges from use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch.toolkit.action import Action
from dispatch.toolkit.graph import DATA, DEFAULT_SCORE, SCORE
from dispatch.toolkit.learning.action_finder import ActionFinder
from dispatch.toolkit.learning.call_observer import observe_calls
from dispatch.toolkit.learning.evidence import ONE, PRIOR_STRENGTH, UNUSED_WEIGHT, Evidence, Observation, compute_score
from dispatch.toolkit.learning.evidence_store import EvidenceStore
from dispatch.toolkit.learning.interactions import Interactions, describe_recommendation, observe_call

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher
    from dispatch.toolkit.toolkit import Toolkit

DAY: Final = 86_400.0
HALF_LIFE_DAYS: Final = 30.0
"""A changed workflow dominates the scores after a month, and a tool that is used weekly retains its evidence."""
MAX_COUNT: Final = 1e6
"""Observations that are recorded at a time: sums remain far within the range of floating-point numbers."""
CACHE_AGE: Final = 0.001
"""Share of a half-life for which computed scores are used again: the evidence decays by 0.07 % meanwhile."""


@dataclass(frozen=True)
class LearnedScore:
    """A score and its reasons.

    Attributes:
        source: id of the action.
        target: id of the tool or of the next action.
        score: the learned one, in [0, 1].
        written: the one that learning started at; 0 without an edge.
        has_edge: whether the toolkit has the edge. Evidence without one comes from calls of tools that were not
            recommended.
        evidence: decayed numbers of observations.
        half_life_days: after which an observation counts half.
    """

    source: str
    target: str
    score: float
    written: float
    has_edge: bool
    evidence: Evidence
    half_life_days: float

    def __str__(self) -> str:
        success, tool_error, unused = self.evidence
        edge = f"written {self.written:.2f}" if self.has_edge else "no edge, so written 0"
        return (
            f"{self.source} → {self.target}: {self.score:.2f} = {edge} (counts as {PRIOR_STRENGTH:g} observations), "
            f"{success:.1f} successes, {tool_error:.1f} tool errors, {unused:.1f} unused (each counts {UNUSED_WEIGHT:g}); "
            f"half-life {self.half_life_days:g} days"
        )


class Learner:
    """Learns the scores of a toolkit's edges; :meth:`Toolkit.learn` creates it.

    A learned score is the posterior mean of a beta distribution: it starts at the written score, which counts as 4
    observations, stays in [0, 1], and returns to the written score as the evidence decays. The written scores remain as
    they are.
    """

    def __init__(
        self,
        toolkit: Toolkit,
        store: str | Path | None = None,
        *,
        half_life_days: float = HALF_LIFE_DAYS,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not half_life_days > 0:
            raise ValueError(f"half_life_days {half_life_days!r} is not a positive number. Give days, such as 30.")
        self._toolkit = toolkit
        self._half_life_days = half_life_days
        self._scores: dict[str, dict[str, float]] = {}
        """Computed scores, by action."""
        self._scored_at = 0.0
        self._interactions = Interactions()
        self._finder = ActionFinder()
        self._stop_observing: list[Callable[[], None]] = []
        path = None if store is None else Path(store)
        self._store = EvidenceStore(
            path, half_life_days * DAY, time.time if clock is None else clock, on_changed=self._forget_scores
        )

    def observe(self, dispatcher: Dispatcher) -> None:
        """Record the calls of a dispatcher as uses of recommendations. Several dispatchers may be observed."""
        self._stop_observing.append(observe_calls(self, dispatcher))

    def read_scores(self, action: str, edges: Mapping[str, Mapping[str, Any]]) -> Mapping[str, float]:
        """Return the learned scores of the edges from an action, by target; those without evidence are omitted.

        Args:
            edges: attributes by target.
        """
        scores = self._scores.get(action)
        if scores is None:
            with self._store.reading() as table:
                places = table.find_places(action)
                if not places:
                    return {}
                decay, success, weight = table.decay(self._store.now), table.success, table.weight
                scores = {
                    v: compute_score(edges[v].get(SCORE, DEFAULT_SCORE), success[place] * decay, weight[place] * decay)
                    for v, place in places.items()
                    if v in edges
                }
                self._scores[action] = scores
        return scores

    def refresh(self) -> None:
        """Forget computed scores that are too old, before several calls of :meth:`read_scores`."""
        now = self._store.now
        if not 0 <= now - self._scored_at <= CACHE_AGE * self._half_life_days * DAY:
            self._scored_at = now
            self._scores.clear()

    def forget_written(self, u: str) -> None:
        """Compute the scores of the edges from ``u`` again: a written one has changed."""
        self._forget_scores(u)

    def get_score(self, u: str, v: str) -> float:
        """Return the present learned score of an edge."""
        return self.why(u, v).score

    def why(self, u: str, v: str) -> LearnedScore:
        """Return a score with its reasons; its text is one sentence for people."""
        edge = self._toolkit.get_graph().get_edge_data(u, v)
        written = 0.0 if edge is None else edge.get(SCORE, DEFAULT_SCORE)
        evidence = self._store.get(u, v) or Evidence()
        score = compute_score(written, evidence.success, evidence.weight)
        return LearnedScore(u, v, score, written, edge is not None, evidence, self._half_life_days)

    def list_scores(self) -> list[LearnedScore]:
        """Return every score with evidence, those with most evidence first."""
        found = [self.why(u, v) for u, v, _evidence in self._store.read_all()]
        return sorted(found, key=lambda each: (-each.evidence.weight, each.source, each.target))

    def record(self, u: str, v: str, observation: Observation | str, count: float = 1.0) -> None:
        """Record observations of an edge. The edge need not exist.

        Raises:
            ValueError: the observation is unknown, or the count is not in (0, 1,000,000].
        """
        if not 0 < count <= MAX_COUNT:
            raise ValueError(f"The count {count!r} of observations is not in (0, {MAX_COUNT:,.0f}]. Give one that is.")
        self._store.record([((u, v), ONE[Observation(observation)].multiply(count))])

    def record_recommendation(self, actions: Iterable[str], result: Toolkit, user: str) -> None:
        """Note a recommendation: calls that follow are observed as its uses, and the next one shows what was unused."""
        # The dictionaries behind the views of networkx, as in the recommendation itself.
        raw: Any = result.get_graph()
        found = {id for id, properties in raw._node.items() if isinstance(properties.get(DATA), Action)}
        described = describe_recommendation(actions, found, raw._adj, user, self._store.now)
        if described.actions:
            self._store.record(self._interactions.begin(described))

    def end_interaction(self, user: str = "") -> None:
        """Record the unused tools of the last recommendation in this context, or to this user, and forget it: the next
        recommendation begins another interaction. Without it, a recommendation is forgotten after ten minutes."""
        recommendation = self._interactions.find(user, self._store.now)
        if recommendation is not None:
            self._store.record(self._interactions.close(recommendation))
            self._interactions.forget(recommendation)

    def record_call(self, tool: str, observation: Observation | str | None, user: str = "") -> None:
        """Record a call of a tool as a use of the last recommendation in this context, or to this user; without one, and
        for a tool that is not in the toolkit, nothing is recorded.

        Args:
            tool: id of its vertex.
            observation: None: the call failed in a way that says nothing of the tool, for example by a rate limit.
        """
        recommendation = self._interactions.find(user, self._store.now)
        if recommendation is None or not self._toolkit.is_tool(tool):
            return
        callers = self._toolkit.predecessors(tool)
        self._store.record(
            observe_call(recommendation, tool, callers, None if observation is None else Observation(observation))
        )

    def record_interaction(self, text: str, tools: Iterable[str], user: str = "") -> str | None:
        """Record that the agent called exactly these tools in one action, with success. Returns the id of the action;
        None, and nothing is recorded: no action is similar to the text.

        Calls that were observed already are not counted twice. Without a recommendation for the action, all tools that it
        calls count as recommended.

        Args:
            text: id or name of an action; else the given actions of the last recommendation are meant (if there are
                several, the most similar one), else the most similar action of the toolkit.
            tools: ids.
        """
        toolkit = self._toolkit
        recommendation = self._interactions.find(user, self._store.now)
        action = self._find_action(text, () if recommendation is None else recommendation.actions)
        if action is None:
            return None
        if recommendation is None or recommendation.is_closed or action not in recommendation.actions:
            self.record_recommendation([action], toolkit.subgraph([action, *toolkit.successors(action)]), user)
            recommendation = self._interactions.find(user, self._store.now)
            assert recommendation is not None
        for tool in tools:
            if tool not in recommendation.used:
                self.record_call(tool, Observation.SUCCESS, user)
        self._store.record(self._interactions.close(recommendation))
        return action

    def _find_action(self, text: str, given: tuple[str, ...]) -> str | None:
        raw: Any = self._toolkit.get_graph()
        actions = [data for properties in raw._node.values() if isinstance(data := properties.get(DATA), Action)]
        if not any(text in (action.id, action.name) for action in actions):
            present = [action for action in actions if action.id in given]
            if present:
                return ActionFinder().find(text, present) or given[0]
        return self._finder.find(text, actions)

    def freeze(self) -> None:
        """Stop learning and decay: the scores remain as they are."""
        self._store.freeze()

    def unfreeze(self) -> None:
        """Learn again."""
        self._store.unfreeze()

    def reset(self, u: str | None = None, v: str | None = None) -> None:
        """Forget the evidence of one edge, of all edges from ``u``, or all evidence; in the file and in all processes,
        too.

        Raises:
            ValueError: ``v`` without ``u``.
        """
        if u is None:
            if v is not None:
                raise ValueError("An edge is reset by both of its ends. Give u as well.")
            self._store.reset()
        elif v is None:
            with self._store.reading() as table:
                targets = list(table.find_places(u))
            self._store.reset([(u, target) for target in targets])
        else:
            self._store.reset([(u, v)])

    def write_scores(self, min_observations: float, add_edges_from: float | None) -> list[LearnedScore]:
        """Write learned scores into the toolkit and reset their evidence; see :meth:`ToolkitService.tune`."""
        toolkit = self._toolkit
        written = []
        for each in self.list_scores():
            if each.evidence.weight < min_observations:
                continue
            if not each.has_edge:
                is_new = toolkit.is_action(each.source) and (
                    toolkit.is_tool(each.target) or toolkit.is_action(each.target)
                )
                if add_edges_from is None or each.score < add_edges_from or not is_new:
                    continue
                toolkit.add_edge(each.source, each.target)
            toolkit.set_score(each.source, each.target, each.score)
            written.append(each)
        self._store.reset([(each.source, each.target) for each in written])
        return written

    def flush(self) -> None:
        """Write the evidence to the file, and read that of other processes. Waits for the disk; without a file, nothing
        happens.

        Raises:
            sqlite3.Error: the file cannot be written; the evidence remains in memory and is written later.
            OSError: likewise.
        """
        self._store.flush()

    def close(self) -> None:
        """Write the evidence to the file and observe no further calls. Waits at most 5 s."""
        while self._stop_observing:
            self._stop_observing.pop()()
        self._store.close()

    def _forget_scores(self, u: str | None) -> None:
        if u is None:
            self._scores.clear()
        else:
            self._scores.pop(u, None)
