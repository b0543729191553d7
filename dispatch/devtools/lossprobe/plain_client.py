"""Request and reply with pulsar-client alone: the baseline for the loss probe and for the benchmarks.

``send_async`` and listeners (the faster of pulsar-client's two interfaces), unbatched, without flow control,
retransmissions or deduplication. Payloads are encoded beforehand and not decoded. Only opening topics, with token and TLS,
is dispatch's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dispatch.devtools.lossprobe.load import FailedCallError
from dispatch.messaging.wire.codec import encode_request
from dispatch.transports import Mode, Security
from dispatch.transports.pulsar.client import OK, PulsarClient
from dispatch.transports.pulsar.io_thread_state import keep_thread_state

ID, FAILED = "id", "failed"
REQUEST = encode_request("{}", "{}")
NO_PROPERTIES: Mapping[str, str] = {}


class PlainService:
    """A listener on pulsar-client's thread that replies at once. It keeps the thread's state, which costs least, so that a
    measurement shows the client or the broker and not this service.

    Args:
        url: the broker.
        security: token and TLS settings.
        reply: returns the payload of the reply for the properties of a request.
    """

    def __init__(self, url: str, security: Security, reply: Callable[[Mapping[str, str]], bytes]) -> None:
        self._client = PulsarClient(url, security)
        self._reply = reply

    async def open(self, requests: str, responses: str) -> None:
        """Listen on the topic ``requests`` and reply on ``responses``. May be called for several pairs of topics.

        Raises:
            TransportError: the topics cannot be opened.
        """
        producer = await self._client.producer(responses)
        await self._client.consumer(requests, Mode.SHARED, "echo-request", partial(self._on_message, producer))

    def _on_message(self, producer: Any, _consumer: Any, message: Any) -> None:
        keep_thread_state()
        # An exception in pulsar-client's thread would end the process. A call without a reply is counted by its caller.
        with contextlib.suppress(Exception):
            properties = message.properties()
            id = properties[ID]
            producer.send_async(self._reply(properties), partial(self._on_receipt, producer, id), properties={ID: id})

    def _on_receipt(self, producer: Any, id: str, result: Any, _message_id: Any) -> None:
        keep_thread_state()
        if result != OK:
            with contextlib.suppress(Exception):  # as above
                producer.send_async(b"", _ignore_receipt, properties={ID: id, FAILED: result.name})

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


class PlainClient:
    """The least that is usable as a client: a future for each call, correlated by id.

    Args:
        url: the broker.
        security: token and TLS settings.
    """

    def __init__(self, url: str, security: Security) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = PulsarClient(url, security)
        self._producer: Any = None
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._arrived: deque[Any] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._is_waking = False
        self._count = 0

    async def open(self, requests: str, responses: str) -> None:
        """Publish to the topic ``requests`` and listen on ``responses``.

        Raises:
            TransportError: the topics cannot be opened.
        """
        self._producer = await self._client.producer(requests)
        await self._client.consumer(responses, Mode.FANOUT, "plain-client", self._on_message)

    async def call(
        self, payload: bytes, properties: Mapping[str, str] = NO_PROPERTIES, *, timeout: float | None = None
    ) -> bytes:
        """Send a request and return the payload of its reply.

        Args:
            payload, properties: of the request; the id is added.
            timeout: seconds; None: no limit.

        Raises:
            FailedCallError: pulsar-client or the broker refused the request or the reply.
            TimeoutError: no reply came in time.
        """
        self._count = number = self._count + 1
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._pending[number] = reply
        timer = None if timeout is None else self._loop.call_later(timeout, _expire, reply)
        try:
            self._producer.send_async(
                payload, partial(self._on_receipt, number), properties={**properties, ID: str(number)}
            )
            return await reply
        finally:
            if timer is not None:
                timer.cancel()
            del self._pending[number]

    # pulsar-client makes a new thread state for each of these callbacks, as in any program (see io_thread_state.py).

    def _on_message(self, _consumer: Any, message: Any) -> None:
        self._arrived.append(message)
        self._wake()

    def _on_receipt(self, number: int, result: Any, _message_id: Any) -> None:
        if result != OK:
            self._refused.append((number, result.name))
            self._wake()

    def _wake(self) -> None:
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._is_waking = False
        while self._refused:
            number, failure = self._refused.popleft()
            self._resolve(number, FailedCallError(failure))
        while self._arrived:
            message = self._arrived.popleft()
            properties = message.properties()
            failure = properties.get(FAILED)
            self._on_reply(int(properties[ID]), message.data() if failure is None else FailedCallError(failure))

    def _on_reply(self, number: int, result: bytes | Exception) -> None:
        self._resolve(number, result)

    def _resolve(self, number: int, result: bytes | Exception) -> None:
        reply = self._pending.get(number)
        if reply is None or reply.done():
            return
        if isinstance(result, bytes):
            reply.set_result(result)
        else:
            reply.set_exception(result)

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _expire(reply: asyncio.Future[bytes]) -> None:
    if not reply.done():
        reply.set_exception(TimeoutError())


def _ignore_receipt(_result: Any, _message_id: Any) -> None:
    keep_thread_state()
