"""Tools for Google's Agent Development Kit. Needs google-adk: the extra ``google-adk``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from dispatch.adapters import answer_call, list_model_tools, missing_extra
from dispatch.adapters.dialects import Style, fit_schema
from dispatch.calling import ModelTool
from dispatch.dispatcher import Dispatcher
from dispatch.results import ToolAnswer

try:
    from google.adk.agents.readonly_context import ReadonlyContext
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.base_toolset import BaseToolset
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types
except ImportError:
    raise missing_extra("google_adk", "google-adk") from None


OnToolError = Callable[..., Awaitable[dict[str, Any] | None]]


def toolset(dispatcher: Dispatcher, *, user: str | None = None, **filters: Any) -> BaseToolset:
    """Return a toolset with the tools of a dispatcher; each invocation lists those that the user may call then.

    A success is ``{"result": text}``, a failed call ``{"error": text}`` with the error text; nothing is raised but
    cancellation. An unknown name ends a run of ADK: :func:`answer_unknown_tools` answers it.

    Args:
        user: on whose behalf; None: the user of the session.
        filters: as of :meth:`dispatch.Dispatcher.tools`.
    """
    return _DispatchToolset(dispatcher, user, filters)


def answer_unknown_tools(dispatcher: Dispatcher, *, user: str | None = None) -> OnToolError:
    """Return an ``on_tool_error_callback`` for an ``LlmAgent``: a call of a tool that is not in its lists is answered with
    the error text, which names near ones, and does not end the run.

    Args:
        user: as of :func:`toolset`.
    """

    async def answer(
        tool: BaseTool, args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> dict[str, Any] | None:
        if type(tool) is not BaseTool or not isinstance(error, ValueError):
            return None  # a tool that failed: the name of an unknown one is in a bare BaseTool
        found = await answer_call(dispatcher, tool.name, args, user=tool_context.user_id if user is None else user)
        return _write(found)

    return answer


class _DispatchToolset(BaseToolset):
    def __init__(self, dispatcher: Dispatcher, user: str | None, filters: dict[str, Any]) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self._user = user
        self._filters = filters

    async def get_tools(self, readonly_context: ReadonlyContext | None = None) -> list[BaseTool]:
        user = self._user
        if user is None:
            user = "" if readonly_context is None else readonly_context.user_id
        return [_DispatchTool(tool) for tool in await list_model_tools(self._dispatcher, user, **self._filters)]


class _DispatchTool(BaseTool):
    def __init__(self, tool: ModelTool) -> None:
        super().__init__(name=tool.name, description=tool.description)
        self._tool = tool

    def _get_declaration(self) -> types.FunctionDeclaration:
        schema = fit_schema(self._tool.parameters, Style.GEMINI).schema
        parameters = types.Schema.model_validate(schema) if "properties" in schema else None
        return types.FunctionDeclaration(name=self.name, description=self.description, parameters=parameters)

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        return _write(await self._tool.answer(args, context=tool_context))


def _write(answer: ToolAnswer) -> dict[str, Any]:
    return {"error" if answer.is_error else "result": answer.text}
