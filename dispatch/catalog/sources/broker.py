"""The broker as sources see it: requests with their responses, and notifications. Sources import no transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

OnMessage = Callable[[bytes], object]
"""Receives the payload of a notification, on the event loop."""


class BrokerSubscription(Protocol):
    """A subscription to notifications."""

    async def close(self) -> None:
        """End the subscription. Idempotent."""


class Broker(Protocol):
    """The broker of a dispatcher, as sources see it. Topic names are complete."""

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach, as far as is known."""

    def was_disconnected_since(self, instant: float) -> bool:
        """Return whether the broker was known to be out of reach at some time since ``instant`` (on the loop's clock):
        notifications of that time are lost."""

    async def request(
        self, topic: str, response_topic: str, payload: bytes, *, timeout: float, resend_after: float | None = None
    ) -> bytes:
        """Publish a request and return the payload of the first response with its property ``id``. Later responses with
        the same id are ignored.

        Args:
            topic: of the requests.
            response_topic: on which the responses arrive, among those to other clients.
            payload: of the request.
            timeout: seconds until the response must be there.
            resend_after: seconds without a response after which the same request is sent again; the interval doubles
                each time. Only for a request that may be executed twice; None: it is sent once.

        Raises:
            TimeoutError: no response within ``timeout``; the request may have been executed.
            TransportError: the broker is out of reach or refuses a topic.
        """

    async def subscribe(self, topic: str, on_message: OnMessage) -> BrokerSubscription:
        """Call ``on_message`` with each message that is published to ``topic`` from now on.

        Raises:
            TransportError: the broker is out of reach or refuses the topic.
        """
