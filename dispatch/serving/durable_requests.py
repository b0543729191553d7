"""What a service instance does with requests that its broker keeps (a persistent topic), besides running them.

One whose tool may be repeated is acknowledged when its answer has left: if this instance dies before that, the broker gives
the request to another one. Any other one is acknowledged, and the broker has that, before it runs: it is never run twice.
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
"""Of one request, while it runs: each reconnection can bring another."""


class DurableRequests:
    """The kept requests of one instance. As many are unacknowledged as the instance runs and lets wait, no more.

    Args:
        out: waits until the answer to a request has left.
    """

    def __init__(self, out: Callable[[InboundRequest], Awaitable[None]]) -> None:
        self._out = out
        self._held: dict[str, list[DurableMessage]] = {}
        self._leaving: dict[asyncio.Task[None], list[DurableMessage]] = {}
        self._ages = ClockOffset()
        self._closed = False

    def __len__(self) -> int:
        """Requests that are not acknowledged."""
        return len(self._held) + len(self._leaving)

    def remaining(self, id: str, milliseconds: int, message: DurableMessage, now: float) -> int:
        """What is left of the time that a request had when it was published."""
        age = self._ages.age(id.partition("-")[0], message.lag, now, backlog=message.backlog)
        return max(0, milliseconds - int(age * 1000))

    def accept_request(
        self, work: InboundRequest, message: DurableMessage, accept: Callable[[InboundRequest], bool]
    ) -> None:
        """``work`` came as ``message``: ``accept`` it, now or as soon as that is safe."""
        if Property.REPEATABLE in work.properties:
            if self._closed:
                message.keep()  # another one gets it when this one has gone
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
            accept(work)  # of others' callers: acknowledged as it comes, and run as often as it comes

    def record_end(self, work: InboundRequest) -> None:
        """``work`` was answered: acknowledge it when its answer has left."""
        held = self._held.pop(work.id, None)
        if held is None:
            return
        ticket = None if work.entry is None else work.entry.ticket
        if ticket is not None and not ticket.waits:
            _acknowledge(held)
            return
        # It waits for credit, or for its topic to be opened.
        task = asyncio.get_running_loop().create_task(self._when_out(work, held))
        self._leaving[task] = held
        task.add_done_callback(lambda _: self._leaving.pop(task, None))

    async def _when_out(self, work: InboundRequest, held: list[DurableMessage]) -> None:
        await self._out(work)
        _acknowledge(held)

    def close(self) -> None:
        """The instance is about to leave: what comes from now on is for others."""
        self._closed = True

    def leave(self, work: InboundRequest) -> bool:
        """Leave ``work``, which will not be answered here, to another instance. False: nobody else can have it."""
        return self._held.pop(work.id, None) is not None

    def finish(self) -> None:
        """What runs now will be answered here."""
        for held in (*self._held.values(), *self._leaving.values()):
            _acknowledge(held)
        self._held.clear()
        self.end()

    def end(self) -> None:
        """Acknowledge nothing any more."""
        for task in self._leaving:
            task.cancel()


def _acknowledge(held: list[DurableMessage]) -> None:
    for message in held:
        message.acknowledge()
