"""The tool by which a model reads the rest of a long result."""

from __future__ import annotations

from typing import Any, Final, Protocol

from dispatch._internal.clock import yield_to_others
from dispatch.results.result_page import PAGE_CHARS, ResultPage

READ_RESULT: Final = "read_result"
"""Name of the tool."""


class PageReader(Protocol):
    """Has results: :class:`ResultStore`."""

    def read(self, handle: str, *, offset: int, limit: int, user: str) -> ResultPage:
        """Return a page of a result of ``user``."""


class ReadResultTool:
    """A tool for :func:`dispatch.calling.call_function` and adapters. It reads results of one user.

    Attributes:
        name: ``read_result``.
        description: text by which the model chooses it.
        read_only: True.
        destructive: False.
    """

    name = READ_RESULT
    description = "Read more of a long result. A cut result names its handle, and the offset of what is missing."
    read_only = True
    destructive = False

    def __init__(self, store: PageReader, user: str = "") -> None:
        self._store = store
        self.user = user

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the arguments."""
        return {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": "Handle of the result, as the cut result names it"},
                "offset": {
                    "type": "integer",
                    "minimum": 0,
                    "default": 0,
                    "description": "Number of characters before the page",
                },
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": PAGE_CHARS,
                    "default": PAGE_CHARS,
                    "description": "Characters of the page, at most",
                },
            },
            "required": ["handle"],
            "additionalProperties": False,
        }

    async def invoke(self, handle: str, offset: int = 0, limit: int = PAGE_CHARS) -> str:
        """Return a page. Behind each page but the last, a line names the offset of the next one.

        Raises:
            InvalidArgumentsError: as :meth:`ResultStore.read`.
        """
        await yield_to_others()
        most = min(limit, PAGE_CHARS) if isinstance(limit, int) else limit
        page = self._store.read(handle, offset=offset, limit=most, user=self.user)
        if page.next_offset is None:
            return page.text
        return f"{page.text}\n\n{describe_page(page.next_offset - page.offset, page.total, page.next_offset, handle)}"

    def __repr__(self) -> str:
        return f"ReadResultTool(user={self.user!r})"


def describe_page(shown: int, total: int, next_offset: int, handle: str) -> str:
    """Return the line behind a part of a result: how much is missing, and how to read on."""
    return (
        f"[{shown:,} of {total:,} characters are shown, {total - next_offset:,} are missing behind them. "
        f'Read on: {READ_RESULT}(handle="{handle}", offset={next_offset})]'
    )
