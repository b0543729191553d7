"""Telling services that their replies have arrived: once per wake-up of the loop, to the instance's own control topic. Where
a request leaves for that instance in the same moment, it carries the acknowledgement: one message less each way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict

from dispatch._internal.clock import loop_clock
from dispatch.errors import TransportError
from dispatch.messaging.flow.credit import CREDIT_BYTES
from dispatch.messaging.wire.properties import Property, is_oversized
from dispatch.transports import Publisher, Transport

MAX_INSTANCES = 1_024
"""Control topics kept open at once."""
QUIET_S = 60.0
"""An instance that asked for nothing in so long no longer shares the credit, and its topic is closed."""
MAX_GATES = 64
"""Gates of one instance that are acknowledged at a time. A service of ours has one for each of our reply topics."""
MAX_TOKEN_CHARS = 100
"""Ours have some twenty. All of an instance's together fit into one property."""
MIN_CREDIT = 4_000
"""However many instances share the credit, each may have some messages on their way."""


class _Instance:
    __slots__ = ("due", "last", "opening", "publisher")

    def __init__(self, now: float) -> None:
        self.publisher: Publisher | None = None
        self.opening: asyncio.Task[None] | None = None
        self.due: dict[str, str] = {}
        self.last = now

    def pop_due(self) -> str:
        """Return all acknowledgements that are due, in one text, and forget them."""
        due, self.due = self.due, {}
        return ",".join(due.values())


class AckSender:
    """Answers the property ``ack`` of replies.

    Args:
        transport: the dispatcher's connection.
        secret: of the dispatcher's session, which each acknowledgement carries.
    """

    def __init__(self, transport: Transport, secret: str) -> None:
        self._transport = transport
        self._secret = secret
        self._loop = asyncio.get_running_loop()
        self._now = loop_clock()
        self._instances: OrderedDict[str, _Instance] = OrderedDict()
        self._scheduled = False
        self._closing: set[asyncio.Task[None]] = set()
        self.sent = 0
        """Messages that brought acknowledgements, requests that carried some included."""

    @property
    def credit(self) -> int:
        """What each instance may have on its way to us, in bytes: one connection receives from all of them."""
        return max(MIN_CREDIT, CREDIT_BYTES // (len(self._instances) or 1))

    def wanted(self, prefixes: tuple[str, ...], control: str | None, token: str) -> None:
        """A reply asked, on an instance's own topic that must begin with one of ``prefixes``, for the acknowledgement of
        ``token``."""
        if control is None or not control.startswith(prefixes) or is_oversized(control):
            return
        if len(token) > MAX_TOKEN_CHARS:
            return
        now = self._now()
        instance = self._instances.get(control)
        if instance is None:
            self._forget_quiet(now, room=1)
            instance = self._instances[control] = _Instance(now)
        else:
            self._instances.move_to_end(control)
        instance.last = now
        gate = token.partition(":")[0]
        if len(instance.due) >= MAX_GATES and gate not in instance.due:
            return
        instance.due[gate] = token  # cumulative: the last one says it all
        if not self._scheduled:
            self._scheduled = True
            # Whoever got the reply runs in the next turn of the loop, and may have the next request: so in the one after.
            self._loop.call_soon(self._loop.call_soon, self._flush)

    def carried(self, control: str) -> str | None:
        """What a request that leaves for the instance with the topic ``control`` now is to carry as ``acked``; it is not
        sent otherwise."""
        instance = self._instances.get(control)
        if instance is None or not instance.due:
            return None
        self.sent += 1
        return instance.pop_due()

    def _flush(self) -> None:
        self._scheduled = False
        self._forget_quiet(self._now())
        for control, instance in self._instances.items():
            if not instance.due:
                continue
            if instance.publisher is not None:
                self._send(instance, instance.publisher)
            elif instance.opening is None:
                instance.opening = self._loop.create_task(self._open(control, instance))

    def _send(self, instance: _Instance, publisher: Publisher) -> None:
        if not instance.due:
            return  # a request has carried it meanwhile
        with contextlib.suppress(TransportError):  # the service asks again
            properties = {Property.ACKED: instance.pop_due(), Property.SESSION: self._secret}
            publisher.publish(b"", properties, flow=publisher.topic, on_failure=_lost)
            self.sent += 1

    async def _open(self, control: str, instance: _Instance) -> None:
        try:
            instance.publisher = await self._transport.publisher(control)
        except Exception:  # whatever a peer's topic name makes the client raise
            return  # the service goes on by time
        finally:
            instance.opening = None
        self._send(instance, instance.publisher)

    def _forget_quiet(self, now: float, room: int = 0) -> None:
        while self._instances:
            control, instance = next(iter(self._instances.items()))
            if len(self._instances) + room <= MAX_INSTANCES and now - instance.last < QUIET_S:
                return
            self.forget(control)

    def forget(self, control: str) -> None:
        """Close the topic of an instance; it is opened again if that asks for anything."""
        instance = self._instances.pop(control, None)
        if instance is None:
            return
        if instance.publisher is not None:
            self._send(instance, instance.publisher)
        task = self._loop.create_task(_close(instance))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the control topics."""
        instances = list(self._instances.values())
        self._instances.clear()
        for instance in instances:
            await _close(instance)
        if self._closing:
            await asyncio.wait(list(self._closing))


async def _close(instance: _Instance) -> None:
    opening = instance.opening
    if opening is not None:
        opening.cancel()
        await asyncio.wait([opening])
    if instance.publisher is not None:
        await instance.publisher.close()


def _lost(_error: TransportError) -> None:
    """An acknowledgement that got lost: the service asks again."""
