"""Further connections on which a dispatcher receives large replies, opened on demand.

The window of a path allows little more than one large reply in flight, and the next one waits a round trip for the
acknowledgement. The broker limits the bytes in a channel by connection, so that further connections, each with its own
inbox and window, carry more without losing more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.clock import loop_clock
from dispatch.errors import TransportError
from dispatch.protocol import CallerSession, SessionTable
from dispatch.transports import Message, Mode, Subscription, Transport

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


class _Path:
    """A further connection with its inbox."""

    __slots__ = ("connection", "inbox", "is_up", "subscription")

    def __init__(self, inbox: str, connection: Transport, subscription: Subscription) -> None:
        self.inbox = inbox
        self.connection = connection
        self.subscription = subscription
        self.is_up = True


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
        self._mean = 0.0
        self._bytes = 0
        self._packets = 0
        self._crowded = 0

    @property
    def mean_reply_bytes(self) -> float:
        """Moving average of the bytes of packets for each reply."""
        return self._mean

    def record_packet(self, size: int, replies: int, table: SessionTable, now: float) -> None:
        """Record a packet of ``size`` bytes with ``replies``, and open a path if that pays. Fragments have no reply."""
        if self._paths and now >= self._watch_at:
            self._watch_at = now + WATCH_S
            self._watch()
        self._bytes += size
        if replies:
            self._mean += (self._bytes / replies - self._mean) * min(replies, MEAN_OF) / MEAN_OF
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
        is_crowded = waiting * self._mean >= CROWDED * settings.window and 2 * self._mean >= settings.large_bytes
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
