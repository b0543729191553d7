"""The plain exchange: both its ends, on a pulsar-client that is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dispatch.devtools import lossprobe
from dispatch.devtools.lossprobe import (
    CHECK_INTERVAL_S,
    GRACE_S,
    FailedCallError,
    LostCallError,
    PlainService,
    ProbeClient,
    reply_payload,
    reply_to,
)
from dispatch.messaging.wire import Reply, decode_reply
from dispatch.transports import Mode, Security
from dispatch.transports.pulsar.client import OK

REQUESTS, RESPONSES = "non-persistent://tg/request/x", "non-persistent://tg/response/x"
TOO_BIG = SimpleNamespace(name="MessageTooBig")

Vanishes = Callable[[dict[str, str]], bool]


class Played:
    """Topics, and on them producers and consumers with the methods that are used."""

    def __init__(self) -> None:
        self.listeners: dict[str, Callable[[Any, Any], None]] = {}
        self.vanishes: dict[str, Vanishes] = {}
        self.refuses: dict[str, Vanishes] = {}
        self.held: list[Callable[[], None]] | None = None
        self.closed = 0

    def link(self, _url: str, _security: Security) -> SimpleNamespace:
        return SimpleNamespace(producer=self._producer, consumer=self._consumer, close=self._close)

    async def _producer(self, topic: str) -> SimpleNamespace:
        def send_async(payload: bytes, callback: Callable[[Any, Any], None], properties: dict[str, str]) -> None:
            if topic in self.refuses and self.refuses[topic](properties):
                callback(TOO_BIG, None)
                return
            callback(OK, None)
            if topic in self.vanishes and self.vanishes[topic](properties):
                return
            message = SimpleNamespace(data=lambda: payload, properties=lambda: dict(properties))
            if self.held is not None and topic == RESPONSES:
                self.held.append(lambda: self.listeners[topic](None, message))
            else:
                self.listeners[topic](None, message)

        return SimpleNamespace(send_async=send_async)

    async def _consumer(self, topic: str, _mode: Mode, _name: str, listener: Callable[[Any, Any], None]) -> None:
        self.listeners[topic] = listener

    async def _close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def both_ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ProbeClient, Played]]:
    played = Played()
    monkeypatch.setattr(lossprobe, "PulsarClient", played.link)
    service, client = PlainService("pulsar://x", Security(), reply_to), ProbeClient("pulsar://x", Security())
    await service.open(REQUESTS, RESPONSES)
    await client.open(REQUESTS, RESPONSES)
    try:
        yield client, played
    finally:
        await client.close()
        await service.close()
        assert played.closed == 2


@pytest.mark.parametrize("size", [1, 120, 100_000])
async def test_the_answer_has_the_size_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    assert decode_reply(reply_payload(size)) == Reply(None, "x" * size, True)
    async with both_ends(monkeypatch) as (client, _):
        await client.call_sized(size)


async def test_an_answer_of_another_size_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_ends(monkeypatch) as (client, played):
        answer = SimpleNamespace(data=lambda: b"", properties=lambda: {"id": "1"})
        played.listeners[REQUESTS] = lambda *_: played.listeners[RESPONSES](None, answer)
        with pytest.raises(FailedCallError, match="wrong-answer"):
            await client.call_sized(120)


@pytest.mark.parametrize("topic", [REQUESTS, RESPONSES])
async def test_what_vanishes_is_lost_soon_after_a_later_call_was_answered(
    monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    clock = asyncio.get_running_loop().time
    async with both_ends(monkeypatch) as (client, played):
        played.vanishes[topic] = lambda properties: properties["id"] == "1"
        first = asyncio.ensure_future(client.call_sized(120))
        await asyncio.sleep(0)
        await client.call_sized(120)
        answered = clock()
        with pytest.raises(LostCallError):
            await first
        assert GRACE_S <= clock() - answered <= GRACE_S + 3 * CHECK_INTERVAL_S
        assert client.late == 0


async def test_while_nothing_overtakes_it_a_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_ends(monkeypatch) as (client, played):
        await client.call_sized(120)
        played.vanishes[RESPONSES] = lambda _: True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100 * GRACE_S):
                await client.call_sized(120)


async def test_an_answer_that_comes_after_its_call_was_given_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_ends(monkeypatch) as (client, played):
        played.held = []
        first = asyncio.ensure_future(client.call_sized(120))
        await asyncio.sleep(0)
        (late,), played.held = played.held, None
        await client.call_sized(120)
        with pytest.raises(LostCallError):
            await first
        late()
        late()  # a repetition is not a second one
        await client.call_sized(120)
        assert client.late == 1


@pytest.mark.parametrize("topic", [REQUESTS, RESPONSES])
async def test_what_is_refused_is_a_failure_and_no_loss(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    async with both_ends(monkeypatch) as (client, played):
        played.refuses[topic] = lambda properties: "failed" not in properties
        with pytest.raises(FailedCallError, match="MessageTooBig"):
            await client.call_sized(120)


async def test_a_request_that_makes_no_sense_does_not_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async with both_ends(monkeypatch) as (client, played):
        for properties in ({}, {"id": "x"}, {"id": "x", "size": "big"}):
            played.listeners[REQUESTS](None, SimpleNamespace(properties=lambda found=properties: found))
        await client.call_sized(120)
