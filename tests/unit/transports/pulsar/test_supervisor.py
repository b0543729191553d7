"""One topic of several is lost, or all of them at once: what notices it, what is logged, and what is opened again.
What was set aside is tried again, ever less often.
Staying connected: what happens to messages while the broker is away, how the connection comes back, and how it ends.
"""

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
from dispatch.transports.pulsar.transport import PulsarTransport
from tests.helpers.clock import advance, idle, now, start_task, virtual_loop
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
    Kept,
    connected,
    listen,
    publishing,
    send,
    texts,
)

REPLIES = "non-persistent://tg/response/dispatch-reply-0123456789abcdef-agent"


GONE = TransportError("no-such-namespace", "The broker has no namespace 'tg/request'.", may_have_run=False)


async def test_a_topic_that_moves_is_left_to_pulsar_client(broker: FakeBroker, failures: Failures) -> None:
    async with connected() as transport:
        moving, _ = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        raw = broker.producer(TOPIC)
        raw.closed = True
        await advance(supervisor.GRACE_S - supervisor.POLL_S)
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
        await advance(supervisor.POLL_S)
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
        (line,) = (text for text in caplog.messages if "retrying in the background" in text)
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
        await advance(supervisor.SILENT_S + 2 * supervisor.POLL_S)
        assert not transport.connected
        assert transport.was_disconnected_since(before)
        asked = now()
        assert not await transport.await_connection(asked + 30)
        assert now() - asked <= RECONNECT_WAIT_S
        asked = now()
        assert not await transport.await_connection(asked + 30)
        assert now() == asked, "it has been away for longer than calls wait for it"
        send(publisher, failures, "a2")
        assert broker.producer().payloads == [b"a1"], "held back: pulsar-client would not return it"
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
        await advance(supervisor.SILENT_S + 2 * supervisor.POLL_S)
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
        await advance(supervisor.SILENT_S + 2 * supervisor.POLL_S)
        broker.producer().sent[0].fails("Timeout")
        for _ in range(20):
            await advance(supervisor.POLL_S)
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
        await advance(supervisor.POLL_S)
        asked = broker.handshakes
        await advance(10)
        assert broker.handshakes == asked
        assert not transport.was_disconnected_since(sent_at)


async def test_a_call_waits_for_a_connection_that_is_back_at_once(broker: FakeBroker) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        assert await transport.await_connection(now() + 30)
        await broker.lose()
        asked = now()
        assert not await transport.await_connection(asked + 0.1), "not beyond the deadline"
        assert now() - asked <= 0.1 + supervisor.POLL_S
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
            await broker.replace()
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
        assert now() - before < supervisor.PROBE_TIMEOUT_S
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
        limits = (supervisor.SILENT_S, supervisor.PROBE_TIMEOUT_S, supervisor.GRACE_S, HEAD_START_S)
        await advance(sum(limits) + 4 * supervisor.POLL_S)
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
        await advance(supervisor.PROBE_TIMEOUT_S + 2 * supervisor.POLL_S + HEAD_START_S)
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
        await advance(2 * supervisor.POLL_S + supervisor.PROBE_TIMEOUT_S + HEAD_START_S)
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
            await advance(supervisor.POLL_S)
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
        await advance(supervisor.HUNG_S + TIMEOUT_S + HEAD_START_S + 4 * supervisor.POLL_S)
        cluster.broker.hung.clear()
        cluster.broker.consumer().deliver("one")
        await advance(supervisor.POLL_S)
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
        await advance((supervisor.DEAF_AFTER + 1) * OPERATION_TIMEOUT_S)
        cluster.broker.hung.clear()
        await advance(2)
        assert cluster.broker.consumer() is not first
        cluster.broker.consumer().deliver("one")
        await advance(supervisor.POLL_S)
    assert (cluster.clients, got) == ([A], ["one"])
    assert f"{TOPIC}: {DEAF}" in [record.getMessage() for record in caplog.records]


async def test_the_owners_of_many_idle_subscriptions_are_asked_in_turn(cluster: Cluster) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(40)]
    async with cluster.connected() as transport:
        for topic in topics:
            await transport.subscribe(topic, lambda _: None, mode=Mode.SHARED, name="work")
        await advance(2 * len(topics) * supervisor.POLL_S + supervisor.POLL_S / 2)
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
            await advance(supervisor.SILENT_S / 4)
            if is_in_time:
                broker.producer(TOPIC).receipts()
        assert transport.was_disconnected_since(now(), [TOPIC]) is not is_in_time
        assert not transport.was_disconnected_since(now(), [OTHER])
        await advance(supervisor.POLL_S)
        broker.producer(TOPIC).receipts()
        await advance(PEER_BACK_S - 2 * supervisor.POLL_S)
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
        await advance(supervisor.SILENT_S)
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
            await advance(3 * supervisor.POLL_S)
        await broker.replace()
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
        assert now() - began <= supervisor.OPEN_S


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
        await advance(supervisor.POLL_S)
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


def test_it_is_tried_again_ever_less_often() -> None:
    aside: supervisor.ReopenBackoff[str] = supervisor.ReopenBackoff()
    now, tries = 0.0, []
    assert aside.record_failure("topic", GONE, now)
    while now < 200:
        now += 0.25
        if aside.due(now) == ["topic"]:
            tries.append(now)
            assert not aside.record_failure("topic", GONE, now)
    gaps = [later - sooner for sooner, later in zip([0.0, *tries], tries, strict=False)]
    assert gaps[:4] == [supervisor.FIRST_RETRY_S, 1.0, 2.0, 4.0]
    assert gaps[-1] == supervisor.LAST_RETRY_S


def test_what_is_open_again_begins_anew() -> None:
    aside: supervisor.ReopenBackoff[str] = supervisor.ReopenBackoff()
    assert not aside.forget("topic")
    for _ in range(5):
        aside.record_failure("topic", GONE, 0.0)
    assert aside.error("topic", 0.0) is GONE
    assert "topic" in aside
    assert aside.forget("topic")
    assert (len(aside), aside.error("topic", 0.0)) == (0, None)
    assert aside.record_failure("topic", GONE, 10.0)
    assert aside.due(10.0 + supervisor.FIRST_RETRY_S) == ["topic"]


def test_a_broker_that_gives_no_answer_is_asked_again_soon_however_often() -> None:
    aside: supervisor.ReopenBackoff[str] = supervisor.ReopenBackoff()
    for at in range(0, 100, 5):  # a try takes pulsar-client's 5 s
        aside.record_failure("topic", unreachable("pulsar://broker"), float(at))
        assert aside.due(at + supervisor.FIRST_RETRY_S) == ["topic"]


def test_a_failed_broker_has_time_to_be_taken_over() -> None:
    error = TransportError("unauthorized", "The broker refused.", may_have_run=False)
    aside: supervisor.ReopenBackoff[str] = supervisor.ReopenBackoff(transient=("unauthorized",))
    aside.record_failure("topic", error, 0.0)
    aside.record_failure("topic", error, 1.0)
    assert aside.due(1.0 + supervisor.FIRST_RETRY_S) == ["topic"]
    assert aside.error("topic", RECONNECT_WAIT_S - 1) is None
    assert aside.error("topic", RECONNECT_WAIT_S) is error


async def test_a_moments_absence_costs_nothing(broker: FakeBroker) -> None:
    failures, got = Failures(), list[Any]()
    async with publishing() as (transport, publisher):
        await listen(transport, got.append)
        send(publisher, failures, "a1")
        await broker.lose()
        assert not transport.connected
        send(publisher, failures, "a2", "a3")
        assert broker.producer().payloads == [b"a1"], "held back: pulsar-client would not return it"
        broker.up = True
        await advance(SEEN_S)
        assert transport.connected
        assert broker.producer().payloads == [b"a1", b"a2", b"a3"]
        assert (len(broker.links), transport.reconnects, broker.handshakes) == (1, 0, 1)
        broker.producer().receipts()
    assert failures.told == []


async def test_an_outage_ends_with_new_producers_and_new_subscriptions(broker: FakeBroker) -> None:
    failures, got = Failures(), list[Any]()
    async with connected() as transport:
        publishers = [await transport.publisher(topic) for topic in (TOPIC, OTHER)]
        for topic in (TOPIC, KEPT):
            await listen(transport, texts(got), topic)
        old = broker.link
        broker.up = False
        await advance(10)
        assert (len(broker.links), transport.reconnects) == (1, 0), "the handshake is not answered"
        assert broker.handshakes > 10
        broker.restarts()
        broker.up = True
        await advance(SEEN_S)
        assert (len(broker.links), transport.reconnects, transport.connected) == (2, 1, True)
        assert old.closed
        assert sorted(raw.topic for raw in broker.link.producers) == sorted([TOPIC, OTHER])
        assert sorted(raw.topic for raw in broker.link.consumers) == sorted([TOPIC, KEPT])
        for publisher in publishers:
            send(publisher, failures, "a1")
            assert broker.producer(publisher.topic).payloads == [b"a1"]
            broker.producer(publisher.topic).receipts()
        broker.consumer(TOPIC).deliver("one")
        broker.consumer(KEPT).deliver(Kept("two"))
        await idle()
        assert got == ["one", "two"]
        assert broker.consumer(KEPT).acknowledged == ["two"]
    assert failures.told == []


async def test_what_was_under_way_fails_once_and_its_late_receipts_mean_nothing(broker: FakeBroker) -> None:
    failures = Failures()
    async with publishing(publish_window=4) as (transport, publisher):
        send(publisher, failures, "a1", "a2", "a3")
        old = broker.producer()
        await broker.replace()
        assert transport.reconnects == 1
        assert sorted(failures.types) == [(f"a{n}", "connection-lost", True) for n in (1, 2, 3)]
        send(publisher, failures, "b1", "b2", "b3", "b4", "b5")
        for sent in old.sent:
            sent.ok()
            sent.fails("Timeout")
        await idle()
        assert broker.producer().payloads == [b"b1", b"b2", b"b3", b"b4"], "the window counts the new ones only"
        assert len(failures.told) == 3
        broker.producer().receipts()
        await idle()
        broker.producer().receipts()


async def test_receipts_that_the_end_of_the_old_client_did_not_bring_are_not_waited_for(broker: FakeBroker) -> None:
    failures = Failures()
    async with publishing() as (transport, publisher):
        send(publisher, failures, "a1", "a2")
        broker.producer().settled = 2  # as if its callbacks had got lost with it
        await broker.replace()
        assert sorted(failures.types) == [("a1", "connection-lost", True), ("a2", "connection-lost", True)]
        await transport.flush()


async def test_while_it_is_away_messages_wait_within_bounds_and_can_be_withdrawn(broker: FakeBroker) -> None:
    failures = Failures()
    async with publishing(max_queued=3) as (transport, publisher):
        broker.restarts()
        await broker.lose()
        tickets = send(publisher, failures, "a1", "a2", "a3")
        with pytest.raises(TransportError) as caught:
            send(publisher, failures, "a4")
        assert (caught.value.type, caught.value.may_have_run) == ("publish-queue-full", False)
        writable = asyncio.create_task(publisher.writable("a"))
        flush = await start_task(transport.flush(), 1)
        assert tickets[1].cancel() is True
        broker.up = True
        await advance(REPLACED_S)
        assert writable.done()
        assert broker.producer().payloads == [b"a1", b"a3"]
        broker.producer().receipts()
        await flush
    assert failures.told == []


async def test_withdrawing_the_last_one_ends_the_waiting_for_it(broker: FakeBroker) -> None:
    async with publishing() as (transport, publisher):
        await broker.lose()
        (ticket,) = send(publisher, Failures(), "a1")
        waiting = [asyncio.create_task(publisher.writable("a")), asyncio.create_task(transport.flush())]
        await idle()
        assert ticket.cancel()
        await asyncio.gather(*waiting)


async def test_nothing_is_opened_while_it_is_away(broker: FakeBroker) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        await broker.lose()
        for opening in (transport.publisher(OTHER), listen(transport, list[Any]().append)):
            with pytest.raises(TransportError) as caught:
                await opening
            assert (caught.value.type, caught.value.may_have_run) == ("unreachable", False)
        assert (await transport.publisher(TOPIC)).topic == TOPIC, "what is open stays usable: messages wait"
        broker.up = True
        await advance(SEEN_S)
        await transport.publisher(OTHER)


@pytest.mark.parametrize(
    "problem", [unreachable(URL), RuntimeError("a token function of the user's"), ValueError("odd"), OSError("odd")]
)
async def test_the_supervisor_outlives_whatever_a_handshake_raises(broker: FakeBroker, problem: Exception) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        broker.restarts()
        broker.handshake = problem
        await advance(30)
        assert not transport.connected
        broker.handshake = None
        await advance(SEEN_S)
        assert transport.connected


async def test_a_topic_that_cannot_be_opened_again_is_tried_again_by_itself(broker: FakeBroker) -> None:
    failures, got = Failures(), list[Any]()
    async with publishing() as (transport, publisher):
        await listen(transport, got.append)
        await listen(transport, got.append, OTHER)
        broker.restarts()
        broker.refusals[TOPIC] = unreachable(URL)
        await advance(REPLACED_S)
        assert transport.connected, "the others are there"
        await advance(1)
        assert len(broker.links) == 2, "no new client for one topic"
        send(publisher, failures, "a1")
        assert broker.producer().payloads == [b"a1"]
        for topic in (TOPIC, OTHER):
            broker.consumer(topic).deliver(topic)
        await idle()
        assert got == [TOPIC, OTHER]
        broker.producer().receipts()


async def test_what_is_closed_while_the_client_is_replaced_stays_closed(broker: FakeBroker) -> None:
    """Otherwise a service that has gone would go on taking requests, without an answer."""
    got: list[Any] = []
    async with connected() as transport:
        publisher = await transport.publisher(OTHER)
        subscription = await listen(transport, got.append)
        broker.restarts()
        broker.gate.clear()
        await advance(REPLACED_S)
        assert len(broker.links) == 2
        await subscription.close()
        await publisher.close()
        broker.gate.set()
        await advance(SEEN_S)
        assert [raw.topic for raw in [*broker.link.consumers, *broker.link.producers] if raw.is_connected()] == []
        assert transport.connected


async def test_a_publisher_that_is_closed_while_its_own_successor_is_made_leaves_none(broker: FakeBroker) -> None:
    async with publishing() as (_, publisher):
        broker.restarts()
        broker.gate.clear()
        await advance(REPLACED_S)
        assert broker.openings == [TOPIC, TOPIC]
        await publisher.close()
        broker.gate.set()
        await advance(SEEN_S)
        assert broker.producer().closed


async def test_a_subscription_while_the_client_is_replaced_uses_the_new_one(broker: FakeBroker) -> None:
    got: list[Any] = []
    async with connected() as transport:
        await transport.publisher(TOPIC)
        broker.gate.clear()
        waiting = asyncio.create_task(listen(transport, got.append, OTHER))
        also = await start_task(listen(transport, texts(got), KEPT))
        await broker.replace()
        assert len(broker.links) == 2, "one slow topic delays no other"
        broker.gate.set()
        await also
        await waiting
        await advance(REPLACED_S)
        assert transport.connected
        for topic in (OTHER, KEPT):
            broker.consumer(topic).deliver(Kept(topic))
        await idle()
        assert sorted(got) == sorted([OTHER, KEPT])
        assert all(raw.link is broker.link for raw in (broker.consumer(OTHER), broker.consumer(KEPT)))


async def test_one_lost_topic_leaves_the_rest_alone_and_comes_back_by_itself(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its namespace was deleted, or its rights withdrawn."""
    failures, got = Failures(), list[Any]()
    async with connected() as transport:
        lost = await transport.publisher(TOPIC)
        fine = await transport.publisher(OTHER)
        await listen(transport, texts(got), KEPT)
        broker.always_refused[TOPIC] = GONE
        broker.producer(TOPIC).close()
        await advance(REPLACED_S)
        for _ in range(60):
            assert transport.connected
            with pytest.raises(TransportError) as caught:
                send(lost, failures, "a1")
            assert (caught.value.type, caught.value.may_have_run) == ("no-such-namespace", False)
            send(fine, failures, "b1")
            broker.producer(OTHER).receipts()
            broker.consumer(KEPT).deliver(Kept("one"))
            await advance(1)
        assert got == ["one"] * 60
        assert len(broker.links) == 1, "the rest does not notice"
        assert 5 < broker.openings.count(TOPIC) < 12, "ever less often"
        assert caplog.text.count("retrying in the background") == 1
        del broker.always_refused[TOPIC]
        await advance(31)
        send(lost, failures, "a2")
        assert broker.producer(TOPIC).payloads == [b"a2"]
        broker.producer(TOPIC).receipts()
    assert failures.told == []


async def test_what_is_closed_while_it_is_set_aside_is_not_tried_again(broker: FakeBroker) -> None:
    async with connected() as transport:
        lost, _ = await transport.publisher(TOPIC), await transport.publisher(OTHER)
        broker.always_refused[TOPIC] = GONE
        broker.producer(TOPIC).close()
        await advance(REPLACED_S)
        await lost.close()
        tried = broker.openings.count(TOPIC)
        await advance(60)
        assert broker.openings.count(TOPIC) == tried


async def test_a_slow_opening_holds_no_other_one_up(broker: FakeBroker) -> None:
    async with connected() as transport:
        broker.gate.clear()
        slow = await start_task(transport.publisher(TOPIC))
        broker.gate.set()
        other = await transport.publisher(OTHER)
        assert other.topic == OTHER
        await slow


async def test_when_nothing_can_be_opened_the_connection_is_down(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected() as transport:
        await transport.publisher(TOPIC)
        await listen(transport, lambda _: None, OTHER)
        for topic in (TOPIC, OTHER):
            broker.always_refused[topic] = unreachable(URL)
        broker.restarts()
        await advance(REPLACED_S + 5)
        assert not transport.connected
        # A new one each half second.
        assert len(broker.links) <= 2 + 5 / (supervisor.RELINK_PAUSE_S + supervisor.POLL_S)
        assert "retrying in the background" not in caplog.text
        broker.always_refused.clear()
        await advance(supervisor.RELINK_PAUSE_S + SEEN_S)
        assert transport.connected
        assert all(raw.is_connected() for raw in (broker.producer(TOPIC), broker.consumer(OTHER)))
