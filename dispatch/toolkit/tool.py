"""Tools of a toolkit, with the names of Chat2Graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol
from uuid import uuid4


class ToolType(Enum):
    """How a tool is executed."""

    LOCAL_TOOL = "LOCAL_TOOL"
    """A Python function."""
    MCP_TOOL = "MCP_TOOL"
    """A tool of an MCP server."""
    DISPATCH_TOOL = "DISPATCH_TOOL"
    """A tool of a dispatcher's catalogue. Not in Chat2Graph."""


class DispatchTool(Protocol):
    """The attributes of :class:`dispatch.Tool` that a toolkit uses."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def invoke(self) -> Callable[..., Any]: ...


class Tool:
    """A function that a model may call.

    Args:
        name: name for the model.
        description: text by which the model chooses the tool.
        function: called with named arguments; sync or async.
        tool_type: how it is executed.
        id: id of its vertex; None: a new one.
    """

    def __init__(
        self,
        name: str,
        description: str,
        function: Callable[..., Any],
        tool_type: ToolType = ToolType.LOCAL_TOOL,
        *,
        id: str | None = None,
    ) -> None:
        self._id = str(uuid4()) if id is None else id
        self._name = name
        self._description = description
        self._function = function
        self._type = tool_type

    @classmethod
    def of(cls, tool: Tool | DispatchTool) -> Tool:
        """Return ``tool`` itself, or the vertex of a :class:`dispatch.Tool`: its id is the name of the tool."""
        if isinstance(tool, Tool):
            return tool
        return Tool(tool.name, tool.description, tool.invoke, ToolType.DISPATCH_TOOL, id=tool.name)

    @property
    def id(self) -> str:
        """Id of the vertex."""
        return self._id

    @property
    def name(self) -> str:
        """Name for the model."""
        return self._name

    @property
    def description(self) -> str:
        """Text by which the model chooses the tool."""
        return self._description

    @property
    def tool_type(self) -> ToolType:
        """How the tool is executed."""
        return self._type

    @property
    def function(self) -> Callable[..., Any]:
        """The function that is called with named arguments."""
        return self._function

    def copy(self) -> Tool:
        """Return a copy with the same id."""
        return copy.copy(self)

    def with_id(self, id: str) -> Tool:
        """Return a copy with another id."""
        copied = self.copy()
        copied._id = id
        return copied

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"
