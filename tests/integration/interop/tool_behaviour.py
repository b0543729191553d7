"""What the test services do, theirs and ours alike, so that one test can be put to both (a stream only to ours)."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

PREFIX = {"prefix": "customers"}
"""The config of most calls: it must come back in the answer, so that a lost config is seen."""

RESULTS: dict[str, Any] = {
    "text": "plain text",
    "text that looks like JSON": '{"a": 1}',
    "empty text": "",
    "dict": {"name": "Ada", "orders": [1, 2.5, -3e10], "paid": True, "note": None, "nested": {"deep": []}},
    "list": ["a", {"b": [1]}],
    "number": 42,
    "null": None,
    "unicode dict": {"名前": "ليلى", "emoji": "👩‍👩‍👧‍👦"},
}

UNICODE = {
    "accents": "Ångström – naïve façade, Straße",
    "combining": "e\u0301 a\u0300\u0323",
    "emoji": "😀 👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🇪🇺",
    "Arabic": "مرحبًا بالعالم ١٢٣",
    "Hebrew with marks": "\u202bשלום\u202c\u200f",
    "Chinese and Japanese": "漢字 かな カナ 𠮷野家",
    "separators": "line\u2028paragraph\u2029next\x85end",
    "control characters": "NUL \x00 bell \x07 escape \x1b delete \x7f",
    "quotes and backslashes": "\"double\" 'single' \\ \\\\ \\n \\u0041 /",
    "white space": " \t leading, trailing \r\n ",
    "byte order mark, replacement": "\ufeffstart \ufffd \uffff end",
}

MEBIBYTE = 1 << 20
BIG = {
    "ASCII": "0123456789abcdef" * (MEBIBYTE // 16),
    # TrustGraph writes each of these as two escapes within an escaped text, 14 bytes: 3.5 MiB on the wire.
    "emoji": "😀" * (MEBIBYTE // 4),
}
"""Texts of 1 MiB in UTF-8."""


class Refused(Exception):
    """An error type of a tool author's own."""


def act(config: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Do what the arguments say."""
    match arguments:
        case {"query": query}:
            return answer(config["salt"], query)
        case {"join": text}:
            return f"{config['prefix']}|{text}"
        case {"give": name}:
            return RESULTS[name]
        case {"echo": text}:
            return text
        case {"measure": text}:
            return digest(text)
        case {"make": name}:
            return BIG[name]
        case {"fill": count}:
            return "x" * count
        case {"refuse": reason}:
            raise Refused(reason)
        case {"unwritable": True}:
            return object()
        case {"surrogate": True}:
            return "\ud800"
    return {"config": config, "arguments": arguments}


async def stream(arguments: dict[str, Any]) -> AsyncIterator[Any]:
    """A stream, as only our service can answer: ``pieces``, and an error after them if ``broken``."""
    for piece in arguments["pieces"]:
        yield piece
    if "broken" in arguments:
        raise Refused(arguments["broken"])


def answer(salt: str, query: str) -> str:
    """The right answer to a query: nobody has it without the whole query and the config."""
    return f"{salt} {len(query)} {digest(salt + query)} {query[::-1]}"


def digest(text: str) -> str:
    """The length and the SHA-256 of a text."""
    return f"{len(text)}:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
