"""Actions, tools and groups for tests of toolkits."""

from __future__ import annotations

from dispatch.toolkit import Action, Tool, ToolGroup, ToolGroupConfig, ToolGroupType, ToolkitService


async def query(text: str) -> str:
    return f"found {text}"


def action(number: int) -> Action:
    return Action(id=f"action {number}", name=f"Action {number}", description=f"Description {number}")


def tool(number: int) -> Tool:
    return Tool(f"tool_{number}", f"Tool number {number}", query, id=f"tool {number}")


class Group(ToolGroup):
    """A group with given tools; every listing creates new ones, as an MCP server does."""

    def __init__(self, name: str, *names: str) -> None:
        super().__init__(ToolGroupConfig(ToolGroupType.MCP, name), id=f"group {name}")
        self.names = names

    async def list_tools(self) -> list[Tool]:
        return [Tool(name, f"About {name}", query) for name in self.names]


def four_actions() -> ToolkitService:
    """Four actions in a diamond with a shortcut, each with one tool: 8 vertices, 9 edges."""
    service = ToolkitService()
    one, two, three, four = (action(number) for number in range(1, 5))
    service.add_action(one, next_actions=[(two, 0.8), (three, 0.6)], prev_actions=[])
    service.add_action(two, next_actions=[(three, 0.7), (four, 0.9)], prev_actions=[(one, 0.8)])
    service.add_action(three, next_actions=[(four, 0.7)], prev_actions=[(one, 0.6), (two, 0.7)])
    service.add_action(four, next_actions=[], prev_actions=[(two, 0.9), (three, 0.7)])
    for number, score in enumerate((0.9, 0.8, 0.9, 0.8), 1):
        service.add_tool(tool(number), connected_actions=[(action(number), score)])
    return service
