"""A gate in front of a publisher: messages pass while there is credit, and wait in a bounded fair queue otherwise.

Credit comes back by acknowledgement. When none comes, because it was lost, or because the peer is a stranger that knows
nothing of this, time gives it back, slowly enough to make no burst.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from dispatch.errors import TransportError
from dispatch.messaging.flow.credit import MESSAGE_OVERHEAD, Credit
from dispatch.messaging.flow.queue import SendQueue
from dispatch.transports import OnFailure, Publisher, Ticket

PATIENCE_S = 0.05
"""How long a full gate waits before it goes on unacknowledged. A stranger gets a credit's worth of messages in that time
(1 MB/s): beyond how long a broker's threads were seen to stand still on a busy machine."""
MAX_PATIENCE_S = 1.0
SLOW_LINK = 10_000_000
"""Bytes a second: a link of 100 Mbit/s. One message alone may be larger than the channel; until it is through, all that
comes after it would be dropped, so that patience has to last longer then."""
CHANNEL_BYTES = 65_536
"""A channel's high-water mark."""
FIRST_PATIENCE_S = 0.25
"""The same before anything is known of the peer: one that acknowledges has done so by then."""
MAX_PROBES = 6
"""Unanswered probes after which a peer that used to acknowledge counts as one that does not: it was replaced, or left."""

Mark = Callable[[int], Mapping[str, str]]
"""The properties that ask for the acknowledgement of a sequence number."""


class _Gated:
    """A message at the gate. See :class:`dispatch.transports.base.Ticket`."""

    __slots__ = ("flow", "gate", "on_failure", "payload", "properties", "sequence", "ticket")

    def __init__(
        self, gate: Gate, payload: bytes, properties: Mapping[str, str], flow: str, on_failure: OnFailure
    ) -> None:
        self.gate = gate
        self.payload = payload
        self.properties = properties
        self.flow = flow
        self.on_failure: OnFailure | None = on_failure
        self.ticket: Ticket | None = None
        self.sequence = 0

    @property
    def waits(self) -> bool:
        return self.ticket is None or self.ticket.waits

    def cancel(self) -> bool:
        if self.ticket is None:
            self.on_failure = None
            return self.gate.withdraw(self)
        withdrawn = self.ticket.cancel()
        if withdrawn:
            self.gate.return_credit(self.sequence)
        return withdrawn

    def answered(self) -> None:
        """A reply proves that the message arrived."""
        if self.sequence:
            self.gate.arrived(self.sequence)

    def mark_received(self) -> None:
        """The receiver says that the message arrived: it is one that acknowledges."""
        self.gate.acknowledge(self.sequence)

    def fail(self, error: TransportError) -> None:
        if not error.sent:
            self.gate.return_credit(self.sequence)
        if self.on_failure is not None:
            self.on_failure(error)


class _Passed:
    """A message that found the gate open. See :class:`dispatch.transports.base.Ticket`."""

    __slots__ = ("gate", "on_failure", "sequence", "ticket")

    def __init__(self, gate: Gate, sequence: int, on_failure: OnFailure) -> None:
        self.gate = gate
        self.sequence = sequence
        self.on_failure = on_failure
        self.ticket: Ticket

    @property
    def waits(self) -> bool:
        return self.ticket.waits

    def cancel(self) -> bool:
        withdrawn = self.ticket.cancel()
        if withdrawn:
            self.gate.return_credit(self.sequence)
        return withdrawn

    def fail(self, error: TransportError) -> None:
        if not error.sent:
            self.gate.return_credit(self.sequence)
        self.on_failure(error)

    def answered(self) -> None:
        """A reply proves that the message arrived."""
        self.gate.arrived(self.sequence)

    def mark_received(self) -> None:
        """The receiver says that the message arrived: it is one that acknowledges."""
        self.gate.acknowledge(self.sequence)


class Gate:
    """A :class:`~dispatch.transports.base.Publisher` that keeps to a credit.

    Args:
        publisher: where messages go; closed with the gate.
        mark: makes the properties that ask for an acknowledgement.
        credit: bytes that may be unacknowledged; None: everything passes (until :meth:`limit` says otherwise).
        acknowledges: the peer is known to acknowledge.
    """

    def __init__(self, publisher: Publisher, mark: Mark, credit: int | None, *, acknowledges: bool = False) -> None:
        self.publisher = publisher
        self._mark = mark
        self._credit = None if credit is None else Credit(credit)
        self.acknowledges = acknowledges
        self._loop = asyncio.get_running_loop()
        self._queue: SendQueue[_Gated] = SendQueue(publisher.topic)
        self._timer: asyncio.TimerHandle | None = None
        self._patience = FIRST_PATIENCE_S
        self._probes = 0
        self.overdue = 0
        """How often time gave credit back, because no acknowledgement did."""

    @property
    def topic(self) -> str:
        return self.publisher.topic

    @property
    def queued(self) -> int:
        """Messages that wait."""
        return len(self._queue)

    @property
    def open(self) -> bool:
        """The next message passes at once."""
        return (self._credit is None or self._credit.open) and not len(self._queue)

    def limit(self, credit: int) -> None:
        """The receiver's word on how many bytes may be unacknowledged: it acknowledges, then."""
        if self._credit is None:
            self._credit = Credit(credit)
            self.acknowledges = True
        else:
            self._credit.limit = credit
            self._resume()

    def publish(self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure) -> Ticket:
        credit = self._credit
        if credit is None:
            return self.publisher.publish(payload, properties, flow=flow, on_failure=on_failure)
        if credit.open and not len(self._queue):
            sequence, due = credit.send(len(payload) + MESSAGE_OVERHEAD)
            if due:
                properties = {**properties, **self._mark(sequence)}
            passed = _Passed(self, sequence, on_failure)
            try:
                passed.ticket = self.publisher.publish(payload, properties, flow=flow, on_failure=passed.fail)
            except BaseException:
                credit.withdraw(sequence)
                raise
            return passed
        gated = _Gated(self, payload, properties, flow, on_failure)
        self._queue.enter(flow, gated, len(payload))
        if self._timer is None:
            self._watch(credit)
        return gated

    def _send(self, gated: _Gated, *, marked: bool = False) -> None:
        assert self._credit is not None
        sequence, due = self._credit.send(len(gated.payload) + MESSAGE_OVERHEAD)
        properties = gated.properties
        if due or marked:
            properties = {**properties, **self._mark(sequence)}
        try:
            gated.ticket = self.publisher.publish(gated.payload, properties, flow=gated.flow, on_failure=gated.fail)
        except BaseException:
            self._credit.withdraw(sequence)
            raise
        gated.sequence = sequence
        gated.payload = b""

    def _release(self, *, marked: bool = False) -> None:
        """Let the next one pass."""
        gated = self._queue.pop()
        if gated is not None:
            try:
                self._send(gated, marked=marked)
            except TransportError as error:
                self._loop.call_soon(gated.fail, error)

    def acknowledge(self, sequence: int) -> None:
        """The receiver says that it has ``sequence``: it is one that acknowledges, even if it was silent for long."""
        self.acknowledges = True
        self._probes = 0
        self.arrived(sequence)

    def arrived(self, sequence: int) -> None:
        """Everything up to ``sequence`` has arrived or is lost."""
        credit = self._credit
        if credit is None or not credit.acknowledge(sequence):
            return
        self._patience = PATIENCE_S
        self._probes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._pass()

    def return_credit(self, sequence: int) -> None:
        """Give back the credit of the message ``sequence``, which was not sent after all."""
        if self._credit is not None and self._credit.withdraw(sequence):
            self._resume()

    def _resume(self) -> None:
        """Send what waits for credit if there is some again."""
        if self._timer is not None and self._credit is not None and self._credit.open:
            self._timer.cancel()
            self._timer = None
            self._pass()

    def _pass(self) -> None:
        """Let pass what may, and watch over the rest."""
        assert self._credit is not None
        while len(self._queue) and self._credit.open:
            self._release()
        if len(self._queue) and self._timer is None:
            self._watch(self._credit)
        self._queue.wake_waiters()

    def _watch(self, credit: Credit) -> None:
        excess = max(0, credit.unacknowledged - CHANNEL_BYTES)
        self._timer = self._loop.call_later(self._patience + excess / SLOW_LINK, self._overdue)

    def _overdue(self) -> None:
        self._timer = None
        assert self._credit is not None
        self.overdue += 1
        if self.acknowledges:
            # One message, marked: if only an acknowledgement was lost, this one's brings everything back.
            self._release(marked=True)
            self._probes += 1
            self._patience = min(2 * self._patience, MAX_PATIENCE_S)
            if self._probes >= MAX_PROBES:
                self.acknowledges = False
                self._patience = PATIENCE_S
        else:
            self._patience = PATIENCE_S
            self._credit.forgive()
        self._pass()

    def withdraw(self, gated: _Gated) -> bool:
        """Take a waiting message back. False when it has passed."""
        withdrawn = self._queue.remove(gated.flow, gated)
        if withdrawn:
            if not len(self._queue) and self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._queue.wake_waiters()
        return withdrawn

    async def writable(self, flow: str) -> None:
        await self._queue.wait_empty(flow)
        await self.publisher.writable(flow)

    async def empty(self) -> None:
        """Wait until nothing waits here."""
        await self._queue.wait_empty()

    async def close(self) -> None:
        """Fail what waits, and close the publisher."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.close()
        await self.publisher.close()
