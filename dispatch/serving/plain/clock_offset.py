"""The age of requests that the broker may have retained. Pure; the clock is passed in.

``remaining-ms`` counts from the arrival of a request, because the clocks of two machines may differ. A persistent topic
retains requests and redelivers them when an instance is lost: there the age follows from the time of publishing, by the
sender's clock. The offset of that clock is estimated from the requests with the shortest delay.
"""

from __future__ import annotations

from collections import OrderedDict

WINDOW_S = 60.0
"""Seconds of a window; the shortest delay of the current and the previous window counts: clocks drift, and are adjusted."""
MAX_PEERS = 4_096


class _Peer:
    __slots__ = ("before", "since", "soonest")

    def __init__(self, lag: float, now: float) -> None:
        self.soonest = lag
        self.before: float | None = None
        self.since = now


class ClockOffset:
    """The clock offsets of publishers. Bounded: the one that was idle longest is removed first."""

    def __init__(self, *, max_peers: int = MAX_PEERS) -> None:
        self._max_peers = max_peers
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def age(self, peer: str, lag: float, now: float, *, backlog: bool) -> float:
        """Return the seconds that a message of ``peer`` was delayed beyond its fastest one.

        Args:
            lag: seconds from publishing to arrival, by two clocks.
            backlog: it may have been published before the subscription was opened. It does not improve the estimate; without
                an estimate the clocks are assumed to agree.
        """
        known = self._peers.get(peer)
        if known is not None and now - known.since >= 2 * WINDOW_S:
            del self._peers[peer]
            known = None
        if backlog:
            return max(0.0, lag if known is None else lag - self._base(known))
        if known is None:
            if len(self._peers) >= self._max_peers:
                self._peers.popitem(last=False)
            self._peers[peer] = _Peer(lag, now)
            return 0.0
        self._peers.move_to_end(peer)
        if now - known.since >= WINDOW_S:
            known.before, known.soonest, known.since = known.soonest, lag, now
        known.soonest = min(known.soonest, lag)
        return max(0.0, lag - self._base(known))

    def _base(self, known: _Peer) -> float:
        return known.soonest if known.before is None else min(known.soonest, known.before)
