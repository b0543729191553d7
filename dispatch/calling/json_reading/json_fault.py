"""A fault of JSON that cannot be repaired, in words for a model."""

from __future__ import annotations

import json
from typing import Final

from dispatch._internal.suggestions import quote_excerpt
from dispatch.calling.parsed_call import MAX_DEPTH

VALUE_MISSING: Final = "a JSON value is missing"
TOO_DEEP: Final = f"more than {MAX_DEPTH} objects and lists are inside each other"


class JsonFaultError(ValueError):
    """The text is not JSON and cannot be repaired.

    Attributes:
        reason: the fault, as part of a sentence.
        position: index of the fault in the text.
        is_open: a closing quote or mark is missing, which a longer text may have.
    """

    def __init__(self, reason: str, position: int, *, is_open: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.is_open = is_open


def describe_error(error: json.JSONDecodeError) -> str:
    if "escape" in error.msg:
        return r"a string has an invalid escape sequence (write '\\' for a backslash)"
    if "':'" in error.msg:
        end = len(error.doc[: error.pos].rstrip())
        start = find_string(error.doc, end)
        return f"':' is missing after {quote_excerpt(json.loads(error.doc[start:end], strict=False), 40)}"
    if "','" in error.msg:
        return "',' or an end bracket is missing"
    return "a name in double quotes is missing" if "property name" in error.msg else VALUE_MISSING


def is_escape(text: str, position: int) -> bool:
    """Return whether the backslash at ``position`` begins an escape sequence, and is not escaped itself."""
    start = position
    while text[start - 1] == "\\":
        start -= 1
    return (position - start) % 2 == 0


def find_string(text: str, end: int) -> int:
    """Return the index of the JSON string that ends at ``end``; -1 without one."""
    if not text.endswith('"', 0, end):
        return -1
    start = text.rfind('"', 0, end - 1)
    while start > 0 and text[start - 1] == "\\" and not is_escape(text, start):
        start = text.rfind('"', 0, start)
    return start
