"""Publishers on a connection with faults."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dispatch.errors import ErrorType, TransportError
from dispatch.testing.delay_queue import DelayedMessage
from dispatch.testing.faults import FaultSampler
from dispatch.testing.malformed import make_tool_error, make_tool_error_packet, malformed_payload, replace_id
from dispatch.transports import OnFailure, Ticket, TopicPublisher

if TYPE_CHECKING:
    from dispatch.testing.faulty_transport import FaultyTransport

logger = logging.getLogger("dispatch.testing")

NOT_OF_PACKETS = frozenset({"missing_id", "oversized_id", "foreign_id"})
"""Faults of plain messages: a packet has no properties."""


class FaultyTicket:
    """A publish that is delayed (then it can be cancelled), sent, or about to fail."""

    def __init__(self, on_failure: OnFailure) -> None:
        self.on_failure: OnFailure | None = on_failure
        self.inner: Ticket | None = None
        self.delayed: DelayedMessage | None = None
        """The delay, if it looks to the caller like a wait in dispatch's own queue."""

    @property
    def waits(self) -> bool:
        if self.delayed is not None and self.delayed.is_waiting:
            return True
        return self.inner is not None and self.inner.waits

    def cancel(self) -> bool:
        self.on_failure = None
        if self.delayed is not None and self.delayed.cancel():
            return True
        return self.inner is not None and self.inner.cancel()

    def fail(self, error: TransportError) -> None:
        """Report ``error`` to the caller that published, once."""
        on_failure, self.on_failure = self.on_failure, None
        if on_failure is not None:
            on_failure(error)


class FaultyPublisher:
    """See :class:`dispatch.transports.base.TopicPublisher`."""

    def __init__(self, transport: FaultyTransport, inner: TopicPublisher) -> None:
        self._transport = transport
        self._inner = inner
        self.topic = inner.topic
        self._path = transport.message_path("out", inner.topic)

    def publish(
        self, payload: bytes, properties: Mapping[str, str], *, flow: str, on_failure: OnFailure
    ) -> FaultyTicket:
        ticket, path = FaultyTicket(on_failure), self._path
        is_synchronous = True  # the caller is still in publish(), so that an error can be raised

        def send(body: bytes = payload, named: Mapping[str, str] = properties) -> None:
            try:
                ticket.inner = self._inner.publish(body, named, flow=flow, on_failure=ticket.fail)
            except TransportError as error:
                if is_synchronous:
                    raise
                ticket.fail(error)

        if self._transport.is_closed:
            raise TransportError(ErrorType.CLOSED, "The connection is closed.", sent=False)
        sampler = path.sampler
        fault = None if sampler is None else sampler.draw_fault()
        if self._transport.is_disconnected:
            path.count_fault("disconnected")
            raise _unreachable()
        reply = make_tool_error(payload, properties) if fault == "tool_error" else None
        if fault == "tool_error" and reply is None:
            fault = None
        if fault is not None:
            path.count_fault(fault)
        if sampler is None or fault is None:
            path.deliver_in_order(send, sampler)
        else:
            match fault:
                case "drop":
                    pass
                case "delay" if sampler.rng.random() < 0.5:
                    ticket.delayed = path.deliver_later(sampler, send)
                case "delay":
                    path.deliver_later(sampler, send)
                case "duplicate":
                    path.deliver_in_order(send, sampler)
                    path.deliver_later(sampler, partial(self._publish_copy, payload, properties, flow))
                case "reorder":
                    path.hold_until_next(sampler, send)
                case "malformed":
                    path.deliver_in_order(partial(send, malformed_payload(sampler.rng, payload)), sampler)
                case "tool_error":
                    assert reply is not None
                    path.deliver_in_order(partial(send, *reply), sampler)
                case "missing_id" | "oversized_id" | "foreign_id":
                    path.deliver_in_order(partial(send, payload, replace_id(sampler.rng, properties, fault)), sampler)
                case "error":
                    raise TransportError(
                        ErrorType.PUBLISH_QUEUE_FULL, "The queue is full (an injected fault).", sent=False
                    )
                case "late_error":
                    self._fail_later(ticket, sampler, send)
                case "disconnect":
                    self._disconnect(ticket, sampler)
        is_synchronous = False
        if fault != "reorder":
            path.release_held()
        return ticket

    @property
    def opening_error(self) -> TransportError | None:
        return self._inner.opening_error

    def send_packet(self, payload: bytes) -> bool:
        """Send a packet with the faults in force. Faults of ids do not apply to packets; that of tools, to results."""
        path, send = self._path, self._inner.send_packet
        if self._transport.is_closed:
            return False
        sampler = path.sampler
        fault = None if sampler is None else sampler.draw_fault()
        if self._transport.is_disconnected:
            path.count_fault("disconnected")
            return False
        if fault in NOT_OF_PACKETS:
            fault = None
        elif fault == "tool_error":
            altered = make_tool_error_packet(payload)
            payload, fault = (payload, None) if altered is None else (altered, fault)
        if fault is not None:
            path.count_fault(fault)
        is_sent = True
        if sampler is None or fault is None:
            path.deliver_in_order(partial(send, payload), sampler)
        else:
            match fault:
                case "drop":
                    pass
                case "delay":
                    path.deliver_later(sampler, partial(send, payload))
                case "duplicate":
                    path.deliver_in_order(partial(send, payload), sampler)
                    path.deliver_later(sampler, partial(send, payload))
                case "reorder":
                    path.hold_until_next(sampler, partial(send, payload))
                case "malformed":
                    path.deliver_in_order(partial(send, malformed_payload(sampler.rng, payload)), sampler)
                case "late_error":  # a packet's failure is reported to no caller
                    if sampler.rng.random() < 0.5:
                        path.deliver_in_order(partial(send, payload), sampler)
                case "tool_error":
                    path.deliver_in_order(partial(send, payload), sampler)
                case "error":
                    is_sent = False
                case "disconnect":
                    self._transport.disconnect(sampler.faults.reconnect_after)
                    is_sent = sampler.rng.random() < 0.5
        if fault != "reorder":
            path.release_held()
        return is_sent

    def _publish_copy(self, payload: bytes, properties: Mapping[str, str], flow: str) -> None:
        try:
            self._inner.publish(payload, properties, flow=flow, on_failure=_ignore_failure)
        except TransportError:
            logger.debug("the second copy of a message to %s was not sent", self.topic)

    def _fail_later(self, ticket: FaultyTicket, sampler: FaultSampler, send: Callable[[], None]) -> None:
        is_sent = sampler.rng.random() < 0.5
        if is_sent:
            send()
        error = TransportError(ErrorType.SEND_FAILED, "Sending failed (an injected fault).", sent=is_sent)
        self._path.deliver_later(sampler, partial(ticket.fail, error))

    def _disconnect(self, ticket: FaultyTicket, sampler: FaultSampler) -> None:
        self._transport.disconnect(sampler.faults.reconnect_after)
        if sampler.rng.random() < 0.5:
            raise _unreachable()
        error = TransportError(ErrorType.CONNECTION_LOST, "The connection ended while sending (an injected fault).")
        self._path.deliver_later(sampler, partial(ticket.fail, error))

    async def writable(self, flow: str) -> None:
        await self._inner.writable(flow)

    async def close(self) -> None:
        await self._inner.close()


def _unreachable() -> TransportError:
    return TransportError(ErrorType.UNREACHABLE, "There is no connection (an injected fault).", sent=False)


def _ignore_failure(_error: TransportError) -> None:
    """The first copy reports its own failure."""
