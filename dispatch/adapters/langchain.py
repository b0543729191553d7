"""Tools for LangChain and LangGraph. Needs langchain-core: the extra ``langchain``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from dispatch.adapters import list_model_tools, missing_extra, wait_for_answer
from dispatch.calling import ModelTool
from dispatch.dispatcher import Dispatcher
from dispatch.results import ToolAnswer

try:
    from langchain_core.runnables import RunnableConfig
    from langchain_core.tools import StructuredTool, ToolException
    from pydantic import PrivateAttr
except ImportError:
    raise missing_extra("langchain", "langchain-core") from None


UserOf = Callable[[RunnableConfig], str]


async def tools(dispatcher: Dispatcher, *, user: str | UserOf = "", **filters: Any) -> list[StructuredTool]:
    """Return the tools that ``user`` may call now, for ``create_agent``, ``ToolNode`` and ``bind_tools``. Call it for each
    run: the catalogue may have changed.

    They work in async and in sync runs. A sync run belongs to another thread than the dispatcher's event loop:
    ``await asyncio.to_thread(agent.invoke, …)``. A failed call is a ``ToolMessage`` with ``status="error"`` and the error
    text; nothing is raised but cancellation. The artifact of a success is its :class:`~dispatch.adapters.ToolAnswer`.

    Args:
        user: on whose behalf, or a function of the run's configuration, such as
            ``lambda config: config["configurable"]["user_id"]``. With a function the tools without permissions are listed.
        filters: as of :meth:`dispatch.Dispatcher.tools`.

    Raises:
        RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
    """
    loop = asyncio.get_running_loop()
    listed = await list_model_tools(dispatcher, user, **filters)
    user_of = None if isinstance(user, str) else user
    return [create_tool(tool, loop, user_of) for tool in listed]


def create_tool(tool: ModelTool, loop: asyncio.AbstractEventLoop, user_of: UserOf | None = None) -> StructuredTool:
    """Return one tool that runs on ``loop``."""

    async def call(**arguments: Any) -> tuple[str, ToolAnswer]:
        return _finish(await tool.answer(arguments))

    def call_and_wait(**arguments: Any) -> tuple[str, ToolAnswer]:
        return _finish(wait_for_answer(tool.answer(arguments), loop, tool.name))

    created = _DispatchTool(
        name=tool.name,
        description=tool.description,
        args_schema=tool.parameters,
        coroutine=call,
        func=call_and_wait,
        response_format="content_and_artifact",
        handle_tool_error=True,
        metadata={"read_only": tool.read_only, "destructive": tool.destructive},
    )
    created._tool, created._loop, created._user_of = tool, loop, user_of
    return created


class _DispatchTool(StructuredTool):
    """Passes the arguments as one mapping: an argument with the name ``config`` or ``run_manager`` would be replaced by
    LangChain's own."""

    _tool: ModelTool = PrivateAttr()
    _loop: asyncio.AbstractEventLoop = PrivateAttr()
    _user_of: UserOf | None = PrivateAttr(default=None)

    def _to_args_and_kwargs(
        self, tool_input: str | dict[str, Any], tool_call_id: str | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(tool_input, str):
            return super()._to_args_and_kwargs(tool_input, tool_call_id)
        return (), {"arguments": dict(tool_input)}

    def _run(self, *, arguments: Mapping[str, Any], config: RunnableConfig) -> tuple[str, ToolAnswer]:  # type: ignore[override] # of _to_args_and_kwargs
        return _finish(wait_for_answer(self._answer(arguments, config), self._loop, self.name))

    async def _arun(self, *, arguments: Mapping[str, Any], config: RunnableConfig) -> tuple[str, ToolAnswer]:  # type: ignore[override] # of _to_args_and_kwargs
        return _finish(await self._answer(arguments, config))

    async def _answer(self, arguments: Mapping[str, Any], config: RunnableConfig) -> ToolAnswer:
        user = None if self._user_of is None else self._user_of(config)
        return await self._tool.answer(arguments, user=user, context=config)


def _finish(answer: ToolAnswer) -> tuple[str, ToolAnswer]:
    if answer.is_error:
        raise ToolException(answer.text)  # becomes a ToolMessage with status="error"
    return answer.text, answer
