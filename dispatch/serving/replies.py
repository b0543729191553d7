"""The channel of one request's reply: a stream of a session, or messages with properties (the plain exchange)."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal, Protocol

import msgspec

from dispatch._internal import loop_clock, read_text, scalar_text
from dispatch.errors import ErrorType
from dispatch.messaging.wire import (
    HALF_PAIR,
    InvalidResultError,
    Property,
    Refusal,
    utf8_size,
    write_result,
)
from dispatch.telemetry.observers import NULL_SERVED_REQUEST, ServedRequestObserver


class ReplyTooLargeError(Exception):
    """A reply that its channel cannot carry. Nothing was sent; ``str()`` names the size and the limit."""


class ReplyChannel(Protocol):
    """Sends the reply to one request: one result, or chunks and an end, or an error, or a refusal.

    ``trace`` is the trace context of the reply, as W3C's headers; a channel without headers ignores it. Nothing is sent to a
    caller that no longer waits.
    """

    @property
    def topic(self) -> str:
        """The topic that the reply goes to."""

    @property
    def request_id(self) -> str:
        """The request's id, which its caller knows too."""

    def send_result(self, text: str, trace: Mapping[str, str]) -> None:
        """Send the whole reply.

        Raises:
            ReplyTooLargeError: it is above the limit.
            ValueError: it cannot be written as UTF-8 (a lone surrogate).
        """

    def send_chunk(self, text: str, trace: Mapping[str, str]) -> None:
        """Send one chunk of a stream. Raises as :meth:`send_result`."""

    def send_end(self, trace: Mapping[str, str]) -> None:
        """Send the end of a stream."""

    def send_error(self, type: str, message: str, trace: Mapping[str, str]) -> None:
        """Send an error, which ends the request."""

    def refuse(self, reason: str, retry_after: float | None, message: str, trace: Mapping[str, str]) -> None:
        """Send a refusal, which ends the request: the tool was not executed, or not to its end.

        Args:
            reason: one of :class:`~dispatch.messaging.wire.Refusal`.
            retry_after: seconds until a retry makes sense; None: unknown.
            message: a text for the caller.
            trace: of the reply.
        """

    async def writable(self) -> None:
        """Wait while chunks of the request are queued, or their reader is far behind, as far as the channel knows that."""

    def release_payload(self) -> None:
        """Record that the request has been decoded: its bytes no longer count towards the caller's window."""

    def close(self) -> None:
        """Record the end of the request: nothing is sent afterwards."""

    def hand_over(self) -> bool:
        """Leave the request to another instance. Return False if no other instance can receive it."""


# A request at a service instance, from its arrival to its reply.


class InboundRequest(msgspec.Struct, eq=False):
    """A request without a complete reply.

    Attributes:
        replies: the channel of its reply.
        headers: its trace context and idempotency key, by the names of :class:`Property`; other entries are ignored.
        payload: its JSON.
        deadline: of its caller, on the loop's clock; infinite: none.
        tool, caller: share the instance's places (:mod:`dispatch.serving.fair_places`).
        stop_at: when its deadline is handled next; under an idempotency key the tool runs on after the caller's deadline.
        keyed: stores its reply for its idempotency key.
        task: executes it; None while it is queued.
        is_started: its task has begun; a task that is cancelled before that would not run at all.
        is_cancelled: its caller has cancelled it.
        is_expired: its tool has been cancelled at the deadline.
        is_stopped: its task has been cancelled, by other code than its tool.
        is_refused: it has been refused; its tool may still run, for the idempotency key.
        waits_since: since when its tool waits for its reader; infinite: it does not.
        resume: called when the tool goes on; None: it has kept its place.
        observer: receives the request's events once it runs.
    """

    replies: ReplyChannel
    headers: Mapping[str, str]
    payload: bytes
    deadline: float
    tool: str = ""
    caller: str = ""
    stop_at: float = math.inf
    keyed: KeyedExecution | None = None
    task: asyncio.Task[Any] | None = None
    is_started: bool = False
    is_cancelled: bool = False
    is_expired: bool = False
    is_stopped: bool = False
    is_refused: bool = False
    waits_since: float = math.inf
    resume: Callable[[], object] | None = None
    observer: ServedRequestObserver = NULL_SERVED_REQUEST

    def __post_init__(self) -> None:
        self.stop_at = self.deadline

    @property
    def is_running(self) -> bool:
        """Whether its task is the current one: a coroutine is also entered when it is closed from outside."""
        try:
            return self.task is not None and asyncio.current_task() is self.task
        except RuntimeError:  # no loop is running
            return False

    def stop(self) -> None:
        """Cancel its task, if that has begun; otherwise the task finds that the request is cancelled or expired."""
        if self.task is not None and self.is_started:
            self.is_stopped = True
            self.task.cancel()

    def go_on(self) -> None:
        """Record that its tool waits for its reader no longer."""
        self.waits_since = math.inf
        resume, self.resume = self.resume, None
        if resume is not None:
            resume()

    @property
    def id(self) -> str:
        """The request's id, which its caller knows too."""
        return self.replies.request_id

    @property
    def reply_topic(self) -> str:
        """The topic that its reply goes to."""
        return self.replies.topic

    @property
    def idempotency_key(self) -> str | None:
        """The caller's idempotency key."""
        return self.headers.get(Property.IDEMPOTENCY_KEY)


# Idempotency keys: a request with a known key receives the reply to the first request with that key.
#
# A key spans calls and dispatchers. It is valid for one user, on one incarnation of a service instance; dispatchers send
# the same key to the same instance. Only replies of the tool are stored: a request that is refused at its deadline leaves
# the tool running, and the key receives the tool's reply.


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


class KeyedExecution(msgspec.Struct, eq=False):
    """The execution of one key, with the tool's reply so far.

    Attributes:
        refusal: reason and message, if the tool did not accept the request.
    """

    born: float
    messages: list[StoredReply] = []
    size: int = 0
    too_large: bool = False
    refusal: tuple[str, str] | None = None
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)


class IdempotencyKeys:
    """The keys of a service instance. Bounded; the oldest ended ones are removed first."""

    def __init__(self) -> None:
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

    def release(self, user: str, key: str) -> None:
        """Forget ``key``, whose request was not executed."""
        self.size -= self._keys.pop((user, key)).size

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
        ended: list[tuple[str, str]] = []
        for name, keyed in self._keys.items():  # perf: no copy of 10,000 keys for each request
            full = len(self._keys) - len(ended) >= MAX_KEYS or self.size > MAX_BYTES
            if not full and now - keyed.born < KEY_AGE_S:
                break
            if keyed.ended.is_set():  # a running execution must not start twice
                ended.append(name)
                self.size -= keyed.size
        for name in ended:
            del self._keys[name]


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


# Replies of a service: a result, a stream, an error, or a refusal, over the channel of the request.


OVERLOAD_RETRY_AFTER_S = 1.0
"""Seconds until a retry of a request that was refused as overloaded makes sense, where no duration of its tool is known."""
MIN_RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.1, 30.0
"""Bounds of the estimated time: shorter pauses spare nothing, and after longer ones the estimate is outdated."""
REASONS: tuple[str, ...] = tuple(value for name, value in vars(Refusal).items() if name.isupper())


class ReplySender:
    """Sends the replies of one service instance.

    Args:
        refused: counts refusals by reason.
        id: the service's id, for texts.
    """

    def __init__(self, refused: dict[str, int], *, id: str) -> None:
        self._refused = refused
        self._id = id
        self._now = loop_clock()

    def send_result(self, work: InboundRequest, text: str) -> None:
        """Send the tool's result."""
        self._send_text(work, work.replies.send_result, text, is_last=True)

    async def send_stream(self, work: InboundRequest, items: AsyncIterator[Any]) -> None:
        """Send the tool's stream, to its end."""
        replies = work.replies
        try:
            async for item in items:
                text = item if type(item) is str else write_result(item)
                if not self._send_text(work, replies.send_chunk, text, is_last=False):
                    return
                work.waits_since = self._now()
                await replies.writable()
                work.go_on()
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()
        replies.send_end(work.observer.on_reply(is_last=True))

    def send_stored(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Send the stored reply of the ``first`` request with its key to ``work``, at once."""
        for message in first.messages:
            if not self._send_message(work, message):
                return

    async def stream_stored(self, work: InboundRequest, first: KeyedExecution) -> None:
        """Send the stored reply as :meth:`send_stored` does, as fast as the caller reads it."""
        for message in first.messages:
            if not self._send_message(work, message):
                return
            await work.replies.writable()

    def _send_message(self, work: InboundRequest, message: StoredReply) -> bool:
        kind, text, detail = message
        if kind == "error":
            self.send_error(work, text, detail)
        elif kind == "end":
            work.replies.send_end(work.observer.on_reply(is_last=True))
        elif kind == "result":
            self.send_result(work, text)
        else:
            return self._send_text(work, work.replies.send_chunk, text, is_last=False)
        return True

    def send_error(self, work: InboundRequest, type: object, message: object, kind: str = ErrorType.TOOL_ERROR) -> None:
        """Reply with an error: the tool's own, or one of sending its result. ``kind``: the error type in the span."""
        work.observer.on_error(kind)
        work.replies.send_error(_sendable(type), _sendable(message), work.observer.on_reply(is_last=True))

    def count_refusal(self, reason: str) -> None:
        """Count a refusal."""
        self._refused[reason] += 1

    def refuse(self, work: InboundRequest, reason: str, detail: str, *, retry_after: float | None = None) -> None:
        """Reply that the tool is not executed, or not to its end. ``retry_after``: estimated seconds until the instance has
        worked off its queue; None: unknown."""
        self.count_refusal(reason)
        work.is_refused = True
        work.observer.on_error(ErrorType.TIMEOUT if reason == Refusal.STOPPED else reason)
        message = detail or {
            Refusal.DRAINING: f"The tool was not executed: {self._id} is shutting down.",
            Refusal.EXPIRED: "The tool was not executed: the caller's deadline had passed before it could start.",
            Refusal.STOPPED: "The tool was stopped at the caller's deadline, and may have been executed in part.",
            Refusal.REPLY_EVICTED: f"{self._id} no longer keeps the reply, and may have executed the tool.",
        }.get(reason, reason)
        if reason != Refusal.OVERLOADED:
            retry_after = None
        elif retry_after is None:
            retry_after = OVERLOAD_RETRY_AFTER_S
        else:
            retry_after = min(max(retry_after, MIN_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        work.replies.refuse(reason, retry_after, message, work.observer.on_reply(is_last=True))

    def _send_text(
        self, work: InboundRequest, send: Callable[[str, Mapping[str, str]], None], text: str, *, is_last: bool
    ) -> bool:
        """Send ``text``. Return False if an error was sent instead, which ends the request."""
        try:
            send(text, work.observer.on_reply(is_last=is_last))
            return True
        except ReplyTooLargeError as error:
            self.send_error(
                work,
                ErrorType.RESULT_TOO_LARGE,
                f"The tool was executed, but its result is too large to send ({error}). Ask for less in one call.",
            )
        except ValueError:
            raise InvalidResultError(f"has {HALF_PAIR}", text) from None
        return False


def _sendable(value: object) -> str:
    """Return ``value`` as valid UTF-8 text: the text of a tool's error must not prevent the reply."""
    return scalar_text(read_text(value))
