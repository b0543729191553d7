"""Actions of a toolkit: the decision points of an agent."""

from __future__ import annotations

from dataclasses import dataclass, field

from dispatch.toolkit.tool import Tool


@dataclass
class Action:
    """A state or decision point of an agent.

    Attributes:
        id: id of its vertex.
        name: name for the model.
        description: text by which the model recognizes the action.
        next_action_ids: ids of actions that follow. For the user's own purposes, as in Chat2Graph: the graph has the edges.
        tools: tools of the action. For the user's own purposes, too.
    """

    id: str
    name: str
    description: str
    next_action_ids: list[str] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)

    def copy(self) -> Action:
        """Return a copy with the same id."""
        tools = [tool.copy() for tool in self.tools]
        return Action(self.id, self.name, self.description, list(self.next_action_ids), tools)
