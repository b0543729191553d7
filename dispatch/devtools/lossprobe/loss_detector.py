"""Loss detection for the plain client: a call is lost once a later call has its reply. Pure."""

from __future__ import annotations

from collections import deque


class LossDetector:
    """Finds the call number below which waiting calls are lost.

    The plain exchange keeps order: one producer, one topic, one consumer and one thread in each direction, and no
    retransmission. After the reply to a later call an earlier reply cannot arrive; a grace period covers reordering in the
    client.

    Args:
        grace: grace period in seconds.
    """

    __slots__ = ("_boundary", "_grace", "_latest", "_recorded", "_seen")

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._latest = self._recorded = 0
        self._boundary = 0
        self._seen: deque[tuple[float, int]] = deque()

    def record_reply(self, number: int) -> None:
        """Record the reply to call ``number``; numbers ascend in sending order."""
        self._latest = max(self._latest, number)

    def find_lost_below(self, now: float) -> int:
        """Return the number below which waiting calls are lost. Call it regularly, with monotonic ``now`` in seconds."""
        if self._latest > self._recorded:
            self._recorded = self._latest
            self._seen.append((now, self._latest))
        while self._seen and now - self._seen[0][0] >= self._grace:
            self._boundary = self._seen.popleft()[1]
        return self._boundary
