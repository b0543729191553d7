"""A transport without a broker: whatever is published is answered, or fails, in the next turn of the loop.

So what a call costs on it is what the dispatcher itself costs, and the loop: nothing waits, nothing is encoded by a service,
and nothing travels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from dispatch.errors import Origin, TransportError
from dispatch.messaging.wire import Property, Reply, encode_reply
from dispatch.transports import AnswerLate, Handler, Mode, OnFailure, OnReceipt, Publisher, Subscription
from dispatch.transports.base import ConnectionListener

ANSWER = encode_reply(Reply(None, "done", True))


class _Answer:
    """The constant reply, with the request's id."""

    __slots__ = ("_id",)

    def __init__(self, id: str) -> None:
        self._id = id

    def properties(self) -> dict[str, str]:
        return {Property.ID: self._id}

    def data(self) -> bytes:
        return ANSWER


class _Ticket:
    """Everything leaves at once."""

    __slots__ = ()

    def cancel(self) -> bool:
        return False


_TICKET = _Ticket()


class _Publisher:
    opening_error = None
    is_connected = True

    def __init__(self, owner: AnsweringTransport, topic: str) -> None:
        self._owner = owner
        self.topic = topic

    def publish(
        self,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        flow: str,
        on_failure: OnFailure,
        on_receipt: OnReceipt | None = None,
    ) -> _Ticket:
        if Property.ID in properties:
            self._owner.asked(properties, on_failure)
        return _TICKET

    async def writable(self, flow: str) -> None:
        """Return at once: publishing is never blocked."""

    async def close(self) -> None:
        """Nothing is open."""


class _Subscription:
    def __init__(self, topic: str, forget: Callable[[str], object]) -> None:
        self.topic = topic
        self._forget = forget

    async def close(self) -> None:
        self._forget(self.topic)


class AnsweringTransport:
    """See the module.

    Attributes:
        failing: requests fail.
        silent: requests are held until :meth:`release`.
        requests: number of received requests.
    """

    url = "double://"
    connected = True
    max_message_bytes = 5 * 1024 * 1024

    def __init__(self) -> None:
        self.failing = False
        self.silent = False
        self.requests = 0
        self._handlers: dict[str, Handler] = {}
        self._held: list[tuple[Mapping[str, str], OnFailure]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def await_connection(self, deadline: float) -> bool:
        return True

    def was_disconnected_since(self, instant: float, topics: Collection[str] = ()) -> bool:
        return False

    def on_connection_change(self, listener: ConnectionListener) -> None:
        """The broker is never lost."""

    def asked(self, properties: Mapping[str, str], on_failure: OnFailure) -> None:
        """Receive a request."""
        self.requests += 1
        if self.silent:
            self._held.append((properties, on_failure))
        else:
            self._answer(properties, on_failure)

    def release(self, count: int | None = None) -> None:
        """Answer the first ``count`` held requests, or all of them."""
        held, self._held = self._held[:count], [] if count is None else self._held[count:]
        for properties, on_failure in held:
            self._answer(properties, on_failure)

    def _answer(self, properties: Mapping[str, str], on_failure: OnFailure) -> None:
        assert self._loop is not None
        if self.failing:
            failure = TransportError("malformed-reply", "The service fails.", origin=Origin.TOOL)
            self._loop.call_soon(on_failure, failure)
        else:
            self._loop.call_soon(self._handlers[properties[Property.REPLY_TO]], _Answer(properties[Property.ID]))

    def another(self) -> AnsweringTransport:
        return AnsweringTransport()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def has_subscriber(self, topic: str) -> bool:
        return True

    async def publisher(self, topic: str) -> Publisher:
        return _Publisher(self, topic)

    async def subscribe(
        self, topic: str, handler: Handler, *, mode: Mode, name: str, answer_late: AnswerLate | None = None
    ) -> Subscription:
        self._handlers[topic] = handler
        return _Subscription(topic, lambda topic: self._handlers.pop(topic, None))

    async def flush(self) -> None:
        """Nothing waits."""

    async def close(self) -> None:
        self._handlers.clear()
