"""A tool as a model uses it: described by name and schema, answered by text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError
from dispatch.result import CallResult
from dispatch.results import ReadResultTool, ResultFormatter

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher, Tool


class ToolAnswer(NamedTuple):
    """What a model reads after a call.

    Attributes:
        text: the result, or the error text: ``{"error", "message", "retryable", "retry_after", "alternatives"}``.
        is_error: the call failed.
        error: of the call; None: it succeeded, or the answer does not match the tool's output schema.
    """

    text: str
    is_error: bool
    error: DispatchError | None = None


class ModelTool:
    """A tool of a dispatcher for one user, or ``read_result``, with which a model reads the rest of a long result.

    Attributes:
        name: name for the model.
        description: text by which the model chooses the tool.
        parameters: JSON Schema of the arguments.
    """

    def __init__(self, dispatcher: Dispatcher, tool: Tool | ReadResultTool) -> None:
        self._dispatcher = dispatcher
        self._tool = tool
        self.name = tool.name
        self.description = tool.description
        self.parameters = tool.parameters

    @property
    def read_only(self) -> bool:
        """The tool is declared to change nothing."""
        return self._tool.read_only

    @property
    def destructive(self) -> bool | None:
        """The tool is declared to destroy something (true) or not (false); None: not declared."""
        return self._tool.destructive

    @property
    def idempotent(self) -> bool:
        """The tool is declared to have no further effect when it is called again."""
        return isinstance(self._tool, ReadResultTool) or self._tool.descriptor.idempotent

    async def answer(self, arguments: Mapping[str, Any], *, user: str | None = None, context: Any = None) -> ToolAnswer:
        """Call the tool with arguments that a model wrote. A failed call is an answer; only cancellation is raised.

        Args:
            user: on whose behalf; None: the user of the list that the tool is from.
            context: any value, for functions of this process (:class:`dispatch.CallContext`).
        """
        tool = self._tool
        user = tool.user if user is None else user
        if isinstance(tool, ReadResultTool):
            return await _read_result(self._dispatcher, arguments, user)
        if user == tool.user:
            result = await tool.execute(arguments, by_model=True, context=context)
            return _read_content(tool.format_result(result), result)
        return await answer_call(self._dispatcher, self.name, arguments, user=user, context=context)


async def list_model_tools(dispatcher: Dispatcher, user: str, **filters: Any) -> tuple[ModelTool, ...]:
    """Return the tools that ``user`` may call now, and ``read_result``.

    Args:
        filters: as of :meth:`dispatch.Dispatcher.tools`.
    """
    tools: Iterable[Tool] = await dispatcher.tools(user=user, **filters)
    found = {tool.name: ModelTool(dispatcher, tool) for tool in tools}
    if found:
        reader = ReadResultTool(dispatcher.results, user)
        found.setdefault(reader.name, ModelTool(dispatcher, reader))
    return tuple(found.values())


async def answer_call(
    dispatcher: Dispatcher, name: str, arguments: Mapping[str, Any], *, user: str = "", context: Any = None
) -> ToolAnswer:
    """Call a tool by name with arguments that a model wrote; see :meth:`ModelTool.answer`. An unknown name is an answer,
    too."""
    if name == ReadResultTool.name and name not in dispatcher.catalog.tools:
        return await _read_result(dispatcher, arguments, user)
    result = await dispatcher.execute(name, arguments, user=user, by_model=True, context=context)
    try:
        content = dispatcher.tool(name, user=user).format_result(result)
    except DispatchError:  # unknown, not permitted, or removed during the call
        content = ResultFormatter(dispatcher.results).format(result, user=user)
    return _read_content(content, result)


async def _read_result(dispatcher: Dispatcher, arguments: Mapping[str, Any], user: str) -> ToolAnswer:
    reader = ReadResultTool(dispatcher.results, user)
    unknown = sorted(arguments.keys() - reader.parameters["properties"].keys())
    try:
        if unknown or "handle" not in arguments:
            problem = f"there is no argument {unknown[0]!r}" if unknown else "the argument 'handle' is missing"
            message = f"The result was not read: {problem}. Correct the arguments."
            raise InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, message)
        return ToolAnswer(await reader.invoke(**arguments), False)
    except DispatchError as error:
        return ToolAnswer(ResultFormatter.format_error(error), True, error)


def _read_content(content: Mapping[str, Any], result: CallResult) -> ToolAnswer:
    text = "\n".join(each["text"] for each in content["content"])
    return ToolAnswer(text, bool(content.get("isError")), result.error)
