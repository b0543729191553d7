"""JSON as models write it: valid JSON unchanged, and a few repairs of invalid JSON, in linear time.

Valid JSON is decoded by the standard library and never repaired.
"""

from __future__ import annotations

import json
from typing import Any, Final, NoReturn

from dispatch.calling.json_reading.json_fault import TOO_DEEP, JsonFaultError
from dispatch.calling.json_reading.mark_finder import MarkFinder
from dispatch.calling.json_reading.translation import JsonValue, Translation
from dispatch.calling.parsed_call import MAX_DEPTH


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


_STRICT: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def read_json(finder: MarkFinder, start: int, ends: tuple[str, ...] = ()) -> JsonValue:
    """Read the JSON value that begins at ``start``. With repairs it must be an object or a list.

    Args:
        finder: the text.
        start: index of the value's first character.
        ends: marks that end an incomplete value outside of strings, such as a closing tag.

    Raises:
        JsonFaultError: it is neither JSON nor repairable.
    """
    text = finder.text
    try:
        value, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        return Translation(finder, start, ends).decode()
    if text.count("{", start, end) + text.count("[", start, end) > MAX_DEPTH and is_deeper(value, MAX_DEPTH):
        raise JsonFaultError(TOO_DEEP, start)
    return JsonValue(value, end)


def is_deeper(value: Any, depth: int) -> bool:
    """Return whether ``value`` has more than ``depth`` objects and lists inside each other."""
    level = [value] if isinstance(value, dict | list) else []
    while level and depth:
        depth -= 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)
