"""The plain client by itself, on a simulated pulsar-client."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.devtools import lossprobe
from dispatch.devtools.lossprobe import FailedCallError, PlainClient, PlainService
from dispatch.transports import Security
from tests.unit.devtools.lossprobe.test_probe_client import REQUESTS, RESPONSES, Played


async def client_and_service(monkeypatch: pytest.MonkeyPatch) -> tuple[PlainClient, PlainService, Played]:
    played = Played()
    monkeypatch.setattr(lossprobe, "PulsarClient", played.link)
    service = PlainService("pulsar://x", Security(), lambda properties: properties["text"].encode())
    client = PlainClient("pulsar://x", Security())
    await service.open(REQUESTS, RESPONSES)
    await client.open(REQUESTS, RESPONSES)
    return client, service, played


async def test_calls_receive_the_replies_to_their_own_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, _ = await client_and_service(monkeypatch)
    replies = await asyncio.gather(*(client.call(b"", {"text": f"{number}"}) for number in range(20)))
    assert replies == [str(number).encode() for number in range(20)]


async def test_a_call_without_a_reply_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, played = await client_and_service(monkeypatch)
    played.vanishes[RESPONSES] = lambda _: True
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        await client.call(b"", {"text": "x"}, timeout=3)
    assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.01)


async def test_a_refused_request_fails_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _, played = await client_and_service(monkeypatch)
    played.refuses[REQUESTS] = lambda properties: properties["text"] == "large"
    with pytest.raises(FailedCallError, match="MessageTooBig"):
        await client.call(b"", {"text": "large"})
    assert await client.call(b"", {"text": "small"}) == b"small"


async def test_a_service_serves_several_pairs_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    _, service, played = await client_and_service(monkeypatch)
    await service.open(f"{REQUESTS}-2", f"{RESPONSES}-2")
    other = PlainClient("pulsar://x", Security())
    await other.open(f"{REQUESTS}-2", f"{RESPONSES}-2")
    assert await other.call(b"", {"text": "two"}) == b"two"
    assert set(played.listeners) == {REQUESTS, RESPONSES, f"{REQUESTS}-2", f"{RESPONSES}-2"}
