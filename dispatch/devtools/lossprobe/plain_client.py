"""The plain exchange, without credit: pulsar-client itself on both sides, as anyone would use it.

``send_async`` and listeners (the better of pulsar-client's two ways), unbatched, receipts looked at for failures only;
payloads are made beforehand and not decoded. Only the opening, with its token and TLS, is the transport's.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from typing import Any

from dispatch.devtools.lossprobe.load import FailedCallError, LostCallError
from dispatch.devtools.lossprobe.loss_detector import LossDetector
from dispatch.messaging.wire.codec import Reply, encode_reply, encode_request
from dispatch.transports import Mode, Security
from dispatch.transports.pulsar.client import OK, PulsarClient
from dispatch.transports.pulsar.io_thread_state import keep_thread_state

GRACE_S = 0.5
"""How long a call that was overtaken still waits, and its place is taken. A client's own timeout would be longer."""
LOOK_EVERY_S = 0.05
ID, SIZE, FAILED = "id", "size", "failed"

REQUEST = encode_request("{}", "{}")


@functools.cache
def answer_text(size: int) -> str:
    """What both services answer: ``size`` bytes."""
    return "x" * size


@functools.cache
def answer_payload(size: int) -> bytes:
    """The same as it travels."""
    return encode_reply(Reply(None, answer_text(size), True))


class PlainEcho:
    """The service: a listener on pulsar-client's thread that answers at once. It takes as little of the machine as it can,
    so that the broker is measured and not this: hence the kept thread state.

    Args:
        url: the broker.
        security: token and TLS settings.
    """

    def __init__(self, url: str, security: Security) -> None:
        self._link = PulsarClient(url, security)
        self._producer: Any = None

    async def open(self, requests: str, responses: str) -> None:
        """Listen on the topic ``requests``, answer on ``responses``.

        Raises:
            TransportError: the topics cannot be opened.
        """
        self._producer = await self._link.producer(responses)
        await self._link.consumer(requests, Mode.SHARED, "echo-request", self._on_message)

    def _on_message(self, _consumer: Any, message: Any) -> None:
        keep_thread_state()
        with contextlib.suppress(
            Exception
        ):  # what is raised here would end the process; a call without an answer is counted
            properties = message.properties()
            id = properties[ID]
            payload = answer_payload(int(properties[SIZE]))
            self._producer.send_async(payload, functools.partial(self._on_receipt, id), properties={ID: id})

    def _on_receipt(self, id: str, result: Any, _message_id: Any) -> None:
        keep_thread_state()
        if result != OK:
            with contextlib.suppress(Exception):  # as above
                self._producer.send_async(b"", _nothing, properties={ID: id, FAILED: result.name})

    async def close(self) -> None:
        """Let go of everything."""
        await self._link.close()


class PlainClient:
    """The client: of what a client needs it has the least that is usable, a future a call, correlated by id.

    Args:
        url: the broker.
        security: token and TLS settings.
    """

    def __init__(self, url: str, security: Security) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = PulsarClient(url, security)
        self._producer: Any = None
        self._waiting: dict[int, tuple[asyncio.Future[None], int]] = {}
        self._given_up: set[int] = set()
        self._arrived: deque[Any] = deque()
        self._refused: deque[tuple[int, str]] = deque()
        self._waking = False
        self._number = 0
        self._loss_detector = LossDetector(GRACE_S)
        self._timer: asyncio.TimerHandle | None = None
        self.late = 0
        """Answers that came after their calls had been given up."""

    async def open(self, requests: str, responses: str) -> None:
        """Send to the topic ``requests``, listen on ``responses``.

        Raises:
            TransportError: the topics cannot be opened.
        """
        self._producer = await self._link.producer(requests)
        await self._link.consumer(responses, Mode.FANOUT, "dispatch-loss", self._on_message)
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    async def call(self, size: int) -> None:
        """One call, answered with ``size`` bytes.

        Raises:
            LostCallError: a later call was answered, and this one was not.
            FailedCallError: pulsar-client or the broker said no, to the request or to the answer.
        """
        self._number = number = self._number + 1
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting[number] = (waiting, len(answer_payload(size)))
        try:
            self._producer.send_async(
                REQUEST, functools.partial(self._on_receipt, number), properties={ID: str(number), SIZE: str(size)}
            )
            await waiting
        except (LostCallError, asyncio.CancelledError):
            self._given_up.add(number)
            raise
        finally:
            del self._waiting[number]

    # Plain on purpose: pulsar-client's threads make a new thread state for each of these callbacks (see threads.py).

    def _on_message(self, _consumer: Any, message: Any) -> None:
        self._arrived.append(message)
        self._wake()

    def _on_receipt(self, number: int, result: Any, _message_id: Any) -> None:
        if result != OK:
            self._refused.append((number, result.name))
            self._wake()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._waking = False
        while self._refused:
            number, failure = self._refused.popleft()
            self._settle(number, FailedCallError(failure))
        while self._arrived:
            message = self._arrived.popleft()
            properties = message.properties()
            number = int(properties[ID])
            self._loss_detector.record_reply(number)
            failure = properties.get(FAILED)
            if failure is None and number in self._waiting and len(message.data()) != self._waiting[number][1]:
                failure = "wrong-answer"
            self._settle(number, None if failure is None else FailedCallError(failure))

    def _settle(self, number: int, problem: Exception | None) -> None:
        if number in self._given_up:
            self._given_up.discard(number)
            self.late += 1
        elif number in self._waiting and not (waiting := self._waiting[number][0]).done():
            if problem is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(problem)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)
        lost = self._loss_detector.find_lost_below(self._loop.time())
        for number in list(self._waiting):  # in the order of sending
            if number >= lost:
                break
            self._settle(number, LostCallError())

    async def close(self) -> None:
        """Let go of everything."""
        if self._timer is not None:
            self._timer.cancel()
        await self._link.close()


def _nothing(_result: Any, _message_id: Any) -> None:
    keep_thread_state()
