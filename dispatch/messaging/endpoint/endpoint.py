"""The asyncio endpoint of all sessions of a process: packets from its inbox, packets to its peers' inboxes, and timers.

Everything that is due in one turn of the event loop leaves at the end of the turn, in as few packets as possible, and
nothing is delayed to gather more: a burst of packets wakes tasks, and the callback that sends runs behind these. In a long
turn an idle peer gets the first part at once (``Settings.early_frames``).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence

from dispatch._internal.clock import loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.endpoint.inbox_publishers import RETRY_S, InboxPublishers
from dispatch.messaging.endpoint.path_opener import PathOpener
from dispatch.messaging.endpoint.send_waiters import SendWaiters
from dispatch.messaging.endpoint.session_timers import SessionTimers
from dispatch.protocol import CalleeSession, CallerSession, Session, SessionTable
from dispatch.protocol.events import Event, Failure
from dispatch.transports import Transport
from dispatch.transports.errors import closed

logger = logging.getLogger("dispatch.endpoint")

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
    """Runs the sessions of a :class:`~dispatch.protocol.session_table.SessionTable`.

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

    async def connect(self, inbox: str) -> CallerSession:
        """Open a session with the process that consumes ``inbox``: its publisher, then HELLO. The event ``SessionOpened``
        or ``SessionClosed`` follows.

        Raises:
            TransportError: the publisher cannot be opened, or the endpoint is closed.
        """
        await self.publishers.open(inbox)
        if self._is_closed:
            raise closed()
        session = self.table.connect(inbox, self._clock())
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

    async def writable(self, session: CalleeSession, stream: int) -> None:
        """Wait while ``session`` has many unsent bytes, or ``stream`` no credit: backpressure for streams."""
        if not self._is_closed:
            await self._waiters.writable(session, stream)

    async def flush(self) -> None:
        """Wait until the peers have acknowledged everything that their sessions have sent."""
        if not self._is_closed:
            await self._waiters.at_rest(self.table.sessions.values())

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
                self._send_due(session, now)
                self._schedule_timer(session, now)
        if table.outbox:
            for topic, packet in table.outbox:
                self.publishers.post(topic, packet)
            table.outbox.clear()
        if self._waiters:
            self._waiters.release_at_rest(table.sessions.values())
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
            (publishers.find(inboxes[index]) or first).send_packet(packet)
        if self._waiters:
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
        now = self._clock()
        for session in self._timers.pop_due(now):
            if session.is_closed:
                continue
            self._due[session] = None
            self._handle_timer(session, now)
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        self._flush_now()

    def _handle_timer(self, session: Session, now: float) -> None:
        if session.next_timer() <= now:
            if session.is_suspect:
                topics = (session.peer_inboxes[0], self.table.inboxes[0])
                publisher = self.publishers.find(topics[0])
                is_open = publisher is not None and publisher.opening_error is None
                if not is_open or self._transport.was_disconnected_since(session.silent_since, topics):
                    session.excuse_silence(now)  # the broker, or its connection to a topic, is the cause
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
