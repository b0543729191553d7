"""A publisher and a subscriber on one embedded broker, one of them behind a faulty connection."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from dispatch.errors import TransportError
from dispatch.messaging.wire import Property
from dispatch.testing import Faults, FaultyTransport
from dispatch.transports import Message, Mode, Publisher
from dispatch.transports.memory import MemoryTransport

TOPIC = "non-persistent://tg/response/lab"
names = itertools.count()


class Seen:
    """What arrives, as far as it can be read, and what publishing ended in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failures: list[TransportError] = []

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def numbers(self) -> list[int]:
        return [int(message.properties()["n"]) for message in self.messages]

    def story(self) -> list[tuple[Any, ...]]:
        """What can be compared between two runs."""
        told: list[tuple[Any, ...]] = [(error.type, error.may_have_run) for error in self.failures]
        for message in self.messages:
            try:
                told.append((message.data(), tuple(sorted(message.properties().items()))))
            except (RuntimeError, UnicodeError) as error:
                told.append((type(error).__name__,))
        return told


@contextlib.asynccontextmanager
async def ends(
    *faults: Faults, direction: str = "out", topic: str = TOPIC, mode: Mode = Mode.FANOUT
) -> AsyncIterator[tuple[FaultyTransport, Callable[[int], None], Seen]]:
    """A publisher and a subscriber on one broker; the connection of one of them has the faults."""
    url = f"memory://faults-{next(names)}"
    faulty, plain = FaultyTransport(MemoryTransport(url), *faults), MemoryTransport(url)
    sending, receiving = (faulty, plain) if direction == "out" else (plain, faulty)
    seen = Seen()
    await faulty.start()
    await plain.start()
    try:
        await receiving.subscribe(topic, seen, mode=mode, name="test")
        publisher: Publisher = await sending.publisher(topic)

        def publish(number: int) -> None:
            payload = json.dumps({"error": None, "response": f"text {number}", "end_of_stream": True}).encode()
            properties = {"n": str(number), Property.ID: f"{number:x}-0"}
            try:
                publisher.publish(payload, properties, flow="test", on_failure=seen.failures.append)
            except TransportError as error:
                seen.failures.append(error)

        yield faulty, publish, seen
    finally:
        await faulty.close()
        await plain.close()
