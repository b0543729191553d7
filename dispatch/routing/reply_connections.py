"""Parallel reply connections for large replies, each with its own flow-control window.

Credit (:mod:`dispatch.messaging.flow.credit`) allows little more than one large reply in flight on a connection, and the
next one waits a round trip for the acknowledgement. The broker limits the bytes in a channel by connection, so that further
connections, each with its own reply topic and credit, carry more without losing more. A request names the topic for its
reply; a service needs to know nothing of this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from dispatch.errors import TransportError
from dispatch.messaging.flow.credit import CREDIT_BYTES

logger = logging.getLogger("dispatch.dispatcher")

MEAN_OF = 16
"""Weight of the moving average of reply sizes: a new reply counts one sixteenth."""
MAX_REPLY_CONNECTIONS = 8
"""Connections on which large replies arrive in parallel. As many again gained a tenth on two processors (the figures are
in docs/architecture.md), and each costs two threads and a producer on every service."""
CROWDED = 4
"""Pending reply bytes, in credits, from which another connection pays."""
SUSTAINED = 64
"""Consecutive requests above that level before a connection is opened: a burst opens none."""
RETRY_S = 60.0
"""Seconds between attempts to open a connection."""


class Connection(Protocol):
    """The transport of a reply connection."""

    @property
    def connected(self) -> bool:
        """Whether the broker is in reach."""
        ...


class ReplyConnection:
    """A reply topic and its connection."""

    __slots__ = ("connection", "topic", "waiting")

    def __init__(self, topic: str, connection: Connection) -> None:
        self.topic = topic
        self.connection = connection
        self.waiting = 0
        """Pending replies, counted by their requests."""


OpenReplyConnection = Callable[[int], Awaitable[ReplyConnection]]
"""Opens a further reply connection by its number, from 1."""


class ReplyConnections:
    """The reply connections of one dispatcher for one namespace.

    Args:
        first: always open.
        open_connection: opens a further one.
    """

    def __init__(self, first: ReplyConnection, open_connection: OpenReplyConnection) -> None:
        self._lanes = [first]
        self._open_connection = open_connection
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._mean = 0.0
        self._crowded = 0

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def first(self) -> ReplyConnection:
        """The first one, always open."""
        return self._lanes[0]

    @property
    def mean_reply_bytes(self) -> float:
        """Moving average of the size of a reply, in bytes."""
        return self._mean

    def record_reply(self, size: int) -> None:
        """Add a reply of ``size`` bytes to the moving average."""
        self._mean += (size - self._mean) / MEAN_OF

    def pick(self, waiting: int, most: int) -> ReplyConnection:
        """Return the connection for the next reply: the one with the fewest pending replies.

        Args:
            waiting: pending replies, over all connections.
            most: connections that may be used.
        """
        wanted = int(waiting * self._mean / CREDIT_BYTES)
        lanes = self._lanes
        if wanted < CROWDED:
            self._crowded = 0
        elif len(lanes) < most:
            self._crowded += 1
            if self._crowded >= SUSTAINED and self._opening is None and self._loop.time() >= self._not_before:
                self._opening = self._loop.create_task(self._open(len(lanes)))
        best = lanes[0]
        for lane in lanes[1 : min(wanted, waiting, most)]:
            if lane.waiting < best.waiting and lane.connection.connected:
                best = lane
        return best

    async def _open(self, number: int) -> None:
        try:
            self._lanes.append(await self._open_connection(number))
            logger.debug("replies arrive on %d connections now", len(self._lanes))
        except TransportError as error:
            self._not_before = self._loop.time() + RETRY_S
            logger.debug("a further reply connection could not be opened: %s", error.message)
        finally:
            self._crowded = 0
            self._opening = None

    async def close(self) -> None:
        """Stop opening connections. The caller closes those that are open."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
