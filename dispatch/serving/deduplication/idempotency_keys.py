"""Idempotency keys: a caller's own name for a piece of work. A request with a known key gets the answer of the first one.

Unlike an id, a key spans calls, and dispatchers. It holds for one user, on one service instance, for as long as that is not
restarted; our dispatchers send the same key to the same instance. Only what the tool answers is an answer: a request that is
refused because its deadline has passed leaves the tool running, and the key gets the tool's answer.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from dispatch.serving.deduplication.request_history import Message

KEY_AGE_S = 600.0
"""How long an answer is kept: longer than a caller that was cut off takes to come back."""
MAX_KEYS = 10_000
MAX_DUPLICATES = 1_024
"""Requests that wait for the answer of the first one with their key; the next one is refused. They take no place among
those that run."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of answers kept."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""A longer answer is not kept: its repeat is refused rather than run."""


class KeyedExecution:
    """The work of one key: the tool's replies so far."""

    __slots__ = ("born", "ended", "messages", "size", "too_large")

    def __init__(self, now: float) -> None:
        self.born = now
        self.messages: list[Message] = []
        self.size = 0
        self.too_large = False
        self.ended = asyncio.Event()


class IdempotencyKeys:
    """The keys of a service instance. Bounded; the oldest that have ended go first."""

    def __init__(self, *, age: float = KEY_AGE_S, max_keys: int = MAX_KEYS, max_bytes: int = MAX_BYTES) -> None:
        self._age = age
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._keys: OrderedDict[tuple[str, str], KeyedExecution] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._keys)

    def claim(self, user: str, key: str, now: float) -> tuple[KeyedExecution, bool]:
        """The work of ``key``, and whether it is the first of it: the caller then does it, and records the replies."""
        self._make_room(now)
        keyed = self._keys.get((user, key))
        if keyed is not None:
            return keyed, False
        keyed = self._keys[user, key] = KeyedExecution(now)
        return keyed, True

    def record(self, keyed: KeyedExecution, message: Message, *, last: bool) -> None:
        """A reply to the first one."""
        if keyed.size + len(message[0]) > MAX_ANSWER_BYTES:
            self.size -= keyed.size
            keyed.messages.clear()
            keyed.size = 0
            keyed.too_large = True
        if not keyed.too_large:
            keyed.messages.append(message)
            keyed.size += len(message[0])
            self.size += len(message[0])
        if last:
            keyed.ended.set()

    def _make_room(self, now: float) -> None:
        for name in tuple(self._keys):
            keyed = self._keys[name]
            full = len(self._keys) >= self._max_keys or self.size > self._max_bytes
            if not full and now - keyed.born < self._age:
                return
            if keyed.ended.is_set():  # what runs must not run twice
                del self._keys[name]
                self.size -= keyed.size
