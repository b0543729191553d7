"""Calls in a model's output: parse them, execute them, and answer in the form in which the model called.

Here are the tools that a model may call, the execution of its calls, refusals and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Protocol

from dispatch._internal import (
    ErrorBoundary,
    describe_type,
    excerpt,
    find_near_names,
    is_kind,
    read_text,
    scalar_text,
    scalar_value,
    unwrap,
    yield_to_others,
)
from dispatch.calling.json_repair import MAX_DEPTH
from dispatch.calling.native import MAX_CALLS, NATIVE_FORMS, CallForm, ParsedCall, write_native_answer
from dispatch.calling.parsing import MAX_TEXT_CHARS, Parser, parse
from dispatch.calls.error_messages import error_from_unknown_name
from dispatch.catalog import ToolDescriptor, UnknownToolError
from dispatch.dispatcher import BoundTool
from dispatch.errors import DispatchError, ErrorType, InvalidArgumentsError, ToolError
from dispatch.functions import FunctionTool
from dispatch.functions.schema import NO_DECLARATION, Arguments, find_declaration
from dispatch.messaging.wire import as_builtins
from dispatch.results import ReadResultTool, ToolAnswer, read_tool_error

__all__ = [
    "MAX_CALLS",
    "MAX_DEPTH",
    "MAX_TEXT_CHARS",
    "CallForm",
    "CallableTool",
    "FunctionCallResult",
    "FunctionCallStatus",
    "ParsedCall",
    "Parser",
    "call_function",
    "current_context",
    "format_answers",
    "function_calling_prompt",
    "parse",
]


class CallableTool(Protocol):
    """A tool that a model may call: :class:`dispatch.BoundTool`, or any object with these attributes.

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


ModelTool = BoundTool | ReadResultTool
"""A tool of a dispatcher as a model uses it: described by name and schema, answered by text."""


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


def list_tools(tools: Iterable[CallableTool | NamedFunction]) -> list[ModelTool | LocalTool]:
    """Return ``tools`` as a model uses them, with ``read_result`` if they are tools of a dispatcher."""
    if not isinstance(tools, Iterable):
        raise TypeError(f"tools must be a list, such as await dispatcher.tools(user=…), not {describe_type(tools)}.")
    found = [_convert(tool) for tool in tools]
    owned = next((tool for tool in found if isinstance(tool, BoundTool)), None)
    if owned is not None and all(tool.name != owned.result_reader.name for tool in found):
        found.append(owned.result_reader)
    return found


def _convert(tool: CallableTool | NamedFunction) -> ModelTool | LocalTool:
    if isinstance(tool, BoundTool | ReadResultTool):
        return tool
    if not isinstance(getattr(tool, "name", None), str):
        fix = "offer functions with dispatch.Functions, and pass await dispatcher.tools(user=…)"
        raise TypeError(f"{describe_type(tool)} is no tool: it has no name. Fix: {fix}.")
    function = None if hasattr(tool, "invoke") else getattr(tool, "function", None)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, BoundTool) and owner.name == tool.name:
        return owner  # a tool of a dispatcher in a toolkit: it takes the path of a model's calls
    return LocalTool(tool, function)


class LocalTool:
    """A tool that is none of a dispatcher: a callable one, or a function with the name and the description that a toolkit
    gives it. What it raises is an error of the call, and so is an attribute that is missing.

    Args:
        tool: has the name and the description; without ``function`` also the rest of :class:`CallableTool`.
        function: that is called.
    """

    def __init__(self, tool: Any, function: Callable[..., Any] | None) -> None:
        owner = getattr(function, "__self__", None)
        self._tool = tool
        self._function = function
        self._handle = owner if isinstance(owner, BoundTool) else None
        self.name: str = tool.name

    @property
    def read_only(self) -> bool:
        """The tool is declared to change nothing."""
        return getattr(self._marks, "read_only", False) is True

    @property
    def destructive(self) -> bool | None:
        """The tool is declared to destroy something (true) or not (false); None: not declared."""
        marked: bool | None = getattr(self._marks, "destructive", None)
        return marked

    @property
    def description(self) -> str:
        """Text by which the model chooses the tool: its own, or the docstring of its function."""
        text: str = self._tool.description
        return text or ("" if self._described is None else self._described.description)

    @property
    def parameters(self) -> dict[str, Any]:
        """The schema of the signature; any object for a signature that no schema describes, such as ``**arguments``."""
        if self._handle is not None or self._function is None:
            schema: dict[str, Any] = (self._handle or self._tool).parameters
            return schema
        return {"type": "object"} if self._arguments is None else self._arguments.schema

    @cached_property
    def _marks(self) -> Any:
        """What has ``read_only`` and ``destructive``. Read at a call: a toolkit's function is imported for it."""
        if self._function is None:
            return self._tool
        return self._handle or find_declaration(self._function) or NO_DECLARATION

    @cached_property
    def _described(self) -> FunctionTool | None:
        """Docstring and signature of the function; None: there is no function, or it is that of a dispatcher's tool."""
        return None if self._function is None or self._handle is not None else FunctionTool(self._function, None)

    @property
    def _arguments(self) -> Arguments | None:
        """The arguments of the function's signature; None: it has none that a schema describes, or there is no function."""
        return None if self._described is None or self._described.report.has_errors else self._described.arguments

    async def answer(self, arguments: Mapping[str, Any], *, context: Any = None) -> ToolAnswer:
        """Call the function with values of the types of its signature; it reads ``context`` with :func:`current_context`.

        Raises:
            InvalidArgumentsError: the arguments do not fit the signature.
            Exception: of the function.
        """
        positional: Sequence[Any] = ()
        if self._arguments is not None:
            positional, arguments = self._arguments.convert(self.name, dict(arguments))
        result = (self._tool.invoke if self._function is None else self._function)(*positional, **arguments)
        return ToolAnswer(_write_output(await result if inspect.isawaitable(result) else result), False)


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

    Raises:
        TypeError: one of ``tools`` has no name, such as a plain function; or ``text`` is neither text nor a decoded message.
    """
    await yield_to_others()
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
        self._tools: dict[str, ModelTool | LocalTool] = {}
        for tool in list_tools(tools):
            self._tools.setdefault(tool.name, tool)
        self._has_dispatcher = any(isinstance(tool, BoundTool) for tool in self._tools.values())

    async def run(self, calls: Sequence[ParsedCall]) -> list[FunctionCallResult]:
        results: list[FunctionCallResult] = []
        for is_concurrent, group in groupby(calls, self._is_concurrent):
            together = list(group)
            if is_concurrent and len(together) > 1:
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self._execute(call)) for call in together]
                results += [task.result() for task in running]
            else:
                results += [await self._execute(call) for call in together]
        return results

    def _is_concurrent(self, call: ParsedCall) -> bool:
        """Return whether the call changes nothing: its tool is read-only, or it is not executed at all."""
        tool = self._tools.get(call.name)
        return call.error is not None or tool is None or tool.read_only

    async def _execute(self, call: ParsedCall) -> FunctionCallResult:
        answer = await self._answer(call)
        text = answer.text if answer.error is None or self._has_dispatcher else answer.error.message
        return FunctionCallResult(
            call.name,
            call.args,
            call.call_objective,
            scalar_text(text),
            FunctionCallStatus.FAILED if answer.is_error else FunctionCallStatus.SUCCEEDED,
            call.form,
            call.call_id,
        )

    async def _answer(self, call: ParsedCall) -> ToolAnswer:
        tool = self._tools.get(call.name)
        if tool is None and call.error is None:
            known = tuple(self._tools)
            unknown = UnknownToolError(call.name, find_near_names(call.name, known), known)
            return ToolAnswer.of_error(error_from_unknown_name(unknown))
        if (refusal := find_refusal(call, tool)) is not None:
            return ToolAnswer.of_error(refusal)
        assert tool is not None
        try:
            with ErrorBoundary():
                return await tool.answer(call.args, context=self._context)
        except Exception as error:  # a tool's own error is a result for the model
            return ToolAnswer.of_error(_error_from_tool(error, tool.name))


def find_refusal(call: ParsedCall, tool: ModelTool | LocalTool | ToolDescriptor | None) -> InvalidArgumentsError | None:
    """Return why a call is not executed: it cannot be read; it was cut off, and its tool is not read-only; or it was
    repaired, and its tool is declared destructive. None: it may be executed."""
    reason = call.error
    if reason is None and call.truncated and not (tool is not None and tool.read_only):
        cut = "its call was cut off" if call.form in NATIVE_FORMS else "the text ended inside its call"
        reason = (
            f"Tool {call.name!r} was not executed: {cut}. Write the whole call again, "
            "with shorter arguments if the length of a text is limited."
        )
    if reason is None and call.repaired and tool is not None and tool.destructive is True:
        reason = (
            f"Tool {call.name!r} was not executed: it is destructive, and its arguments were not valid JSON. "
            "Write the whole call again with valid JSON."
        )
    return None if reason is None else InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, reason)


def _error_from_tool(raised: Exception, tool: str) -> DispatchError:
    if is_kind(raised, DispatchError):
        with contextlib.suppress(Exception):
            raised.as_dict()  # an attribute of an application's own class may raise
            return raised
    kind, _ = read_tool_error(raised)
    if kind == ErrorType.CANCELLED:
        return ToolError(kind, f"Tool {tool!r} was cancelled, and may have been executed in part.")
    detail = excerpt(" ".join(read_text(unwrap(raised)).split()), 500)
    return ToolError(kind, f"Tool {tool!r} failed with {kind}: {detail}")


def _write_output(result: Any) -> str:
    """Return a result as text: a text unchanged, the texts of a list of MCP contents, anything else as JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, list) and result and all(isinstance(getattr(each, "text", None), str) for each in result):
        return "\n".join(each.text for each in result)
    try:
        return json.dumps(result, ensure_ascii=False, indent=2, default=as_builtins)
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


def format_answers(results: Iterable[FunctionCallResult] | None) -> list[dict[str, Any]]:
    """Return the messages that give ``results`` back to the model; none for None, which is that of no calls.

    Native forms get the messages or items of their API, each with the id of its call. Texts get one user message:
    ``<function_call_result>`` for Chat2Graph, ``<tool_response>`` for Hermes and Qwen, ``Observation:`` for TrustGraph.
    """
    messages: list[dict[str, Any]] = []
    for form, group in groupby(results or (), key=lambda result: result.form):
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
