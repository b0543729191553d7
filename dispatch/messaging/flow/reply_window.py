"""Reply window: how many requests a fast third-party service may have unanswered. Pure, the clock is handed in.

A third-party service has no flow control: it sends replies at once, and the broker drops those that exceed the receiver's
channel. A pace (:mod:`dispatch.messaging.flow.pacer`) assumes a receiver of ordinary speed; when receiver or broker stop for
some milliseconds, all requests that a fast service has are answered in one burst. The window keeps this burst within the
channel. Replies of slow tools are spread over their latency: for these the pace is enough.
"""

from __future__ import annotations

from collections.abc import Callable

from dispatch.messaging.flow.pacer import GRAIN_S, MESSAGE_OVERHEAD, PACE_BURST, PACE_RATE

LATE_S = 0.1
"""Seconds that an unanswered request counts. A later reply is that of a slow tool, or it was lost."""
STALL_S = 0.005
"""Seconds of a round trip that do not widen the window: receiver and broker stop that long on a busy machine. Measured on
two processors, 64 calls with replies of 10 kB in flight: 0 of 45,000 lost; 188 with the pace alone."""
PERIOD_S = 2.0
"""Seconds over which the shortest round trip is taken. It counts from the next period on: the first replies of a broker that
has just started take 20 ms."""
MAX_REMEMBERED = 1_000
"""Requests without a reply that are remembered, those that count and those that count no more: about 200 kB."""
MEAN_OF = 16
"""Weight of the moving average of reply sizes: a new reply counts one sixteenth."""
LATE_OF = 8
"""Weight of the moving share of late replies. A stall makes about five replies late; more than half in eight is the tool."""


class ReplyWindow:
    """The account of one response topic: bytes of replies that may arrive at once.

    Attributes:
        mean_bytes: moving average of the sizes of replies. Before the first one it is the capacity of a channel.
        waiting: called once, when a reply arrives, by those who wait for room.
    """

    __slots__ = ("_before", "_late", "_late_share", "_period_end", "_sent", "_shortest", "mean_bytes", "waiting")

    def __init__(self) -> None:
        self.mean_bytes = float(PACE_BURST)
        self.waiting: set[Callable[[], None]] = set()
        self._sent: dict[str, float] = {}
        """When the requests that count were sent, by id, oldest first."""
        self._late: dict[str, float] = {}
        """Ids of those that count no more."""
        self._late_share = 0.0
        self._shortest = self._before = 0.0
        """Shortest round trip of this period, and of the one before."""
        self._period_end: float | None = None
        """None: no reply has arrived yet."""

    @property
    def unanswered(self) -> int:
        """Requests that count, as of the last :meth:`wait`."""
        return len(self._sent)

    @property
    def capacity(self) -> float:
        """Bytes of expected replies up to which a further request may go."""
        return PACE_BURST + PACE_RATE * max(0.0, min(self._shortest, self._before) - STALL_S)

    def wait(self, now: float) -> float:
        """Return the seconds until a request may go if no reply arrives; 0.0: now.

        One may go while nothing is known of the service's replies, and while more than half of them are late.
        """
        sent = self._sent
        reply_bytes = self.mean_bytes + MESSAGE_OVERHEAD
        if len(sent) * reply_bytes <= PACE_BURST or self._period_end is None or self._late_share > 0.5:
            return 0.0
        at_once = 1 + int(self.capacity / reply_bytes)
        while len(sent) >= at_once:
            id, at = next(iter(sent.items()))
            counts_until = at + LATE_S
            if counts_until > now + GRAIN_S:
                return counts_until - now
            del sent[id]
            self._late[id] = at
            _forget_oldest(self._late)
        return 0.0

    def send(self, id: str, now: float) -> None:
        """Count a request."""
        self._sent[id] = now
        _forget_oldest(self._sent)

    def withdraw(self, id: str) -> None:
        """Uncount a request that was not sent after all."""
        self._sent.pop(id, None)

    def receive(self, id: str, size: int, now: float) -> None:
        """Uncount the request whose reply, or the first chunk of it, has arrived with ``size`` bytes."""
        self.mean_bytes += (size - self.mean_bytes) / MEAN_OF
        sent = self._sent.pop(id, None)
        if sent is not None:
            self._record(now, now - sent)
        elif id in self._late:
            del self._late[id]
            self._record(now, LATE_S)
        if self.waiting:
            waiting, self.waiting = self.waiting, set()
            for wake in waiting:
                wake()

    def _record(self, now: float, round_trip: float) -> None:
        if round_trip >= LATE_S:
            self._late_share += (1.0 - self._late_share) / LATE_OF
        else:
            self._late_share -= self._late_share / LATE_OF
        if self._period_end is None or now >= self._period_end:
            self._before, self._shortest, self._period_end = self._shortest, LATE_S, now + PERIOD_S
        if round_trip < self._shortest:
            self._shortest = round_trip


def _forget_oldest(ids: dict[str, float]) -> None:
    if len(ids) > MAX_REMEMBERED:
        del ids[next(iter(ids))]
