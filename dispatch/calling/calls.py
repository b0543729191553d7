"""The tools that a model may call in one text."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any, Final, Protocol

from dispatch._internal import (
    ErrorBoundary,
    excerpt,
    find_near_names,
    join_alternatives,
    join_names,
    quote_excerpt,
    read_text,
    scalar_text,
    scalar_value,
    unwrap,
)
from dispatch.calling.json_repair import MAX_CALLS, CallForm, ParsedCall
from dispatch.calling.native import write_native_answer
from dispatch.calling.parsing import parse
from dispatch.dispatcher import Tool
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, RejectedError, ToolError
from dispatch.functions.schema import NO_DECLARATION, find_declaration
from dispatch.functions.sources import FunctionTool
from dispatch.result import read_tool_error
from dispatch.results import ResultFormatter


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


class NamedFunction(Protocol):
    """A tool in Chat2Graph's form, such as :class:`dispatch.toolkit.Tool`."""

    @property
    def name(self) -> str:
        """Name that the model writes."""

    @property
    def description(self) -> str:
        """Text by which the model chooses the tool."""

    @property
    def function(self) -> Callable[..., Any]:
        """Function or coroutine function that is called with the arguments by name."""


def list_tools(tools: Iterable[CallableTool | NamedFunction]) -> list[CallableTool]:
    """Return ``tools`` as callable ones, with ``read_result`` if they are tools of a dispatcher, which cuts long results."""
    found = [_convert(tool) for tool in tools]
    owned = next((tool for tool in found if isinstance(tool, Tool)), None)
    if owned is not None and all(tool.name != owned.result_reader.name for tool in found):
        found.append(owned.result_reader)
    return found


def _convert(tool: CallableTool | NamedFunction) -> CallableTool:
    function = None if hasattr(tool, "invoke") else getattr(tool, "function", None)
    if function is None:
        return tool  # type: ignore[return-value]  # what is missing is an error of the call
    owner = getattr(function, "__self__", None)
    if isinstance(owner, Tool) and owner.name == tool.name:
        return owner  # a tool of a dispatcher in a toolkit: it takes the path of a model's calls
    return _FunctionCaller(tool.name, tool.description, function)


class _FunctionCaller:
    """A function with the name and the description that a toolkit gives it."""

    def __init__(self, name: str, description: str, function: Callable[..., Any]) -> None:
        owner = getattr(function, "__self__", None)
        declared = owner if isinstance(owner, Tool) else find_declaration(function) or NO_DECLARATION
        self.name = name
        self.description = description
        self.invoke = function
        self.read_only = declared.read_only
        self.destructive = declared.destructive
        self._handle = owner if isinstance(owner, Tool) else None

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the signature; any object for a signature that no schema describes, such as ``**arguments``."""
        if self._handle is not None:
            return self._handle.parameters
        tool = FunctionTool(self.invoke, None)
        return {"type": "object"} if tool.report.has_errors else tool.arguments.schema


# The result of one call of a model, with the names of Chat2Graph.


class FunctionCallStatus(Enum):
    """How a function call ended."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


@dataclass
class FunctionCallResult:
    """Result of one function call in the output of a model.

    Attributes:
        func_name: name of the tool; empty: the call could not be read.
        func_args: arguments by name.
        call_objective: the purpose that the model gave.
        output: result or error, as text for the model.
        status: whether the tool was executed and succeeded.
        form: the syntax of the call, which decides the form of the answer. Not in Chat2Graph.
        call_id: the id that the model's API gave to the call; empty in texts. Not in Chat2Graph.
    """

    func_name: str
    func_args: dict[str, Any]
    call_objective: str
    output: str
    status: FunctionCallStatus = FunctionCallStatus.SUCCEEDED
    form: CallForm = CallForm.FUNCTION_CALL
    call_id: str = ""

    @classmethod
    def error(cls, error_message: str) -> FunctionCallResult:
        """Return the result of a call that could not be read."""
        return cls("", {}, "", error_message, FunctionCallStatus.FAILED)


# Execute the calls in a model's output. Results and errors are values, in the order of the calls.


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


# The part of a system prompt that shows tools to a model without native function calls.


_RULES: Final = f"""\
To call tools, write one block for each call, at most {MAX_CALLS} in one answer:

<function_call>
{{"name": "TOOL", "call_objective": "why you call it", "args": {{"ARGUMENT": "value"}}}}
</function_call>

- The content of a block is one valid JSON object: double quotes, no comments, no trailing commas.
- "args" is an object with the arguments, {{}} without any.
- Write a long text with many lines, such as code, without escapes between two marks and without quotes around them:
  "args": {{"code": __PAYLOAD_START__
print("hello")
__PAYLOAD_END__}}
- The results arrive in the next message, in blocks <function_call_result>. Never write such a block yourself.
- Without a block, your answer is final.
"""


def function_calling_prompt(tools: Iterable[CallableTool | NamedFunction]) -> str:
    """Return the rules of writing calls, and for each tool a line of JSON: name, description, schema of the arguments.

    With tools of a dispatcher, which cuts long results, ``read_result`` is among them.
    """
    lines = [
        json.dumps(
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}, ensure_ascii=False
        )
        for tool in list_tools(tools)
    ]
    if not lines:
        return "No tools are available. Answer without calls.\n"
    return f"Tools, one per line:\n\n{chr(10).join(lines)}\n\n{_RULES}"


# Results in the form in which the model called, as messages for its next turn.


def format_answers(results: Iterable[FunctionCallResult]) -> list[dict[str, Any]]:
    """Return the messages that give ``results`` back to the model.

    Native forms get the messages or items of their API, each with the id of its call. Texts get one user message:
    ``<function_call_result>`` for Chat2Graph, ``<tool_response>`` for Hermes and Qwen, ``Observation:`` for TrustGraph.
    """
    messages: list[dict[str, Any]] = []
    for form, group in groupby(results, key=lambda result: result.form):
        messages += scalar_value(_format(form, list(group)))
    return messages


def _format(form: CallForm, results: list[FunctionCallResult]) -> list[dict[str, Any]]:
    match form:
        case CallForm.OPENAI_CHAT | CallForm.OPENAI_RESPONSES:
            return [_answer(each) for each in results]
        case CallForm.ANTHROPIC:
            return [{"role": "user", "content": [_answer(each) for each in results]}]
        case CallForm.GEMINI:
            return [{"role": "user", "parts": [_answer(each) for each in results]}]
    return [{"role": "user", "content": "\n".join(_format_text(form, each) for each in results)}]


def _answer(result: FunctionCallResult) -> dict[str, Any]:
    is_error = result.status is FunctionCallStatus.FAILED
    return write_native_answer(result.form, result.call_id, result.func_name, result.output, is_error=is_error)


def _format_text(form: CallForm, result: FunctionCallResult) -> str:
    if form is CallForm.REACT:
        return f"Observation: {result.output}"
    if form is CallForm.TOOL_CALL:
        return _wrap("tool_response", {"name": result.func_name, "content": result.output})
    answer = {
        "name": result.func_name,
        "call_objective": result.call_objective,
        "status": result.status.value,
        "output": result.output,
    }
    return _wrap("function_call_result", answer)


def _wrap(tag: str, answer: dict[str, Any]) -> str:
    # A closing tag in a tool's output must not end the block: "<\/" is the same text in JSON.
    content = json.dumps(answer, ensure_ascii=False).replace("</", "<\\/")
    return f"<{tag}>\n{content}\n</{tag}>"
