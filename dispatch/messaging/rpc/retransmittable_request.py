"""A request that can be sent again: its retransmissions, its cancellation, and what its instance says about it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

from dispatch.errors import TransportError
from dispatch.messaging.flow.publisher import Gate
from dispatch.messaging.rpc.fragmented_publish import FragmentedRequest
from dispatch.messaging.rpc.retransmission import Repair
from dispatch.messaging.wire.properties import Property, whole_number
from dispatch.transports import Ticket


class Peer(Protocol):
    """The instance that has a request."""

    publisher: Gate
    cancels: bool
    last_seen: float
    waiting: dict[str, None]

    @property
    def is_proven(self) -> bool:
        """Whether it has acknowledged or answered a request."""
        ...

    def alive(self, now: float) -> None:
        """It gave a sign of life."""

    def missed(self) -> None:
        """It left another question unanswered."""

    def next_turn(self) -> None:
        """It may be given the next request."""


class ReplyLane(Protocol):
    """Where a reply is to arrive."""

    waiting: int


class RetransmittableRequest:
    """One request to one instance, and how to ask for its answer again.

    Args:
        instance: the instance that has the request.
        repair: decides when to ask.
        payload, properties, flow: the request, as it was sent first.
        lane: where its reply is to arrive.
        parted: the same request, if it goes in parts; ``payload`` is empty then.
    """

    __slots__ = (
        "_disowned",
        "asked_at",
        "ended",
        "flow",
        "instance",
        "lane",
        "parted",
        "payload",
        "properties",
        "repair",
        "resent",
        "status_polls",
        "ticket",
    )

    def __init__(
        self,
        instance: Peer,
        repair: Repair,
        payload: bytes,
        properties: Mapping[str, str],
        flow: str,
        lane: ReplyLane,
        parted: FragmentedRequest | None = None,
    ) -> None:
        self.instance = instance
        self.repair = repair
        self.payload: bytes | None = payload
        self.properties = properties
        self.flow = flow
        self.parted = parted
        self.asked_at: float | None = None
        """When the first question was asked."""
        self.resent = False
        """A part of the reply was lost and has been sent again."""
        self.status_polls = 0
        """Retransmissions that the instance answered with: received, and running."""
        self.ended = False
        self._disowned = 0
        """The transmission after which a later life of the instance said that it knows nothing of this."""
        self.ticket: Ticket | None = None
        """The last question."""
        self.lane = lane
        instance.waiting[properties[Property.ID]] = None
        lane.waiting += 1

    def heard(self, now: float) -> None:
        """The instance has the request."""
        if self.repair.unanswered:
            self.status_polls += 1
        self.repair.heard(now)
        self._alive(now)

    def chunk(self, now: float) -> None:
        """The instance sent a part of the answer."""
        self.repair.chunk(now)
        self._alive(now)

    def part(self, now: float, properties: Mapping[str, str]) -> None:
        """The instance said which part of the request has arrived, or which ones have not."""
        self.chunk(now)
        if self.parted is None:
            return
        index = whole_number(properties, Property.PART)
        if index is not None:
            self.parted.arrived(index)
        else:
            self.parted.resend(properties.get(Property.MISSING, ""))

    def disowned(self, now: float) -> bool:
        """Another run of the instance says that the request was not meant for it. True: and the run that was meant is
        silent. While one takes over from the other, both are there."""
        if 0 < self._disowned < self.repair.transmissions:
            return True
        if not self._disowned:
            self._disowned = self.repair.transmissions
            self.repair.hurry(now)
        return False

    def _alive(self, now: float) -> None:
        self._disowned = 0
        self.payload = None  # it is there: no need to send it again
        self.instance.alive(now)

    def ask(self, now: float, remaining: float, wanted: str) -> bool:
        """Ask for ``wanted`` (see :attr:`Slot.wanted`), if anybody is still there. False: the instance counts as gone."""
        if not self.repair.ask(now, self.instance.last_seen):
            return False
        if self.asked_at is None:
            self.asked_at = now
        if self.repair.unanswered > 1:
            self.instance.missed()
        properties = {
            **self.properties,
            Property.REMAINING_MS: str(max(1, int(remaining * 1000))),
            Property.TRANSMISSION: str(self.repair.transmissions),
        }
        if wanted != "0":
            properties[Property.NEXT] = wanted
        try:
            self.ticket = self.instance.publisher.publish(
                self.payload or b"", properties, flow=self.flow, on_failure=_unasked
            )
        except TransportError:
            self.ticket = None  # the next question is due soon
        return True

    def cancel(self) -> None:
        """Nobody waits for the answer any more: say so, once. If that is lost, the tool runs to its end."""
        if not self.instance.cancels:
            return
        properties = {
            name: self.properties[name]
            for name in (Property.ID, Property.REPLY_TO, Property.SESSION, Property.INCARNATION)
            if name in self.properties
        }
        with contextlib.suppress(TransportError):
            # Beside the gate: nothing waits for it, and nobody acknowledges it.
            self.instance.publisher.publisher.publish(
                b"", {**properties, Property.CANCEL: "1"}, flow=self.flow, on_failure=_unasked
            )

    def end(self, now: float, *, answered: bool) -> None:
        """The request is settled."""
        if self.ended:
            return
        self.ended = True
        self.instance.waiting.pop(self.properties[Property.ID], None)
        self.lane.waiting -= 1
        if self.ticket is not None:
            self.ticket.cancel()
        if self.parted is not None:
            self.parted.stop()
        if answered:
            self.instance.alive(now)
        elif not self.instance.is_proven:
            self.instance.next_turn()


def _unasked(_error: TransportError) -> None:
    """A question that could not be sent: the next one is due soon."""
