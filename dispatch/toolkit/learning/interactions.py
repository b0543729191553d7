"""Interactions of agents: which recommendation a call belongs to, and which observations follow from it."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from dispatch.toolkit.learning.evidence import ONE, Evidence, Observation
from dispatch.toolkit.learning.evidence_file import Edge

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
        time: seconds.
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
        found = _last.get({}).get(self._number)
        if found is None or found.user != user:
            found = self._users.get(user)
        return found if found is not None and now - found.time <= MAX_PAUSE else None

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
            self._users[recommendation.user] = recommendation
            self._users.move_to_end(recommendation.user)
            if len(self._users) > MAX_USERS:
                self._users.popitem(last=False)
        return observed

    def forget(self, recommendation: Recommendation) -> None:
        """Let later calls and recommendations belong to another interaction."""
        last = dict(_last.get({}))
        if last.get(self._number) is recommendation:
            del last[self._number]
            _last.set(last)
        if self._users.get(recommendation.user) is recommendation:
            del self._users[recommendation.user]

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
