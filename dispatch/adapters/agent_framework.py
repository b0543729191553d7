"""Tools for Microsoft's Agent Framework. Needs agent-framework-core: the extra ``agent-framework``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dispatch.adapters import list_model_tools, missing_extra
from dispatch.calling import ModelTool
from dispatch.dispatcher import Dispatcher

try:
    from agent_framework import Content, FunctionInvocationContext, FunctionTool
except ImportError:
    raise missing_extra("agent_framework", "agent-framework-core") from None


UserOf = Callable[[FunctionInvocationContext], str]


async def tools(dispatcher: Dispatcher, *, user: str | UserOf = "", **filters: Any) -> list[FunctionTool]:
    """Return the tools that ``user`` may call now, for an agent's ``tools``. Call it for each run: the catalogue may have
    changed.

    A failed call is the tool's result with the error text. The framework marks errors only if they are raised, and then
    replaces the text by "Error: Function failed."; therefore the content has ``additional_properties["is_error"]``.
    Nothing is raised but cancellation.

    Args:
        user: on whose behalf, or a function of the invocation's context, such as
            ``lambda context: context.kwargs["user"]``. With a function the tools without permissions are listed.
        filters: as of :meth:`dispatch.Dispatcher.tools`.

    Raises:
        RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
    """
    listed = await list_model_tools(dispatcher, user, **filters)
    return [_DispatchTool(tool, None if isinstance(user, str) else user) for tool in listed]


class _DispatchTool(FunctionTool):
    """Passes the arguments as the model wrote them: the framework's own checks replace the error text."""

    def __init__(self, tool: ModelTool, user_of: UserOf | None) -> None:
        async def call(invocation_context: FunctionInvocationContext) -> str:
            """Mark that the tool needs the context; :meth:`invoke` calls it."""
            raise NotImplementedError

        # The framework passes the context to functions with a parameter of this type.
        call.__annotations__["invocation_context"] = FunctionInvocationContext
        super().__init__(name=tool.name, description=tool.description, func=call, input_model=tool.parameters)
        self._model_tool = tool
        self._user_of = user_of

    async def invoke(
        self,
        *,
        arguments: Any = None,
        context: FunctionInvocationContext | None = None,
        tool_call_id: str | None = None,
        skip_parsing: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Call the tool, and return its text as one content (with ``skip_parsing``, the text)."""
        if arguments is None:
            arguments = kwargs if context is None else context.arguments
        values = arguments if isinstance(arguments, Mapping) else arguments.model_dump()
        user = self._user_of(context) if self._user_of is not None and context is not None else None
        answer = await self._model_tool.answer(values, user=user, context=context)
        if skip_parsing:
            return answer.text
        properties = {"is_error": True} if answer.is_error else None
        return [Content.from_text(answer.text, additional_properties=properties)]
