"""Challenges: an instance that announced itself proves that it consumes its own topic, in the request namespace.

A random value is sent there and must come back with the name and the incarnation that were announced. A sender that can only
produce to the response namespace cannot answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping

from dispatch.errors import TransportError
from dispatch.messaging.wire.properties import Property
from dispatch.transports import Publisher

MAX_CHALLENGES = 64
"""Challenges at once. Each opens a topic: a flood of forged announcements must not open them without a limit."""
EVICTABLE_AFTER_S = 0.1
"""Seconds after which a challenge gives way to a new one when there are :data:`MAX_CHALLENGES`: many times a round trip, so
that a genuine instance has answered by then."""
SENT_AT_S = (0.1, 0.4, 1.5)
"""Seconds until a challenge that is not answered is sent again, and again, and then given up: each message may be lost."""
_NONCE_BYTES = 12


class Challenge:
    """One challenge: to be sent, and answered.

    Args:
        name, incarnation: what was announced, and must answer.
        now: the loop's clock, in seconds.
    """

    __slots__ = ("begun_at", "incarnation", "name", "nonce", "outcome")

    def __init__(self, name: str, incarnation: str, now: float) -> None:
        self.name = name
        self.incarnation = incarnation
        self.begun_at = now
        self.nonce = os.urandom(_NONCE_BYTES).hex()
        self.outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def conclude(self, is_genuine: bool) -> None:
        """It was answered, or must give way to another one."""
        if not self.outcome.done():
            self.outcome.set_result(is_genuine)


class Challenges:
    """The challenges of one dispatcher that wait for an answer."""

    def __init__(self) -> None:
        self._waiting: dict[str, Challenge] = {}
        self._loop = asyncio.get_running_loop()

    def begin(self, name: str, incarnation: str) -> Challenge | None:
        """Return a new challenge; None: there are too many. It must be passed to :meth:`pose`."""
        now = self._loop.time()
        if len(self._waiting) >= MAX_CHALLENGES:
            oldest = next(iter(self._waiting.values()))
            if now - oldest.begun_at < EVICTABLE_AFTER_S:
                return None
            del self._waiting[oldest.nonce]
            oldest.conclude(False)
        challenge = Challenge(name, incarnation, now)
        self._waiting[challenge.nonce] = challenge
        return challenge

    async def pose(self, challenge: Challenge, publisher: Publisher, properties: Mapping[str, str]) -> bool:
        """Send ``challenge`` and return whether the instance answers it.

        Args:
            publisher: to the instance's own topic.
            properties: of the dispatcher: where to answer.
        """
        message = {
            **properties,
            Property.CHALLENGE: challenge.nonce,
            Property.INCARNATION: challenge.incarnation,
        }
        for seconds in SENT_AT_S:
            if not challenge.outcome.done():
                with contextlib.suppress(TransportError):  # sent again soon
                    publisher.publish(b"", message, flow=publisher.topic, on_failure=_lost)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    return await asyncio.shield(challenge.outcome)
        return False

    def end(self, challenge: Challenge) -> None:
        """Nothing waits for ``challenge`` any more."""
        self._waiting.pop(challenge.nonce, None)
        challenge.conclude(False)

    def answer(self, nonce: str, name: str, incarnation: str) -> None:
        """An instance answered."""
        challenge = self._waiting.get(nonce)
        if challenge is not None and (challenge.name, challenge.incarnation) == (name, incarnation):
            challenge.conclude(True)


def _lost(_error: TransportError) -> None:
    """A challenge that could not be sent: it is sent again."""
