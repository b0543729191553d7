"""Tools for the OpenAI Agents SDK. Needs openai-agents: the extra ``openai-agents``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatch.adapters import list_model_tools, missing_extra
from dispatch.adapters.dialects import Style, fit_schema
from dispatch.calling import CallForm, ModelTool, find_refusal
from dispatch.calling.native import read_native_call
from dispatch.dispatcher import Dispatcher
from dispatch.results import ToolAnswer

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
    listed = await list_model_tools(dispatcher, user, **filters)
    return [create_tool(tool, None if isinstance(user, str) else user) for tool in listed]


def create_tool(tool: ModelTool, user_of: UserOf | None = None) -> FunctionTool:
    """Return one tool."""

    async def invoke(context: ToolContext[Any], text: str) -> str:
        call = read_native_call({"name": tool.name, "arguments": text}, CallForm.OPENAI_RESPONSES)
        assert call is not None
        refusal = find_refusal(call, tool)
        if refusal is not None:
            return ToolAnswer.of_error(refusal).text
        user = None if user_of is None else user_of(context)
        return (await tool.answer(call.args, user=user, context=context)).text

    fitted = fit_schema(tool.parameters, Style.OPENAI_RESPONSES)
    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=fitted.schema,
        on_invoke_tool=invoke,
        strict_json_schema=fitted.is_strict,
    )
