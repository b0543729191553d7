"""Before a genuine broker the proxy loses what it says, nothing else, and nobody has to reconnect.

Persistent topics where messages are counted: from a non-persistent one, the broker itself may drop some.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from benchmarks.harness.broker import Endpoint
from dispatch import Security
from dispatch.transports import Message, Mode
from dispatch.transports.pulsar.client import client_logger, keep_thread_state
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.catalogs import unique_topic
from tests.helpers.lossy_proxy import LossyProxy

pytestmark = pytest.mark.pulsar

SOON = 30.0
"""Seconds in which something must have happened that takes milliseconds."""
PERMITS = 1_000


class Peers:
    """A producer and a reader of pulsar-client on a topic, over one connection."""

    def __init__(self, url: str, topic: str, **producer: Any) -> None:
        self.client = pulsar.Client(url, logger=client_logger())
        self.arrived: list[bytes] = []
        self.failures: list[str] = []
        self._last = threading.Event()
        self._waited_for = b""
        self._receipts = threading.Semaphore(0)
        self.reader = self.client.create_reader(
            topic, pulsar.MessageId.latest, reader_listener=self._arrive, receiver_queue_size=PERMITS
        )
        self.producer = self.client.create_producer(
            topic, block_if_queue_full=True, max_pending_messages=1_000, **{"batching_enabled": False, **producer}
        )

    def _arrive(self, _reader: Any, message: Any) -> None:
        keep_thread_state()
        data = message.data()
        if data == self._waited_for:
            self._last.set()
        else:
            self.arrived.append(data)

    def _receipt(self, result: Any, _place: Any) -> None:
        keep_thread_state()
        if result != pulsar.Result.Ok:
            self.failures.append(result.name)
        self._receipts.release()

    def send(self, payloads: list[bytes]) -> None:
        """Publish these; back when each has its receipt."""
        for payload in payloads:
            self.producer.send_async(payload, self._receipt)
        self.producer.flush()
        for _ in payloads:
            assert self._receipts.acquire(timeout=SOON), "a receipt did not come"
        assert self.failures == []

    def send_until_one_arrives(self, marker: bytes) -> int:
        """Publish ``marker`` until one gets through: all before it has been lost or has arrived then. How many it took."""
        self._waited_for = marker
        self._last.clear()
        for count in range(1, 10_000):
            self.send([marker])
            if self._last.is_set():
                return count
        raise AssertionError("the reader starves")

    def end(self, proxy: LossyProxy) -> None:
        """Let everything through from now on; back when all before has been lost or has arrived."""
        proxy.loss_out = proxy.loss_in = 0
        self._waited_for = b"the end"
        self._last.clear()
        self.send([b"the end"])
        assert self._last.wait(SOON), "the reader starves"


@contextlib.contextmanager
def peers(url: str, topic: str, **producer: Any) -> Iterator[Peers]:
    made = Peers(url, topic, **producer)
    try:
        yield made
    finally:
        made.client.close()


def test_without_loss_everything_arrives(pulsar_endpoint: Endpoint) -> None:
    with (
        LossyProxy.before(pulsar_endpoint.service_url) as proxy,
        peers(proxy.url, f"persistent://tg/response/{unique_topic()}") as both,
    ):
        small = [b"%d " % number + b"x" * 300 for number in range(1_000)]
        both.send(small)
        large = [bytes([number]) * size for number, size in enumerate([100_000, 100_000, 1 << 20, 100_000])]
        for payload in large:
            both.send([payload])
        both.end(proxy)
        assert both.arrived == small + large
        sent = len(small + large) + 1
        assert (proxy.passed_sends, proxy.passed_messages, proxy.passed) == (sent, sent, 2 * sent)
        assert (proxy.dropped_sends, proxy.dropped_messages) == (0, 0)
        assert proxy.connections == 1


@pytest.mark.parametrize(("loss_out", "loss_in", "batching"), [(0.5, 0.0, False), (0.0, 0.5, False), (0.5, 0.5, True)])
def test_what_is_lost_and_what_arrives_is_what_was_sent(
    pulsar_endpoint: Endpoint, loss_out: float, loss_in: float, batching: bool
) -> None:
    with (
        LossyProxy.before(
            pulsar_endpoint.service_url, loss_out=loss_out, loss_in=loss_in, rng=random.Random(1)
        ) as proxy,
        peers(
            proxy.url, f"persistent://tg/response/{unique_topic()}", batching_enabled=batching, batching_max_messages=5
        ) as both,
    ):
        sent = [b"%d" % number for number in range(1_000)]
        both.send(sent)
        until = time.monotonic() + SOON  # the broker may deliver after all receipts, and end() takes the loss away
        while len(both.arrived) + proxy.dropped_sends + proxy.dropped_messages < len(sent) and time.monotonic() < until:
            time.sleep(0.01)
        both.end(proxy)
        assert len(both.arrived) + proxy.dropped_sends + proxy.dropped_messages == len(sent)
        assert proxy.passed_sends + proxy.dropped_sends == len(sent) + 1
        assert proxy.passed_messages == len(both.arrived) + 1
        assert both.arrived == [each for each in sent if each in set(both.arrived)], "in order, none twice"
        assert bool(proxy.dropped_sends) == bool(loss_out)
        if loss_out:
            # 1,000 throws, or 200 of batches: six standard deviations.
            assert abs(proxy.dropped_sends / len(sent) - loss_out) < (0.21 if batching else 0.1)
        assert bool(proxy.dropped_messages) == bool(loss_in)
        assert proxy.connections == 1, "nobody hung up"


def test_a_consumer_gets_its_permits_back(pulsar_endpoint: Endpoint) -> None:
    with (
        LossyProxy.before(pulsar_endpoint.service_url, loss_in=0.9) as proxy,
        peers(
            proxy.url, f"persistent://tg/response/{unique_topic()}", batching_enabled=True, batching_max_messages=20
        ) as both,
    ):
        sent = 3_000
        both.send([b"x"] * sent)
        markers = both.send_until_one_arrives(b"marker")
        assert proxy.dropped_messages > 2_000 > PERMITS
        arrived = len(both.arrived)
        assert sent <= arrived + proxy.dropped_messages < sent + markers
        # And it goes on as if nothing had been: twice its permits again.
        proxy.loss_in = 0
        both.arrived.clear()
        both.send([b"y"] * 2 * PERMITS)
        both.end(proxy)
        assert both.arrived.count(b"y") == 2 * PERMITS
        assert proxy.connections == 1


async def test_our_transport_neither_notices_nor_reconnects(pulsar_endpoint: Endpoint) -> None:
    topic = f"persistent://tg/response/{unique_topic()}"
    arrived: list[bytes] = []
    failures: list[Exception] = []
    ended = asyncio.Event()

    def handle(message: Message) -> None:
        arrived.append(message.data())
        if arrived[-1] == b"the end":
            ended.set()

    async with LossyProxy.before(pulsar_endpoint.service_url, loss=0.5, rng=random.Random(2)) as proxy:
        transport = PulsarTransport(proxy.url, security=Security())
        await transport.start()
        try:
            await transport.subscribe(topic, handle, mode=Mode.FANOUT, name="test")
            publisher = await transport.publisher(topic)
            opened = proxy.connections
            for number in range(1_000):
                publisher.publish(b"%d" % number, {"id": str(number)}, flow="test", on_failure=failures.append)
            await transport.flush()
            proxy.loss_out = proxy.loss_in = 0.0
            publisher.publish(b"the end", {}, flow="test", on_failure=failures.append)
            async with asyncio.timeout(SOON):
                await ended.wait()
            assert failures == []
            assert len(arrived) - 1 + proxy.dropped_sends + proxy.dropped_messages == 1_000
            assert proxy.dropped_sends > 400
            assert proxy.dropped_messages > 0
            assert (transport.connected, transport.reconnects, proxy.connections) == (True, 0, opened)
        finally:
            await transport.close()
