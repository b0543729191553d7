"""Execute a call in the form of a model's API, and answer in the same form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from dispatch._internal.utf8 import scalar_value
from dispatch.adapters.dialects.fitted_schema import Style
from dispatch.adapters.model_tool import ToolAnswer, answer_call
from dispatch.calling import ParsedCall, parse
from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.results import ResultFormatter

if TYPE_CHECKING:
    from dispatch.dispatcher import Dispatcher


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
    style = Style(style)
    value = _read_mapping(call)
    parsed = _parse(value, style)
    answer = await _answer(dispatcher, parsed, user, context)
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
    if style is Style.OPENAI_CHAT:
        message: dict[str, Any] = {"tool_calls": [value]}
    elif style is Style.OPENAI_RESPONSES:
        message = {**value, "type": "function_call"}
    elif style is Style.ANTHROPIC:
        message = {**value, "type": "tool_use"}
    elif style is Style.GEMINI:
        message = {"functionCall": value.get("functionCall", value.get("function_call", value))}
    else:
        message = {"functionCall": {"name": value.get("name"), "args": value.get("arguments") or {}}}
    calls = parse(message)
    if len(calls) != 1:
        raise ValueError(
            f"No tool was executed: this is no call in the form of {style}. Pass one call of a model's message."
        )
    return calls[0]


async def _answer(dispatcher: Dispatcher, call: ParsedCall, user: str, context: Any) -> ToolAnswer:
    problem = call.error
    descriptor = dispatcher.catalog.tools.get(call.name)
    if problem is None and call.truncated and not (descriptor is not None and descriptor.read_only):
        problem = (
            f"Tool {call.name!r} was not executed: its call was cut off. Write the whole call again, "
            "with shorter arguments if the length of a text is limited."
        )
    if problem is None and call.repaired and descriptor is not None and descriptor.destructive is True:
        problem = (
            f"Tool {call.name!r} was not executed: it is destructive, and its arguments were not valid JSON. "
            "Write the whole call again with valid JSON."
        )
    if problem is not None:
        error = InvalidArgumentsError(ErrorType.INVALID_ARGUMENTS, problem)
        return ToolAnswer(ResultFormatter.format_error(error), True, error)
    return await answer_call(dispatcher, call.name, call.args, user=user, context=context)


def _write(answer: ToolAnswer, call: ParsedCall, style: Style) -> dict[str, Any]:
    match style:
        case Style.OPENAI_CHAT:
            return {"role": "tool", "tool_call_id": call.call_id, "content": answer.text}
        case Style.OPENAI_RESPONSES:
            return {"type": "function_call_output", "call_id": call.call_id, "output": answer.text}
        case Style.ANTHROPIC:
            block = {"type": "tool_result", "tool_use_id": call.call_id, "content": answer.text}
            return {**block, "is_error": answer.is_error}
        case Style.GEMINI:
            response = {"name": call.name, "response": {"error" if answer.is_error else "output": answer.text}}
            # Gemini's API gives ids to some calls only, and refuses an empty one.
            return {"functionResponse": {"id": call.call_id, **response} if call.call_id else response}
    return {"content": [{"type": "text", "text": answer.text}], "isError": answer.is_error}
