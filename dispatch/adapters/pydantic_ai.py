"""Tools for Pydantic AI. Needs pydantic-ai-slim: the extra ``pydantic-ai``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dispatch.adapters import list_model_tools, missing_extra
from dispatch.calling import ModelTool
from dispatch.dispatcher import Dispatcher
from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.results import READ_RESULT

try:
    from pydantic_ai import ModelRetry, RunContext
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
    from pydantic_core import SchemaValidator, core_schema
except ImportError:
    raise missing_extra("pydantic_ai", "pydantic-ai-slim") from None


User = str | Callable[[RunContext[Any]], str]
"""On whose behalf, or a function of the run's context, such as ``lambda ctx: ctx.deps.user``."""

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))
"""Arguments are checked at the call, against the tool's own schema."""


def toolset(
    dispatcher: Dispatcher,
    *,
    user: User = "",
    id: str | None = None,
    defer_loading: bool = False,
    max_retries: int | None = None,
    **filters: Any,
) -> AbstractToolset[Any]:
    """Return a toolset with the tools of a dispatcher; each step of a run lists those that the user may call then.

    Arguments that do not fit are a ``ModelRetry``, every other failed call is a ``ToolFailed``, each with the error text.

    Args:
        user: on whose behalf.
        id: of the toolset, for durable execution.
        defer_loading: hide the tools until a search finds them; see :func:`find_tools`.
        max_retries: how often a model may correct its arguments; None: as the agent's.
        filters: as of :meth:`dispatch.Dispatcher.tools`.
    """
    return _DispatchToolset(dispatcher, user, id, defer_loading, max_retries, filters)


def find_tools(
    dispatcher: Dispatcher, *, user: User = "", limit: int = 5
) -> Callable[[RunContext[Any], Sequence[str], Sequence[ToolDefinition]], Any]:
    """Return a strategy for ``ToolSearch`` that searches with :meth:`dispatch.Dispatcher.find`, over a toolset with
    ``defer_loading=True``: ``capabilities=[ToolSearch(strategy=find_tools(dispatcher))]``.

    Args:
        user: on whose behalf.
        limit: tools that each query finds.
    """

    async def search(context: RunContext[Any], queries: Sequence[str], tools: Sequence[ToolDefinition]) -> list[str]:
        known = {tool.name for tool in tools}
        found: dict[str, None] = {}
        for query in queries:
            for each in await dispatcher.find(query, limit, user=_user_of(user, context)):
                if each.name in known:
                    found[each.name] = None
        return list(found)

    return search


@dataclass(eq=False)
class _DispatchToolset(AbstractToolset[Any]):
    _dispatcher: Dispatcher
    _user: User
    _id: str | None
    _defer_loading: bool
    _max_retries: int | None
    _filters: dict[str, Any]

    @property
    def id(self) -> str | None:
        return self._id

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        listed = await list_model_tools(self._dispatcher, _user_of(self._user, ctx), **self._filters)
        retries = ctx.max_retries if self._max_retries is None else self._max_retries
        return {tool.name: _Tool.of(self, tool, retries, self._defer_loading) for tool in listed}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        assert isinstance(tool, _Tool)
        answer = await tool.model_tool.answer(tool_args, context=ctx)
        if not answer.is_error:
            return answer.text
        # No other arguments bring back a result that is no longer stored, and a second retry ends the run.
        if isinstance(answer.error, InvalidArgumentsError) and answer.error.type != ErrorType.UNKNOWN_RESULT:
            raise ModelRetry(answer.text)
        raise ToolFailed(answer.text)


@dataclass(kw_only=True)
class _Tool(ToolsetTool[Any]):
    """A tool as it was listed for one step.

    Attributes:
        model_tool: that executes its calls.
    """

    model_tool: ModelTool

    @classmethod
    def of(cls, toolset: _DispatchToolset, tool: ModelTool, max_retries: int, defer_loading: bool) -> _Tool:
        definition = ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters,
            metadata={"read_only": tool.read_only, "destructive": tool.destructive},
            defer_loading=defer_loading and tool.name != READ_RESULT,
        )
        return cls(
            toolset=toolset, tool_def=definition, max_retries=max_retries, args_validator=_ANY_OBJECT, model_tool=tool
        )


def _user_of(user: User, context: RunContext[Any]) -> str:
    return user if isinstance(user, str) else user(context)
