"""A request in parts, on its way to the one instance that it is meant for.

Its parts leave one behind the other, each as soon as the gate in front of the instance lets it pass, so that other requests
get through in between. What is lost on the way the instance names when it is asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from dispatch.errors import TransportError
from dispatch.messaging.wire.fragments import part_at, parts_of, read_ranges, write_parts
from dispatch.messaging.wire.properties import Property
from dispatch.transports import OnFailure, Publisher, Ticket


class FragmentedRequest:
    """The publisher of one request, and its ticket (see :class:`dispatch.transports.base.Ticket`).

    Args:
        publisher: to the instance's own topic.
        payload: the request.
        limit: bytes of a message.
    """

    __slots__ = (
        "_due",
        "_flow",
        "_last",
        "_left",
        "_loop",
        "_on_failure",
        "_payload",
        "_properties",
        "_publisher",
        "_remaining",
        "_sending",
        "_started",
        "_stopped",
        "_tickets",
        "count",
    )

    def __init__(self, publisher: Publisher, payload: bytes, limit: int) -> None:
        self._publisher = publisher
        self._payload = payload
        self._loop = asyncio.get_running_loop()
        self.count = parts_of(len(payload), limit)
        self._due: deque[int] = deque(range(self.count))
        self._left: dict[int, int] = {}
        """How often each part was handed over; none of those that surely did not leave."""
        self._tickets: dict[int, Ticket] = {}
        """Of those that nobody has said to be there."""
        self._last: Ticket | None = None
        self._properties: Mapping[str, str] = {}
        self._flow = ""
        self._on_failure: OnFailure | None = None
        self._started = self._remaining = 0.0
        self._sending: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def topic(self) -> str:
        """See :class:`dispatch.transports.base.Publisher`."""
        return self._publisher.topic

    @property
    def about(self) -> dict[str, str]:
        """What every message about this request has to say, as properties."""
        return {Property.PARTS: write_parts(self.count, len(self._payload))}

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        """Send it. ``payload`` is the one it was made with, the rest as for any publisher."""
        self._properties = properties
        # Of its own, not the tool's: its parts wait for each other, not for all other requests to the tool.
        self._flow = properties[Property.ID]
        self._on_failure = on_failure
        self._started = self._loop.time()
        self._remaining = float(properties.get(Property.REMAINING_MS, "0"))
        self._send(self._due.popleft())
        self._go_on()
        return self

    async def writable(self, flow: str) -> None:
        """See :class:`dispatch.transports.base.Publisher`."""
        await self._publisher.writable(flow)

    async def close(self) -> None:
        """The publisher is the instance's."""
        self.stop()

    def _send(self, index: int) -> None:
        start, end = part_at(index, self.count, len(self._payload))
        remaining = self._remaining - 1000 * (self._loop.time() - self._started)
        properties = {
            **self._properties,
            Property.PART: str(index),
            Property.REMAINING_MS: str(max(1, int(remaining))),
        }

        def failed(error: TransportError) -> None:
            self._failed(error, index)

        self._last = self._tickets[index] = self._publisher.publish(
            self._payload[start:end], properties, flow=self._flow, on_failure=failed
        )
        self._left[index] = self._left.get(index, 0) + 1

    def _failed(self, error: TransportError, index: int) -> None:
        if self._left.get(index) != 1 or error.sent or self._stopped:
            return  # it may be there, and is asked for
        # Surely it is not, and never will be: the request cannot become complete.
        del self._left[index]
        self._report_failure(error)

    def _report_failure(self, error: TransportError) -> None:
        self.stop()
        if self._on_failure is not None:
            self._on_failure(error)

    def _go_on(self) -> None:
        if self._due and not self._stopped and (self._sending is None or self._sending.done()):
            self._sending = self._loop.create_task(self._send_due())

    async def _send_due(self) -> None:
        while self._due:
            await self._publisher.writable(self._flow)
            if not self._due:
                return  # it was stopped while it waited
            index = self._due.popleft()
            try:
                self._send(index)
            except TransportError as error:
                if index not in self._left:
                    self._sending = None  # this task: it must not cancel itself
                    self._report_failure(error)
                    return
                # Else it was sent before, and is asked for again.

    # -- what the instance says ---------------------------------------------------------------------------------

    def arrived(self, index: int) -> None:
        """Part ``index`` is there."""
        ticket = self._tickets.pop(index, None)
        if ticket is not None:
            ticket.mark_received()

    def resend(self, missing: str) -> None:
        """These parts (the property ``missing``) are not there."""
        waiting = set(self._due)
        for index in read_ranges(missing, self.count):
            ticket = self._tickets.get(index)
            if index in self._left and index not in waiting and not (ticket is not None and ticket.waits):
                self._due.append(index)
        self._go_on()

    # -- as a ticket --------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Nothing of it has left yet."""
        return len(self._left) == 1 and self._last is not None and self._last.waits

    def cancel(self) -> bool:
        """See :class:`dispatch.transports.base.Ticket`: true unless all of it has left."""
        self.stop()
        return len(self._left) < self.count

    def answered(self) -> None:
        """It was answered: nothing more of it is of use."""
        self.stop()
        if self._last is not None:
            self._last.answered()

    def mark_received(self) -> None:
        """All of it is there."""
        self.stop()
        if self._last is not None:
            self._last.mark_received()
        self._tickets.clear()

    def stop(self) -> None:
        """Send no more of it."""
        if self._stopped:
            return
        self._stopped = True
        self._due.clear()
        if self._sending is not None:
            self._sending.cancel()
        for index, ticket in list(self._tickets.items()):
            if ticket.waits and ticket.cancel() and self._left.get(index) == 1:
                del self._left[index]
