"""Two large answers on their way at a time on one connection, or one: pure bookkeeping.

Credit lets the next large answer go when the one before it is acknowledged, and nothing is lost; but then a whole round
trip lies between two of them. Where both sides can repair a loss, a second one on its way is worth more than the few that
the broker drops for it, as long as they are few.
"""

from __future__ import annotations

from dispatch.messaging.flow.credit import CREDIT_BYTES, MAX_CREDIT_BYTES, MESSAGE_OVERHEAD

DOUBLED_LOSS = 0.08
"""Share of large answers that had to be sent again, above which two at a time cost more than they bring: each takes as much
of both sides as another answer, and its caller waits for several round trips. Measured at 100 kB: 0.02 brought a tenth
less."""
MEAN_OF = 16
"""Answers over which their mean size is formed."""
LOSS_OVER = 64
"""Answers over which that share is formed."""
RESTING = 512
"""Answers for which one at a time is the rule, after that share was seen."""


class Doubling:
    """Whether two large answers may be on their way at a time on one connection, learnt from what had to be sent again.

    Two are tried; when too many were lost it is one for a while, and then two are tried again.
    """

    __slots__ = ("_loss", "_mean", "_resting")

    def __init__(self) -> None:
        self._mean = 0.0
        self._loss = 0.0
        self._resting = 0

    @property
    def mean(self) -> float:
        """Bytes of an answer lately."""
        return self._mean

    def received(self, size: int, *, again: bool) -> None:
        """An answer of ``size`` bytes came; ``again``: it had to be asked for, and was sent once more."""
        self._mean += (size - self._mean) / MEAN_OF
        self._loss += (again - self._loss) / LOSS_OVER
        if self._resting:
            self._resting -= 1
            if not self._resting:
                self._loss = 0.0
        elif self._loss > DOUBLED_LOSS:
            self._resting = RESTING

    def credit(self, share: int) -> int:
        """Bytes that may be unacknowledged on the connection, of which ``share`` would be the sender's otherwise."""
        room = int(1.25 * self._mean) + MESSAGE_OVERHEAD
        if self._resting or share < CREDIT_BYTES or not CREDIT_BYTES < room <= MAX_CREDIT_BYTES:
            return share
        return room
