"""Execute the calls in a model's output. Results and errors are values, in the order of the calls."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, Final, Protocol

from dispatch._internal.suggestions import excerpt, find_near_names, join_alternatives, join_names
from dispatch.calling.function_call_result import FunctionCallResult, FunctionCallStatus
from dispatch.calling.parsed_call import ParsedCall
from dispatch.calling.parser import parse
from dispatch.errors import DispatchError

_CONTEXT: Final[ContextVar[Any]] = ContextVar("dispatch_calling_context", default=None)


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


Tools = Iterable[CallableTool] | Awaitable[Iterable[CallableTool]]
"""The tools that the user may call now: a list, or ``dispatcher.tools(user=…)``, awaited or not."""


def current_context() -> Any:
    """Return the ``context`` of the :func:`call_function` that runs this tool; None outside of one."""
    return _CONTEXT.get()


async def call_function(tools: Tools, text: str | Any, context: Any = None) -> list[FunctionCallResult] | None:
    """Execute the calls in a model's output.

    Consecutive calls of read-only tools run concurrently; every other call runs alone, in order. A call that was cut off
    runs only if its tool is read-only, and a repaired one only if its tool is not declared destructive.

    Args:
        tools: the tools that the user may call.
        text: the model's output, as for :func:`parse`.
        context: any value; tools in this process read it with :func:`current_context`.

    Returns:
        One result for each call, failed ones included; None when the output calls nothing.
    """
    known: dict[str, CallableTool] = {}
    for tool in await tools if isinstance(tools, Awaitable) else tools:
        known.setdefault(tool.name, tool)
    calls = parse(text)
    if not calls:
        return None
    token = _CONTEXT.set(context)
    try:
        return await _execute_all(calls, known)
    finally:
        _CONTEXT.reset(token)


async def _execute_all(calls: Sequence[ParsedCall], known: dict[str, CallableTool]) -> list[FunctionCallResult]:
    results: list[FunctionCallResult] = []
    start = 0
    while start < len(calls):
        end = start + 1
        if _is_concurrent(calls[start], known):
            while end < len(calls) and _is_concurrent(calls[end], known):
                end += 1
        if end == start + 1:
            results.append(await _execute(calls[start], known))
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_execute(call, known)) for call in calls[start:end]]
            results += [task.result() for task in tasks]
        start = end
    return results


def _is_concurrent(call: ParsedCall, known: dict[str, CallableTool]) -> bool:
    """Return whether the call changes nothing: its tool is read-only, or it is not executed at all."""
    tool = known.get(call.name)
    return call.error is not None or tool is None or _is_read_only(tool)


async def _execute(call: ParsedCall, known: dict[str, CallableTool]) -> FunctionCallResult:
    tool = known.get(call.name)
    if call.error is not None:
        return _fail(call, call.error)
    if tool is None:
        return _fail(call, _describe_unknown(call.name, known))
    if call.truncated and not _is_read_only(tool):
        return _fail(
            call,
            f"Tool {tool.name!r} was not executed: the text ended inside its call. Write the whole call again, "
            "with shorter arguments if the length of a text is limited.",
        )
    if call.repaired and getattr(tool, "destructive", None) is True:
        return _fail(
            call,
            f"Tool {tool.name!r} was not executed: it is destructive, and its arguments were not valid JSON. "
            "Write the whole call again with valid JSON.",
        )
    try:
        result = tool.invoke(**call.args)
        if inspect.isawaitable(result):
            result = await result
    except DispatchError as error:
        return _fail(call, error.message)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _fail(call, f"Tool {tool.name!r} was cancelled, and may have been executed in part.")
    except Exception as error:  # a tool's own error is a result for the model
        detail = excerpt(" ".join(str(error).split()), 500)
        return _fail(call, f"Tool {tool.name!r} failed with {type(error).__name__}: {detail}")
    return _finish(call, _write_output(result), FunctionCallStatus.SUCCEEDED)


def _is_read_only(tool: CallableTool) -> bool:
    return getattr(tool, "read_only", False) is True


def _fail(call: ParsedCall, message: str) -> FunctionCallResult:
    return _finish(call, message, FunctionCallStatus.FAILED)


def _finish(call: ParsedCall, output: str, status: FunctionCallStatus) -> FunctionCallResult:
    return FunctionCallResult(call.name, call.args, call.call_objective, output, status, call.form, call.call_id)


def _describe_unknown(name: str, known: dict[str, CallableTool]) -> str:
    shown = repr(excerpt(name))
    near = find_near_names(name, known)
    if near:
        return f"No tool was executed: there is no tool {shown}. Use {join_alternatives(near)}."
    if known:
        return f"No tool was executed: there is no tool {shown}. Use one of: {join_names(list(known))}."
    return f"No tool was executed: there is no tool {shown}, and no other one. Answer without tools."


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
