"""What is published on a connection with faults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dispatch.errors import ErrorType, TransportError
from dispatch.testing.delay_queue import Held
from dispatch.testing.faults import Dice
from dispatch.testing.malformed import as_tool_error, rubbish, with_other_id
from dispatch.transports import OnFailure, Publisher, Ticket

if TYPE_CHECKING:
    from dispatch.testing.faulty_transport import FaultyTransport

logger = logging.getLogger("dispatch.testing")


class FaultyTicket:
    """A publish: held back here (then it can be withdrawn), gone, or bound to fail."""

    def __init__(self, on_failure: OnFailure) -> None:
        self.on_failure: OnFailure | None = on_failure
        self.inner: Ticket | None = None
        self.held: Held | None = None
        """Where it is held back as in a queue of ours."""

    @property
    def waits(self) -> bool:
        if self.held is not None and self.held.waits:
            return True
        return self.inner is not None and self.inner.waits

    def cancel(self) -> bool:
        self.on_failure = None
        if self.held is not None and self.held.cancel():
            return True
        return self.inner is not None and self.inner.cancel()

    def answered(self) -> None:
        if self.inner is not None:
            self.inner.answered()

    def mark_received(self) -> None:
        if self.inner is not None:
            self.inner.mark_received()

    def fail(self, error: TransportError) -> None:
        """Tell who published it, unless that is done."""
        on_failure, self.on_failure = self.on_failure, None
        if on_failure is not None:
            on_failure(error)


class FaultyPublisher:
    """See :class:`dispatch.transports.base.Publisher`."""

    def __init__(self, transport: FaultyTransport, inner: Publisher) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic
        self._way = transport.way("out", inner.topic)

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure
    ) -> FaultyTicket:
        ticket, way = FaultyTicket(on_failure), self._way
        at_once = True  # who publishes is still there to be told

        def go(body: bytes = payload, named: Mapping[str, str] = properties) -> None:
            try:
                ticket.inner = self._inner.publish(body, named, flow=flow, on_failure=ticket.fail)
            except TransportError as error:
                if at_once:
                    raise
                ticket.fail(error)

        if self._transport.closed:
            raise TransportError(ErrorType.CLOSED, "The connection is closed.", sent=False)
        dice = way.dice
        fault = None if dice is None else dice.throw()
        if self._transport.gone:
            way.happened("disconnected")
            raise _unreachable()
        answer = as_tool_error(payload, properties) if fault == "tool_error" else None
        if fault == "tool_error" and answer is None:
            fault = None
        if fault is not None:
            way.happened(fault)
        if dice is None or fault is None:
            way.go(go, dice)
        else:
            match fault:
                case "drop":
                    pass
                case "delay" if dice.rng.random() < 0.5:
                    ticket.held = way.later(dice, go)
                case "delay":
                    way.later(dice, go)
                case "duplicate":
                    way.go(go, dice)
                    way.later(dice, partial(self._again, payload, properties, flow))
                case "reorder":
                    way.until_next(dice, go)
                case "malformed":
                    way.go(partial(go, rubbish(dice.rng, payload, properties)), dice)
                case "tool_error":
                    assert answer is not None
                    way.go(partial(go, *answer), dice)
                case "missing_id" | "oversized_id" | "foreign_id":
                    way.go(partial(go, payload, with_other_id(dice.rng, properties, fault)), dice)
                case "error":
                    raise TransportError(
                        ErrorType.PUBLISH_QUEUE_FULL, "The queue is full (an injected fault).", sent=False
                    )
                case "late_error":
                    self._late_error(ticket, dice, go)
                case "disconnect":
                    self._disconnect(ticket, dice)
        at_once = False
        if fault != "reorder":
            way.release()
        return ticket

    def _again(self, payload: bytes, properties: Mapping[str, str], flow: str) -> None:
        try:
            self._inner.publish(payload, properties, flow=flow, on_failure=_nobody_minds)
        except TransportError:
            logger.debug("the second copy of a message to %s did not get out", self.topic)

    def _late_error(self, ticket: FaultyTicket, dice: Dice, go: Callable[[], None]) -> None:
        got_through = dice.rng.random() < 0.5
        if got_through:
            go()
        error = TransportError(ErrorType.SEND_FAILED, "Sending failed (an injected fault).", sent=got_through)
        self._way.later(dice, partial(ticket.fail, error))

    def _disconnect(self, ticket: FaultyTicket, dice: Dice) -> None:
        self._transport.disconnect(dice.faults.reconnect_after)
        if dice.rng.random() < 0.5:
            raise _unreachable()
        error = TransportError(ErrorType.CONNECTION_LOST, "The connection ended while sending (an injected fault).")
        self._way.later(dice, partial(ticket.fail, error))

    async def writable(self, flow: str) -> None:
        await self._inner.writable(flow)

    async def close(self) -> None:
        await self._inner.close()


def _unreachable() -> TransportError:
    return TransportError(ErrorType.UNREACHABLE, "There is no connection (an injected fault).", sent=False)


def _nobody_minds(_error: TransportError) -> None:
    """The first copy has its own."""
