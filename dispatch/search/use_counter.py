"""How often each tool was called: the order of tools where a query matches none."""

from __future__ import annotations

from collections import Counter
from typing import Final

MAX_TOOLS: Final = 10_000
"""Tools that are counted; beyond that the half with the fewest calls is dropped, so that names that come and go use bounded
memory."""


class UseCounter:
    """Calls by tool."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._counts)

    def record_call(self, tool: str) -> None:
        """Count a call of ``tool``."""
        if tool not in self._counts and len(self._counts) >= MAX_TOOLS:
            self._counts = Counter(dict(self._counts.most_common(MAX_TOOLS // 2)))
        self._counts[tool] += 1

    def count_calls(self, tool: str) -> int:
        """Return the number of calls of ``tool``."""
        return self._counts.get(tool, 0)
