"""Sessions of agents that follow hidden workflows.

Each action has tools that it may call, with hidden probabilities. A workflow is a fixed sequence of actions, each with one
tool drawn from the probabilities of its action. A session follows one workflow; noise replaces its tool by another one of
the action.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dispatch.toolkit import Action, Tool, Toolkit, ToolkitService

ACTIONS: Final = 30
TOOLS: Final = 120
TOOLS_OF_AN_ACTION: Final = 12
NEXT_ACTIONS: Final = 4
STEPS: Final = (5, 10)
"""Least and greatest length of a workflow."""
SKEW: Final = 1.2
"""The hidden probability of the n-th tool of an action is proportional to n ** -SKEW."""
TOOL_ERRORS: Final = 0.05
"""Share of calls in which the tool reports an error."""

Step = tuple[str, str]
"""An action and the tool that follows."""


@dataclass(frozen=True)
class Call:
    """A step of a session: the tool of the workflow, or another one by noise."""

    action: str
    tool: str
    has_error: bool


class HiddenWorld:
    """A toolkit and what its author does not know: the probabilities of tools and actions.

    The written scores are the author's guess: half of each is the hidden rank, half is chance.
    """

    def __init__(self, seed: int) -> None:
        self._randomness = random.Random(seed)
        self._actions = [f"action-{at:02}" for at in range(ACTIONS)]
        self.tools: dict[str, list[str]] = {}
        """Tools of each action."""
        self._next = {action: self._randomness.sample(self._actions, NEXT_ACTIONS) for action in self._actions}
        names = [f"tool-{at:03}" for at in range(TOOLS)]
        for action in self._actions:
            self.tools[action] = sorted(self._randomness.sample(names, TOOLS_OF_AN_ACTION))
        self.probabilities: dict[str, Mapping[str, float]] = {}
        """Hidden ones, by action and tool."""
        self.shift()
        self._written = {
            (action, tool): 0.5 * rank / (TOOLS_OF_AN_ACTION - 1) + 0.5 * self._randomness.random()
            for action in self._actions
            for rank, tool in enumerate(sorted(self.tools[action], key=self.probabilities[action].__getitem__))
        }

    def shift(self) -> None:
        """Change every hidden probability."""
        for action in self._actions:
            tools = self._randomness.sample(self.tools[action], TOOLS_OF_AN_ACTION)
            weights = [(rank + 1) ** -SKEW for rank in range(TOOLS_OF_AN_ACTION)]
            total = sum(weights)
            self.probabilities[action] = {tool: weight / total for tool, weight in zip(tools, weights, strict=True)}

    def build_toolkit(self) -> Toolkit:
        """Return the toolkit with the written scores."""
        service = ToolkitService()
        for action in self._actions:
            service.add_action(Action(action, action, ""), [], [])
        for action in self._actions:
            service.add_action(
                Action(action, action, ""), [(service.get_action(each), 0.7) for each in self._next[action]], []
            )
            for tool in self.tools[action]:
                service.add_tool(
                    Tool(tool, "", print, id=tool), [(service.get_action(action), self._written[action, tool])]
                )
        return service.get_toolkit()

    def draw_workflows(self, count: int) -> list[list[Step]]:
        """Draw workflows from the present probabilities."""
        return [self._draw_workflow() for _ in range(count)]

    def play(self, workflow: list[Step], noise: float) -> list[Call]:
        """Return a session."""
        calls = []
        for action, tool in workflow:
            if self._randomness.random() < noise:
                tool = self._randomness.choice(self.tools[action])
            calls.append(Call(action, tool, self._randomness.random() < TOOL_ERRORS))
        return calls

    def _draw_workflow(self) -> list[Step]:
        action = self._randomness.choice(self._actions)
        steps = []
        for _ in range(self._randomness.randint(*STEPS)):
            tools = self.probabilities[action]
            steps.append((action, self._randomness.choices(list(tools), list(tools.values()))[0]))
            action = self._randomness.choice(self._next[action])
        return steps
