"""Chains: actions in a row, each with its tools."""

from __future__ import annotations

from typing import Any

from dispatch.toolkit.action import Action
from dispatch.toolkit.tool import DispatchTool, Tool
from dispatch.toolkit.tool_group import ToolGroup

Item = Action | Tool | ToolGroup | DispatchTool
ChainItem = Item | tuple[Item, ...]


def lay_out_chain(items: tuple[ChainItem, ...]) -> list[tuple[Action, list[Any]]]:
    """Return the actions of a chain in order, each with its tools and groups.

    A tool or group belongs to the action directly before it. A tuple that begins with an action is laid out in line; another
    tuple holds tools and groups of the action before it.

    Raises:
        ValueError: the order of the items breaks these rules.
        TypeError: an item is of another type.
    """
    flat = _flatten(items)
    _check_order(flat)
    steps: list[tuple[Action, list[Any]]] = []
    for item in flat:
        if isinstance(item, Action):
            steps.append((item, []))
        else:
            steps[-1][1].extend(item if isinstance(item, tuple) else (item,))
    return steps


def _flatten(items: tuple[ChainItem, ...]) -> list[Any]:
    flat: list[Any] = []
    for item in items:
        if isinstance(item, tuple) and item and isinstance(item[0], Action):
            flat.extend(item)
        else:
            flat.append(item)
    return flat


def _check_order(items: list[Any]) -> None:
    if items and not isinstance(items[0], Action):
        raise ValueError("Chain must start with an Action.")
    previous: Any = None
    for item in items:
        if not isinstance(item, Action | tuple | ToolGroup) and not _is_tool(item):
            raise TypeError(f"Invalid chain item type: {type(item).__name__}")
        if not isinstance(item, Action):
            if isinstance(previous, tuple):
                raise ValueError("A parallel connection tuple can only be followed by an Action.")
            if not isinstance(previous, Action):
                kind = "ToolGroup" if isinstance(previous, ToolGroup) else "Tool"
                raise ValueError(f"{kind} can only be followed by an Action.")
            if isinstance(item, tuple) and not all(isinstance(each, ToolGroup) or _is_tool(each) for each in item):
                raise ValueError("Parallel connection tuples can only contain Tools or ToolGroups.")
        previous = item


def _is_tool(item: object) -> bool:
    return isinstance(item, Tool) or (not isinstance(item, type) and hasattr(item, "invoke") and hasattr(item, "name"))
