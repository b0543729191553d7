"""Execute the calls in a model's output. Results and errors are values, in the order of the calls."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, find_near_names, join_alternatives, join_names, quote_excerpt
from dispatch._internal.user_code import ErrorBoundary, read_text, unwrap
from dispatch._internal.utf8 import scalar_text
from dispatch.calling.callable_tool import CallableTool, NamedFunction, list_tools
from dispatch.calling.function_call_result import FunctionCallResult, FunctionCallStatus
from dispatch.calling.parsed_call import ParsedCall
from dispatch.calling.parser import parse
from dispatch.dispatcher.tool import Tool
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, RejectedError, ToolError
from dispatch.result import read_tool_error
from dispatch.results import ResultFormatter

_CONTEXT: Final[ContextVar[Any]] = ContextVar("dispatch_calling_context", default=None)


Tools = Iterable[CallableTool | NamedFunction]
"""The tools that the user may call now."""


def current_context() -> Any:
    """Return the ``context`` of the :func:`call_function` that runs this tool; None outside of one."""
    return _CONTEXT.get()


async def call_function(
    tools: Tools | Awaitable[Tools], text: str | Any, context: Any = None
) -> list[FunctionCallResult] | None:
    """Execute the calls in a model's output.

    Consecutive calls of read-only tools run concurrently; every other call runs alone, in order. A call that was cut off
    runs only if its tool is read-only, and a repaired one only if its tool is not declared destructive.

    Tools of a dispatcher take the path of every call, and their arguments are checked against their schemas. With them
    errors are JSON with ``error``, ``message``, ``retryable``, ``retry_after`` and ``alternatives``, and the model may call
    ``read_result`` for the rest of a result that was cut; without them errors are plain texts.

    Args:
        tools: the tools that the user may call now: a list, or ``dispatcher.tools(user=…)``, awaited or not. Tools of a
            toolkit, and any objects like :class:`CallableTool`, are accepted as well.
        text: the model's output, as for :func:`parse`.
        context: any value; functions that are tools read it as :attr:`dispatch.CallContext.context`, other tools in this
            process with :func:`current_context`.

    Returns:
        One result for each call, failed ones included; None when the output calls nothing.
    """
    offered = await tools if isinstance(tools, Awaitable) else tools
    calls = parse(text)
    if not calls:
        return None
    token = _CONTEXT.set(context)
    try:
        return await _Execution(offered, context).run(calls)
    finally:
        _CONTEXT.reset(token)


class _Execution:
    """The calls of one text."""

    def __init__(self, tools: Tools, context: Any) -> None:
        self._context = context
        self._tools: dict[str, CallableTool] = {}
        for tool in list_tools(tools):
            self._tools.setdefault(tool.name, tool)
        self._has_dispatcher = any(isinstance(tool, Tool) for tool in self._tools.values())

    async def run(self, calls: Sequence[ParsedCall]) -> list[FunctionCallResult]:
        results: list[FunctionCallResult] = []
        start = 0
        while start < len(calls):
            end = start + 1
            if self._is_concurrent(calls[start]):
                while end < len(calls) and self._is_concurrent(calls[end]):
                    end += 1
            if end == start + 1:
                results.append(await self._execute(calls[start]))
            else:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(self._execute(call)) for call in calls[start:end]]
                results += [task.result() for task in tasks]
            start = end
        return results

    def _is_concurrent(self, call: ParsedCall) -> bool:
        """Return whether the call changes nothing: its tool is read-only, or it is not executed at all."""
        tool = self._tools.get(call.name)
        return call.error is not None or tool is None or _is_read_only(tool)

    async def _execute(self, call: ParsedCall) -> FunctionCallResult:
        tool = self._tools.get(call.name)
        if call.error is not None:
            return self._fail(call, InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, call.error))
        if tool is None:
            return self._fail(call, _error_from_unknown_name(call.name, list(self._tools)))
        mistake = _find_mistake(call, tool)
        if mistake is not None:
            return self._fail(call, InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, mistake))
        try:
            with ErrorBoundary():
                if isinstance(tool, Tool):
                    return await self._execute_dispatched(call, tool)
                result = tool.invoke(**call.args)
                if inspect.isawaitable(result):
                    result = await result
                output = _write_output(result)
        except Exception as error:  # a tool's own error is a result for the model
            return self._fail(call, _error_from_tool(error, tool.name))
        return _finish(call, output, FunctionCallStatus.SUCCEEDED)

    async def _execute_dispatched(self, call: ParsedCall, tool: Tool) -> FunctionCallResult:
        result = await tool.execute(call.args, by_model=True, context=self._context)
        content = tool.format_result(result)
        output = "\n".join(part["text"] for part in content["content"])
        return _finish(
            call, output, FunctionCallStatus.FAILED if content.get("isError") else FunctionCallStatus.SUCCEEDED
        )

    def _fail(self, call: ParsedCall, error: DispatchError) -> FunctionCallResult:
        output = ResultFormatter.format_error(error) if self._has_dispatcher else error.message
        return _finish(call, output, FunctionCallStatus.FAILED)


def _is_read_only(tool: CallableTool) -> bool:
    return getattr(tool, "read_only", False) is True


def _find_mistake(call: ParsedCall, tool: CallableTool) -> str | None:
    """Return why the call is not executed although it could be read."""
    if call.truncated and not _is_read_only(tool):
        return (
            f"Tool {tool.name!r} was not executed: the text ended inside its call. Write the whole call again, "
            "with shorter arguments if the length of a text is limited."
        )
    if call.repaired and getattr(tool, "destructive", None) is True:
        return (
            f"Tool {tool.name!r} was not executed: it is destructive, and its arguments were not valid JSON. "
            "Write the whole call again with valid JSON."
        )
    return None


def _finish(call: ParsedCall, output: str, status: FunctionCallStatus) -> FunctionCallResult:
    return FunctionCallResult(
        call.name, call.args, call.call_objective, scalar_text(output), status, call.form, call.call_id
    )


def _error_from_tool(raised: Exception, tool: str) -> DispatchError:
    if isinstance(raised, DispatchError):
        return raised
    kind, _ = read_tool_error(raised)
    if kind == ErrorType.CANCELLED:
        return ToolError(kind, f"Tool {tool!r} was cancelled, and may have been executed in part.")
    detail = excerpt(" ".join(read_text(unwrap(raised)).split()), 500)
    return ToolError(kind, f"Tool {tool!r} failed with {kind}: {detail}")


def _error_from_unknown_name(name: str, known: Sequence[str]) -> RejectedError:
    near = find_near_names(name, known)
    reason = f"No tool was executed: there is no tool {quote_excerpt(name)}"
    if near:
        message = f"{reason}. Use {join_alternatives(near)}."
    elif known:
        message = f"{reason}. Use one of: {join_names(known)}."
    else:
        message = f"{reason}, and no other one. Answer without tools."
    return RejectedError(ErrorType.UNKNOWN_TOOL, message, rejected_by="catalog", alternatives=near)


def _write_output(result: Any) -> str:
    """Return a result as text: a text unchanged, the texts of a list of MCP contents, anything else as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, list) and result and all(isinstance(getattr(each, "text", None), str) for each in result):
        return "\n".join(each.text for each in result)
    try:
        return json.dumps(result, ensure_ascii=False, indent=2)
    except (TypeError, ValueError, RecursionError):
        return str(result)
