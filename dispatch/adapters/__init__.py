"""Tools of a dispatcher for the APIs of models, and for agent frameworks: one module for each, and one extra.

Here are the descriptions of tools for the APIs of models, and calls in the form of an API.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, cast

from dispatch._internal import check_instance, install_extra, scalar_value, yield_to_others
from dispatch.adapters.dialects import FittedSchema, Style, fit_schema
from dispatch.calling import CallForm, ModelTool, ParsedCall, find_refusal
from dispatch.calling.native import read_native_call, write_native_answer
from dispatch.dispatcher import Dispatcher
from dispatch.results import READ_RESULT, ToolAnswer

__all__ = ["FRAMEWORKS", "Specs", "Style", "ToolAnswer", "execute", "specs"]

FRAMEWORKS: Final = ("langchain", "pydantic_ai", "openai_agents", "google_adk", "agent_framework", "crewai")
"""Modules for frameworks, each imported when it is used."""


def __getattr__(name: str) -> Any:
    """Import the module for a framework; an ImportError names the extra that is missing."""
    if name in FRAMEWORKS:
        return importlib.import_module(f"dispatch.adapters.{name}")
    raise AttributeError(f"module 'dispatch.adapters' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *FRAMEWORKS})  # of which Python's error names a near one


def check_dispatcher(dispatcher: object) -> None:
    """Check that an adapter was given a dispatcher, and not its tools.

    Raises:
        TypeError: it was not.
    """
    expected = "a dispatcher, as 'async with dispatch.connect(…) as dispatcher:' gives it"
    check_instance("dispatcher", dispatcher, Dispatcher, expected)


async def list_model_tools(
    dispatcher: Dispatcher, user: str | Callable[..., str], **filters: Any
) -> tuple[ModelTool, ...]:
    """Return the tools that ``user`` may call now, and ``read_result``.

    Args:
        user: on whose behalf; with a function, which a run calls, the tools without permissions.
        filters: as of :meth:`dispatch.Dispatcher.tools`.
    """
    check_dispatcher(dispatcher)
    user = user if isinstance(user, str) else ""
    found: dict[str, ModelTool] = {tool.name: tool for tool in await dispatcher.tools(user=user, **filters)}
    if found:
        found.setdefault(READ_RESULT, dispatcher.results.tool(user))
    return tuple(found.values())


async def answer_call(
    dispatcher: Dispatcher, name: str, arguments: Mapping[str, Any], *, user: str = "", context: Any = None
) -> ToolAnswer:
    """Call a tool by name with arguments that a model wrote; see :meth:`dispatch.BoundTool.answer`. An unknown name is an
    answer, too."""
    if name == READ_RESULT and name not in dispatcher.catalog.tools:
        return await dispatcher.results.tool(user).answer(arguments)
    result = await dispatcher.execute(name, arguments, user=user, by_model=True, context=context)
    return ToolAnswer.of_content(dispatcher.format_result(result, user=user), result.error)


# Execute a call in the form of a model's API, and answer in the same form.


async def execute(
    dispatcher: Dispatcher, call: object, *, style: Style | str, user: str = "", context: Any = None
) -> dict[str, Any]:
    """Execute one call that a model made, and return its answer. A failed call is an answer with the error text, marked as
    an error where the API has a mark; only cancellation is raised.

    Args:
        call: an entry of ``tool_calls`` (``openai-chat``), a ``function_call`` item (``openai-responses``), a ``tool_use``
            block (``anthropic``), a ``functionCall`` (``gemini``), or the parameters of ``tools/call`` (``mcp``): a
            mapping, or an object of the API's SDK.
        style: as of :func:`specs`.
        user: on whose behalf.
        context: any value, for functions of this process (:class:`dispatch.CallContext`).

    Returns:
        A message of the role ``tool``, a ``function_call_output`` item, a ``tool_result`` block, a part with a
        ``functionResponse``, or a ``CallToolResult``.

    Raises:
        ValueError: there is no such style, or ``call`` is no call in it.
    """
    await yield_to_others()
    check_dispatcher(dispatcher)
    style = Style(style)
    value = _read_mapping(call)
    parsed = _parse(value, style)
    refusal = find_refusal(parsed, dispatcher.catalog.tools.get(parsed.name))
    if refusal is not None:
        answer = ToolAnswer.of_error(refusal)
    else:
        answer = await answer_call(dispatcher, parsed.name, parsed.args, user=user, context=context)
    return cast(dict[str, Any], scalar_value(_write(answer, parsed, style)))


def _read_mapping(call: object) -> Mapping[str, Any]:
    if isinstance(call, Mapping):
        return call
    dump = getattr(call, "model_dump", None)
    value = dump(exclude_none=True) if callable(dump) else None
    if not isinstance(value, Mapping):
        raise ValueError(f"No tool was executed: {type(call).__name__} is no call. Pass one call of a model's message.")
    return value


def _parse(value: Mapping[str, Any], style: Style) -> ParsedCall:
    if style is Style.MCP:
        call = read_native_call({**value, "args": value.get("arguments") or {}}, CallForm.GEMINI)
    else:
        call = read_native_call(value, CallForm(style.value))
    if call is None:
        raise ValueError(
            f"No tool was executed: this is no call in the form of {style}. Pass one call of a model's message."
        )
    return call


def _write(answer: ToolAnswer, call: ParsedCall, style: Style) -> dict[str, Any]:
    if style is Style.MCP:
        return {"content": [{"type": "text", "text": answer.text}], "isError": answer.is_error}
    return write_native_answer(call.form, call.call_id, call.name, answer.text, is_error=answer.is_error)


# Descriptions of tools for the APIs of models.


class Specs(list[dict[str, Any]]):
    """The value of ``tools`` in a request.

    Attributes:
        widened: name of a tool → ``path: what the API cannot express``, for each place where the schema of its arguments
            accepts more than the tool's own, or offers less. A call is checked against the tool's own.
    """

    def __init__(self, values: Iterable[dict[str, Any]], widened: dict[str, tuple[str, ...]]) -> None:
        super().__init__(values)
        self.widened = widened


async def specs(dispatcher: Dispatcher, *, style: Style | str, user: str = "", **filters: Any) -> Specs:
    """Describe the tools that ``user`` may call now, and ``read_result``, with which a model reads the rest of a long
    result.

    Args:
        style: ``openai-chat``, ``openai-responses``, ``anthropic``, ``gemini`` or ``mcp``.
        filters: as of :meth:`dispatch.Dispatcher.tools`.

    Returns:
        The value of ``tools`` in a request; with ``mcp`` that of a ``tools/list`` result.

    Raises:
        ValueError: there is no such style.
        RejectedError: ``permissions-unavailable``: the permissions of ``user`` could not be resolved.
    """
    style = Style(style)
    widened: dict[str, tuple[str, ...]] = {}
    described: list[dict[str, Any]] = []
    for tool in await list_model_tools(dispatcher, user, **filters):
        fitted = fit_schema(tool.parameters, style)
        described.append(describe_tool(tool, fitted, style))
        if fitted.widened:
            widened[tool.name] = fitted.widened
    if style is Style.GEMINI and described:
        described = [{"functionDeclarations": described}]
    return Specs(described, widened)


def describe_tool(tool: ModelTool, fitted: FittedSchema, style: Style) -> dict[str, Any]:
    """Return the description of one tool."""
    described: dict[str, Any] = {"name": tool.name, "description": tool.description}
    match style:
        case Style.OPENAI_CHAT:
            described |= {"parameters": fitted.schema, "strict": fitted.is_strict}
            return {"type": "function", "function": described}
        case Style.OPENAI_RESPONSES:
            return {"type": "function", **described, "parameters": fitted.schema, "strict": fitted.is_strict}
        case Style.ANTHROPIC:
            return {**described, "input_schema": fitted.schema}
        case Style.GEMINI:
            # An object without properties is refused; without parameters a function has none.
            return {**described, "parameters": fitted.schema} if "properties" in fitted.schema else described
    annotations = {"readOnlyHint": tool.read_only, "idempotentHint": tool.idempotent}
    if tool.destructive is not None:
        annotations["destructiveHint"] = tool.destructive
    return {**described, "inputSchema": fitted.schema, "annotations": annotations}


# The error for a missing framework.


def missing_extra(extra: str, library: str) -> ImportError:
    """Return the error for a library that is not installed; it names the extra."""
    return ImportError(
        f"dispatch.adapters.{extra} needs {library}, which is not installed or too old. "
        f"Install it: {install_extra(extra.replace('_', '-'))}",
        name=library,
    )


# Synchronous calls, from another thread than that of the dispatcher's event loop.


def wait_for_answer(answer: Coroutine[Any, Any, ToolAnswer], loop: asyncio.AbstractEventLoop, name: str) -> ToolAnswer:
    """Wait for ``answer`` on the dispatcher's event loop, from another thread.

    Raises:
        RuntimeError: called on that event loop, which it would block, or the loop does not run.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop or not loop.is_running():
        answer.close()
        reason = "it would block the event loop of its dispatcher" if running is loop else "its dispatcher is closed"
        raise RuntimeError(
            f"Tool {name!r} was not executed: {reason}. Use ainvoke, or run the agent in another thread: asyncio.to_thread."
        )
    future = asyncio.run_coroutine_threadsafe(answer, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
