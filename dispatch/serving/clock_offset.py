"""How old a request is that may have waited on its broker. Pure bookkeeping, clock handed in.

What a request says of its time (``remaining-ms``) counts from its arrival, because clocks of two machines need not agree. A
persistent topic keeps requests, and brings one again whose instance died: there the arrival says nothing. What is left is
the time of publishing, by the sender's clock. How far that is from ours is learnt from the requests that came soonest.
"""

from __future__ import annotations

from collections import OrderedDict

WINDOW_S = 60.0
"""The soonest of this one and the one before counts: clocks drift, and may be set."""
MAX_PEERS = 4_096


class _Peer:
    __slots__ = ("before", "since", "soonest")

    def __init__(self, lag: float, now: float) -> None:
        self.soonest = lag
        self.before: float | None = None
        self.since = now


class ClockOffset:
    """The clocks of those who publish. Bounded: who was silent longest goes first."""

    def __init__(self, *, window: float = WINDOW_S, max_peers: int = MAX_PEERS) -> None:
        self._window = window
        self._max_peers = max_peers
        self._peers: OrderedDict[str, _Peer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def age(self, peer: str, lag: float, now: float, *, backlog: bool) -> float:
        """Seconds that a message of ``peer`` was under way, beyond what its soonest one took.

        Args:
            lag: from its publishing to its arrival, by two clocks.
            backlog: it may have been published before we listened. Then it teaches nothing; and where nothing is known yet,
                the clocks have to be trusted.
        """
        known = self._peers.get(peer)
        if known is not None and now - known.since >= 2 * self._window:
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
        if now - known.since >= self._window:
            known.before, known.soonest, known.since = known.soonest, lag, now
        known.soonest = min(known.soonest, lag)
        return max(0.0, lag - self._base(known))

    def _base(self, known: _Peer) -> float:
        return known.soonest if known.before is None else min(known.soonest, known.before)
