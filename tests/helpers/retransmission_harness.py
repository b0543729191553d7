"""Requests that have a line, so that their answer can be asked for again: the line writes down what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dispatch.messaging.rpc.correlation import OWN_TOPIC, Correlator
from dispatch.messaging.rpc.exchange_outcome import Disposition, Settled
from dispatch.messaging.rpc.pending import ReplyStream
from dispatch.messaging.rpc.retransmission import Repair
from dispatch.messaging.rpc.retransmittable_request import RetransmittableRequest
from dispatch.messaging.wire.properties import Property
from tests.helpers.clock import idle, virtual_loop
from tests.helpers.fakes import FakePublisher
from tests.helpers.malformed_messages import AlteredMessage


class Words(RetransmittableRequest):
    """A line that writes down what it is told. ``there``: its instance has not been given up. ``silent``: nor has the
    instance's former life anything to say."""

    def __init__(self, now: float, patience: float) -> None:
        self.repair = Repair(now, patience, 10.0)
        self.told: list[tuple[Any, ...]] = []
        self.ticket = None
        self.resent = False
        self.there = True
        self.silent = True

    def heard(self, now: float) -> None:
        self.told.append(("heard", now))

    def chunk(self, now: float) -> None:
        self.told.append(("chunk", now))

    def part(self, now: float, properties: Mapping[str, str]) -> None:
        self.told.append(("part", now, properties.get(Property.PART) or properties.get(Property.MISSING)))

    def disowned(self, now: float) -> bool:
        self.told.append(("disowned", now))
        return self.silent

    def ask(self, now: float, remaining: float, wanted: str) -> bool:
        self.told.append(("ask", now, round(remaining, 9), wanted))
        self.repair.next_at = now + 1.0
        return self.there

    def cancel(self) -> None:
        self.told.append(("cancel",))

    def end(self, now: float, *, answered: bool) -> None:
        self.told.append(("end", now, answered))


class Bench:
    """An exchange; requests and streams that have a line, or none."""

    def __init__(self, *, patience: float = 2.0, **options: Any) -> None:
        self.connected = True
        self.exchange = Correlator(connected=lambda: self.connected, **options)
        self.publisher = FakePublisher()
        self.patience = patience

    def line(self) -> Words:
        return Words(virtual_loop().time(), self.patience)

    async def ask(self, *, limit: float = 30.0, **options: Any) -> tuple[str, asyncio.Task[Settled], Words]:
        id, line = self.exchange.new_id(), self.line()
        task = asyncio.create_task(
            self.exchange.request(
                id,
                self.publisher,
                b"?",
                {Property.ID: id},
                flow="tool",
                deadline=virtual_loop().time() + limit,
                max_bytes=1_000,
                line=line,
                **options,
            )
        )
        await idle()
        return id, task, line

    def open(self, *, line: Words | None = None, limit: float = 30.0, max_bytes: int = 1_000) -> ReplyStream:
        id = self.exchange.new_id()
        return self.exchange.stream(
            id,
            self.publisher,
            b"?",
            {Property.ID: id},
            flow="tool",
            deadline=virtual_loop().time() + limit,
            idle=300.0,
            max_bytes=max_bytes,
            max_buffer=100,
            line=line,
        )

    def take(self, message: Any, via: int = OWN_TOPIC) -> Disposition:
        before = dict(self.exchange.replies)
        self.exchange.on_message(message, via)
        (changed,) = [what for what, count in self.exchange.replies.items() if count != before[what]]
        return changed

    def word(self, id: str, **properties: str) -> None:
        """The service says that something has arrived; that is no reply."""
        before = dict(self.exchange.replies)
        self.exchange.on_message(AlteredMessage(b"", {"id": id, "taken": "1", **properties}))
        assert self.exchange.replies == before


async def read(stream: ReplyStream) -> list[str]:
    return [chunk async for chunk in stream]
