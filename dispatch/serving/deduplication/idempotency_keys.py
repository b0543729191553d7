"""Idempotency keys: a request with a known key receives the replies of the first request with that key.

Unlike an id, a key spans calls and dispatchers. It is valid for one user, on one incarnation of a service instance;
dispatchers send the same key to the same instance. Only replies of the tool are stored: a request that is refused at its
deadline leaves the tool running, and the key receives the tool's reply.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from dispatch.serving.deduplication.request_history import Message

KEY_AGE_S = 600.0
"""Seconds that replies are stored: longer than a disconnected caller needs to return."""
MAX_KEYS = 10_000
MAX_DUPLICATES = 1_024
"""Requests that wait for the first one with their key; further ones are refused. They occupy no slot of the server."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of stored replies."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Larger replies are not stored: a repeated request is refused and not executed."""


class KeyedExecution:
    """The execution of one key, with the tool's replies so far."""

    __slots__ = ("born", "ended", "messages", "size", "too_large")

    def __init__(self, now: float) -> None:
        self.born = now
        self.messages: list[Message] = []
        self.size = 0
        self.too_large = False
        self.ended = asyncio.Event()


class IdempotencyKeys:
    """The keys of a service instance. Bounded; the oldest ended ones are removed first."""

    def __init__(self, *, age: float = KEY_AGE_S, max_keys: int = MAX_KEYS, max_bytes: int = MAX_BYTES) -> None:
        self._age = age
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._keys: OrderedDict[tuple[str, str], KeyedExecution] = OrderedDict()
        self.size = 0

    def __len__(self) -> int:
        return len(self._keys)

    def claim(self, user: str, key: str, now: float) -> tuple[KeyedExecution, bool]:
        """Return the execution of ``key``, and whether it is new: then the caller executes it and records its replies."""
        self._evict(now)
        keyed = self._keys.get((user, key))
        if keyed is not None:
            return keyed, False
        keyed = self._keys[user, key] = KeyedExecution(now)
        return keyed, True

    def record(self, keyed: KeyedExecution, message: Message, *, last: bool) -> None:
        """Store a reply to the first request."""
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

    def _evict(self, now: float) -> None:
        for name in tuple(self._keys):
            keyed = self._keys[name]
            full = len(self._keys) >= self._max_keys or self.size > self._max_bytes
            if not full and now - keyed.born < self._age:
                return
            if keyed.ended.is_set():  # a running execution must not start twice
                del self._keys[name]
                self.size -= keyed.size
