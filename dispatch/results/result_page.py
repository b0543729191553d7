"""Part of a stored result."""

from __future__ import annotations

from typing import Final

import msgspec

PAGE_CHARS: Final = 40_000
"""Characters of a page by default: below the default ``max-result-chars``, so that a page is not cut again."""


class ResultPage(msgspec.Struct, frozen=True):
    """Part of a result.

    Attributes:
        text: its characters.
        offset: position of its first character in the result.
        total: characters of the whole result.
    """

    text: str
    offset: int
    total: int

    @property
    def next_offset(self) -> int | None:
        """Where the next page begins; None: this is the last one."""
        end = self.offset + len(self.text)
        return end if end < self.total else None
