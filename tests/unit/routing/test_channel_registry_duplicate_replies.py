"""Answers of others' services, on more than one connection: what one loses another brings, copies are absorbed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import Policy
from dispatch.errors import CallTimeoutError
from dispatch.messaging.rpc.exchange_outcome import Disposition
from dispatch.policy import PolicyError
from dispatch.transports import Handler, Mode, Subscription
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import idle
from tests.helpers.dispatcher_and_service import BROKER, RESPONSES, Peer, dispatching, read, stand
from tests.helpers.fakes import lost

pytestmark = pytest.mark.usefixtures("strangers")


class Losing(MemoryTransport):
    """A connection that loses what ``loses`` says of a message's number on the response topic."""

    made: list[Losing]

    def __init__(self, url: str, loses: set[int], more: list[set[int]]) -> None:
        super().__init__(url)
        self.loses = loses
        self.more = more
        self.number = 0
        self.made = [self]

    def another(self) -> Losing:
        made = Losing(self.url, self.more.pop(0), self.more)
        self.made.append(made)
        return made

    async def subscribe(self, topic: str, handler: Handler, *, mode: Mode, name: str) -> Any:
        def arrived(message: Any) -> None:
            self.number += 1
            if self.number not in self.loses:
                handler(message)

        return await super().subscribe(topic, arrived if topic == RESPONSES else handler, mode=mode, name=name)


async def test_what_one_connection_loses_another_brings() -> None:
    network = Losing(BROKER, {1, 3}, [{2, 3}, {1, 2}])
    async with (
        Peer.as_service() as peer,
        dispatching(transport=network, policy=Policy(reply_subscriptions=3)) as dispatcher,
    ):
        for number in range(4):
            call = asyncio.create_task(dispatcher.call("work", timeout=5))
            _, properties = await peer.request()
            await peer.answer(properties, f"answer {number}", topic=RESPONSES)
            assert await call == f"answer {number}"
        await idle()
        replies = dispatcher.reply_counts()
        assert (replies[Disposition.MATCHED], replies[Disposition.DUPLICATE]) == (4, 2)
        assert len(network.made) == 3
    assert not any(each.connected for each in network.made)


async def test_one_connection_is_the_default() -> None:
    network = Losing(BROKER, {1}, [])
    async with Peer.as_service() as peer, dispatching(transport=network) as dispatcher:
        call = asyncio.create_task(dispatcher.call("work", timeout=5))
        _, properties = await peer.request()
        await peer.answer(properties, "lost", topic=RESPONSES)
        with pytest.raises(CallTimeoutError):
            await call


async def test_a_stream_without_numbers_is_not_doubled() -> None:
    network = Losing(BROKER, set(), [set()])
    policy = Policy(reply_subscriptions=2)
    async with Peer.as_service() as peer, dispatching(transport=network, policy=policy) as dispatcher:
        got: list[str] = []
        reading = asyncio.create_task(read(dispatcher.stream("work", timeout=5), got))
        _, properties = await peer.request()
        for part in ("one ", "two ", "three"):
            await peer.answer(properties, part, end=part == "three", topic=RESPONSES)
        await reading
        assert got == ["one ", "two ", "three"]


async def test_with_ours_nothing_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.routing.discovery.HELLO_WAIT_S", 0.1)
    network = Losing(BROKER, set(), [])  # another connection would be an error
    async with stand(lambda _: "done"), dispatching(transport=network, policy=Policy(reply_subscriptions=3)) as mine:
        assert await mine.call("work") == "done"


async def test_a_connection_that_fails_costs_nothing_but_itself(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryTransport):
        def another(self) -> MemoryTransport:
            refused = MemoryTransport(self.url)

            async def subscribe(*_args: object, **_more: object) -> Subscription:
                raise refused_error

            refused.subscribe = subscribe  # type: ignore[method-assign, assignment]
            return refused

    refused_error = lost()
    policy = Policy(reply_subscriptions=2)
    async with Peer.as_service() as peer, dispatching(transport=Refusing(BROKER), policy=policy) as dispatcher:
        call = asyncio.create_task(dispatcher.call("work", timeout=5))
        _, properties = await peer.request()
        await peer.answer(properties, "there", topic=RESPONSES)
        assert await call == "there"
    assert "listened for only 1 times" in caplog.text


@pytest.mark.parametrize("value", [0, 5, 1.5, "2"])
def test_there_is_a_sensible_number_of_them(value: Any) -> None:
    with pytest.raises(PolicyError, match="reply-subscriptions"):
        Policy(reply_subscriptions=value)
