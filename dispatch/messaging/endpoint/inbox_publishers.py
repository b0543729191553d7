"""Publishers to the inboxes of peers, opened on demand within limits; the one that was idle longest gives way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.clock import loop_clock
from dispatch.errors import ErrorType, TransportError
from dispatch.messaging.endpoint.reply_permission import find_inbox_owner
from dispatch.resilience.rate_limit.leaky_bucket import LeakyBucket
from dispatch.transports import TopicPublisher, Transport
from dispatch.transports.errors import closed, opening_failed, too_many_inboxes

logger = logging.getLogger("dispatch.endpoint")

MAX_PUBLISHERS = 4_096
"""Publishers open at once: as many as a callee has sessions."""
OPENINGS_PER_S = 128
"""Publishers opened a second on average, so that a peer that names ever new inboxes does not take the connection from
everything else: a quarter of the 480 that one connection opened on a busy machine with two processors."""
OPENINGS_AT_ONCE = 512
"""Openings beyond that average: the peers that a process meets when it starts."""
PUBLISHERS_OF_ONE = 16
"""Publishers to the inboxes of one peer: four times as many as a session has paths."""
MAX_CHECKED = 16
"""Publishers checked for one that can be closed."""
MAX_WAITING = 4
"""Packets without a session (ACCEPT, RESET) that wait for one publisher to be opened."""
RETRY_S = 1.0
"""Seconds after a failed opening until the next attempt."""
REFUSALS = 3
"""Refusals of the broker to open an inbox, :data:`RETRY_S` apart, after which the sessions with its owner end. A broker that
has just started may refuse what it opens a second later."""
GIVE_UP_S = 10.0
"""Seconds of failed openings while the connection is up, after which these sessions end whatever the errors: nothing is
probed meanwhile, so that they do not end for silence."""
_OF_THE_CONNECTION = frozenset({ErrorType.UNREACHABLE, ErrorType.CLOSED})
"""Errors that say nothing about an inbox."""
UNUSED_S = 60.0
"""Seconds without a packet after which a publisher is closed. A live session sends one every 10 s."""
LINGER_S = 5.0
"""The same after the end of the sessions with its owner, which has probably ended, too."""
WARN_EVERY_S = 10.0
"""Seconds between two warnings."""


class _Inbox:
    """The inbox of a peer: its publisher is open, being opened, or could not be opened."""

    __slots__ = (
        "error",
        "failed_at",
        "opening",
        "owner",
        "publisher",
        "refusals",
        "retry",
        "retry_at",
        "used_at",
        "waiting",
    )

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        self.publisher: TopicPublisher | None = None
        self.opening: asyncio.Task[None] | None = None
        self.error: TransportError | None = None
        self.retry_at = 0.0
        self.retry: asyncio.TimerHandle | None = None
        self.refusals = 0
        self.failed_at: float | None = None
        """When the openings began to fail, while the connection was up."""
        self.used_at = now
        self.waiting: list[bytes] = []


class InboxPublishers:
    """The publishers of one process to its peers.

    Args:
        transport: opens them.
        on_open: called with a topic whose publisher :meth:`find` has requested, when it is open.
        on_refused: called with a topic that the broker refuses to open, and the error; again with each further refusal.

    Attributes:
        refused: openings that the limits refused.
    """

    def __init__(
        self,
        transport: Transport,
        on_open: Callable[[str], object],
        on_refused: Callable[[str, TransportError], object],
    ) -> None:
        self._transport = transport
        self._on_open = on_open
        self._on_refused = on_refused
        self._inboxes: OrderedDict[str, _Inbox] = OrderedDict()
        """The one that was used longest ago first."""
        self._owned: Counter[str] = Counter()
        self._openings = LeakyBucket(OPENINGS_AT_ONCE, OPENINGS_PER_S)
        self._closing: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._ended: dict[str, float] = {}
        """When the sessions with the owners of these inboxes ended, in order."""
        self._ended_sweep: asyncio.TimerHandle | None = None
        self._clock = loop_clock()
        self._quiet_until = 0.0
        self._is_closed = False
        self.refused = 0

    def __len__(self) -> int:
        return len(self._inboxes)

    def find(self, topic: str) -> TopicPublisher | None:
        """Return the open publisher for ``topic``. None: it is being opened, or cannot be opened now."""
        inbox = self._inboxes.get(topic)
        publisher = None if inbox is None else inbox.publisher
        if inbox is None or publisher is None:
            self._request(topic, inbox)
            return None
        inbox.used_at = self._clock()
        self._inboxes.move_to_end(topic)
        error = publisher.opening_error
        if error is not None and error.type not in _OF_THE_CONNECTION:
            self._close_publisher(inbox)
            self._record_failure(topic, inbox, error)
            return None
        return publisher

    async def open(self, topic: str) -> None:
        """Open the publisher for ``topic``, as soon as the rate of openings allows it.

        Raises:
            TransportError: it cannot be opened, or too many are open.
        """
        while topic not in self._inboxes and (wait := self._openings.time_until_fits(1, self._clock())) > 0:  # noqa: ASYNC110 - time ends this wait
            await asyncio.sleep(wait)
        if self.find(topic) is not None:
            return
        inbox = self._inboxes.get(topic)
        if inbox is None:
            raise closed() if self._is_closed else too_many_inboxes(len(self), topic=topic, retry_after=RETRY_S)
        if inbox.opening is not None:
            await asyncio.wait([inbox.opening])
        if inbox.publisher is None:
            raise inbox.error or closed()

    def post(self, topic: str, packet: bytes) -> None:
        """Send a packet that belongs to no session, when the publisher is open."""
        publisher = self.find(topic)
        if publisher is not None:
            publisher.send_packet(packet)
        elif (inbox := self._inboxes.get(topic)) is not None and inbox.opening and len(inbox.waiting) < MAX_WAITING:
            inbox.waiting.append(packet)

    def _request(self, topic: str, inbox: _Inbox | None) -> None:
        """Open the publisher for ``topic``, unless that is under way or the limits do not allow it."""
        now = self._clock()
        if self._is_closed or (inbox is not None and (inbox.opening is not None or now < inbox.retry_at)):
            return
        if inbox is None:
            owner = find_inbox_owner(topic)
            if self._owned[owner] >= PUBLISHERS_OF_ONE or not self._openings.try_add(1, now) or not self._make_room():
                self._record_refusal(topic, now)
                return
            inbox = self._inboxes[topic] = _Inbox(owner, now)
            self._owned[owner] += 1
        elif not self._openings.try_add(1, now):
            self._record_refusal(topic, now)
            return
        inbox.opening = asyncio.get_running_loop().create_task(self._open(topic, inbox), name="dispatch-open-inbox")
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(UNUSED_S / 2, self._close_unused)

    async def _open(self, topic: str, inbox: _Inbox) -> None:
        try:
            inbox.publisher = await self._transport.publisher(topic)
        except Exception as error:  # of any kind: the inbox must not stay in this state
            inbox.opening = None
            if not isinstance(error, TransportError):
                error = opening_failed(type(error).__name__, url=self._transport.url, topic=topic)
            self._record_failure(topic, inbox, error)
            return
        finally:
            inbox.opening = None
        inbox.refusals, inbox.failed_at = 0, None
        inbox.used_at = self._clock()
        for packet in inbox.waiting:
            inbox.publisher.send_packet(packet)
        inbox.waiting.clear()
        self._on_open(topic)

    def _record_failure(self, topic: str, inbox: _Inbox, error: TransportError) -> None:
        """Record that the publisher cannot be opened, or not again."""
        now = self._clock()
        inbox.error = error
        inbox.retry_at = now + RETRY_S
        inbox.waiting.clear()
        self._warn("the inbox %s of a peer cannot be opened: %s", topic, error.message)
        if self._is_closed:
            return
        if not self._transport.connected:
            inbox.failed_at = None
        elif inbox.failed_at is None:
            inbox.failed_at = now
        is_refusal = error.type not in _OF_THE_CONNECTION
        inbox.refusals += is_refusal
        if inbox.refusals >= REFUSALS or (inbox.failed_at is not None and now - inbox.failed_at >= GIVE_UP_S):
            self._on_refused(topic, error)
        elif is_refusal:
            inbox.retry = asyncio.get_running_loop().call_at(inbox.retry_at, self._retry, topic, inbox)

    def _retry(self, topic: str, inbox: _Inbox) -> None:
        inbox.retry, inbox.retry_at = None, 0.0
        self._request(topic, inbox)

    def _record_refusal(self, topic: str, now: float) -> None:
        self.refused += 1
        self._warn("too many inboxes of peers: that of %s was not opened (%d so far)", topic, self.refused)

    def _warn(self, text: str, *values: object) -> None:
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + WARN_EVERY_S
            logger.warning(text, *values)

    # -- closing ------------------------------------------------------------------------------------------------

    def _make_room(self) -> bool:
        """Return whether a further publisher may be opened; the one that was idle longest gives way."""
        for _ in range(MAX_CHECKED):
            if len(self._inboxes) < MAX_PUBLISHERS:
                return True
            topic, inbox = next(iter(self._inboxes.items()))
            if inbox.opening is not None:
                self._inboxes.move_to_end(topic)
            else:
                self._forget(topic, inbox)
        return len(self._inboxes) < MAX_PUBLISHERS

    def expire(self, topics: Iterable[str]) -> None:
        """Close the publishers for ``topics`` soon, if they stay unused: a session with their owner has ended."""
        now = self._clock()
        for topic in topics:
            if topic in self._inboxes:
                self._ended[topic] = now
        if self._ended and self._ended_sweep is None and not self._is_closed:
            self._ended_sweep = asyncio.get_running_loop().call_later(LINGER_S, self._close_ended)

    def _close_ended(self) -> None:
        self._ended_sweep = None
        now, ended = self._clock(), self._ended
        self._ended = {}
        for topic, since in ended.items():
            inbox = self._inboxes.get(topic)
            if inbox is None or inbox.opening is not None:
                continue
            if now < max(since, inbox.used_at) + LINGER_S:
                if inbox.used_at <= since + LINGER_S:  # later packets belong to another session
                    self._ended[topic] = since
            else:
                self._forget(topic, inbox)
        self.expire(())

    def _close_unused(self) -> None:
        since = self._clock() - UNUSED_S
        while self._inboxes:
            topic, inbox = next(iter(self._inboxes.items()))
            if inbox.used_at > since or inbox.opening is not None:
                break
            self._forget(topic, inbox)
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(UNUSED_S / 2, self._close_unused) if self._inboxes else None

    def _forget(self, topic: str, inbox: _Inbox) -> None:
        del self._inboxes[topic]
        self._owned[inbox.owner] -= 1
        if not self._owned[inbox.owner]:
            del self._owned[inbox.owner]
        if inbox.retry is not None:
            inbox.retry.cancel()
        self._close_publisher(inbox)

    def _close_publisher(self, inbox: _Inbox) -> None:
        publisher, inbox.publisher = inbox.publisher, None
        if publisher is not None:
            task = asyncio.get_running_loop().create_task(publisher.close(), name="dispatch-close-inbox")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all publishers. Idempotent."""
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._ended_sweep is not None:
            self._ended_sweep.cancel()
            self._ended_sweep = None
        await cancel_and_wait([inbox.opening for inbox in self._inboxes.values()])
        for topic, inbox in list(self._inboxes.items()):
            self._forget(topic, inbox)
        while self._closing:
            with contextlib.suppress(TransportError):
                await asyncio.gather(*self._closing)
