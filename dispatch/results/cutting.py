"""Where a long text may be cut: behind a line, and in JSON behind a value."""

from __future__ import annotations

import re
import unicodedata
from typing import Final

import msgspec

_JSON_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|,', re.DOTALL)
"""A text (its end may be beyond the searched part), whose commas separate nothing, or a comma that separates values. Each
alternative begins with another character: the search is linear."""
_MAX_MARKS: Final = 16
"""Combining characters behind one letter. Emoji sequences and real scripts have fewer."""
_JOINERS: Final = "\u200c\u200d\ufe0e\ufe0f"
"""Joiners and variation selectors, which belong to the character before them."""


def find_cut(text: str, limit: int) -> int:
    """Return how many characters of ``text`` to show, at most ``limit``: to the end of a value for JSON, else of a line,
    else of a word, else of a character. Places in the first half of the limit are not used, so that a text with one long
    line is not cut to nothing."""
    if len(text) <= limit:
        return len(text)
    least = limit // 2
    if is_json(text):
        cut = find_end_of_value(text, limit)
        if cut > least:
            return cut
    for separator in ("\n", " "):
        cut = text.rfind(separator, 0, limit) + 1
        if cut > least:
            return cut
    return _find_end_of_character(text, limit)


def is_json(text: str) -> bool:
    """Return whether ``text`` is a JSON object or list."""
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


def find_end_of_value(text: str, limit: int) -> int:
    """Return the position behind the last comma between two values in the first ``limit`` characters; 0: there is none."""
    end = 0
    for token in _JSON_TOKEN.finditer(text, 0, limit):
        if token[0] == ",":
            end = token.end()
    return end


def _find_end_of_character(text: str, limit: int) -> int:
    """Return a position at ``limit``, or shortly before it, where no letter is separated from its combining characters."""
    for position in range(limit, max(limit - _MAX_MARKS, 0), -1):
        previous, following = text[position - 1], text[position]
        if not unicodedata.combining(following) and following not in _JOINERS and previous != "\u200d":
            return position
    return limit
