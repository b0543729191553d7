"""Routes: opened once, closed whole. What callers see of them is in test_dispatcher_life.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch.exchange import Exchange
from dispatch.outcome import TransportError
from dispatch.routes import Routes
from dispatch.transports import Mode
from tests.support.clock import idle
from tests.support.fakes import FakePublisher, lost
from tests.support.stand import catalog

SERVICE = catalog().services["lab"]


class Broker:
    """A transport that keeps what is opened; what is closed with an error says so all the same."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.close_error: Exception | None = None

    async def publisher(self, topic: str) -> Any:
        await self.gate.wait()
        self.log.append(f"publish {topic}")
        broker = self

        class Kept(FakePublisher):
            async def close(self) -> None:
                broker.log.append(f"closed {topic}")

        return Kept(topic)

    async def subscribe(self, topic: str, handler: Any, *, mode: Mode, name: str) -> Any:
        assert mode is Mode.FANOUT, "a shared subscription would take others' replies away"
        assert name == "dispatch-one"
        await self.gate.wait()
        self.log.append(f"listen {topic}")
        broker = self

        class Kept:
            async def close(self) -> None:
                broker.log.append(f"closed {topic}")
                if broker.close_error is not None:
                    raise broker.close_error

        return Kept()


REQUEST, RESPONSE = "non-persistent://tg/request/lab", "non-persistent://tg/response/lab"
OWN = "non-persistent://tg/response/dispatch-reply-one"


def routes(broker: Broker) -> Routes:
    return Routes(broker, Exchange(), "one")  # type: ignore[arg-type]


async def test_both_ends_listen_before_the_publisher_is_there() -> None:
    broker = Broker()
    made = routes(broker)
    assert made.get(SERVICE) is None
    route = await made.open(SERVICE)
    assert broker.log == [f"listen {RESPONSE}", f"listen {OWN}", f"publish {REQUEST}"]
    assert route.reply_to == OWN
    assert made.get(SERVICE) is route is await made.open(SERVICE)
    await made.close()


async def test_an_own_topic_is_of_the_same_kind_as_the_services() -> None:
    broker = Broker()
    made = routes(broker)
    kept = catalog(service={"response-queue": "persistent://corp/tools/lab"}).services["lab"]
    assert (await made.open(kept)).reply_to == "persistent://corp/tools/dispatch-reply-one"
    await made.close()


@pytest.mark.parametrize("error", [None, lost()])
async def test_closing_closes_all_of_it_even_if_some_of_it_cannot(error: Exception | None) -> None:
    broker = Broker()
    made = routes(broker)
    await made.open(SERVICE)
    broker.close_error = error
    await made.close()
    assert sorted(line for line in broker.log if line.startswith("closed")) == sorted(
        f"closed {topic}" for topic in (REQUEST, RESPONSE, OWN)
    )
    assert made.get(SERVICE) is None


async def test_closing_that_is_cancelled_is_cancelled() -> None:
    broker = Broker()
    made = routes(broker)
    broker.gate.clear()
    opening = asyncio.create_task(made.open(SERVICE))
    await idle()
    closing = asyncio.create_task(made.close())
    await idle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    broker.gate.set()
    with pytest.raises(TransportError, match="closed"):
        await opening
    await made.close()
