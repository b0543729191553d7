"""A broker in the hand for a service's reply router."""

from __future__ import annotations

import asyncio

from dispatch.serving.plain import ReplyRouter
from tests.helpers.dispatcher_and_service import RESPONSES
from tests.helpers.fakes import FakePublisher
from tests.helpers.session import REPLY_TOPIC, SECRET

OWN = REPLY_TOPIC
CONTROL = "non-persistent://tg/request/dispatch-instance-3-lab-one"


def asked(reply_to: str | None = None, **properties: str) -> dict[str, str]:
    """The properties of a dispatcher's request."""
    named = {"id": "1", "session": SECRET} | {key.replace("_", "-"): value for key, value in properties.items()}
    return named if reply_to is None else named | {"reply-to": reply_to}


ANSWER = {"id": "1"}


class Broker:
    """Opens publishers in the hand; what is in ``refusals`` cannot be opened; ``gate`` holds openings back."""

    def __init__(self) -> None:
        self.opened: dict[str, FakePublisher] = {}
        self.refusals: dict[str, Exception] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.flushed = False

    async def publisher(self, topic: str) -> FakePublisher:
        await self.gate.wait()
        if topic in self.refusals:
            raise self.refusals[topic]
        self.opened[topic] = FakePublisher(topic)
        return self.opened[topic]

    async def flush(self) -> None:
        self.flushed = True

    def sent(self, topic: str) -> list[bytes]:
        return [ticket.payload for ticket in self.opened[topic].sent] if topic in self.opened else []


async def router(broker: Broker, *namespaces: str) -> ReplyRouter:
    made = ReplyRouter(broker, RESPONSES, namespaces)  # type: ignore[arg-type]
    await made.start()
    return made


async def routing() -> tuple[Broker, ReplyRouter]:
    broker = Broker()
    return broker, await router(broker)
