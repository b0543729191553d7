"""From the start to the end of a connection: who shares what is open, and that its end leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch.errors import TransportError
from dispatch.transports import open_transport
from dispatch.transports.base import Security
from dispatch.transports.pulsar import transport as transport_module
from dispatch.transports.pulsar.transport import CLOSE_FLUSH_S, PulsarTransport
from tests.helpers.clock import advance, idle
from tests.helpers.fake_pulsar import (
    OTHER,
    REPLACED_S,
    SEEN_S,
    TOPIC,
    URL,
    Failures,
    FakeBroker,
    connected,
    listen,
    send,
)


async def test_a_topic_has_one_producer_however_many_ask_for_it(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.gate.clear()
        asking = [asyncio.create_task(transport.publisher(TOPIC)) for _ in range(3)]
        await idle()
        broker.gate.set()
        one, two, three = await asyncio.gather(*asking)
        assert one is two is three
        assert broker.openings == [TOPIC]
        raw = broker.producer()
        await one.close()
        await two.close()
        assert not raw.closed
        await three.close()
        assert raw.closed
        again = await transport.publisher(TOPIC)
        assert again is not one
        assert broker.openings == [TOPIC, TOPIC]


async def test_a_publisher_that_cannot_be_opened_is_not_remembered(broker: FakeBroker) -> None:
    async with connected() as transport:
        for number in range(20):
            topic = f"{TOPIC}-{number}"
            broker.refusals[topic] = TransportError("no-such-namespace", "none", may_have_run=False)
            with pytest.raises(TransportError, match="none"):
                await transport.publisher(topic)
            assert (await transport.publisher(topic)).topic == topic
        assert not list(transport._opening.items())


async def test_whoever_gives_up_while_a_topic_opens_leaves_no_orphan(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.gate.clear()
        first, second = (asyncio.create_task(transport.publisher(TOPIC)) for _ in range(2))
        await idle()
        first.cancel()
        await idle()
        assert broker.link.producers[0].closed
        broker.gate.set()
        publisher = await second
        assert broker.openings == [TOPIC, TOPIC], "the one who waited opens it for itself"
        await publisher.close()
        assert all(raw.closed for raw in broker.link.producers)


async def test_security_is_what_was_given_or_what_the_environment_says(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPATCH_TOKEN", "from the environment")
    for given, token in ((Security(token="given"), "given"), (Security(), None), (None, "from the environment")):
        transport = PulsarTransport(URL, security=given)
        await transport.start()
        await transport.close()
        assert {security.token for security in broker.securities} == {token}
        broker.securities.clear()


async def test_without_a_handshake_there_is_no_connection(broker: FakeBroker) -> None:
    broker.handshake = TransportError("unauthorized", "no", may_have_run=False)
    transport = PulsarTransport(URL, security=Security())
    with pytest.raises(TransportError, match="no"):
        await transport.start()
    assert broker.links == []
    await transport.close()


async def test_before_the_start_and_after_the_end_everything_says_closed(broker: FakeBroker) -> None:
    transport = open_transport(URL, security=Security())
    with pytest.raises(TransportError) as caught:
        await transport.publisher(TOPIC)
    assert (caught.value.type, caught.value.may_have_run) == ("closed", False)
    await transport.start()
    publisher = await transport.publisher(TOPIC)
    await transport.close()
    with pytest.raises(TransportError, match="closed"):
        send(publisher, Failures(), "a1")
    with pytest.raises(TransportError, match="closed"):
        await transport.publisher(TOPIC)
    await publisher.writable("a")
    await transport.flush()
    await publisher.close()
    assert not transport.connected


async def test_closing_waits_for_what_was_published(broker: FakeBroker) -> None:
    failures = Failures()
    transport = PulsarTransport(URL, security=Security(), publish_window=2)
    await transport.start()
    send(await transport.publisher(TOPIC), failures, "a1", "a2", "a3", "a4")
    closing = asyncio.create_task(transport.close())
    for _ in range(2):
        await idle()
        assert not closing.done()
        broker.producer().receipts()
    await closing
    assert broker.producer().payloads == [b"a1", b"a2", b"a3", b"a4"]
    assert broker.link.closed
    assert failures.told == []


async def test_closing_does_not_wait_for_ever_and_says_what_became_of_each(broker: FakeBroker) -> None:
    failures = Failures()
    loop = asyncio.get_running_loop()
    transport = PulsarTransport(URL, security=Security(), publish_window=2)
    await transport.start()
    publisher = await transport.publisher(TOPIC)
    send(publisher, failures, "a1", "a2", "a3", "a4")
    writable = asyncio.create_task(publisher.writable("a"))
    started = loop.time()
    await transport.close()
    await writable
    assert loop.time() - started == pytest.approx(CLOSE_FLUSH_S)
    await idle()
    assert sorted(failures.types) == [
        ("a1", "connection-lost", True),
        ("a2", "connection-lost", True),
        ("a3", "closed", False),
        ("a4", "closed", False),
    ]
    await transport.close()


async def test_what_nobody_closed_is_closed_when_the_process_ends(broker: FakeBroker) -> None:
    """A client of pulsar-client that is still open then would abort the process."""
    forgotten, closed = (PulsarTransport(URL, security=Security()) for _ in range(2))
    for transport in (forgotten, closed):
        await transport.start()
    await closed.close()
    assert closed not in transport_module._open_transports
    transport_module._close_forgotten()
    assert [link.closed for link in broker.links] == [True, True]
    assert [link.closings for link in broker.links] == [0, 1]
    await forgotten.close()
    assert forgotten not in transport_module._open_transports


async def test_closing_twice_closes_once(broker: FakeBroker) -> None:
    transport = PulsarTransport(URL, security=Security())
    await transport.start()
    send(await transport.publisher(TOPIC), Failures(), "a1")
    await asyncio.gather(transport.close(), transport.close())
    await transport.close()
    assert broker.link.closings == 1


async def test_closing_while_it_is_away_is_a_matter_of_no_time(broker: FakeBroker) -> None:
    failures = Failures()
    loop = asyncio.get_running_loop()
    transport = PulsarTransport(URL, security=Security())
    await transport.start()
    publisher = await transport.publisher(TOPIC)
    broker.up = False
    await advance(SEEN_S)
    send(publisher, failures, "a1")
    started = loop.time()
    await transport.close()
    assert loop.time() == started
    assert failures.types == [("a1", "closed", False)]


async def test_closing_in_the_middle_of_a_reconnect_leaves_nothing(broker: FakeBroker) -> None:
    transport = PulsarTransport(URL, security=Security())
    await transport.start()
    await listen(transport, list[Any]().append)
    broker.restarts()
    broker.gate.clear()
    await advance(REPLACED_S)
    assert len(broker.links) == 2
    await transport.close()
    assert all(link.closed for link in broker.links)
    assert all(not raw.is_connected() for raw in broker.link.consumers)


async def test_whoever_is_cancelled_while_closing_has_closed(broker: FakeBroker) -> None:
    transport = PulsarTransport(URL, security=Security())
    await transport.start()
    send(await transport.publisher(TOPIC), Failures(), "a1")
    closing = asyncio.create_task(transport.close())
    await idle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert broker.link.closed
    assert not transport.connected
    await idle()


async def test_closing_a_publisher_waits_for_its_receipts(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        publisher, other = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        send(publisher, failures, "a1", "a2")
        send(other, failures, "b1")
        raw = broker.producer(TOPIC)
        closing = asyncio.create_task(publisher.close())
        raw.receipts(1)
        await idle()
        assert not raw.closed
        raw.receipts(1)
        await closing
        assert raw.closed, "the receipts of another publisher are not waited for"
        broker.producer(OTHER).receipts()
    assert failures.told == []


async def test_closing_a_publisher_without_receipts_takes_a_bounded_time(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        send(publisher, Failures(), "a1")
        raw = broker.producer(TOPIC)
        closing = asyncio.create_task(publisher.close())
        await advance(CLOSE_FLUSH_S + 0.01)
        assert closing.done()
        assert raw.closed


async def test_closing_a_publisher_without_a_connection_does_not_wait(broker: FakeBroker) -> None:
    async with connected() as transport:
        publisher = await transport.publisher(TOPIC)
        send(publisher, Failures(), "a1")
        broker.up = False
        await advance(SEEN_S)
        began = asyncio.get_running_loop().time()
        await publisher.close()
        assert asyncio.get_running_loop().time() == began
