"""The toolkit service: adds actions, tools and groups, and recommends."""

from __future__ import annotations

import asyncio
import contextvars
import warnings
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from dispatch._internal import check_instance, describe_type
from dispatch.calling import CallableTool
from dispatch.toolkit.drawing import draw_figure
from dispatch.toolkit.graph import DEFAULT_HOPS, DEFAULT_THRESHOLD, Action, Tool, ToolGroup, ToolkitWarning
from dispatch.toolkit.learning import LearnedScore
from dispatch.toolkit.toolkit import Toolkit, recommend_subgraph

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Chains: actions in a row, each with its tools.


Item = Action | Tool | ToolGroup | CallableTool
ChainItem = Item | tuple[Item, ...]


def lay_out_chain(items: tuple[ChainItem, ...]) -> list[tuple[Action, list[Any]]]:
    """Return the actions of a chain in order, each with its tools and groups.

    A tool or group belongs to the action directly before it. A tuple that begins with an action is laid out in line; another
    tuple holds tools and groups of the action before it.

    Raises:
        ValueError: the order of the items breaks these rules.
        TypeError: an item is of another type.
    """
    steps: list[tuple[Action, list[Any]]] = []
    previous: Any = None
    for item in items:
        in_line: Any = item if isinstance(item, tuple) and item and isinstance(item[0], Action) else (item,)
        for each in in_line:
            if isinstance(each, Action):
                steps.append((each, []))
            elif not steps:
                raise ValueError("Chain must start with an Action.")
            else:
                steps[-1][1].extend(_read_tools(each, previous))
            previous = each
    return steps


def _read_tools(item: Any, previous: Any) -> tuple[Any, ...]:
    """Return the tools and groups of an item of a chain; ``previous``: the one before it."""
    if not isinstance(item, tuple) and not _is_tool(item):
        raise TypeError(f"Invalid chain item type: {type(item).__name__}")
    if isinstance(previous, tuple):
        raise ValueError("A parallel connection tuple can only be followed by an Action.")
    if not isinstance(previous, Action):
        kind = "ToolGroup" if isinstance(previous, ToolGroup) else "Tool"
        raise ValueError(f"{kind} can only be followed by an Action.")
    tools = item if isinstance(item, tuple) else (item,)
    if not all(map(_is_tool, tools)):
        raise ValueError("Parallel connection tuples can only contain Tools or ToolGroups.")
    return tools


def _is_tool(item: object) -> bool:
    """Return whether an item of a chain is a tool or a group."""
    if isinstance(item, Tool | ToolGroup):
        return True
    return not isinstance(item, type) and hasattr(item, "invoke") and hasattr(item, "name")


# Runs a coroutine from synchronous code, also while an event loop runs in this thread.


Result = TypeVar("Result")


def run_coroutine(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``coroutine``. It runs on an event loop of its own in another thread, with the context variables
    of the caller; the calling thread waits for it."""
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1, thread_name_prefix="dispatch-toolkit") as executor:
        return executor.submit(context.run, asyncio.run, coroutine).result()


ScoredActions = Sequence[tuple[Action, float]]
"""Actions with the scores of their edges."""


class ToolkitService:
    """Builds a toolkit, and recommends actions and tools of it.

    Args:
        toolkit: None: an empty one.
    """

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        check_instance("toolkit", toolkit, (Toolkit, NoneType), "a Toolkit, such as Toolkit.load('toolkit.yml')")
        self._toolkit = Toolkit() if toolkit is None else toolkit

    def get_toolkit(self) -> Toolkit:
        """Return the toolkit itself."""
        return self._toolkit

    def add_tool(self, tool: Tool | CallableTool, connected_actions: ScoredActions) -> None:
        """Add a tool with a Call edge from each action. A tool that no action of the toolkit calls is refused with a
        :class:`ToolkitWarning`, unless it is in the toolkit already.

        Args:
            tool: a Tool, or a :class:`dispatch.BoundTool`: its id is its name.
            connected_actions: the actions that call it, with scores.

        Raises:
            ValueError: a score is not in [0, 1], or an action or a group has the id of the tool.
            TypeError: ``tool`` is none, or ``connected_actions`` has anything but pairs of an action and a score.
        """
        tool = Tool.of(tool)
        known = self._select_known(connected_actions, f"tool {tool.name!r}")
        if not known and not self._toolkit.has_vertex(tool.id):
            _warn(f"Tool {tool.name!r} is not added: no action of the toolkit calls it. Add an action first.")
            return
        self._add_vertex(tool.id, tool, Tool)
        self._connect(((action.id, tool.id, score) for action, score in known))

    def add_tool_group(self, tool_group: ToolGroup, connected_actions: ScoredActions) -> None:
        """Add a group and its tools, or refresh a group: tools that it no longer lists are removed, whichever actions call
        them; those with a known name keep their vertex and edges. Every tool gets a Call edge from each action.

        The tools are listed on an event loop in another thread; this thread waits for it. If the listing fails, the toolkit
        is unchanged.

        Raises:
            Exception: of ``tool_group.list_tools``.
            ValueError: a score is not in [0, 1].
        """
        toolkit, group = self._toolkit, tool_group.get_id()
        known = self._select_known(connected_actions, f"group {tool_group.name!r}")
        if not known and not toolkit.is_tool_group(group):
            _warn(f"Group {tool_group.name!r} is not added: no action of the toolkit calls it. Add an action first.")
            return
        tools = run_coroutine(tool_group.list_tools())
        if not tools:
            _warn(f"Group {tool_group.name!r} lists no tools, and a group without tools is not in the toolkit.")
            toolkit.remove_vertex(group)
            return
        former = {}
        if toolkit.is_tool_group(group):
            former = {tool.name: id for id in toolkit.successors(group) if (tool := toolkit.get_tool(id)) is not None}
        toolkit.add_vertex(group, data=tool_group)
        ids = set()
        for tool in tools:
            id = former.get(tool.name, tool.id)
            toolkit.add_vertex(id, data=tool if tool.id == id else tool.with_id(id))
            self._connect([(group, id, 1.0), *((action.id, id, score) for action, score in known)])
            ids.add(id)
        for id in former.values():
            if id not in ids:
                self._remove_from_group(group, id)

    def add_action(self, action: Action, next_actions: ScoredActions, prev_actions: ScoredActions) -> None:
        """Add an action with Next edges to and from actions of the toolkit; unknown ones are ignored.

        Raises:
            ValueError: a score is not in [0, 1], or a tool or a group has the id of the action.
            TypeError: an argument is of another type.
        """
        toolkit = self._toolkit
        check_instance("action", action, Action, "an Action(id, name, description)")
        following, preceding = read_scores("next_actions", next_actions), read_scores("prev_actions", prev_actions)
        self._add_vertex(action.id, action, Action)
        self._connect((action.id, each.id, score) for each, score in following if toolkit.has_vertex(each.id))
        self._connect((each.id, action.id, score) for each, score in preceding if toolkit.has_vertex(each.id))

    def chain(self, *item_chain: ChainItem) -> ToolkitService:
        """Add actions that follow each other, each with its tools: ``chain(action, (tool, group), action2)``. Every edge has
        the score 1.0. Nothing is added if an item is at fault. Returns this service.

        A tool or group belongs to the action directly before it. A tuple that begins with an action is laid out in line;
        another tuple holds tools and groups of the action before it.

        Raises:
            ValueError: the order of the items breaks these rules.
            TypeError: an item is of another type.
        """
        previous: list[tuple[Action, float]] = []
        for action, tools in lay_out_chain(item_chain):
            self.add_action(action, next_actions=[], prev_actions=previous)
            previous = [(action, 1.0)]
            for each in tools:
                if isinstance(each, ToolGroup):
                    self.add_tool_group(each, connected_actions=previous)
                else:
                    self.add_tool(each, connected_actions=previous)
        return self

    def get_action(self, action_id: str) -> Action:
        """Return a copy of an action. Raises ValueError: there is no such action."""
        action = self._toolkit.get_action(action_id)
        if action is None:
            raise ValueError(f"Action {action_id} not found in the toolkit graph")
        return action

    def remove_tool(self, tool_id: str) -> None:
        """Remove a tool, and its group if it was the last one of it."""
        self._toolkit.remove_vertex(tool_id)

    def remove_action(self, action_id: str) -> None:
        """Remove an action and the tools that no other vertex points to."""
        self._toolkit.remove_vertex(action_id)

    def recommend_subgraph(
        self,
        actions: Iterable[Action],
        threshold: float = DEFAULT_THRESHOLD,
        hops: int = DEFAULT_HOPS,
        *,
        user: str = "",
    ) -> Toolkit:
        """Return the actions and tools within reach of ``actions``, as a new toolkit.

        Next edges with a score ≥ ``threshold`` are followed for ``hops`` steps; then the tools are added that one of these
        actions calls with a score ≥ ``threshold``. Unknown actions are ignored; edges below the threshold are omitted.

        Args:
            threshold: smallest score of an edge.
            hops: steps along Next edges. 0: the tools of ``actions`` alone.
            user: of the tools of a live catalogue, only those that this user may call are recommended, and their functions
                call them on the user's behalf.

        Raises:
            ValueError: ``hops`` is negative, or ``threshold`` is not a number.
            TypeError: an argument is of another type.
            RejectedError: ``permissions-unavailable``: the permissions of ``user`` come from a callable, and its answer is
                not cached. ``await dispatcher.tools(user=user)`` asks for them.
        """
        check_instance("actions", actions, Iterable, "a list of actions, such as [look]")
        ids = []
        for action in actions:
            check_instance("each of actions", action, Action, "an Action, such as get_action(id) returns")
            ids.append(action.id)
        check_instance("hops", hops, int, "a whole number")
        check_instance("threshold", threshold, (int, float), "a number")
        follower, learner = self._toolkit.follower, self._toolkit.learner
        found = recommend_subgraph(self._toolkit, ids, threshold, hops, user)
        if follower is not None:
            for id in filter(follower.has_tool, list(found.get_graph())):
                found.add_vertex(id, data=follower.bind_tool(id, user))
        if learner is not None:
            learner.record_recommendation(ids, found, user)
        return found

    def recommend_tools_actions(
        self,
        actions: Iterable[Action],
        threshold: float = DEFAULT_THRESHOLD,
        hops: int = DEFAULT_HOPS,
        *,
        user: str = "",
    ) -> tuple[list[Tool], list[Action]]:
        """Return the tools and the actions of :meth:`recommend_subgraph`, both in topological order."""
        subgraph = self.recommend_subgraph(actions, threshold, hops, user=user)
        found = [subgraph.get_data(id) for id in subgraph.vertices()]
        return [each for each in found if isinstance(each, Tool)], [each for each in found if isinstance(each, Action)]

    def update_action(self, text: str, called_tools: Iterable[Tool | CallableTool], *, user: str = "") -> Action | None:
        """Learn that the agent called exactly these tools in one action, with success: their scores rise, and those of
        recommended tools that were not called fall. If the toolkit does not learn yet, it begins to, in memory.

        Not needed for calls that a learner observes (:meth:`Toolkit.learn`); such calls are not counted twice.

        Args:
            text: id or name of an action; else the action of the last recommendation in this context is meant, else the
                one whose name and description are most similar.
            called_tools: none: no tool was called.
            user: of the recommendation.

        Returns:
            The action; None, with a :class:`ToolkitWarning`: the text is similar to no action, and nothing is learned.
        """
        toolkit = self._toolkit
        learner = toolkit.learner or toolkit.learn()
        action = learner.record_interaction(text, [Tool.of(tool).id for tool in called_tools], user)
        if action is None:
            _warn(f"Nothing is learned from {text[:80]!r}: it is similar to no action. Give the id or name of one.")
            return None
        return self.get_action(action)

    def tune(self, *, min_observations: float = 1.0, add_edges_from: float | None = None) -> list[LearnedScore]:
        """Write learned scores into the toolkit, so that :meth:`Toolkit.save` saves them. Their evidence is reset:
        learning starts again at the new written scores.

        Args:
            min_observations: decayed weight of the evidence below which an edge is skipped.
            add_edges_from: learned score from which an edge is added for tools and actions that were used without being
                recommended; None: no edge is added.

        Returns:
            The scores that were written.
        """
        learner = self._toolkit.learner
        return [] if learner is None else learner.write_scores(min_observations, add_edges_from)

    def visualize(self, graph: Toolkit, title: str, show: bool = False) -> Figure:
        """Draw a toolkit of at most 500 vertices with matplotlib, the extra ``draw``. Nothing remains in ``pyplot``: the
        figure is freed with its last reference.

        Args:
            show: open the picture with the desktop's viewer or browser.

        Raises:
            ValueError: the toolkit has too many vertices.
            ImportError: matplotlib is missing.
        """
        check_instance("graph", graph, Toolkit, "a Toolkit, such as get_toolkit() returns")
        return draw_figure(graph, title, show)

    def _select_known(self, actions: ScoredActions, what: str) -> list[tuple[Action, float]]:
        known = []
        for action, score in read_scores("connected_actions", actions):
            if self._toolkit.is_action(action.id):
                known.append((action, score))
            else:
                _warn(f"Action {action.name!r} ({action.id}) of {what} is ignored: it is not in the toolkit.", depth=4)
        return known

    def _add_vertex(self, id: str, data: Action | Tool, kind: type) -> None:
        """Add a vertex unless there is one.

        Raises:
            ValueError: it is of another kind.
        """
        found = self._toolkit.get_data(id)
        if found is None:
            self._toolkit.add_vertex(id, data=data)
        elif not isinstance(found, kind):
            raise ValueError(
                f"{data.name!r} cannot be added: the id {id!r} belongs to the {type(found).__name__} {found.name!r}. "
                "Give one of them another id."
            )

    def _connect(self, edges: Iterable[tuple[str, str, float]]) -> None:
        for u, v, score in edges:
            self._toolkit.add_edge(u, v)
            self._toolkit.set_score(u, v, score)

    def _remove_from_group(self, group: str, tool: str) -> None:
        """Remove a tool that a group no longer lists; if another group has it, only the edge."""
        toolkit = self._toolkit
        toolkit.remove_edge(group, tool)
        if not any(toolkit.is_tool_group(each) for each in toolkit.predecessors(tool)):
            toolkit.remove_vertex(tool)


def read_scores(name: str, actions: ScoredActions) -> list[tuple[Action, float]]:
    """Return the pairs of actions and scores in the argument ``name``.

    Raises:
        TypeError: it has anything else.
        ValueError: a score is not in [0, 1].
    """
    form = "a list of actions with scores, such as [(look, 0.9)]"
    check_instance(name, actions, Iterable, form)
    found = []
    for each in actions:
        if not isinstance(each, tuple | list) or len(each) != 2 or not isinstance(each[0], Action):
            raise TypeError(f"{name} must be {form}; it has {describe_type(each)}.")
        action, score = each
        check_instance(f"the score of action {action.name!r}", score, (int, float), "a number from 0 to 1")
        if not 0 <= score <= 1:
            raise ValueError(f"The score {score!r} of action {action.name!r} is not in [0, 1]. Give one that is.")
        found.append((action, score))
    return found


def _warn(text: str, depth: int = 3) -> None:
    """Warn with the place of the user's call, ``depth`` frames above."""
    warnings.warn(text, ToolkitWarning, stacklevel=depth)
