"""Idempotency keys: a request with a known key receives the reply to the first request with that key.

A key spans calls and dispatchers. It is valid for one user, on one incarnation of a service instance; dispatchers send the
same key to the same instance. Only replies of the tool are stored: a request that is refused at its deadline leaves the tool
running, and the key receives the tool's reply.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal

from dispatch.messaging.wire.properties import utf8_size
from dispatch.serving.reply_channel import ReplyChannel

KEY_AGE_S = 600.0
"""Seconds that replies are stored: longer than a disconnected caller needs to return."""
MAX_KEYS = 10_000
MAX_DUPLICATES = 1_024
"""Requests that wait for the first one with their key; further ones are refused. They occupy no slot of the server."""
MAX_BYTES = 64 * 1024 * 1024
"""Bytes of stored replies."""
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Larger replies are not stored: a repeated request is refused and not executed."""

StoredReply = tuple[Literal["result", "chunk", "end", "error"], str, str]
"""One message of a reply: its kind; the text, or the error's type; the error's message."""


class KeyedExecution:
    """The execution of one key, with the tool's reply so far."""

    __slots__ = ("born", "ended", "messages", "size", "too_large")

    def __init__(self, now: float) -> None:
        self.born = now
        self.messages: list[StoredReply] = []
        self.size = 0
        self.too_large = False
        self.ended = asyncio.Event()


class IdempotencyKeys:
    """The keys of a service instance. Bounded; the oldest ended ones are removed first."""

    def __init__(self, *, max_keys: int = MAX_KEYS, max_bytes: int = MAX_BYTES) -> None:
        self._max_keys = max_keys
        self._max_bytes = max_bytes
        self._keys: OrderedDict[tuple[str, str], KeyedExecution] = OrderedDict()
        self.size = 0
        """Bytes of stored replies."""

    def __len__(self) -> int:
        return len(self._keys)

    def claim(self, user: str, key: str, now: float) -> tuple[KeyedExecution, bool]:
        """Return the execution of ``key``, and whether it is new: then the caller executes it and records its reply."""
        self._evict(now)
        keyed = self._keys.get((user, key))
        if keyed is not None:
            return keyed, False
        keyed = self._keys[user, key] = KeyedExecution(now)
        return keyed, True

    def record(self, keyed: KeyedExecution, reply: StoredReply) -> None:
        """Store a message of the reply to the first request. All but chunks end it."""
        size = utf8_size(reply[1]) + utf8_size(reply[2])
        if keyed.size + size > MAX_ANSWER_BYTES:
            self.size -= keyed.size
            keyed.messages.clear()
            keyed.size = 0
            keyed.too_large = True
        if not keyed.too_large:
            keyed.messages.append(reply)
            keyed.size += size
            self.size += size
        if reply[0] != "chunk":
            keyed.ended.set()

    def _evict(self, now: float) -> None:
        for name in tuple(self._keys):
            keyed = self._keys[name]
            full = len(self._keys) >= self._max_keys or self.size > self._max_bytes
            if not full and now - keyed.born < KEY_AGE_S:
                return
            if keyed.ended.is_set():  # a running execution must not start twice
                del self._keys[name]
                self.size -= keyed.size


class RecordedReplies:
    """The channel of the first request with its key: stores the reply as well. After a refusal it only stores.

    Args:
        channel: sends the reply.
        keys, keyed: store it.
    """

    def __init__(self, channel: ReplyChannel, keys: IdempotencyKeys, keyed: KeyedExecution) -> None:
        self._channel = channel
        self._keys = keys
        self._keyed = keyed
        self._is_refused = False

    @property
    def topic(self) -> str:
        return self._channel.topic

    @property
    def request_id(self) -> str:
        return self._channel.request_id

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        if not self._is_refused:
            self._channel.send_result(text, trace)
        self._keys.record(self._keyed, ("result", text, ""))

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        if not self._is_refused:
            self._channel.send_chunk(text, trace)
        self._keys.record(self._keyed, ("chunk", text, ""))

    def send_end(self, trace: Mapping[str, str]) -> None:
        if not self._is_refused:
            self._channel.send_end(trace)
        self._keys.record(self._keyed, ("end", "", ""))

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        if not self._is_refused:
            self._channel.send_error(type, message, trace)
        self._keys.record(self._keyed, ("error", type, message))

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        if not self._is_refused:
            self._is_refused = True
            self._channel.refuse(reason, retry_after, message, trace)

    async def writable(self) -> None:
        if not self._is_refused:
            await self._channel.writable()

    def release_payload(self) -> None:
        self._channel.release_payload()

    def close(self) -> None:
        self._keyed.ended.set()
        self._channel.close()

    def hand_over(self) -> bool:
        return self._channel.hand_over()
