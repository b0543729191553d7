"""Learning the scores of a toolkit's edges from use."""

from __future__ import annotations

import itertools
import math
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch._internal import remember
from dispatch.errors import Outcome
from dispatch.search.index import BM25Index, split_terms
from dispatch.toolkit.evidence import (
    ONE,
    PRIOR_STRENGTH,
    UNUSED_WEIGHT,
    Edge,
    Evidence,
    EvidenceStore,
    Observation,
    compute_score,
)
from dispatch.toolkit.graph import DATA, DEFAULT_SCORE, SCORE, Action, Graph, Tool

if TYPE_CHECKING:
    from dispatch.calls.call import FinishedCall
    from dispatch.dispatcher import Dispatcher


OBSERVATIONS: Final = {Outcome.SUCCESS: Observation.SUCCESS, Outcome.TOOL_ERROR: Observation.TOOL_ERROR}
"""The other outcomes, such as a rate limit or a timeout, say nothing of whether the tool fits the action."""


# Finds the action that a text is about.


NAME_WEIGHT = 2
"""A term of the name counts as two of the description."""


class ActionFinder:
    """An index of actions by name and description."""

    def __init__(self) -> None:
        self._index: BM25Index[str] = BM25Index()
        self._texts: dict[str, tuple[str, str]] = {}
        """Names and descriptions of the actions in the index."""

    def find(self, text: str, actions: Iterable[Action]) -> str | None:
        """Return the id of the action whose id or name is ``text``, else of the most similar one; None: no term in common.

        Args:
            actions: all actions; only those that have changed since the last call are indexed again.
        """
        current = {action.id: action for action in actions}
        if text in current:
            return text
        named = [action.id for action in current.values() if action.name == text]
        if named:
            return named[0]
        self._update(current)
        scores = self._index.score(dict.fromkeys(split_terms(text), 1.0))
        return max(current, key=lambda id: scores.get(id, 0.0)) if scores else None

    def _update(self, current: dict[str, Action]) -> None:
        for id in self._texts.keys() - current.keys():
            self._index.remove(id)
            del self._texts[id]
        for id, action in current.items():
            texts = action.name, action.description
            if self._texts.get(id) != texts:
                self._texts[id] = texts
                self._index.add(id, Counter([*split_terms(texts[0]) * NAME_WEIGHT, *split_terms(texts[1])]))


# Interactions of agents: which recommendation a call belongs to, and which observations follow from it.


MAX_PAUSE: Final = 600.0
"""Seconds after which a recommendation is forgotten: a later call or recommendation belongs to another interaction."""
MAX_USERS: Final = 1_000
"""Users whose last recommendation is retained."""

Observed = tuple[Edge, Evidence]


@dataclass(slots=True)
class Recommendation:
    """A recommendation and the calls that followed.

    Attributes:
        actions: the given ones: the present state of the agent.
        reached: actions that were added by following Next edges.
        tools: recommended tools of each given action.
        next_actions: recommended next actions of each given action.
        time: seconds; -inf: it is forgotten.
        used: tools that were called.
        is_closed: its unused tools and next actions have been observed.
    """

    user: str
    actions: tuple[str, ...]
    reached: frozenset[str]
    tools: Mapping[str, Collection[str]]
    next_actions: Mapping[str, Collection[str]]
    time: float
    used: set[str] = field(default_factory=set)
    is_closed: bool = False


_last: ContextVar[Mapping[int, Recommendation]] = ContextVar("dispatch_toolkit_recommendations")
"""The last recommendation in this context, for each :class:`Interactions`."""
_numbers = itertools.count()


class Interactions:
    """The last recommendation of each context and of each user.

    A call belongs to the last recommendation in its context (the asyncio task with the tasks that it has started since)
    that was for the same user. Without one, it belongs to the last recommendation to its user, unless the user is ``""``.
    """

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._users: OrderedDict[str, Recommendation] = OrderedDict()

    def find(self, user: str, now: float) -> Recommendation | None:
        """Return the recommendation that a call of ``user`` in this context belongs to."""
        last = [each for each in (_last.get({}).get(self._number), self._users.get(user)) if each is not None]
        return next((each for each in last if each.user == user and now - each.time <= MAX_PAUSE), None)

    def begin(self, recommendation: Recommendation) -> list[Observed]:
        """Make it the last one, and return the observations that follow from the one before: its unused tools, and the
        next action.

        The same actions again without a call in between are no evidence: the agent asked twice.
        """
        previous = self.find(recommendation.user, recommendation.time)
        observed: list[Observed] = []
        if previous is not None and not (previous.actions == recommendation.actions and not previous.used):
            observed = [*self.close(previous), *_observe_next(previous, recommendation.actions)]
        _last.set({**_last.get({}), self._number: recommendation})
        if recommendation.user:
            remember(self._users, recommendation.user, recommendation, MAX_USERS)
        return observed

    def forget(self, recommendation: Recommendation) -> None:
        """Let later calls and recommendations belong to another interaction."""
        recommendation.time = -math.inf

    def close(self, recommendation: Recommendation) -> list[Observed]:
        """Return the observations of its unused tools, once."""
        if recommendation.is_closed:
            return []
        recommendation.is_closed = True
        return [
            ((action, tool), ONE[Observation.UNUSED])
            for action, tools in recommendation.tools.items()
            for tool in tools
            if tool not in recommendation.used
        ]


def observe_call(
    recommendation: Recommendation, tool: str, callers: Collection[str], observation: Observation | None
) -> list[Observed]:
    """Return the observations of a call. They concern the given actions that call the tool; else the reached ones that
    do; else all given ones, although no edge exists.

    Args:
        callers: actions with a Call edge to the tool.
        observation: None: the call shows only that the tool was chosen.
    """
    recommendation.used.add(tool)
    if observation is None:
        return []
    actions: Iterable[str] = [action for action in recommendation.actions if action in callers]
    actions = actions or sorted(recommendation.reached.intersection(callers)) or recommendation.actions
    return [((action, tool), ONE[observation]) for action in actions]


def _observe_next(previous: Recommendation, actions: tuple[str, ...]) -> list[Observed]:
    observed = []
    for action in previous.actions:
        if action in actions:
            continue  # the agent has not left it
        for id in actions:
            observed.append(((action, id), ONE[Observation.SUCCESS]))
        for id in previous.next_actions.get(action, ()):
            if id not in actions:
                observed.append(((action, id), ONE[Observation.UNUSED]))
    return observed


def describe_recommendation(
    given: Iterable[str], found: Collection[str], adjacent: Mapping[str, Iterable[str]], user: str, now: float
) -> Recommendation:
    """Return the record of a recommendation.

    Args:
        given: ids of the given actions; those that are not in the result are ignored.
        found: ids of all actions of the result.
        adjacent: targets of its edges, by action.
    """
    actions = tuple(action for action in dict.fromkeys(given) if action in found)
    return Recommendation(
        user,
        actions,
        frozenset(found).difference(actions),
        {action: [id for id in adjacent[action] if id not in found] for action in actions},
        {action: [id for id in adjacent[action] if id in found] for action in actions},
        now,
    )


# The learner of a toolkit: scores of its edges from use.


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
        toolkit: Graph,
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
            path, half_life_days * DAY, time.time if clock is None else clock, on_changed=self.forget_scores
        )

    def observe(self, dispatcher: Dispatcher) -> None:
        """Record the calls of a dispatcher as uses of recommendations. Several dispatchers may be observed."""
        reference = weakref.ref(self)  # the listener does not keep the learner alive

        def on_call(call: FinishedCall) -> None:
            learner = reference()
            if learner is None:
                unsubscribe()
            else:
                learner.record_call(call.tool, OBSERVATIONS.get(call.result.outcome), call.user)

        unsubscribe = dispatcher.on_call(on_call)
        self._stop_observing.append(unsubscribe)

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

    def record_recommendation(self, actions: Iterable[str], result: Graph, user: str) -> None:
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
        if recommendation is None or not self._toolkit.is_vertex(tool, Tool):
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
            successors = toolkit.get_graph().subgraph([action, *toolkit.successors(action)])
            self.record_recommendation([action], Graph(successors.copy()), user)
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
                is_new = toolkit.is_vertex(each.source, Action) and toolkit.is_vertex(each.target, Tool | Action)
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

    def forget_scores(self, u: str | None) -> None:
        """Compute the scores of the edges from ``u`` again, or all: a written one, or the evidence, has changed."""
        if u is None:
            self._scores.clear()
        else:
            self._scores.pop(u, None)
