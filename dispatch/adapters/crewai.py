"""Tools for CrewAI. Needs crewai: the extra ``crewai``."""

from __future__ import annotations

import asyncio
import copy
from typing import Any, ClassVar

from dispatch.adapters import list_model_tools, missing_extra, wait_for_answer
from dispatch.calling import ModelTool
from dispatch.dispatcher import Dispatcher
from dispatch.errors import InvalidArgumentsError
from dispatch.results import ToolAnswer

try:
    from crewai.tools import BaseTool, ToolFailure
    from crewai.tools.tool_failure import ToolFailureReason
    from pydantic import BaseModel, ConfigDict, PrivateAttr
except ImportError:
    raise missing_extra("crewai", "crewai") from None


async def tools(dispatcher: Dispatcher, *, user: str = "", **filters: Any) -> list[BaseTool]:
    """Return the tools that ``user`` may call now, for ``Agent(tools=…)``. Call it for each run: the catalogue may have
    changed.

    They work in async and in sync runs. A sync run belongs to another thread than the dispatcher's event loop:
    ``await asyncio.to_thread(crew.kickoff)``, or ``await crew.kickoff_async()``. A failed call is a ``ToolFailure`` with the
    error text; nothing is raised but cancellation.

    Args:
        user: on whose behalf. CrewAI has no user of its own.
        filters: as of :meth:`dispatch.Dispatcher.tools`.

    Raises:
        RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
    """
    loop = asyncio.get_running_loop()
    return [create_tool(tool, loop) for tool in await list_model_tools(dispatcher, user, **filters)]


def create_tool(tool: ModelTool, loop: asyncio.AbstractEventLoop) -> BaseTool:
    """Return one tool that runs on ``loop``."""
    arguments: type[BaseModel] = type("Arguments", (_Arguments,), {"parameters": tool.parameters})
    created = _DispatchTool(name=tool.name, description=tool.description, args_schema=arguments)
    # CrewAI would answer a call with the result of an earlier one.
    created.cache_function = _cache_nothing
    created._tool, created._loop = tool, loop
    return created


class _Arguments(BaseModel):
    """Any arguments: they are checked at the call, against the tool's own schema, which :meth:`model_json_schema` shows."""

    model_config = ConfigDict(extra="allow")
    parameters: ClassVar[dict[str, Any]] = {}

    @classmethod
    def model_json_schema(cls, *_args: Any, **_options: Any) -> dict[str, Any]:
        return copy.deepcopy(cls.parameters)


class _DispatchTool(BaseTool):
    _tool: ModelTool = PrivateAttr()
    _loop: asyncio.AbstractEventLoop = PrivateAttr()

    def _run(self, /, **arguments: Any) -> str | ToolFailure:
        return _finish(wait_for_answer(self._tool.answer(arguments), self._loop, self.name))

    async def _arun(self, /, **arguments: Any) -> str | ToolFailure:
        if asyncio.get_running_loop() is self._loop:
            return _finish(await self._tool.answer(arguments))
        # CrewAI runs some agents on an event loop of another thread.
        answer = asyncio.run_coroutine_threadsafe(self._tool.answer(arguments), self._loop)
        return _finish(await asyncio.wrap_future(answer))


def _finish(answer: ToolAnswer) -> str | ToolFailure:
    if not answer.is_error:
        return answer.text
    is_invalid = isinstance(answer.error, InvalidArgumentsError)
    reason = ToolFailureReason.INVALID_INPUT if is_invalid else ToolFailureReason.TOOL_REPORTED
    retryable = answer.error is not None and answer.error.retryable
    return ToolFailure(message=answer.text, reason=reason, retryable=retryable)


def _cache_nothing(_arguments: Any = None, _result: Any = None) -> bool:
    return False
