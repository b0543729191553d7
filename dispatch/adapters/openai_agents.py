"""Tools for the OpenAI Agents SDK. Needs openai-agents: the extra ``openai-agents``."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from dispatch.adapters.dialects import Style, fit_schema
from dispatch.adapters.models import ModelTool, list_model_tools, missing_extra
from dispatch.calling import parse
from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.results import ResultFormatter

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


try:
    from agents import FunctionTool, RunContextWrapper
    from agents.tool_context import ToolContext
except ImportError:
    raise missing_extra("openai_agents", "openai-agents") from None


UserOf = Callable[[RunContextWrapper[Any]], str]


async def tools(dispatcher: Dispatcher, *, user: str | UserOf = "", **filters: Any) -> list[FunctionTool]:
    """Return the tools that ``user`` may call now, for ``Agent(tools=…)``. Call it for each run: the catalogue may have
    changed.

    A failed call is the tool's output with the error text: the SDK has no mark for errors. Nothing is raised but
    cancellation. Strict mode is used where it loses nothing.

    Args:
        user: on whose behalf, or a function of the run's context, such as ``lambda context: context.context.user``. With a
            function the tools without permissions are listed.
        filters: as of :meth:`dispatch.Dispatcher.tools`.

    Raises:
        RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
    """
    listed = await list_model_tools(dispatcher, user if isinstance(user, str) else "", **filters)
    return [create_tool(tool, None if isinstance(user, str) else user) for tool in listed]


def create_tool(tool: ModelTool, user_of: UserOf | None = None) -> FunctionTool:
    """Return one tool."""
    fitted = fit_schema(tool.parameters, Style.OPENAI_RESPONSES)
    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=fitted.schema,
        on_invoke_tool=_create_invoker(tool, user_of),
        strict_json_schema=fitted.is_strict,
    )


def _create_invoker(tool: ModelTool, user_of: UserOf | None) -> Callable[[ToolContext[Any], str], Awaitable[str]]:
    async def invoke(context: ToolContext[Any], text: str) -> str:
        arguments, problem = _read_arguments(tool, text)
        if problem:
            return ResultFormatter.format_error(InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, problem))
        user = None if user_of is None else user_of(context)
        return (await tool.answer(arguments, user=user, context=context)).text

    return invoke


def _read_arguments(tool: ModelTool, text: str) -> tuple[dict[str, Any], str]:
    """Return the arguments in a text of JSON, and why they cannot be used."""
    try:
        arguments = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return arguments, ""
    (call,) = parse([{"type": "function_call", "name": tool.name, "call_id": "", "arguments": text}])
    if call.error is not None:
        return {}, call.error
    if call.truncated and not tool.read_only:
        return {}, f"Tool {tool.name!r} was not executed: its arguments were cut off. Write shorter ones."
    if call.repaired and tool.destructive is True:
        return {}, f"Tool {tool.name!r} was not executed: its arguments are not valid JSON. Write valid JSON."
    return call.args, ""
