"""Whole results, for reading page by page: for an hour, in bounded memory, by the user to whom they belong."""

from __future__ import annotations

import secrets
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NoReturn

import msgspec

from dispatch.errors import ErrorType, InvalidArgumentsError
from dispatch.results.read_result_tool import ReadResultTool
from dispatch.results.result_page import PAGE_CHARS, ResultPage

RETENTION_S: Final = 3600.0
"""Seconds for which a result can be read: longer than most conversations of an agent last."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Memory of all results together: the largest reply that the default policy accepts."""
_ENTRY_BYTES: Final = 500
"""Memory of an entry besides its text: measured with many short ones."""


class _Entry(msgspec.Struct, frozen=True):
    user: str
    text: str
    size: int
    expires: float


class ResultStore:
    """Results by handle. A handle cannot be guessed, and belongs to its user: to others it is unknown.

    When the memory is exhausted, the oldest result of the user with the most memory is dropped: many results of one user do
    not displace the few of another.

    Args:
        max_bytes: memory of all results.
        retention: seconds for which a result is stored.
        clock: returns seconds; monotonic.
        new_handle: returns an unguessable text.
    """

    def __init__(
        self,
        *,
        max_bytes: int = MAX_BYTES,
        retention: float = RETENTION_S,
        clock: Callable[[], float] = time.monotonic,
        new_handle: Callable[[], str] = lambda: secrets.token_urlsafe(16),
    ) -> None:
        self._max_bytes = max_bytes
        self._retention = retention
        self._clock = clock
        self._new_handle = new_handle
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        """In the order in which they expire."""
        self._handles_of: dict[str, OrderedDict[str, None]] = {}
        self._bytes_of: dict[str, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        return self._bytes

    def add(self, text: str, user: str = "") -> str | None:
        """Store a result of ``user`` and return its handle; None: it is larger than the memory of the store."""
        now = self._clock()
        self._drop_expired(now)
        size = sys.getsizeof(text) + _ENTRY_BYTES
        if size > self._max_bytes:
            return None
        while self._bytes + size > self._max_bytes:
            largest = max(self._bytes_of, key=lambda each: self._bytes_of[each])
            self._drop(next(iter(self._handles_of[largest])))
        handle = self._new_handle()
        self._entries[handle] = _Entry(user, text, size, now + self._retention)
        self._handles_of.setdefault(user, OrderedDict())[handle] = None
        self._bytes_of[user] = self._bytes_of.get(user, 0) + size
        self._bytes += size
        return handle

    def read(self, handle: str, *, offset: int = 0, limit: int = PAGE_CHARS, user: str = "") -> ResultPage:
        """Return at most ``limit`` characters of a result from ``offset`` on. Pages that follow each other are together the
        result, without loss.

        Raises:
            InvalidArgumentsError: ``unknown-result``: the handle is unknown, expired, or another user's;
                ``invalid-arguments``: an offset outside of the result, or a limit below 1.
        """
        self._drop_expired(self._clock())
        entry = self._entries.get(handle) if isinstance(handle, str) else None
        if entry is None or entry.user != user:
            raise InvalidArgumentsError(
                ErrorType.UNKNOWN_RESULT,
                "No tool was executed: no stored result has this handle; results are stored for "
                f"{self._retention / 60:g} minutes. Give the handle as the cut result names it, or call the tool again.",
            )
        total = len(entry.text)
        if not _is_number(offset) or not 0 <= offset <= total:
            _refuse("offset", f"a whole number from 0 to {total}", offset)
        if not _is_number(limit) or limit < 1:
            _refuse("limit", "a whole number above 0", limit)
        return ResultPage(entry.text[offset : offset + limit], offset, total)

    def tool(self, user: str = "") -> ReadResultTool:
        """Return the tool ``read_result``, by which a model reads the results of ``user``."""
        return ReadResultTool(self, user)

    def _drop_expired(self, now: float) -> None:
        while self._entries:
            handle, entry = next(iter(self._entries.items()))
            if entry.expires > now:
                return
            self._drop(handle)

    def _drop(self, handle: str) -> None:
        entry = self._entries.pop(handle)
        self._bytes -= entry.size
        del self._handles_of[entry.user][handle]
        self._bytes_of[entry.user] -= entry.size
        if not self._handles_of[entry.user]:
            del self._handles_of[entry.user], self._bytes_of[entry.user]


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(name: str, expected: str, given: object) -> NoReturn:
    raise InvalidArgumentsError(
        ErrorType.INVALID_ARGUMENTS,
        f"The result was not read: {name} must be {expected}, not {given!r:.40}. Correct the arguments.",
    )
