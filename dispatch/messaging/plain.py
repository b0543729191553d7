"""Correlation: one request and its reply, or its stream of replies, matched by the property ``id``.

The plain exchange, for third-party services. Every reply that arrives is counted in exactly one :class:`Disposition`. A
request leaves the table when it is settled, and a tombstone remembers its id for a while: it tells late and duplicate
replies from unknown ones.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from operator import attrgetter

import msgspec

from dispatch._internal import DeadlineTimer, Rejection, loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.request import (
    ANSWERED,
    GIVEN_UP,
    STREAM_BUFFER_LIMIT,
    Answer,
    Closed,
    Disposition,
    Fate,
    Lost,
    Overflow,
    Request,
    Restarted,
    Tally,
    TimedOut,
    Unreadable,
)
from dispatch.messaging.wire import (
    SECRET_BYTES,
    ErrorInfo,
    Identity,
    MalformedMessageError,
    Property,
    Reply,
    decode_reply,
    is_oversized,
    utf8_size,
    whole_number,
)
from dispatch.protocol.events import Failure
from dispatch.transports.base import Message, Publisher, Ticket

STREAM_BUFFER = 4 * 1024 * 1024
"""Bytes of chunks, each its payload and 64, held for a reader that is slower than the stream of a third-party service:
60,000 chunks of a model. A reader further behind gets an error, because the plain exchange cannot hold a service back."""
MAX_AHEAD = 1_024
"""Chunks of a stream kept while an earlier one is missing."""

# Looked up once: it takes five times as long as the name of a module's own.
_MATCHED, _DUPLICATE = Disposition.MATCHED, Disposition.DUPLICATE
_READ = (Answer, Unreadable)


def create_answer(text: str, properties: Mapping[str, str], chunks: int, error: ErrorInfo | None = None) -> Answer:
    """Return the answer in a reply with these ``properties``."""
    retry_after = whole_number(properties, Property.RETRY_AFTER_MS)
    return Answer(
        text,
        None if error is None else error.type,
        "" if error is None else error.message,
        chunks,
        properties.get(Property.REFUSED),
        None if retry_after is None else retry_after / 1000,
        properties.get(Property.INSTANCE),
        whole_number(properties, Property.IN_FLIGHT),
        trace_context=properties,
    )


class PendingReply(msgspec.Struct, eq=False):
    """Puts the replies to one request in order.

    Attributes:
        request: that waits for them.
        topic: the shared topic on which it was sent.
        max_buffer: bytes of chunks that may wait for the reader of a stream.
        ticket: of the publish.
        is_shared: whether the first reply came on a topic that other agents share; None: there was none.
        next_chunk: index of the next chunk.
        ahead, ahead_size: chunks that arrived before an earlier one, and their bytes.
        instance, former: the instance whose chunks these are, and those whose chunks no longer count.
        parts: of a chunk of a stream that is not complete.
    """

    request: Request
    topic: object | None
    max_buffer: int
    ticket: Ticket | None = None
    is_shared: bool | None = None
    next_chunk: int = 0
    ahead: dict[int, tuple[Reply, Mapping[str, str]]] | None = None
    ahead_size: int = 0
    instance: str | None = None
    former: tuple[str, ...] = ()
    parts: list[str] = []

    def offer(self, reply: Reply, properties: Mapping[str, str]) -> Disposition:
        """Process one reply; those with an index are put in order, and count once."""
        index = whole_number(properties, Property.CHUNK) if Property.CHUNK in properties else None
        if index is None:
            self._accept(reply, properties)
            return _MATCHED
        if not self._belongs(properties.get(Property.INSTANCE)):
            return _DUPLICATE
        if index < self.next_chunk or (self.ahead is not None and index in self.ahead):
            return _DUPLICATE
        request = self.request
        if index > self.next_chunk:
            if self.ahead is None:
                self.ahead = {}
            self.ahead[index] = (reply, properties)
            self.ahead_size += utf8_size(reply.response)
            if len(self.ahead) > MAX_AHEAD:
                request.settle(Overflow("chunks ahead of a missing one"))
            elif request.reply_bytes + self.ahead_size > request.max_reply_bytes:
                request.settle(Overflow("max-response-bytes"))
            return _MATCHED
        self.next_chunk += 1
        self._accept(reply, properties)
        while self.ahead and request.settled is None and self.next_chunk in self.ahead:
            reply, properties = self.ahead.pop(self.next_chunk)
            self.ahead_size -= utf8_size(reply.response)
            self.next_chunk += 1
            self._accept(reply, properties)
        return _MATCHED

    def _belongs(self, instance: str | None) -> bool:
        """Return whether a chunk of ``instance`` belongs to this reply. When an instance dies, the broker can give the
        request to another one, which begins the reply anew; halves of two replies make none."""
        if instance is None or instance == self.instance:
            return True
        if instance in self.former:
            return False
        if self.instance is not None:
            self.former = (*self.former, self.instance)
            self._restart()
        self.instance = instance
        return self.request.settled is None

    def _restart(self) -> None:
        """Forget what has arrived, unless the reader of a stream has a part of it."""
        request = self.request
        if request.buffer is not None and request.chunks != len(self.parts):
            request.settle(Restarted(request.chunks))
            return
        self.next_chunk = self.ahead_size = request.chunks = request.reply_bytes = 0
        self.ahead = None
        self.parts.clear()
        request.drop_texts()

    def _accept(self, reply: Reply, properties: Mapping[str, str]) -> None:
        """Process the next reply in order."""
        request, text = self.request, reply.response
        buffer = request.buffer
        if buffer is not None:
            buffer.record_progress()
            request.instance = properties.get(Property.INSTANCE)
        request.chunks += 1
        if reply.error is not None:
            request.settle(create_answer("", properties, request.chunks, reply.error))
            return
        if text:
            size = utf8_size(text)
            request.reply_bytes += size
            if request.reply_bytes > request.max_reply_bytes:
                request.settle(Overflow("max-response-bytes"))
                return
            if reply.end_of_stream and (request.chunks == 1 if buffer is None else request.is_undecided):
                request.settle(create_answer("".join((*self.parts, text)), properties, request.chunks))
                return
            if buffer is None:
                request.add_text(text, size)
            elif Property.MORE in properties and not reply.end_of_stream:
                self.parts.append(text)
                return
            else:
                self._add_chunk(text)
        if reply.end_of_stream:
            request.settle(create_answer(request.text, properties, request.chunks))

    def _add_chunk(self, text: str) -> None:
        """Give a chunk to the reader of a stream, unless it is too far behind."""
        request = self.request
        assert request.buffer is not None
        if self.parts:
            text = "".join((*self.parts, text))
            self.parts.clear()
        if request.buffer.size >= self.max_buffer:
            request.settle(Overflow(STREAM_BUFFER_LIMIT))
        else:
            request.add_text(text, utf8_size(text))


TOMBSTONE_AGE_S = 60.0
"""Seconds that the id of a request that has ended is remembered. Late replies come within the service's own time limit; a
minute covers most."""
MAX_TOMBSTONES = 100_000
"""Ids remembered at most: about 20 MB."""
_NONCE_CHARS = 12
"""Random hexadecimal digits in each id: a reader of one reply on a shared response topic cannot guess the id of the next
request."""
_NONCES = 64
"""Random parts of ids that are made at once: each question to the system lets another thread of the process go first."""
MAX_PENDING = 65_536
"""Requests that may wait for replies at once."""
RETRY_AFTER_S = 1.0
"""Seconds after which a caller may call again when the table of pending requests was full."""


class Correlator:
    """The table of requests that wait, for one dispatcher, on the running loop.

    Args:
        max_pending: requests that may wait at once.
        tombstone_age: seconds an ended id is remembered.
        max_tombstones: ended ids remembered at most.
        strange: counts replies that match no remembered request.
        max_buffer: bytes of chunks that may wait for the reader of a stream.
    """

    def __init__(
        self,
        *,
        max_pending: int = MAX_PENDING,
        tombstone_age: float = TOMBSTONE_AGE_S,
        max_tombstones: int = MAX_TOMBSTONES,
        strange: Tally | None = None,
        max_buffer: int = STREAM_BUFFER,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = loop_clock()
        """The loop's clock."""
        self.replies = dict.fromkeys(Disposition, 0)
        """Replies by disposition, since the start."""
        self.received_bytes = 0
        """Payloads of replies that were waited for, since the start."""
        self.identity = Identity(os.urandom(SECRET_BYTES).hex())
        """Of the dispatcher: its secret shows services whose requests these are."""
        self._count = 0
        self._nonces: list[str] = []
        self._max_buffer = max_buffer
        self._pending: dict[str, PendingReply] = {}
        self._deadlines = DeadlineTimer(self._pending.values(), attrgetter("request.deadline"), self._expire)
        self._max_pending = max_pending
        self._closed = False
        self._strange = strange
        self._tombstones: dict[str, Fate] = {}
        self._tombstone_queue: deque[tuple[float, str]] = deque()
        self._tombstone_age = tombstone_age
        self._max_tombstones = max_tombstones

    @property
    def pending(self) -> int:
        """Requests that wait for a reply."""
        return len(self._pending)

    @property
    def tombstones(self) -> int:
        """Ended ids that are remembered."""
        return len(self._tombstones)

    def new_id(self) -> str:
        """Return an id that was never used before: the dispatcher's key, a number that counts up, and random digits."""
        self._count += 1
        if not self._nonces:
            digits = os.urandom(_NONCES * _NONCE_CHARS // 2).hex()
            self._nonces = [digits[start : start + _NONCE_CHARS] for start in range(0, len(digits), _NONCE_CHARS)]
        return f"{self.identity.prefix}{self._count:x}-{self._nonces.pop()}"

    def send(
        self, request: Request, publisher: Publisher, properties: Mapping[str, str], topic: object | None = None
    ) -> None:
        """Publish a request; ``properties`` hold its id. It may be settled at once."""
        if self._closed:
            request.settle(Closed(may_have_run=False))
            return
        if len(self._pending) >= self._max_pending:
            request.settle(Rejection("exchange", "pending-limit", RETRY_AFTER_S))
            return
        if self.now() >= request.deadline:
            request.settle(TimedOut(request.limit_name, may_have_run=False))
            return
        pending = self._pending[request.id] = PendingReply(request, topic, self._max_buffer)
        request.begin(self)
        try:
            pending.ticket = publisher.publish(
                request.payload, properties, flow=request.tool, on_failure=request.settle
            )
        except TransportError as error:
            request.settle(error)
        except BaseException:  # of any kind: the request must not wait for a reply
            request.abandon()
            raise
        else:
            self._deadlines.watch(request.deadline)  # perf: after the request has left

    def cancel(self, request: Request) -> bool:
        """See :class:`~dispatch.messaging.request.Executor`. A message that waits in the publish window is withdrawn."""
        pending = self._pending[request.id]
        request.missing = pending.next_chunk if pending.ahead else None
        return not (pending.ticket is not None and pending.ticket.cancel())

    def on_settled(self, request: Request) -> None:
        """Remember how a later reply to the request is counted."""
        pending, tally = self._pending.pop(request.id), request.tally
        pending.ahead = None
        if type(request.settled) in _READ:
            self._tombstones[request.id] = ANSWERED if tally is None else tally.answered
        else:
            self._tombstones[request.id] = GIVEN_UP if tally is None else tally.given_up
        now, queue = self.now(), self._tombstone_queue
        queue.append((now + self._tombstone_age, request.id))
        while queue and (len(queue) > self._max_tombstones or queue[0][0] <= now):
            del self._tombstones[queue.popleft()[1]]
        if not self._pending:
            self._deadlines.close()

    def _expire(self, pending: PendingReply) -> None:
        request = pending.request
        if request.is_over(self.now()):
            request.expire(request.limit_name)

    def on_read(self, request: Request, size: int) -> None:
        """Do nothing: a third-party service cannot be held back."""

    def find_requests(self, topic: object) -> list[Request]:
        """Return the requests to ``topic`` that wait for a reply."""
        return [pending.request for pending in self._pending.values() if pending.topic is topic]

    def on_instance(self, topic: object) -> None:
        """An instance of dispatch's own consumes the shared ``topic`` now. What was sent there before has probably reached
        nothing: repeatable requests end, to be sent again, and the others hold no place."""
        for request in self.find_requests(topic):
            if request.chunks:
                continue
            if request.is_repeatable:
                request.settle(Lost(Failure.REPLACED, may_have_run=False))
            elif request.place is not None:
                request.place.suspend()

    def receive(self, message: Message, properties: Mapping[str, str], *, is_shared: bool = False) -> None:
        """Process a message of a response topic. Never raises, whatever the message holds.

        Args:
            properties: see :func:`read_properties`.
            is_shared: other agents share the topic.
        """
        if Property.HERE not in properties:  # an announcement is no reply
            id = properties.get(Property.ID)
            pending = self._pending.get(id) if type(id) is str else None
            if pending is not None:
                tally = pending.request.tally
                disposition = self._process_reply(pending, message, properties, is_shared)
            else:
                disposition, tally = self._classify_unmatched(id)
            self.replies[disposition] += 1
            if tally is not None:
                tally.counts[disposition].value += 1

    def _classify_unmatched(self, id: object) -> Fate:
        """Return how a reply that matches no pending request is counted."""
        if not isinstance(id, str) or not id or is_oversized(id):
            return Disposition.MALFORMED, self._strange
        return self._tombstones.get(id) or (Disposition.UNKNOWN, self._strange)

    def _process_reply(
        self, pending: PendingReply, message: Message, properties: Mapping[str, str], is_shared: bool
    ) -> Disposition:
        if is_shared and pending.is_shared is False:
            # Any agent can make a service answer any id on a shared topic; its instance answers on the reply topic.
            return Disposition.UNKNOWN
        try:
            payload = message.data()
            self.received_bytes += len(payload)
            reply = decode_reply(payload)
        except MalformedMessageError as error:
            pending.request.settle(Unreadable(str(error)))
            return Disposition.MALFORMED
        except Exception as error:  # one message may cost its own call, never those of others
            pending.request.settle(Unreadable(type(error).__name__))
            return Disposition.MALFORMED
        if pending.is_shared is None:
            pending.is_shared = is_shared
        elif pending.is_shared is not is_shared and Property.CHUNK not in properties:
            return Disposition.DUPLICATE  # a stream without numbers: the topic of its first part has all
        return pending.offer(reply, properties)

    def close(self) -> None:
        """End everything that waits, and begin nothing more."""
        self._closed = True
        closed = Closed(may_have_run=True)
        for pending in list(self._pending.values()):
            pending.request.settle(closed)


def read_properties(message: Message) -> Mapping[str, str]:
    """Return the properties of ``message``; none if the client cannot read them."""
    try:
        properties: Mapping[str, str] = message.properties()
    except Exception:
        return {}
    return properties
