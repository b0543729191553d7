"""Searches in one text whose cost stays linear over any number of searches."""

from __future__ import annotations


class MarkFinder:
    """``str.find`` in one text that remembers its last result for each mark, so that repeated searches stay linear."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._last: dict[str, tuple[int, int]] = {}

    def find(self, mark: str, start: int) -> int:
        """Return the index of the first ``mark`` at or behind ``start``; the length of the text without one."""
        since, found = self._last.get(mark, (0, -1))
        if not since <= start <= found:
            found = self.text.find(mark, start)
            found = len(self.text) if found < 0 else found
            self._last[mark] = (start, found)
        return found


def find_comment_end(finder: MarkFinder, position: int, ends: tuple[str, ...]) -> int:
    """Return the index behind the comment at ``position``, or ``position`` without one. Marks of ``ends`` end comments."""
    text = finder.text
    if text.startswith("/*", position):
        return min(finder.find("*/", position + 2) + 2, len(text))
    if not text.startswith(("//", "#"), position):
        return position
    end = finder.find("\n", position)
    marks = [found for mark in ends if (found := text.find(mark, position, end)) >= 0]
    return min([end, *marks])
