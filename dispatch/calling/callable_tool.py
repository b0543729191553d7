"""The tools that a model may call in one text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from dispatch.dispatcher.tool import Tool
from dispatch.functions.decorator import NO_DECLARATION, find_declaration
from dispatch.functions.function_tool import FunctionTool


class CallableTool(Protocol):
    """A tool that a model may call: :class:`dispatch.Tool`, or any object with these attributes.

    Two more are read where they exist: ``read_only`` and ``destructive`` (booleans, as in a descriptor). Without them a
    tool is neither.
    """

    @property
    def name(self) -> str:
        """Name that the model writes."""

    @property
    def description(self) -> str:
        """Text by which the model chooses the tool."""

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""

    @property
    def invoke(self) -> Any:
        """Function or coroutine function that is called with the arguments by name."""


class NamedFunction(Protocol):
    """A tool in Chat2Graph's form, such as :class:`dispatch.toolkit.Tool`."""

    @property
    def name(self) -> str:
        """Name that the model writes."""

    @property
    def description(self) -> str:
        """Text by which the model chooses the tool."""

    @property
    def function(self) -> Callable[..., Any]:
        """Function or coroutine function that is called with the arguments by name."""


def list_tools(tools: Iterable[CallableTool | NamedFunction]) -> list[CallableTool]:
    """Return ``tools`` as callable ones, with ``read_result`` if they are tools of a dispatcher, which cuts long results."""
    found = [_convert(tool) for tool in tools]
    owned = next((tool for tool in found if isinstance(tool, Tool)), None)
    if owned is not None and all(tool.name != owned.result_reader.name for tool in found):
        found.append(owned.result_reader)
    return found


def _convert(tool: CallableTool | NamedFunction) -> CallableTool:
    function = None if hasattr(tool, "invoke") else getattr(tool, "function", None)
    if function is None:
        return tool  # type: ignore[return-value]  # what is missing is an error of the call
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Tool) and owner.name == tool.name:
        return owner  # a tool of a dispatcher in a toolkit: it takes the path of a model's calls
    return _FunctionCaller(tool.name, tool.description, function)


class _FunctionCaller:
    """A function with the name and the description that a toolkit gives it."""

    def __init__(self, name: str, description: str, function: Callable[..., Any]) -> None:
        owner = getattr(function, "__self__", None)
        declared = owner if isinstance(owner, Tool) else find_declaration(function) or NO_DECLARATION
        self.name = name
        self.description = description
        self.invoke = function
        self.read_only = declared.read_only
        self.destructive = declared.destructive
        self._handle = owner if isinstance(owner, Tool) else None

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the signature; any object for a signature that no schema describes, such as ``**arguments``."""
        if self._handle is not None:
            return self._handle.parameters
        tool = FunctionTool(self.invoke, None)
        return {"type": "object"} if tool.report.has_errors else tool.arguments.schema
