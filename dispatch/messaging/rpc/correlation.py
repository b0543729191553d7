"""Correlation: one request and its reply, or its stream of replies, matched by the property ``id``.

Every reply that arrives is counted in exactly one :class:`Disposition`, and every request ends in exactly one of: its
answer, a limit that ran out, an unreadable reply, a transport error, its caller's cancellation. In each case its slot is
gone from the table at once and a tombstone remembers the id for a while, so that what comes later is known for what it is.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Mapping
from operator import attrgetter

from dispatch._internal.clock import loop_clock
from dispatch._internal.deadline_timer import DeadlineTimer
from dispatch._internal.permit import Rejection
from dispatch.errors import TransportError
from dispatch.messaging.rpc.exchange_outcome import Closed, Disposition, Fate, Lost, Tally, TimedOut, Unreadable
from dispatch.messaging.rpc.pending import Slot
from dispatch.messaging.wire.codec import MalformedMessageError, decode_reply
from dispatch.messaging.wire.properties import Property, is_oversized
from dispatch.messaging.wire.sessions import SECRET_BYTES, Session
from dispatch.protocol.events import Failure
from dispatch.transports.base import Message, Publisher

TOMBSTONE_AGE_S = 60.0
"""How long an ended id is remembered. Late replies come within the service's own time limit; a minute covers most."""
MAX_TOMBSTONES = 100_000
"""Ids remembered at most: about 20 MB."""
_NONCE_BYTES = 6
"""Random bytes in each id: who reads one reply on a shared response topic cannot guess the next request's id."""
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
        strange: counts replies that belong to no request we know of.
    """

    def __init__(
        self,
        *,
        max_pending: int = MAX_PENDING,
        tombstone_age: float = TOMBSTONE_AGE_S,
        max_tombstones: int = MAX_TOMBSTONES,
        strange: Tally | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = loop_clock()
        """The loop's clock."""
        self.replies = dict.fromkeys(Disposition, 0)
        """Replies by disposition, since the start."""
        self.received_bytes = 0
        """Payloads of replies that were waited for, since the start."""
        self.session = Session(os.urandom(SECRET_BYTES).hex())
        """Whose requests these are."""
        self._count = 0
        self._pending: dict[str, Slot] = {}
        self._deadlines = DeadlineTimer(self._pending.values(), attrgetter("deadline"), Slot.expire)
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
        """Return an id that was never used before: the session's key, a number that counts up, and random digits."""
        self._count += 1
        return f"{self.session.prefix}{self._count:x}-{os.urandom(_NONCE_BYTES).hex()}"

    def send(self, slot: Slot, publisher: Publisher, payload: bytes, properties: Mapping[str, str], flow: str) -> None:
        """Publish the request of ``slot``; ``properties`` hold its id. It may be settled at once."""
        if self._closed:  # nobody would take its reply
            slot.settle(Closed(sent=False))
            return
        if len(self._pending) >= self._max_pending:
            slot.settle(Rejection("exchange", "pending-limit", RETRY_AFTER_S))
            return
        if self.now() >= slot.deadline:
            slot.settle(TimedOut(slot.clock, sent=False))
            return
        self._pending[slot.id] = slot
        self._deadlines.watch(slot.deadline)
        try:
            slot.ticket = publisher.publish(payload, properties, flow=flow, on_failure=slot.failed)
        except TransportError as error:
            slot.settle(error)
        except BaseException:  # nobody's plan; but nothing may stay behind
            slot.abandon()
            raise

    def on_instance(self, channel: object) -> None:
        """An instance of dispatch's own is known on ``channel`` now. What was sent to the shared topic before has probably
        reached nothing: repeatable requests end, to be sent again, and the others hold no place."""
        for slot in list(self._pending.values()):
            if slot.channel is not channel or slot.chunks:
                continue
            if slot.is_repeatable:
                slot.settle(Lost(Failure.REPLACED, sent=False))
            elif slot.place is not None:
                slot.place.suspend()

    def bury(self, id: str, fate: Fate) -> None:
        """Take ``id`` out of the table and remember it."""
        if self._pending.pop(id, None) is None:
            return  # it never got there: nothing can come for it
        now = self.now()
        self._tombstones[id] = fate
        queue = self._tombstone_queue
        queue.append((now + self._tombstone_age, id))
        while queue and (len(queue) > self._max_tombstones or queue[0][0] <= now):
            del self._tombstones[queue.popleft()[1]]
        if not self._pending:
            self._deadlines.close()

    def on_message(self, message: Message) -> None:
        """Process a message of a response topic that other agents share. Never raises, whatever the message holds."""
        self.receive(message, read_properties(message), is_shared=True)

    def receive(self, message: Message, properties: Mapping[str, str], *, is_shared: bool = False) -> None:
        """As :meth:`on_message`, for a message of any topic, with its properties; none when they cannot be read."""
        if Property.HERE not in properties:  # an announcement is no reply
            id = properties.get(Property.ID)
            slot = self._pending.get(id) if type(id) is str else None
            if slot is not None:
                disposition, tally = self._process_reply(slot, message, properties, is_shared), slot.tally
            else:
                disposition, tally = self._stray(id)
            self.replies[disposition] += 1
            if tally is not None:
                tally.counts[disposition].value += 1

    def _stray(self, id: object) -> Fate:
        """Nobody waits for this reply."""
        if not isinstance(id, str) or not id or is_oversized(id):
            return Disposition.MALFORMED, self._strange
        return self._tombstones.get(id) or (Disposition.UNKNOWN, self._strange)

    def _process_reply(
        self, slot: Slot, message: Message, properties: Mapping[str, str], is_shared: bool
    ) -> Disposition:
        if is_shared and slot.is_shared is False:
            # Any agent can make a service answer any id on a shared topic; its instance answers on the reply topic.
            return Disposition.UNKNOWN
        try:
            payload = message.data()
            self.received_bytes += len(payload)
            reply = decode_reply(payload)
        except MalformedMessageError as error:
            slot.settle(Unreadable(str(error)))
            return Disposition.MALFORMED
        except Exception as error:  # as above: one message may cost its own call, never the pump
            slot.settle(Unreadable(type(error).__name__))
            return Disposition.MALFORMED
        if slot.is_shared is None:
            slot.is_shared = is_shared
        elif slot.is_shared is not is_shared and Property.CHUNK not in properties:
            return Disposition.DUPLICATE  # a stream without numbers: the topic of its first part has all
        return slot.offer(reply, properties)

    def close(self) -> None:
        """End everything that waits, and begin nothing more."""
        self._closed = True
        closed = Closed(sent=True)
        for slot in list(self._pending.values()):
            slot.settle(closed)


def read_properties(message: Message) -> Mapping[str, str]:
    """The properties of ``message``; none, whatever a peer's message makes the client raise."""
    try:
        properties: Mapping[str, str] = message.properties()
    except Exception:
        return {}
    return properties
