"""One topic of several is lost, or all of them at once: who has to notice, what is told, and what is opened again."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dispatch.errors import TransportError
from dispatch.transports.base import PEER_BACK_S, RECONNECT_WAIT_S, Mode, Security
from dispatch.transports.errors import unreachable
from dispatch.transports.pulsar import supervisor
from dispatch.transports.pulsar.client import DEAF, OPERATION_TIMEOUT_S
from dispatch.transports.pulsar.handshake import HEAD_START_S, TIMEOUT_S
from dispatch.transports.pulsar.supervisor import (
    DEAF_AFTER,
    GRACE_S,
    HUNG_S,
    OPEN_S,
    POLL_S,
    PROBE_TIMEOUT_S,
    SILENT_S,
)
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.fake_pulsar import (
    KEPT,
    OTHER,
    REPLACED_S,
    SEEN_S,
    TOPIC,
    URL,
    Failures,
    FakeBroker,
    FakeLink,
    connected,
    listen,
    publishing,
    send,
)

REPLIES = "non-persistent://tg/response/dispatch-reply-0123456789abcdef-agent"


def now() -> float:
    return asyncio.get_running_loop().time()


GONE = TransportError("no-such-namespace", "The broker has no namespace 'tg/request'.", may_have_run=False)


async def test_a_topic_that_moves_is_left_to_pulsar_client(broker: FakeBroker, failures: Failures) -> None:
    async with connected() as transport:
        moving, _ = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        raw = broker.producer(TOPIC)
        raw.closed = True
        await advance(GRACE_S - POLL_S)
        assert transport.connected
        raw.closed = False
        await advance(10)
        assert broker.openings == [TOPIC, OTHER]
        send(moving, failures, "a1")
        raw.receipts()
    assert failures.told == []


async def test_a_topic_that_is_lost_alone_is_opened_again_without_the_others(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        fine = await transport.publisher(OTHER)
        await listen(transport, got.append)
        lost = broker.consumer()
        closings: list[int] = []
        lost.closed = True
        lost.on_close = lambda: closings.append(len(broker.openings))
        await advance(REPLACED_S)
        assert closings == [2], "the former one is closed first: it would take messages nobody gets"
        assert broker.openings == [OTHER, TOPIC, TOPIC]
        assert (len(broker.links), transport.reconnects, transport.connected) == (1, 0, True)
        broker.consumer().deliver("one")
        await advance(POLL_S)
        assert got == ["one"]
        send(fine, Failures(), "a1")
        broker.producer(OTHER).receipts()


async def test_while_it_is_opened_again_nothing_is_given_to_it(broker: FakeBroker, failures: Failures) -> None:
    async with connected() as transport:
        lost, fine = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        broker.producer(TOPIC).closed = True
        broker.gate.clear()
        send(lost, failures, "a1")
        await advance(REPLACED_S)
        assert broker.producer(TOPIC).payloads == []
        send(fine, failures, "b1")
        broker.producer(OTHER).receipts()
        broker.gate.set()
        await advance(SEEN_S)
        send(lost, failures, "a2")
        assert broker.producer(TOPIC).payloads == [b"a1", b"a2"]
        broker.producer(TOPIC).receipts()
    assert failures.told == []


async def test_what_is_held_for_a_topic_fails_when_no_broker_takes_it_over(broker: FakeBroker) -> None:
    failures = Failures()
    async with connected() as transport:
        lost, _ = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        broker.always_refused[TOPIC] = unreachable(URL)
        broker.producer(TOPIC).closed = True
        await advance(REPLACED_S)
        send(lost, failures, "a1")
        await advance(RECONNECT_WAIT_S - 1)
        assert failures.told == []
        await advance(2)
        assert failures.types == [("a1", "unreachable", False)]
        with pytest.raises(TransportError, match="no Pulsar broker replies"):
            send(lost, failures, "a2")


async def test_a_request_waits_for_the_inbox_of_its_reply(broker: FakeBroker, failures: Failures) -> None:
    async with connected() as transport:
        requests = await transport.publisher(TOPIC)
        await transport.subscribe(REPLIES, lambda _: None, mode=Mode.FANOUT, name="agent")
        inbox = broker.consumer(REPLIES)
        inbox.closed = True
        send(requests, failures, "a1")
        assert broker.producer(TOPIC).payloads == []
        inbox.closed = False
        await advance(SEEN_S)
        assert broker.producer(TOPIC).payloads == [b"a1"]
        broker.producer(TOPIC).receipts()
    assert failures.told == []


async def test_what_is_closed_meanwhile_is_not_kept(broker: FakeBroker) -> None:
    async with connected() as transport:
        lost, _ = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        broker.producer(TOPIC).closed = True
        broker.gate.clear()
        await advance(REPLACED_S)
        await lost.close()
        broker.gate.set()
        await advance(SEEN_S)
        assert broker.producer(TOPIC).closed
        assert len(transport._supervisor.backoff) == 0


async def test_when_all_topics_are_gone_but_the_broker_is_there_each_says_why(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture, failures: Failures
) -> None:
    """They were all in the namespace that was deleted: it is not the broker that is out of reach."""
    async with connected() as transport:
        publishers = [await transport.publisher(topic) for topic in (TOPIC, OTHER)]
        for topic in (TOPIC, OTHER):
            broker.always_refused[topic] = GONE
            broker.producer(topic).closed = True
        await advance(REPLACED_S)
        assert transport.connected
        for publisher in publishers:
            with pytest.raises(TransportError, match="has no namespace") as caught:
                send(publisher, failures, "a1")
            assert (caught.value.type, caught.value.may_have_run) == ("no-such-namespace", False)
        (line,) = (
            record.getMessage() for record in caplog.records if "retrying in the background" in record.getMessage()
        )
        assert line.startswith("2 topics cannot be opened (no namespace tg/request)")
        broker.always_refused.clear()
        await advance(5)
        for publisher in publishers:
            send(publisher, failures, "a2")
            broker.producer(publisher.topic).receipts()
        assert transport.reconnects == 1
    assert failures.told == []


async def test_one_that_cannot_be_reached_among_those_that_are_gone_is_a_connection_that_is_down(
    broker: FakeBroker,
) -> None:
    async with connected() as transport:
        for topic, why in ((TOPIC, GONE), (OTHER, unreachable(URL))):
            await transport.publisher(topic)
            broker.always_refused[topic] = why
            broker.producer(topic).closed = True
        await advance(REPLACED_S)
        assert not transport.connected
        del broker.always_refused[OTHER]
        await advance(REPLACED_S)
        assert transport.connected


async def test_a_broker_that_hangs_is_out_of_reach_until_it_answers(broker: FakeBroker, failures: Failures) -> None:
    """Its connections stay open, so that pulsar-client notices nothing for a minute."""
    async with publishing() as (transport, publisher):
        before = now()
        send(publisher, failures, "a1")
        broker.handshake = unreachable(URL)
        await advance(SILENT_S + 2 * POLL_S)
        assert not transport.connected
        assert transport.was_disconnected_since(before)
        asked = now()
        assert not await transport.await_connection(asked + 30)
        assert now() - asked <= RECONNECT_WAIT_S
        asked = now()
        assert not await transport.await_connection(asked + 30)
        assert now() == asked, "it has been away for longer than calls wait for it"
        send(publisher, failures, "a2")
        assert broker.producer().payloads == [b"a1"], "held back: nobody could take it back from pulsar-client"
        broker.handshake = None
        broker.producer().receipts()
        await advance(SEEN_S)
        assert transport.connected
        assert broker.producer().payloads == [b"a1", b"a2"]
        assert (len(broker.links), transport.reconnects) == (1, 0)
        broker.producer().receipts()
        assert transport.was_disconnected_since(before)
        await advance(1)
        assert not transport.was_disconnected_since(now() - 0.5)
    assert failures.told == []


async def test_topics_of_a_broker_that_hangs_are_closed_without_waiting_for_it(broker: FakeBroker) -> None:
    replied = threading.Event()
    async with connected() as transport:
        subscription = await transport.subscribe(OTHER, lambda _message: None, mode=Mode.SHARED, name="work")
        publisher = await transport.publisher(TOPIC)
        send(publisher, Failures(), "a1")
        broker.handshake = unreachable(URL)
        await advance(SILENT_S + 2 * POLL_S)
        assert not transport.connected
        raw = broker.consumer(OTHER), broker.producer(TOPIC)
        for each in raw:
            each.on_close = replied.wait
        loop = virtual_loop()
        loop.threads_may_hang = True
        async with asyncio.timeout(1):
            await subscription.close()
            await publisher.close()
        loop.threads_may_hang = False
        replied.set()
        broker.handshake = None
    while not all(each.closed for each in raw):  # noqa: ASYNC110 - a thread of its own closes them
        await asyncio.sleep(0)


async def test_a_broker_that_hangs_is_not_back_because_a_publish_has_failed(broker: FakeBroker) -> None:
    """pulsar-client fails a publish that has had no receipt for 10 s: then nothing is unacknowledged any more."""
    failures = Failures()
    async with publishing() as (transport, publisher):
        send(publisher, failures, "a1")
        broker.handshake = unreachable(URL)
        await advance(SILENT_S + 2 * POLL_S)
        broker.producer().sent[0].fails("Timeout")
        for _ in range(20):
            await advance(POLL_S)
            assert not transport.connected
        broker.handshake = None
        await advance(SEEN_S)
        assert transport.connected
    assert failures.types == [("a1", "send-failed", True)]


async def test_a_broker_that_answers_is_not_out_of_reach_because_a_receipt_is_late(broker: FakeBroker) -> None:
    async with publishing() as (transport, publisher):
        sent_at = now()
        send(publisher, Failures(), "a1")
        await advance(10)
        assert transport.connected
        assert 5 <= broker.handshakes <= 20, "asked once for each time that the receipt is late"
        broker.producer().receipts()
        await advance(POLL_S)
        asked = broker.handshakes
        await advance(10)
        assert broker.handshakes == asked
        assert not transport.was_disconnected_since(sent_at)


async def test_a_call_waits_for_a_connection_that_is_back_at_once(broker: FakeBroker) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        assert await transport.await_connection(now() + 30)
        broker.up = False
        await advance(SEEN_S)
        asked = now()
        assert not await transport.await_connection(asked + 0.1), "not beyond the deadline"
        assert now() - asked <= 0.1 + POLL_S
        waiting = asyncio.create_task(transport.await_connection(now() + 30))
        broker.up = True
        assert await waiting
    assert not await transport.await_connection(now() + 30), "closed"


async def test_a_broker_that_says_how_much_it_takes_is_believed_each_time(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = iter((1_000_000, None, 2_000_000))

    async def shake_hands(*args: Any) -> int | None:
        return next(said)

    monkeypatch.setattr("dispatch.transports.pulsar.supervisor.shake_hands", shake_hands)
    async with connected() as transport:
        await transport.publisher(TOPIC)
        limits = [transport.max_message_bytes]
        for _ in range(2):
            broker.restarts()
            await advance(REPLACED_S)
            limits.append(transport.max_message_bytes)
    assert limits == [1_000_000 - 20 * 1024, 1_000_000 - 20 * 1024, 2_000_000 - 20 * 1024]


class Cluster:
    """Brokers of a list: which of them do not reply, and to which ones clients were connected."""

    def __init__(self, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.away: set[str] = set()
        self.clients: list[str] = []
        monkeypatch.setattr(supervisor, "PulsarClient", self.connect)
        monkeypatch.setattr(supervisor, "shake_hands", self.shake_hands)

    def connect(self, url: str, security: Security) -> FakeLink:
        self.clients.append(url)
        return self.broker.connect(URL, security)

    async def shake_hands(self, url: str, security: Security, timeout: float = 3.0) -> int | None:
        if url in self.away:
            await asyncio.sleep(timeout)
            raise unreachable(url)
        return None

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[PulsarTransport]:
        transport = PulsarTransport(f"{A},{B.removeprefix('pulsar://')}", security=Security())
        await transport.start()
        try:
            yield transport
        finally:
            await transport.close()


A, B = "pulsar://a.example:6650", "pulsar://b.example:6650"


@pytest.fixture
def cluster(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(broker, monkeypatch)


async def test_the_client_gets_the_broker_that_replies(cluster: Cluster) -> None:
    cluster.away.add(A)
    before = now()
    async with cluster.connected():
        assert now() - before < PROBE_TIMEOUT_S
    assert cluster.clients == [B]


async def test_after_an_outage_the_client_gets_another_broker_of_the_list(cluster: Cluster) -> None:
    async with cluster.connected() as transport:
        await transport.publisher(TOPIC)
        cluster.away.add(A)
        cluster.broker.restarts()
        await advance(REPLACED_S + HEAD_START_S)
        assert transport.connected
    assert cluster.clients == [A, B]


async def test_a_broker_of_a_list_that_hangs_is_given_up_for_another(cluster: Cluster) -> None:
    failures = Failures()
    async with cluster.connected() as transport:
        publisher = await transport.publisher(TOPIC)
        send(publisher, failures, "a1")
        cluster.away.add(A)
        await advance(SILENT_S + PROBE_TIMEOUT_S + GRACE_S + HEAD_START_S + 4 * POLL_S)
        assert transport.connected
        assert failures.types == [("a1", "connection-lost", True)]
    assert cluster.clients == [A, B]


async def test_topics_on_other_brokers_stay_connected_when_that_of_the_client_is_gone(cluster: Cluster) -> None:
    """The client could open no topic any more: it asks its broker where a topic is."""
    async with cluster.connected() as transport:
        await transport.publisher(OTHER)
        stays, former = cluster.broker.producer(OTHER), cluster.broker.links[0]
        cluster.away.add(A)
        cluster.broker.refusals[TOPIC] = unreachable(URL)
        with pytest.raises(TransportError):
            await transport.publisher(TOPIC)
        await advance(PROBE_TIMEOUT_S + 2 * POLL_S + HEAD_START_S)
        await transport.publisher(TOPIC)
        assert (transport.connected, transport.reconnects, stays.closed, former.closed) == (True, 0, False, False)
        stays.closed = True
        await advance(REPLACED_S)
        assert former.closed, "no topic is left on it"
        assert len(cluster.broker.links[1].producers) == 2
    assert cluster.clients == [A, B]


async def test_a_lost_topic_shows_that_the_broker_of_the_client_is_gone(cluster: Cluster) -> None:
    async with cluster.connected() as transport:
        await transport.publisher(TOPIC)
        await transport.publisher(OTHER)
        cluster.away.add(A)
        cluster.broker.producer(TOPIC).closed = True
        await advance(2 * POLL_S + PROBE_TIMEOUT_S + HEAD_START_S)
        assert cluster.clients == [A, B]
        await advance(REPLACED_S)
        opened = [[(each.topic, each.closed) for each in link.producers] for link in cluster.broker.links]
        assert opened == [[(TOPIC, True), (OTHER, False)], [(TOPIC, False)]]


@pytest.mark.parametrize("is_packet", [False, True])
async def test_topics_are_opened_again_when_the_owner_of_one_hangs(cluster: Cluster, is_packet: bool) -> None:
    async with cluster.connected() as transport:
        stuck, fine = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        cluster.away.add(B)
        for _ in range(24):
            if is_packet:
                assert stuck.send_packet(b"a")
                assert fine.send_packet(b"b")
            elif not cluster.broker.producer(TOPIC).sent:
                send(stuck, Failures(), "a1")
            cluster.broker.producer(OTHER).receipts()
            await advance(POLL_S)
        assert transport.connected
    assert cluster.clients == [A, A]


@pytest.mark.parametrize(("hangs", "clients"), [(A, [A, B]), (B, [A, A])])
async def test_topics_are_opened_again_when_the_owner_of_a_subscription_hangs(
    cluster: Cluster, hangs: str, clients: list[str]
) -> None:
    """The service would receive no request from then on, without an error."""
    got: list[Any] = []
    async with cluster.connected() as transport:
        await listen(transport, got.append)
        await transport.publisher(OTHER)
        cluster.away.add(hangs)
        cluster.broker.hung.add(TOPIC)
        await advance(HUNG_S + TIMEOUT_S + HEAD_START_S + 4 * POLL_S)
        cluster.broker.hung.clear()
        cluster.broker.consumer().deliver("one")
        await advance(POLL_S)
        assert transport.connected
    assert (cluster.clients, got) == (clients, ["one"])


async def test_a_subscription_whose_owner_is_slow_is_left_alone_while_all_brokers_reply(cluster: Cluster) -> None:
    async with cluster.connected() as transport:
        await listen(transport, lambda _: None)
        cluster.broker.hung.add(TOPIC)
        await advance(20)
    assert cluster.clients == [A]


async def test_a_subscription_that_is_never_replied_to_is_opened_again_though_all_brokers_reply(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []
    async with cluster.connected() as transport:
        await listen(transport, got.append)
        await transport.publisher(OTHER)
        first = cluster.broker.consumer()
        cluster.broker.hung.add(TOPIC)
        await advance((DEAF_AFTER + 1) * OPERATION_TIMEOUT_S)
        cluster.broker.hung.clear()
        await advance(2)
        assert cluster.broker.consumer() is not first
        cluster.broker.consumer().deliver("one")
        await advance(POLL_S)
    assert (cluster.clients, got) == ([A], ["one"])
    assert f"{TOPIC}: {DEAF}" in [record.getMessage() for record in caplog.records]


async def test_the_owners_of_many_idle_subscriptions_are_asked_in_turn(cluster: Cluster) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(40)]
    async with cluster.connected() as transport:
        for topic in topics:
            await transport.subscribe(topic, lambda _: None, mode=Mode.SHARED, name="work")
        await advance(2 * len(topics) * POLL_S + POLL_S / 2)
        questions = Counter(cluster.broker.questions)
    assert questions == dict.fromkeys(topics, 2)


@pytest.mark.parametrize("is_in_time", [True, False])
async def test_a_topic_without_receipts_counts_as_lost_while_others_have_them(
    broker: FakeBroker, is_in_time: bool
) -> None:
    async with connected() as transport:
        stuck, fine = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        stuck.send_packet(b"a")
        for _ in range(4):
            fine.send_packet(b"b")
            broker.producer(OTHER).receipts()
            await advance(SILENT_S / 4)
            if is_in_time:
                broker.producer(TOPIC).receipts()
        assert transport.was_disconnected_since(now(), [TOPIC]) is not is_in_time
        assert not transport.was_disconnected_since(now(), [OTHER])
        await advance(POLL_S)
        broker.producer(TOPIC).receipts()
        await advance(PEER_BACK_S - 2 * POLL_S)
        assert transport.was_disconnected_since(now() - PEER_BACK_S, [TOPIC]) is not is_in_time


async def test_a_packet_that_cannot_be_sent_has_no_receipt_to_wait_for(broker: FakeBroker) -> None:
    async with publishing() as (transport, publisher):
        broker.producer(TOPIC).refusal = RuntimeError("ProducerQueueIsFull")
        assert not publisher.send_packet(b"a")
        broker.producer(TOPIC).refusal = None
        assert publisher.send_packet(b"b")
        broker.producer(TOPIC).receipts()
        await advance(10)
        assert not transport.was_disconnected_since(now(), [TOPIC])


@pytest.mark.parametrize("hangs", [True, False])
async def test_a_silent_peer_is_excused_while_the_owner_of_the_own_topic_hangs(broker: FakeBroker, hangs: bool) -> None:
    async with connected() as transport:
        await listen(transport, lambda _: None)
        await advance(10)
        assert broker.questions == [], "there is no other broker, and no doubt"
        if hangs:
            broker.hung.add(TOPIC)
        assert not transport.was_disconnected_since(now(), [TOPIC])
        await advance(SILENT_S)
        assert transport.was_disconnected_since(now(), [TOPIC]) is hangs
        broker.hung.clear()
        await advance(10)
        assert not transport.was_disconnected_since(now(), [TOPIC])


async def test_a_topic_counts_as_lost_until_it_is_open_again(broker: FakeBroker) -> None:
    """Its peers may be back later than this process: they open it by themselves."""
    async with connected() as transport:
        await transport.publisher(OTHER)
        await transport.publisher(TOPIC)
        broker.always_refused[TOPIC] = unreachable(URL)
        broker.producer(TOPIC).closed = True
        await advance(20)
        broker.always_refused.clear()
        await advance(1)
        assert broker.producer(TOPIC).is_connected()
        await advance(PEER_BACK_S - 2)
        assert transport.was_disconnected_since(now() - PEER_BACK_S, [TOPIC])
        assert not transport.was_disconnected_since(now() - PEER_BACK_S, [OTHER])


async def test_a_connection_is_supervised_after_an_error_of_any_kind(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise RuntimeError("pulsar-client has a new kind of error")

    async with connected() as transport:
        await transport.publisher(TOPIC)
        with monkeypatch.context() as failing:
            failing.setattr(broker.producer(), "is_connected", fail)
            await advance(3 * POLL_S)
        broker.restarts()
        await advance(REPLACED_S)
        assert (transport.connected, transport.reconnects) == (True, 1)
    assert [record.message for record in caplog.records if record.exc_info] == [
        f"a check of the connection to {URL} failed; it is checked again"
    ]


async def test_a_slow_receipt_does_not_disturb_topics_while_all_brokers_reply(cluster: Cluster) -> None:
    async with cluster.connected() as transport:
        send(await transport.publisher(TOPIC), Failures(), "a1")
        await advance(10)
        cluster.broker.producer(TOPIC).receipts()
    assert cluster.clients == [A]


async def test_a_broker_that_replies_is_not_replaced_because_a_topic_could_not_be_opened(cluster: Cluster) -> None:
    async with cluster.connected() as transport:
        await transport.publisher(OTHER)
        cluster.broker.always_refused[TOPIC] = unreachable(URL)
        with pytest.raises(TransportError, match="no Pulsar broker replies"):
            await transport.publisher(TOPIC)
        await advance(10)
        assert transport.connected
    assert cluster.clients == [A]


async def test_a_topic_is_opened_again_while_its_broker_is_busy(broker: FakeBroker) -> None:
    """One that has just started replies to handshakes before it opens its first topic in time."""
    async with connected() as transport:
        broker.refusals[TOPIC] = unreachable(URL)
        await transport.publisher(TOPIC)
        assert broker.openings == [TOPIC, TOPIC]
        broker.always_refused[OTHER] = unreachable(URL)
        began = now()
        with pytest.raises(TransportError, match=r"replies, but has not opened a topic in 15 s") as refused:
            await transport.publisher(OTHER)
        assert (refused.value.type, refused.value.may_have_run) == ("unreachable", False)
        assert now() - began <= OPEN_S


async def test_a_topic_of_a_broker_that_does_not_reply_fails_at_once(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.refusals[TOPIC] = unreachable(URL)
        broker.handshake = unreachable(URL)
        with pytest.raises(TransportError, match="no Pulsar broker replies"):
            await transport.publisher(TOPIC)
        assert broker.openings == [TOPIC]


async def move(broker: FakeBroker, topic: str = OTHER) -> None:
    """A topic is without its connection for one check."""
    broker.producer(topic).closed = True
    await advance(SEEN_S)
    broker.producer(topic).closed = False


async def test_a_subscription_that_the_broker_has_lost_while_topics_moved_is_opened_again(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[Any] = []
    async with connected() as transport:
        await transport.publisher(OTHER)
        await listen(transport, got.append, mode=Mode.FANOUT)
        await listen(transport, got.append, REPLIES, mode=Mode.FANOUT)
        lost = broker.consumer()
        lost.attached = [None, False]
        await move(broker)
        assert broker.verified == []
        await advance(5)
        assert (lost.closed, broker.consumer(REPLIES).closed) == (True, False)
        assert broker.openings == [OTHER, TOPIC, REPLIES, TOPIC]
        broker.consumer().deliver("one")
        await advance(POLL_S)
        assert got == ["one"]
        assert [each for each in caplog.messages if "delivers nothing" in each] == [
            f"{TOPIC}: the broker delivers nothing to the subscription; it is opened again"
        ]


async def test_subscriptions_are_verified_once_after_topics_moved(broker: FakeBroker) -> None:
    async with connected() as transport:
        await transport.publisher(OTHER)
        await listen(transport, lambda message: None)  # shared with others: a second consumer is no test
        await listen(transport, lambda message: None, KEPT, mode=Mode.FANOUT)  # the broker keeps messages
        await listen(transport, lambda message: None, REPLIES, mode=Mode.FANOUT)
        await advance(60)
        assert broker.verified == [], "at rest the broker is left alone"
        for moves in (1, 2):
            await move(broker)
            await advance(60)
            assert broker.verified == moves * [REPLIES]
