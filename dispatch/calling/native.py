"""Calls as decoded JSON: in a text, and in the native forms of model APIs, with the answers to native calls."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from types import NoneType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from dispatch._internal import check_instance, is_deeper, quote_excerpt
from dispatch.calling.json_repair import MAX_DEPTH, JsonFaultError, JsonValue, MarkFinder, read_json
from dispatch.documents import describe_kind

# A call that a model wrote, as it was read, and the limits of reading.


MAX_CALLS: Final = 16
"""Calls of one text, those with errors included. A text with more is a loop of the model; the first ones may be useful."""
MAX_EXCERPT_CHARS: Final = 200
"""Characters of the text that an error repeats to the model."""


class CallForm(StrEnum):
    """The syntax in which a call was written. It decides the form of the answer."""

    FUNCTION_CALL = "function-call"
    """``<function_call>{"name", "call_objective", "args"}</function_call>`` (Chat2Graph)."""
    TOOL_CALL = "tool-call"
    """``<tool_call>{"name", "arguments"}</tool_call>`` (Hermes, Qwen), and the same between the tokens of other models."""
    FENCE = "fence"
    """A ``json`` code block with the three keys of Chat2Graph, or a ``tool_call`` code block."""
    REACT = "react"
    """Lines ``Thought:``, ``Action:`` and ``Args:`` (TrustGraph)."""
    OPENAI_CHAT = "openai-chat"
    """``tool_calls`` of an assistant message of OpenAI's Chat Completions."""
    OPENAI_RESPONSES = "openai-responses"
    """``function_call`` items in the output of OpenAI's Responses."""
    ANTHROPIC = "anthropic"
    """``tool_use`` blocks of Anthropic's Messages."""
    GEMINI = "gemini"
    """``functionCall`` parts of Gemini's contents."""


class ParsedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call in a model's output, or one place that should be a call and is none.

    Attributes:
        name: name of the tool; ``""`` where it could not be read.
        args: the arguments, decoded from JSON.
        call_objective: the model's reason for the call; ``""`` in forms without one.
        form: the syntax of the call.
        call_id: the id that the model's API gave to the call; ``""`` in texts.
        position: index of the first character of the call in the text, from 0; 0 for native forms.
        line, column: the same place, from 1.
        repaired: the JSON was not valid and was repaired: trailing commas, comments, single quotes, raw newlines, missing or
            superfluous end brackets, Python's ``True``, ``False`` and ``None``.
        truncated: the text ended inside the call; ``args`` has what was there, the last value possibly in part.
        error: why the call cannot be executed, for the model; None for a readable call.
    """

    name: str
    form: CallForm
    args: dict[str, Any] = {}
    call_objective: str = ""
    call_id: str = ""
    position: int = 0
    line: int = 1
    column: int = 1
    repaired: bool = False
    truncated: bool = False
    error: str | None = None


# From decoded JSON to calls: the names of the keys, and the words of an error.


SHAPES: Final = {
    CallForm.FUNCTION_CALL: '<function_call>{"name": "…", "call_objective": "…", "args": {…}}</function_call>',
    CallForm.TOOL_CALL: '<tool_call>{"name": "…", "arguments": {…}}</tool_call>',
    CallForm.FENCE: '<function_call>{"name": "…", "call_objective": "…", "args": {…}}</function_call>',
    CallForm.REACT: "the line 'Action: NAME' and the line 'Args: {…}'",
}
"""How a call is written, for errors; native forms need none."""
_ARGUMENT_KEYS: Final = ("args", "arguments", "parameters", "input")
_OTHER_KEYS: Final = frozenset({"name", "tool_name", "call_objective", "type", "id", "tool_call_id"})
"""Keys of a call beside its arguments."""


class Place(NamedTuple):
    """Where a call or a fault is in a text: index from 0, line and column from 1."""

    position: int
    line: int
    column: int


def write_error(form: CallForm, place: Place, reason: str, around: str = "", name: str = "") -> str:
    """Return the error of a call that cannot be read: place, or in native forms the name; reason, the text around the fault,
    and what to write."""
    near = f", near {quote_excerpt(around, MAX_EXCERPT_CHARS - 20)}"[:MAX_EXCERPT_CHARS] if around else ""
    shape = f"as {SHAPES[form]} " if form in SHAPES else ""
    call = f"The call at line {place.line}, column {place.column}" if form in SHAPES else f"Tool {name!r}"
    return f"{call} was not executed: {reason}{near}. Write the whole call again {shape}with valid JSON."


def quote_around(text: str, position: int, start: int = 0, end: int | None = None) -> str:
    """Return the part of ``text[start:end]`` around ``position`` that an error shows."""
    return text[max(start, position - 80) : min(len(text) if end is None else end, position + 80)]


def convert_value(read: JsonValue, form: CallForm, place: Place) -> list[ParsedCall]:
    """Return the calls of one JSON value: an object is one call, a list of objects are several."""
    values = read.value if isinstance(read.value, list) else [read.value]
    return [_convert(value, read, form, place) for value in values[: MAX_CALLS + 1]]


def _convert(value: Any, read: JsonValue, form: CallForm, place: Place) -> ParsedCall:
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]  # {"type": "function", "function": {"name", "arguments"}}, as in OpenAI's API
    if not isinstance(value, dict):
        return _fail(form, place, f"it is {describe_kind(value)} and not an object", read)
    name = value.get("name", value.get("tool_name"))
    if not isinstance(name, str) or not name.strip():
        return _fail(form, place, "the key 'name' with the name of the tool is missing", read)
    if value.keys().isdisjoint(_ARGUMENT_KEYS) and not value.keys() <= _OTHER_KEYS:
        return _fail(form, place, "its arguments are not in an object of their own", read)
    objective = value.get("call_objective", "")
    if not isinstance(objective, str):
        objective = json.dumps(objective, ensure_ascii=False)
    args = value.get(next((key for key in _ARGUMENT_KEYS if key in value), "args"))
    call = ParsedCall(
        name=name.strip(),
        form=form,
        args=args if isinstance(args, dict) else {},
        call_objective=objective,
        repaired=read.repaired,
        truncated=read.truncated,
        **place._asdict(),
    )
    return call if isinstance(args, dict) else finish_call(call, args)


def finish_call(call: ParsedCall, arguments: Any) -> ParsedCall:
    """Return ``call`` with its arguments: an object, the JSON text of one, or nothing (no arguments)."""
    repaired, truncated = call.repaired, call.truncated
    place = Place(call.position, call.line, call.column)
    error = None
    if isinstance(arguments, str) and arguments.strip():
        text = arguments.strip()
        try:
            read = read_json(MarkFinder(text), 0)
        except JsonFaultError as fault:
            around = quote_around(text, fault.position)
            error = write_error(call.form, place, f"in its arguments {fault.reason}", around, call.name)
        else:
            arguments = {} if read.value is None else read.value
            repaired, truncated = repaired or read.repaired, truncated or read.truncated
            if text[read.end :].strip():
                around = quote_around(text, read.end)
                error = write_error(call.form, place, "its arguments go on behind the object", around, call.name)
    elif arguments is None or arguments == "" or isinstance(arguments, str):
        arguments = {}
    if error is None and not isinstance(arguments, Mapping):
        reason = f"its arguments are {describe_kind(arguments)} and not an object"
        error = write_error(call.form, place, reason, name=call.name)
    return structs.replace(
        call, args=dict(arguments) if error is None else {}, repaired=repaired, truncated=truncated, error=error
    )


def _fail(form: CallForm, place: Place, reason: str, read: JsonValue) -> ParsedCall:
    return ParsedCall(
        name="",
        form=form,
        repaired=read.repaired,
        truncated=read.truncated,
        error=write_error(form, place, reason),
        **place._asdict(),
    )


# Calls and answers in the native forms of model APIs: OpenAI's Chat Completions and Responses, Anthropic's Messages, Gemini.


_LENGTH_REASONS: Final = frozenset({"length", "max_tokens", "MAX_TOKENS", "incomplete", "max_output_tokens"})
_NATIVE_KEYS: Final = ('"tool_calls"', '"function_call"', '"tool_use"', '"functionCall"')
_WRAPPERS: Final = ("choices", "message", "output", "content", "candidates", "parts")
"""Keys under which responses hold their messages and parts."""
_KNOWN_KEYS: Final = frozenset({"type", "functionCall", "function_call", "tool_calls", *_WRAPPERS})
_BARE_KEYS: Final = tuple(
    {"name", key, *extra} for key in ("parameters", "arguments") for extra in ((), ("type",), ("id",))
)
_FORM_KEYS: Final = {
    CallForm.OPENAI_CHAT: ("id", "arguments"),
    CallForm.OPENAI_RESPONSES: ("call_id", "arguments"),
    CallForm.ANTHROPIC: ("id", "input"),
    CallForm.GEMINI: ("id", "args"),
}
"""Form → keys of the id and of the arguments of a call."""
NATIVE_FORMS: Final = frozenset(_FORM_KEYS)


def read_native_text(text: str) -> list[ParsedCall] | None:
    """Return the calls of a text that is JSON in a native form as a whole; None for any other text."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        return None
    is_bare = '"parameters"' in stripped or '"arguments"' in stripped
    if not is_bare and not any(key in stripped for key in _NATIVE_KEYS):
        return None
    try:
        value = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return read_native(value) or _limit(read_bare(JsonValue(value, 0), Place(0, 1, 1))) or None


def read_bare(read: JsonValue, place: Place) -> list[ParsedCall]:
    """Return the calls of a value that is nothing but calls: ``{"name", "parameters"}``, or a list of them."""
    values = read.value if isinstance(read.value, list) else [read.value]
    if not all(isinstance(each, dict) and each.keys() in _BARE_KEYS for each in values):
        return []
    return [] if is_deeper(read.value, MAX_DEPTH) else convert_value(read, CallForm.TOOL_CALL, place)


_SCALARS: Final = (str, int, float, NoneType)
_DECODED: Final = "a text (bytes.decode()) or a message in decoded JSON (message.model_dump(exclude_none=True))"


def read_native(value: Any) -> list[ParsedCall]:
    """Return the calls of a decoded message, response, or list of messages, parts or output items.

    Raises:
        TypeError: something in it is not decoded.
    """
    calls: list[ParsedCall] = []
    for found, form, is_cut in _find(value, is_cut=False, depth=0):
        call = read_native_call(found, form, is_cut=is_cut)
        if call is not None:
            calls.append(call)
    return _limit(calls)


def _limit(calls: list[ParsedCall]) -> list[ParsedCall]:
    """Return ``calls`` with an error in place of each one beyond :data:`MAX_CALLS`: a call of a native form needs an answer
    under its id."""
    for index, call in enumerate(calls[MAX_CALLS:], MAX_CALLS):
        message = f"The call of {call.name!r} was not executed: a message may have at most {MAX_CALLS} calls. "
        error = f"{message}Make the calls that are still needed after the results of the others."
        calls[index] = ParsedCall(name=call.name, form=call.form, call_id=call.call_id, error=error)
    return calls


def read_native_call(value: Mapping[str, Any], form: CallForm, *, is_cut: bool = False) -> ParsedCall | None:
    """Return one call of a message; None: ``value`` is no call in ``form``.

    Args:
        value: an entry of ``tool_calls``, a ``function_call`` item, a ``tool_use`` block, or a ``functionCall``, alone or in
            its part.
        is_cut: the API stopped the message at its limit of tokens.
    """
    call: Any = value
    if form is CallForm.OPENAI_CHAT:
        call = value.get("function")
    elif form is CallForm.GEMINI:
        call = value.get("functionCall", value.get("function_call", value))
    if (
        not isinstance(call, Mapping)
        or (form is CallForm.OPENAI_RESPONSES and "arguments" not in call)
        or (form is CallForm.ANTHROPIC and call.get("type", "tool_use") != "tool_use")
        or (form is CallForm.GEMINI and call is value and "name" not in call)
    ):
        return None
    id_key, arguments_key = _FORM_KEYS[form]
    name, arguments = call.get("name"), call.get(arguments_key)
    call_id = (call if form is CallForm.GEMINI else value).get(id_key)
    known_id = call_id if isinstance(call_id, str) else ""
    if not isinstance(name, str) or not name:
        error = "The call was not executed: it has no name. Write the whole call again with the name of a tool."
        return ParsedCall(name="", form=form, call_id=known_id, error=error)
    if is_deeper(arguments, MAX_DEPTH):
        error = f"{name!r} was not executed: its arguments are nested deeper than {MAX_DEPTH}. Write flatter arguments."
        return ParsedCall(name=name, form=form, call_id=known_id, error=error)
    # An API that stopped at its limit of tokens may have closed the brackets by itself.
    is_truncated = not isinstance(arguments, str) and (is_cut or _is_cut(value))
    return finish_call(ParsedCall(name=name, form=form, call_id=known_id, truncated=is_truncated), arguments)


def _is_cut(value: Mapping[str, Any]) -> bool:
    reasons = (value.get("finish_reason"), value.get("finishReason"), value.get("stop_reason"), value.get("status"))
    return any(isinstance(reason, str) and reason in _LENGTH_REASONS for reason in reasons)


def _find(value: Any, *, is_cut: bool, depth: int) -> Iterator[tuple[Mapping[str, Any], CallForm, bool]]:
    """Yield the calls in ``value``, each with its form, and whether the API stopped its message at the limit of tokens."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        for each in value:
            if isinstance(each, dict) and _KNOWN_KEYS.isdisjoint(each):
                continue  # perf: a list may have tens of thousands of objects without calls
            if depth < len(_WRAPPERS) * 2:
                yield from _find(each, is_cut=is_cut, depth=depth + 1)
        return
    if not isinstance(value, Mapping):
        # An object of an SDK has perhaps calls, and a model that waits for their answers.
        check_instance("a model's output", value, _SCALARS if depth else (str, NoneType), _DECODED)
        return
    is_cut = is_cut or _is_cut(value)
    if value.get("type") == "function_call" and "arguments" in value:
        yield value, CallForm.OPENAI_RESPONSES, is_cut
    elif value.get("type") == "tool_use":
        yield value, CallForm.ANTHROPIC, is_cut
    elif isinstance(part := value.get("functionCall", value.get("function_call")), Mapping):
        if "functionCall" in value or not isinstance(part.get("arguments"), str):
            yield value, CallForm.GEMINI, is_cut
        else:  # OpenAI's form before ``tool_calls``
            yield {"id": part.get("id"), "function": part}, CallForm.OPENAI_CHAT, is_cut
    elif isinstance(value.get("tool_calls"), Sequence):
        for each in value["tool_calls"]:
            if isinstance(each, Mapping):
                yield each, CallForm.OPENAI_CHAT, is_cut
            else:
                check_instance("a call in a model's output", each, _SCALARS, _DECODED)
    elif depth < len(_WRAPPERS) * 2:
        for key in _WRAPPERS:
            if not isinstance(value.get(key), _SCALARS):
                yield from _find(value[key], is_cut=is_cut, depth=depth + 1)


def write_native_answer(form: CallForm, call_id: str, name: str, text: str, *, is_error: bool) -> dict[str, Any]:
    """Return the answer to a call: a message of the role ``tool``, a ``function_call_output`` item, a ``tool_result`` block,
    or a part with a ``functionResponse``."""
    match form:
        case CallForm.OPENAI_CHAT:
            return {"role": "tool", "tool_call_id": call_id, "content": text}
        case CallForm.OPENAI_RESPONSES:
            return {"type": "function_call_output", "call_id": call_id, "output": text}
        case CallForm.ANTHROPIC:
            return {"type": "tool_result", "tool_use_id": call_id, "content": text, "is_error": is_error}
    response = {"name": name, "response": {"error" if is_error else "output": text}}
    # Gemini's API gives ids to some calls only, and refuses an empty one.
    return {"functionResponse": {"id": call_id, **response} if call_id else response}
