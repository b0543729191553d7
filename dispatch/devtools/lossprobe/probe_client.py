"""The plain client as the loss probe uses it: it detects lost calls early and counts late replies."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping

from dispatch.devtools.lossprobe.load import FailedCallError, LostCallError
from dispatch.devtools.lossprobe.loss_detector import LossDetector
from dispatch.devtools.lossprobe.plain_client import REQUEST, PlainClient
from dispatch.messaging.wire.codec import Reply, encode_reply
from dispatch.transports import Security

GRACE_S = 0.5
"""Seconds that a call still waits after a later one has been answered. A client's own timeout would be longer."""
CHECK_INTERVAL_S = 0.05
"""Seconds between two checks for lost calls."""
SIZE = "size"


@functools.cache
def reply_text(size: int) -> str:
    """Return the text that both services reply with: ``size`` bytes."""
    return "x" * size


@functools.cache
def reply_payload(size: int) -> bytes:
    """Return the encoded reply with a text of ``size`` bytes."""
    return encode_reply(Reply(None, reply_text(size), True))


def reply_to(properties: Mapping[str, str]) -> bytes:
    """Return the reply to a request with ``properties``, of the size that it asks for."""
    return reply_payload(int(properties[SIZE]))


class ProbeClient(PlainClient):
    """A plain client whose calls fail with :class:`LostCallError` soon after a later call was answered."""

    def __init__(self, url: str, security: Security) -> None:
        super().__init__(url, security)
        self._expired: set[int] = set()
        self._detector = LossDetector(GRACE_S)
        self._timer: asyncio.TimerHandle | None = None
        self.late = 0
        """Replies that arrived after their calls had ended as lost or cancelled."""

    async def open(self, requests: str, responses: str) -> None:
        await super().open(requests, responses)
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_lost)

    async def call_sized(self, size: int) -> None:
        """Make one call, to be answered with ``size`` bytes.

        Raises:
            LostCallError: a later call was answered, and this one was not.
            FailedCallError: pulsar-client or the broker refused the request or the reply, or the reply has another size.
        """
        number = self._count + 1
        try:
            payload = await self.call(REQUEST, {SIZE: str(size)})
        except (LostCallError, asyncio.CancelledError):
            self._expired.add(number)
            raise
        if len(payload) != len(reply_payload(size)):
            raise FailedCallError("wrong-answer")

    def _on_reply(self, number: int, result: bytes | Exception) -> None:
        self._detector.record_reply(number)
        super()._on_reply(number, result)

    def _resolve(self, number: int, result: bytes | Exception) -> None:
        if number in self._expired:
            self._expired.discard(number)
            self.late += 1
        super()._resolve(number, result)

    def _check_lost(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check_lost)
        lost = self._detector.find_lost_below(self._loop.time())
        for number in list(self._pending):  # in the order of sending
            if number >= lost:
                break
            super()._resolve(number, LostCallError())

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await super().close()
