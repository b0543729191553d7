"""Acknowledgement of durable requests (on a persistent topic).

A request whose tool may be repeated is acknowledged after its reply has been sent: if the instance is lost before that, the
broker redelivers the request to another one. Any other request is acknowledged, with confirmation, before it is executed, so
that it is never executed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from dispatch.messaging.wire.properties import Property
from dispatch.serving.clock_offset import ClockOffset
from dispatch.serving.inbound_request import InboundRequest
from dispatch.transports import DurableMessage

MAX_COPIES = 8
"""Copies of one request while it runs: each reconnection can redeliver it."""


class DurableRequests:
    """The unacknowledged requests of one instance: at most as many as it runs and queues.

    Args:
        out: waits until the reply to a request has been sent.
    """

    def __init__(self, out: Callable[[InboundRequest], Awaitable[None]]) -> None:
        self._out = out
        self._held: dict[str, list[DurableMessage]] = {}
        self._leaving: dict[asyncio.Task[None], list[DurableMessage]] = {}
        self._ages = ClockOffset()
        self._closed = False

    def __len__(self) -> int:
        """Number of unacknowledged requests."""
        return len(self._held) + len(self._leaving)

    def remaining(self, id: str, milliseconds: int, message: DurableMessage, now: float) -> int:
        """Return the milliseconds until the deadline of a request, counted from its publishing."""
        age = self._ages.age(id.partition("-")[0], message.lag, now, backlog=message.backlog)
        return max(0, milliseconds - int(age * 1000))

    def accept_request(
        self, work: InboundRequest, message: DurableMessage, accept: Callable[[InboundRequest], bool]
    ) -> None:
        """Pass ``work``, which arrived as ``message``, to ``accept``: at once, or after its acknowledgement is confirmed."""
        if Property.REPEATABLE in work.properties:
            if self._closed:
                message.keep()  # redelivered to another instance when this one has closed
                return
            held = self._held.setdefault(work.id, [])
            if len(held) < MAX_COPIES:
                held.append(message)
                message.keep()
            if not accept(work) and len(held) == 1:
                self.record_end(work)
        elif Property.REPLY_TO in work.properties:
            message.settle(partial(accept, work))
        else:
            accept(work)  # from a third-party caller: acknowledged and executed as often as it arrives

    def record_end(self, work: InboundRequest) -> None:
        """Acknowledge ``work`` after its reply has been sent."""
        held = self._held.pop(work.id, None)
        if held is None:
            return
        ticket = None if work.entry is None else work.entry.ticket
        if ticket is not None and not ticket.waits:
            _acknowledge(held)
            return
        # The reply waits for credit, or for its topic.
        task = asyncio.get_running_loop().create_task(self._when_out(work, held))
        self._leaving[task] = held
        task.add_done_callback(lambda _: self._leaving.pop(task, None))

    async def _when_out(self, work: InboundRequest, held: list[DurableMessage]) -> None:
        await self._out(work)
        _acknowledge(held)

    def close(self) -> None:
        """Leave requests that arrive from now on to other instances."""
        self._closed = True

    def leave(self, work: InboundRequest) -> bool:
        """Leave ``work`` to another instance. Return False if no other instance can receive it."""
        return self._held.pop(work.id, None) is not None

    def finish(self) -> None:
        """Finish the running requests here."""
        for held in (*self._held.values(), *self._leaving.values()):
            _acknowledge(held)
        self._held.clear()
        self.end()

    def end(self) -> None:
        """Send no further acknowledgements."""
        for task in self._leaving:
            task.cancel()


def _acknowledge(held: list[DurableMessage]) -> None:
    for message in held:
        message.acknowledge()
