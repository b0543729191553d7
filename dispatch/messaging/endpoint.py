"""The asyncio endpoint of the session protocol over a transport."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from heapq import heappop, heappush
from itertools import count
from typing import Generic, TypeVar

import msgspec

from dispatch._internal import cancel_and_wait, loop_clock
from dispatch.errors import ErrorType, TransportError
from dispatch.messaging.wire import MAX_SECRET_CHARS, TopicName, derive_key, reply_key
from dispatch.protocol import CalleeSession, CallerSession, Session, SessionTable
from dispatch.protocol.events import Event, Failure
from dispatch.resilience.rate_limit import LeakyBucket
from dispatch.transports import Message, Mode, Subscription, TopicPublisher, Transport
from dispatch.transports.base import PEER_BACK_S
from dispatch.transports.errors import closed, opening_failed, too_many_inboxes

# Timers of many sessions behind one timer of the event loop. Pure.
#
# A timer that moves to a later time costs nothing: the earlier entry expires, and its session says when it is due next. So
# a turn of the event loop costs nothing for a session that is idle.


T = TypeVar("T")


class SessionTimers(Generic[T]):
    """The times at which sessions are due. A session may be reported earlier than it is due, never later; one that is
    reported has to be scheduled again."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._pending: dict[T, list[float]] = {}
        """Entries of each session in the heap, the earliest last."""
        self._order = count()

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_due(self) -> float:
        """When the first session is due; ``math.inf``: none is."""
        return self._heap[0][0] if self._heap else math.inf

    def schedule(self, session: T, at: float) -> None:
        """Report ``session`` at ``at`` or earlier; ``math.inf``: not at all."""
        pending = self._pending.get(session)
        if pending is None:
            pending = self._pending[session] = []
        if at < (pending[-1] if pending else math.inf):
            pending.append(at)
            heappush(self._heap, (at, next(self._order), session))

    def pop_due(self, now: float) -> list[T]:
        """Return the sessions that are due."""
        heap, due = self._heap, []
        while heap and heap[0][0] <= now:
            session = heappop(heap)[2]
            pending = self._pending.get(session)
            if pending:
                pending.pop()
                due.append(session)
        return due

    def discard(self, session: T) -> None:
        """Report ``session`` no more; for good. Its entries in the heap expire."""
        self._pending.pop(session, None)

    def clear(self) -> None:
        """Report no session any more."""
        self._heap.clear()
        self._pending.clear()


# Further connections on which a dispatcher receives large replies, opened on demand.
#
# The window of a path allows little more than one large reply in flight, and the next one waits a round trip for the
# acknowledgement. The broker limits the bytes in a channel by connection, so that further connections, each with its own
# inbox and window, carry more without losing more.


logger = logging.getLogger("dispatch.endpoint")

CROWDED = 4
"""Expected reply bytes, in windows, from which another path pays."""
PACKETS_PER_CHECK = 32
"""Packets between two checks."""
SUSTAINED = 2
"""Consecutive checks above that level before a path is opened: a burst opens none."""
MEAN_OF = 16
"""Weight of the moving average of reply sizes: a new reply counts one sixteenth."""
REOPEN_S = 60.0
"""Seconds between attempts to open a path."""
WATCH_S = 0.25
"""Seconds between two checks of the paths' connections, while packets arrive: as often as a connection checks itself."""


class _Path(msgspec.Struct, eq=False):
    """A further connection with its inbox."""

    inbox: str
    connection: Transport
    subscription: Subscription
    is_up: bool = True


class PathOpener:
    """Decides when a further path pays, and opens it.

    Args:
        transport: the first connection.
        path_inbox: returns the inbox of a path, from 1.
        on_change: called with the inboxes of all further paths when one was opened, lost or restored; None instead of the
            inbox while its connection is down.
        on_packet: handles the packets that arrive there.
    """

    def __init__(
        self,
        transport: Transport,
        path_inbox: Callable[[int], str],
        on_change: Callable[[Sequence[str | None]], object],
        on_packet: Callable[[bytes], object],
    ) -> None:
        self._transport = transport
        self._path_inbox = path_inbox
        self._on_change = on_change
        self._on_packet = on_packet
        self._paths: list[_Path] = []
        self._opening: asyncio.Task[None] | None = None
        self._started: Transport | None = None
        """The connection of the path that is being opened."""
        self._clock = loop_clock()
        self._not_before = 0.0
        self._watch_at = 0.0
        self.mean_reply_bytes = 0.0
        """Moving average of the bytes of packets for each reply."""
        self._bytes = 0
        self._packets = 0
        self._crowded = 0

    def record_packet(self, size: int, replies: int, table: SessionTable, now: float) -> None:
        """Record a packet of ``size`` bytes with ``replies``, and open a path if that pays. Fragments have no reply."""
        if self._paths and now >= self._watch_at:
            self._watch_at = now + WATCH_S
            self._watch()
        self._bytes += size
        if replies:
            self.mean_reply_bytes += (self._bytes / replies - self.mean_reply_bytes) * min(replies, MEAN_OF) / MEAN_OF
            self._bytes = 0
        self._packets += 1
        if self._packets >= PACKETS_PER_CHECK:
            self._packets = 0
            self._check(table)

    def _watch(self) -> None:
        """Withdraw the paths whose connections are down: their packets travel on the first one meanwhile."""
        is_changed = False
        for path in self._paths:
            if path.connection.connected is not path.is_up:
                path.is_up = not path.is_up
                is_changed = True
        if is_changed:
            self._report()

    def _report(self) -> None:
        self._on_change([path.inbox if path.is_up else None for path in self._paths])

    def _check(self, table: SessionTable) -> None:
        paths = 1 + len(self._paths)
        callers = [session for session in table.sessions.values() if isinstance(session, CallerSession)]
        if not callers or self._opening is not None:
            return
        settings = callers[0].settings
        waiting = sum(len(session.waiting) for session in callers)
        is_crowded = (
            waiting * self.mean_reply_bytes >= CROWDED * settings.window
            and 2 * self.mean_reply_bytes >= settings.large_bytes
        )
        if paths >= settings.max_paths or not is_crowded:
            self._crowded = 0
            return
        self._crowded += 1
        if self._crowded >= SUSTAINED and self._clock() >= self._not_before:
            self._crowded = 0
            self._opening = asyncio.get_running_loop().create_task(self._open(paths), name="dispatch-open-path")

    async def _open(self, number: int) -> None:
        inbox = self._path_inbox(number)
        connection = self._started = self._transport.another()
        try:
            await connection.start()
            subscription = await connection.subscribe(inbox, self._on_message, mode=Mode.FANOUT, name="dispatch-reply")
        except BaseException as error:
            await connection.close()
            if not isinstance(error, TransportError):
                raise
            self._not_before = self._clock() + REOPEN_S
            logger.debug("a further path could not be opened: %s", error.message)
        else:
            self._paths.append(_Path(inbox, connection, subscription))
            logger.debug("replies arrive on %d paths now", number + 1)
            self._report()
        finally:
            self._opening = self._started = None

    def _on_message(self, message: Message) -> None:
        self._on_packet(message.data())

    async def close(self) -> None:
        """Close the further connections. Idempotent."""
        await cancel_and_wait([self._opening])
        paths, self._paths = self._paths, []
        for path in paths:
            try:
                await path.subscription.close()
            finally:
                await path.connection.close()

    async def abandon(self) -> None:
        """Close the further connections on another event loop than their own, which has ended. Idempotent."""
        connections = [path.connection for path in self._paths]
        if self._started is not None:
            connections.append(self._started)
        self._paths, self._started = [], None
        for connection in connections:
            await connection.close()


# Tasks that wait for what sessions still have to send: streams for room and credit, a closing process for the last
# acknowledgement.


WRITABLE_BYTES = 1_000_000
"""Unsent bytes of a session from which streams wait: one fragment of a large payload."""
CHUNKS_PER_TURN = 256
"""Chunks after which other tasks run: a tool that never waits would send a whole window of them before, in 100 ms."""


class SendWaiters:
    """The waiting tasks of one endpoint, which reports what it has sent."""

    def __init__(self) -> None:
        self._writers: dict[Session, dict[asyncio.Future[None], Callable[[], bool]]] = {}
        """With what says whether their streams have credit."""
        self._flushes: dict[asyncio.Future[None], Collection[Session]] = {}
        """With the sessions that they wait for."""
        self._chunks = 0
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._writers) + len(self._flushes)

    async def writable(self, session: CalleeSession, number: int) -> None:
        """Wait while ``session`` has many unsent bytes, or the reader of request ``number`` is a window behind it."""
        self._chunks += 1
        if self._chunks >= CHUNKS_PER_TURN:
            self._chunks = 0
            await asyncio.sleep(0)
        while not (self._is_closed or (_has_room(session) and session.has_credit(number))):
            writer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            writers = self._writers.setdefault(session, {})
            writers[writer] = partial(session.has_credit, number)
            try:
                await writer
            finally:
                writers.pop(writer, None)
                if not writers and self._writers.get(session) is writers:
                    del self._writers[session]

    async def at_rest(self, sessions: Collection[Session]) -> None:
        """Wait until the peers of ``sessions`` have acknowledged everything, or these have ended, or the endpoint closes."""
        if not _are_at_rest(sessions):
            flush: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flushes[flush] = sessions
            try:
                await flush
            finally:
                self._flushes.pop(flush, None)

    def release(self, session: Session) -> None:
        """Let the streams of ``session`` continue that have credit, if it has sent enough; all of them if it has ended."""
        writers = self._writers.get(session)
        if writers is not None and _has_room(session):
            _wake([writer for writer, has_credit in writers.items() if has_credit()])

    def release_at_rest(self) -> None:
        """Let those continue that wait for acknowledgements, if all their sessions are at rest."""
        if self._flushes:
            _wake([flush for flush, sessions in self._flushes.items() if _are_at_rest(sessions)])

    def close(self) -> None:
        """Let all continue."""
        self._is_closed = True
        for writers in self._writers.values():
            _wake(writers)
        _wake(self._flushes)
        self._writers.clear()
        self._flushes.clear()


def _has_room(session: Session) -> bool:
    return session.is_closed or session.queued_bytes <= WRITABLE_BYTES


def _are_at_rest(sessions: Iterable[Session]) -> bool:
    return all(session.is_closed or session.is_at_rest for session in sessions)


def _wake(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


# Which topics a service may reply to: those of dispatchers in allowed namespaces, for their owners only.


MAX_TOPIC_CHARS = 512
"""Longest name of an inbox."""
MAX_KNOWN = 16_384
"""Inboxes whose owners are remembered: each is checked with every HELLO, and parsing a name takes microseconds."""


class ReplyPermission:
    """Decides whether a topic that a dispatcher names may be replied to.

    Args:
        response_queue: the service's response topic; inboxes in its namespace are allowed.
        namespaces: further ``tenant/namespace`` where inboxes are allowed.
        allows_persistent: persistent topics are allowed, too.
    """

    def __init__(self, response_queue: str, namespaces: Iterable[str] = (), *, allows_persistent: bool = False) -> None:
        self._allows_persistent = allows_persistent
        self._allowed = {TopicName.parse(response_queue).namespace_path, *namespaces}
        self._find_owner = lru_cache(MAX_KNOWN)(self._read_owner)

    def __call__(self, inbox: str, secret: str) -> bool:
        """Return whether ``inbox`` is a reply topic in an allowed namespace, and belongs to the holder of ``secret``."""
        if len(inbox) > MAX_TOPIC_CHARS or len(secret) > MAX_SECRET_CHARS:
            return False
        owner = self._find_owner(inbox)
        return owner is not None and owner == derive_key(secret)

    def _read_owner(self, inbox: str) -> str | None:
        try:
            name = TopicName.parse(inbox)
        except ValueError:
            return None
        is_allowed = name.namespace_path in self._allowed and (self._allows_persistent or not name.persistent)
        return reply_key(name) if is_allowed else None


def find_inbox_owner(inbox: str) -> str:
    """Return what an inbox belongs to: the dispatcher's key, or for an instance the topic itself."""
    try:
        return reply_key(TopicName.parse(inbox)) or inbox
    except ValueError:
        return inbox


# Publishers to the inboxes of peers, opened on demand within limits; the one that was idle longest gives way.


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


@dataclass(slots=True, eq=False)  # perf: a struct is slower to write to
class _Inbox:
    """The inbox of a peer: its publisher is open, being opened, or could not be opened.

    Attributes:
        owner: see :func:`find_inbox_owner`.
        used_at: when a packet last went to it.
        failed_at: when the openings began to fail, while the connection was up.
        waiting: packets without a session that wait for the publisher.
    """

    owner: str
    used_at: float
    publisher: TopicPublisher | None = None
    opening: asyncio.Task[None] | None = None
    error: TransportError | None = None
    retry_at: float = 0.0
    retry: asyncio.TimerHandle | None = None
    refusals: int = 0
    failed_at: float | None = None
    waiting: list[bytes] = field(default_factory=list)


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
                self._record_refusal(topic)
                return
            inbox = self._inboxes[topic] = _Inbox(owner, now)
            self._owned[owner] += 1
        elif not self._openings.try_add(1, now):
            self._record_refusal(topic)
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

    def _record_refusal(self, topic: str) -> None:
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


# The asyncio endpoint of all sessions of a process: packets from its inbox, packets to its peers' inboxes, and timers.
#
# Everything that is due in one turn of the event loop leaves at the end of the turn, in as few packets as possible, and
# nothing is delayed to gather more: a burst of packets wakes tasks, and the callback that sends runs behind these. In a
# long turn an idle peer gets the first part at once (``Settings.early_frames``).


FRAMES_PER_TURN = 256
"""Events and packets processed before other tasks run: 1.5 to 3 ms with the work that they wake."""
MAX_BACKLOG_BYTES = 64 * 1024 * 1024
"""Bytes of packets that wait for the next turn; further packets are dropped, and sent again by peers with a session."""
LEAST_WAIT_S = 0.001
"""Shortest time until a timer of a session: below the granularity of the protocol's timers."""
CONNECTION_POLL_S = 0.05
"""Seconds between two checks whether the connection is back."""
CLOSE_FLUSH_S = 2.0
"""Longest time, in seconds, that closing waits until the last packets have left."""

OnEvents = Callable[[Session, list[Event]], object]
"""Handles the events of a session, in order. Synchronous; it may send."""


class Endpoint:
    """Runs the sessions of a :class:`~dispatch.protocol.table.SessionTable`.

    Args:
        transport: the connection; started.
        table: the sessions.
        on_events: handles their events. An exception costs its own events only.
        path_inbox: of a dispatcher: returns the further inbox of a number, from 1. Further connections are opened when large
            replies need them. None: there is one inbox only.

    Attributes:
        load: requests that this process executes; peers learn of it with each packet.
        handler_errors: exceptions of ``on_events``.
        dropped: packets that exceeded the backlog.
        publishers: to the inboxes of peers.
    """

    def __init__(
        self,
        transport: Transport,
        table: SessionTable,
        on_events: OnEvents,
        *,
        path_inbox: Callable[[int], str] | None = None,
    ) -> None:
        self.table = table
        self.load = 0
        self.handler_errors = 0
        self.dropped = 0
        self._transport = transport
        self._on_events = on_events
        self._loop = asyncio.get_running_loop()
        self._clock = loop_clock()
        self.publishers = InboxPublishers(transport, self._on_publisher_open, self._on_publisher_refused)
        self._paths = (
            None
            if path_inbox is None
            else PathOpener(transport, path_inbox, self._on_paths_change, self.receive_packet)
        )
        self._known: set[Session] = set()
        """The sessions of the table, as far as this endpoint has seen them."""
        self._known_changes = 0
        """The table's changes that they include: one session may have given way to another."""
        self._due: dict[Session, None] = {}
        """Sessions that may have something to send, in order."""
        self._unready: dict[str, set[Session]] = {}
        """Sessions that wait for the publishers of their peers' inboxes."""
        self._waiters = SendWaiters()
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._budget = FRAMES_PER_TURN
        self._flush_handle: asyncio.Handle | None = None
        self._is_flush_behind = True
        """Whether the flush is scheduled behind all tasks that packets have woken."""
        self._continue_handle: asyncio.Handle | None = None
        self._timers: SessionTimers[Session] = SessionTimers()
        self._timer: asyncio.TimerHandle | None = None
        self._is_up = True
        self._poll: asyncio.TimerHandle | None = None
        self._is_closed = False

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive_packet(self, data: bytes) -> None:
        """Process a packet from an own inbox: at once, or in the next turn of the event loop if this one has enough."""
        if self._is_closed:
            return
        if self._budget <= 0 or self._backlog:
            if self._backlog_bytes + len(data) > MAX_BACKLOG_BYTES:
                self.dropped += 1
                return
            self._backlog.append(data)
            self._backlog_bytes += len(data)
            if self._continue_handle is None:
                self._continue_handle = self._loop.call_soon(self._continue)
            return
        self._process(data, self._clock())
        self._schedule_flush()

    def _continue(self) -> None:
        self._continue_handle = None
        self._budget = FRAMES_PER_TURN
        now, backlog = self._clock(), self._backlog
        while backlog and self._budget > 0:
            data = backlog.popleft()
            self._backlog_bytes -= len(data)
            self._process(data, now)
        if backlog:
            self._continue_handle = self._loop.call_soon(self._continue)
        self._schedule_flush()

    def _process(self, data: bytes, now: float) -> None:
        table, frames = self.table, 1
        for session, events in table.receive_packet(data, now):
            if session.is_urgent:
                self._send_due(session, now)
            self._due[session] = None
            if events:
                frames += len(events)
                self._handle_events(session, events)
        self._budget -= frames
        if table.changes != self._known_changes:
            self._update_known()
        if self._paths is not None:
            self._paths.record_packet(len(data), frames - 1, table, now)

    def _handle_events(self, session: Session, events: list[Event]) -> None:
        try:
            self._on_events(session, events)
        except Exception:  # it must not stop other sessions
            self.handler_errors += 1
            logger.exception("the events of a session with %s could not be handled", session.peer_name)

    def _update_known(self) -> None:
        """Adopt sessions that are new in the table, and forget those that have ended."""
        self._known_changes = self.table.changes
        current = set(self.table.sessions.values())
        for session in current - self._known:
            self._due[session] = None
            if not self._is_up:
                session.suspend()
        for session in self._known - current:
            self._timers.discard(session)
            self._waiters.release(session)
            self.publishers.expire(session.peer_inboxes)
            unready = self._unready.get(session.peer_inboxes[0])
            if unready is not None:
                unready.discard(session)
                if not unready:
                    del self._unready[session.peer_inboxes[0]]
        self._known = current

    # -- sending ------------------------------------------------------------------------------------------------

    async def connect(self, inbox: str, service: str = "") -> CallerSession:
        """Open a session with the process that consumes ``inbox``, of the service of this id: its publisher, then HELLO. The
        event ``SessionOpened`` or ``SessionClosed`` follows.

        Raises:
            TransportError: the publisher cannot be opened, or the endpoint is closed.
        """
        await self.publishers.open(inbox)
        if self._is_closed:
            raise closed()
        session = self.table.connect(inbox, self._clock(), service)
        self._update_known()
        self._schedule_flush()
        return session

    def wake(self, session: Session) -> None:
        """Send what ``session`` has queued at the end of this turn of the event loop; a batch at once to an idle peer."""
        self._due[session] = None
        if session.is_batch_due:
            self._send_due(session, self._clock())
        if self._flush_handle is None:
            self._schedule_flush()

    def end(self, session: Session, reason: Failure = Failure.CLOSED) -> None:
        """End a session and tell its peer. Its last events follow at once."""
        events = self.table.end(session, self._clock(), reason)
        self._update_known()
        if events:
            self._handle_events(session, events)
        self._schedule_flush()

    async def writable(self, session: CalleeSession, number: int) -> None:
        """Wait while ``session`` has many unsent bytes, or request ``number`` no credit: backpressure for streams."""
        if not self._is_closed:
            await self._waiters.writable(session, number)

    async def flush(self, sessions: Collection[Session] | None = None) -> None:
        """Wait until the peers of ``sessions`` (None: of all) have acknowledged everything that these have sent."""
        if not self._is_closed:
            await self._waiters.at_rest(self.table.sessions.values() if sessions is None else sessions)

    def _schedule_flush(self) -> None:
        if self._flush_handle is None:
            if not self._is_closed:
                self._flush_handle = self._loop.call_soon(self._flush)
        else:
            self._is_flush_behind = False

    def _flush(self) -> None:
        if not self._is_flush_behind:
            # Packets that arrived after this was scheduled have woken tasks that run behind it: wait for these, once.
            self._is_flush_behind = True
            self._flush_handle = self._loop.call_soon(self._flush_now)
            return
        self._flush_now()

    def _flush_now(self) -> None:
        self._flush_handle = None
        self._is_flush_behind = True
        if not self._backlog:
            self._budget = FRAMES_PER_TURN
        now = self._clock()
        if self._transport.connected is not self._is_up:
            self._on_connection_change(now)
        table, due = self.table, self._due
        if table.changes != self._known_changes:
            self._update_known()
        if table.receive_window.due:
            for windowed in table.receive_window.due:
                if isinstance(windowed, Session):
                    due[windowed] = None
            table.receive_window.due.clear()
        self._due = {}
        for session in due:
            if not session.is_closed:
                if session.has_due(now):
                    self._send_due(session, now)
                else:
                    self._waiters.release(session)  # one of its streams may have got credit
                self._schedule_timer(session, now)
        if table.outbox:
            for topic, packet in table.outbox:
                self.publishers.post(topic, packet)
            table.outbox.clear()
        self._waiters.release_at_rest()
        self._arm_timer()

    def _send_due(self, session: Session, now: float) -> None:
        """Send what is due, if the connection is up and the publisher of the peer's inbox is open."""
        if not self._is_up:
            return
        inboxes, publishers = session.peer_inboxes, self.publishers
        first = publishers.find(inboxes[0])
        if first is None:
            self._unready.setdefault(inboxes[0], set()).add(session)
            return
        session.load = self.load
        limit = self._transport.max_message_bytes
        for index, packet in session.packets_to_send(now):
            if len(packet) > limit:
                self._loop.call_soon(self.end, session, Failure.BROKER_REFUSED)
                return
            # A packet names its path, so that it may travel on the first one while another is being opened.
            publisher = publishers.find(inboxes[index]) if index else None
            (publisher or first).send_packet(packet)
        self._waiters.release(session)

    def _on_publisher_open(self, topic: str) -> None:
        for session in self._unready.pop(topic, ()):
            self.wake(session)

    def _on_publisher_refused(self, topic: str, error: TransportError) -> None:
        for session in list(self.table.sessions.values()):
            if session.peer_inboxes[0] == topic:
                session.end_error = error
                self.end(session, Failure.BROKER_REFUSED)

    def _on_paths_change(self, further: Sequence[str | None]) -> None:
        first = self.table.inboxes[0]
        self.table.replace_inboxes([first, *(inbox or first for inbox in further)])
        for session in self.table.sessions.values():
            self.wake(session)

    # -- timers -------------------------------------------------------------------------------------------------

    def _schedule_timer(self, session: Session, now: float) -> None:
        at = session.next_timer()
        if at < now + LEAST_WAIT_S:
            at = now + LEAST_WAIT_S
            if session.peer_inboxes[0] in self._unready:
                # It cannot be sent until its publisher is open; deadlines pass meanwhile.
                at = max(at, min(now + RETRY_S, session.next_deadline()))
        self._timers.schedule(session, at)

    def _arm_timer(self) -> None:
        at = self._timers.next_due
        if at == math.inf or self._is_closed:
            return
        timer = self._timer
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timer = self._loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now, is_due = self._clock(), False
        for session in self._timers.pop_due(now):
            if session.is_closed:
                continue
            if session.next_timer() > now:  # as most are: what it was set for has been acknowledged
                self._schedule_timer(session, now)
                continue
            is_due = True
            self._due[session] = None
            self._handle_timer(session, now)
        if not is_due and self._transport.connected is self._is_up:
            self._arm_timer()
            return
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._flush_now()

    def _handle_timer(self, session: Session, now: float) -> None:
        if session.is_suspect:
            topics = (session.peer_inboxes[0], self.table.inboxes[0])
            publisher = self.publishers.find(topics[0])
            is_open = publisher is not None and publisher.opening_error is None
            if not is_open or self._transport.was_disconnected_since(session.silent_since - PEER_BACK_S, topics):
                # The broker is the cause, or a connection to a topic, here or at the peer.
                session.excuse_silence(now)
        events = session.handle_timer(now)
        if session.is_closed:
            self.table.forget(session)
        if events:
            self._handle_events(session, events)

    # -- the connection -----------------------------------------------------------------------------------------

    def _on_connection_change(self, now: float) -> None:
        self._is_up = self._transport.connected
        for session in list(self.table.sessions.values()):
            if self._is_up:
                if events := session.resume(now):
                    self._handle_events(session, events)
                self._due[session] = None
                if session.next_timer() <= now:
                    self._handle_timer(session, now)  # before anything is sent to a peer that has ended the session
            else:
                session.suspend()
        if not self._is_up and self._poll is None:
            self._poll = self._loop.call_later(CONNECTION_POLL_S, self._await_connection)

    def _await_connection(self) -> None:
        self._poll = None
        if self._transport.connected:
            self._schedule_flush()
        else:
            self._poll = self._loop.call_later(CONNECTION_POLL_S, self._await_connection)

    # -- the end ------------------------------------------------------------------------------------------------

    async def abandon(self) -> None:
        """Close the further connections; all else needs the event loop, which has ended."""
        if self._paths is not None:
            await self._paths.abandon()

    async def close(self) -> None:
        """End all sessions, tell their peers, and release everything; the transport stays open. Idempotent."""
        if self._is_closed:
            return
        now = self._clock()
        for session in list(self.table.sessions.values()):
            events = self.table.end(session, now)
            if events:
                self._handle_events(session, events)
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._flush_now()
        self._is_closed = True
        for handle in (self._flush_handle, self._continue_handle, self._timer, self._poll):
            if handle is not None:
                handle.cancel()
        self._flush_handle = self._continue_handle = self._timer = self._poll = None
        self._timers.clear()
        self._backlog.clear()
        self._unready.clear()
        self._waiters.close()
        try:
            if self._paths is not None:
                await self._paths.close()
            if self._transport.connected:
                async with asyncio.timeout(CLOSE_FLUSH_S):
                    await self._transport.flush()
        except TimeoutError:
            logger.debug("the last packets were not confirmed in %g s", CLOSE_FLUSH_S)
        finally:
            await self.publishers.close()


__all__ = ["Endpoint", "ReplyPermission"]
