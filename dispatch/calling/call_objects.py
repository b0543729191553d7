"""From decoded JSON to calls: the names of the keys, and the words of an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import structs

from dispatch._internal.suggestions import quote_excerpt
from dispatch.calling.json_reading.json_fault import JsonFaultError
from dispatch.calling.json_reading.json_reader import read_json
from dispatch.calling.json_reading.mark_finder import MarkFinder
from dispatch.calling.json_reading.translation import JsonValue
from dispatch.calling.parsed_call import MAX_CALLS, MAX_EXCERPT_CHARS, CallForm, ParsedCall

SHAPES: Final = {
    CallForm.FUNCTION_CALL: '<function_call>{"name": "…", "call_objective": "…", "args": {…}}</function_call>',
    CallForm.TOOL_CALL: '<tool_call>{"name": "…", "arguments": {…}}</tool_call>',
    CallForm.FENCE: '<function_call>{"name": "…", "call_objective": "…", "args": {…}}</function_call>',
    CallForm.REACT: "the line 'Action: NAME' and the line 'Args: {…}'",
}
"""How a call is written, for errors; native forms need none."""
_ARGUMENT_KEYS: Final = ("args", "arguments", "parameters", "input")


class Place(NamedTuple):
    """Where a call or a fault is in a text: index from 0, line and column from 1."""

    position: int
    line: int
    column: int


def write_error(form: CallForm, place: Place, reason: str, around: str = "") -> str:
    """Return the error of a call that cannot be read: place, reason, the text around the fault, and what to write."""
    near = f", near {quote_excerpt(around, MAX_EXCERPT_CHARS - 20)}"[:MAX_EXCERPT_CHARS] if around else ""
    shape = f"as {SHAPES[form]} " if form in SHAPES else ""
    return (
        f"The call at line {place.line}, column {place.column} was not executed: {reason}{near}. "
        f"Write the whole call again {shape}with valid JSON."
    )


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
        return _fail(form, place, f"it is {_kind(value)} and not an object", read)
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return _fail(form, place, "the key 'name' with the name of the tool is missing", read)
    objective = value.get("call_objective", "")
    if not isinstance(objective, str):
        objective = json.dumps(objective, ensure_ascii=False)
    args = value.get(next((key for key in _ARGUMENT_KEYS if key in value), "args"))
    call = ParsedCall(
        name=name.strip(),
        form=form,
        args=args if isinstance(args, dict) else {},
        call_objective=objective,
        position=place.position,
        line=place.line,
        column=place.column,
        repaired=read.repaired,
        truncated=read.truncated,
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
            error = write_error(
                call.form, place, f"in its arguments {fault.reason}", quote_around(text, fault.position)
            )
        else:
            arguments = read.value
            repaired, truncated = repaired or read.repaired, truncated or read.truncated
            if text[read.end :].strip():
                error = write_error(
                    call.form, place, "its arguments go on behind the object", quote_around(text, read.end)
                )
    elif arguments is None or arguments == "" or isinstance(arguments, str):
        arguments = {}
    if error is None and not isinstance(arguments, Mapping):
        error = write_error(call.form, place, f"its arguments are {_kind(arguments)} and not an object")
    return structs.replace(
        call, args=dict(arguments) if error is None else {}, repaired=repaired, truncated=truncated, error=error
    )


def _fail(form: CallForm, place: Place, reason: str, read: JsonValue) -> ParsedCall:
    return ParsedCall(
        name="",
        form=form,
        position=place.position,
        line=place.line,
        column=place.column,
        repaired=read.repaired,
        truncated=read.truncated,
        error=write_error(form, place, reason),
    )


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return {str: "a text", int: "a number", float: "a number", list: "a list"}.get(type(value), "not JSON")
