"""Which calls of the plain client are lost: those that a later one has overtaken. Pure bookkeeping."""

from __future__ import annotations

from collections import deque


class Overtaken:
    """The numbers up to which calls were overtaken.

    The plain exchange keeps order: one producer, one topic, one consumer and one thread each way, and no repetition. So when
    the answer to a later call is here, an earlier one's will not come any more; a while is granted all the same.

    Args:
        grace: seconds granted.
    """

    __slots__ = ("_boundary", "_grace", "_latest", "_noted", "_seen")

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._latest = self._noted = 0
        self._boundary = 0
        self._seen: deque[tuple[float, int]] = deque()

    def answered(self, number: int) -> None:
        """The answer to call ``number`` is here; numbers ascend in the order of sending."""
        self._latest = max(self._latest, number)

    def below(self, now: float) -> int:
        """Calls below this number, that still wait, are lost. To be asked regularly; ``now`` in seconds, never back."""
        if self._latest > self._noted:
            self._noted = self._latest
            self._seen.append((now, self._latest))
        while self._seen and now - self._seen[0][0] >= self._grace:
            self._boundary = self._seen.popleft()[1]
        return self._boundary
