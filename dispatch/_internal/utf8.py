"""Texts as UTF-8, which cannot express half of a surrogate pair.

Python makes such texts of file names that are not UTF-8 (``os.fsdecode``), of ``"\\ud83d"`` in JSON, and of truncated emoji.
A text that leaves the process, or that something encodes later, passes one of these functions.
"""

from __future__ import annotations

from typing import Any


def encode_text(text: str) -> bytes:
    """Encode ``text`` as UTF-8, with ``?`` for each half of a surrogate pair. Cannot fail."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def scalar_text(text: str) -> str:
    """Return ``text`` with ``?`` for each half of a surrogate pair, so that every encoder accepts it."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def scalar_value(value: Any) -> Any:
    """Return a JSON value whose texts, keys included, have passed :func:`scalar_text`. Other values are unchanged."""
    if isinstance(value, str):
        return scalar_text(value)
    if isinstance(value, dict):
        return {scalar_text(key) if isinstance(key, str) else key: scalar_value(each) for key, each in value.items()}
    return [scalar_value(each) for each in value] if isinstance(value, (list, tuple)) else value
