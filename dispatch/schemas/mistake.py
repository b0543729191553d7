"""One fault of a value that does not match its JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dispatch._internal.suggestions import excerpt, join_names

MAX_SHOWN: Final = 20
"""Mistakes, and allowed values of each, that one text has: a model corrects a few at a time, and its context is limited."""
IS_REQUIRED: Final = "is required"
"""Message of a property that is missing."""


class Mistake(msgspec.Struct, frozen=True):
    """A fault at one place of a value. ``str()`` has path, fault and allowed values, and never the value itself: it may be
    confidential, and texts of errors are logged.

    Attributes:
        path: JSON Pointer (RFC 6901) of the place, such as ``/items/0/unit``; ``""``: the whole value. For a property that
            is missing, the path that it would have.
        message: the fault, as the rest of a sentence that begins with the path: ``must be an integer, not a string``.
        allowed: the values that the schema allows there, as JSON, where it lists them; for a property that is not expected,
            the names of those that are. Empty when it lists none.
    """

    path: str
    message: str
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{excerpt(self.path, 200) or 'the whole value'} {self.message}"
        return f"{text}: {join_names(self.allowed, MAX_SHOWN)}" if self.allowed else text


def join_mistakes(mistakes: Sequence[Mistake]) -> str:
    """Return the first :data:`MAX_SHOWN` of ``mistakes`` as one text, and the number of the others."""
    shown = "; ".join(map(str, mistakes[:MAX_SHOWN]))
    return f"{shown}; and {len(mistakes) - MAX_SHOWN:,} more" if len(mistakes) > MAX_SHOWN else shown


def join_pointer(keys: Iterable[str | int]) -> str:
    """Return the JSON Pointer of the value at ``keys``."""
    return "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in keys)


def split_pointer(pointer: str) -> list[str]:
    """Return the keys of a JSON Pointer, as texts."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
