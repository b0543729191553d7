"""Acknowledgement of durable requests (on a persistent topic).

A request whose tool may be repeated is acknowledged after its reply has been sent: if the instance is lost before that, the
broker redelivers the request to another one. Any other request is acknowledged, with confirmation, before it is executed, so
that it is never executed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from dispatch.messaging.wire.properties import Property
from dispatch.serving.inbound_request import InboundRequest
from dispatch.serving.plain.clock_offset import ClockOffset
from dispatch.serving.plain.plain_replies import PlainReplies
from dispatch.transports import DurableMessage

MAX_COPIES = 8
"""Copies of one request while it runs: each reconnection can redeliver it."""

Accept = Callable[[InboundRequest, PlainReplies], bool]


class DurableRequests:
    """The unacknowledged requests of one instance: at most as many as it runs and queues."""

    def __init__(self) -> None:
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
        self, work: InboundRequest, replies: PlainReplies, message: DurableMessage, accept: Accept
    ) -> None:
        """Pass ``work``, which arrived as ``message``, to ``accept``: at once, or after its acknowledgement is confirmed."""
        if Property.REPEATABLE in replies.request:
            if self._closed:
                message.keep()  # redelivered to another instance when this one has closed
                return
            held = self._held.setdefault(replies.request_id, [])
            if len(held) < MAX_COPIES:
                held.append(message)
                message.keep()
            if not accept(work, replies) and len(held) == 1:
                self.record_end(replies)
        elif Property.REPLY_TO in replies.request:
            message.settle(partial(accept, work, replies))
        else:
            accept(work, replies)  # from a third-party caller: acknowledged and executed as often as it arrives

    def record_end(self, replies: PlainReplies) -> None:
        """Acknowledge the request of ``replies`` after its reply has been sent."""
        held = self._held.pop(replies.request_id, None)
        if held is None:
            return
        if replies.ticket is not None and not replies.ticket.waits:
            _acknowledge(held)
            return
        # The reply is queued, or waits for its topic.
        task = asyncio.get_running_loop().create_task(self._acknowledge_sent(replies, held))
        self._leaving[task] = held
        task.add_done_callback(lambda _: self._leaving.pop(task, None))

    async def _acknowledge_sent(self, replies: PlainReplies, held: list[DurableMessage]) -> None:
        await replies.writable()
        _acknowledge(held)

    def stop_accepting(self) -> None:
        """Leave requests that arrive from now on to other instances."""
        self._closed = True

    def hand_over(self, replies: PlainReplies) -> bool:
        """Leave the request of ``replies`` to another instance. Return False if no other instance can receive it."""
        return self._held.pop(replies.request_id, None) is not None

    def finish(self) -> None:
        """Finish the running requests here."""
        for held in (*self._held.values(), *self._leaving.values()):
            _acknowledge(held)
        self._held.clear()
        self.close()

    def close(self) -> None:
        """Send no further acknowledgements."""
        for task in self._leaving:
            task.cancel()


def _acknowledge(held: list[DurableMessage]) -> None:
    for message in held:
        message.acknowledge()
