"""The pair of clients: what they are asked for, and that nothing they make is ever left without an owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from dispatch.errors import TransportError
from dispatch.transports import Mode
from dispatch.transports.base import Security
from dispatch.transports.pulsar import client as link_module
from dispatch.transports.pulsar.client import (
    CLOSED_HANDLE,
    OPERATION_TIMEOUT_S,
    RECEIVER_QUEUE,
    PulsarClient,
    close_opened,
    pause,
    send_message,
)
from tests.helpers.clock import advance, cancel_task, idle, start_task, virtual_loop

URL = "pulsar://broker.example:6650"
TOPIC = "non-persistent://tg/request/work"
KEPT = "persistent://tg/response/work"


def ignore(_consumer: Any, _message: Any) -> None:
    """A listener."""


class Opened:
    def __init__(self, kind: str, topic: str, options: dict[str, Any]) -> None:
        self.kind = kind
        self.topic = topic
        self.options = options
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()

    def is_connected(self) -> bool:
        return not self.closed.is_set()

    def read_next(self, timeout_millis: int) -> Any:
        """Of a reader on which nothing arrives."""
        self.closed.wait(timeout_millis / 1000)
        raise pulsar.AlreadyClosed if self.closed.is_set() else pulsar.Timeout


class FakeClient:
    """``pulsar.Client`` as far as a link uses it. ``hold`` keeps its calls waiting; ``refusal`` is raised by them."""

    made: list[FakeClient]
    hold: threading.Event
    refusal: dict[str, Exception]
    close_error: Exception | None

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.options = options
        self.opened: list[Opened] = []
        self.threads: set[int] = set()
        self.closed = False
        self.shut_down = False
        FakeClient.made.append(self)

    def _call(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        assert FakeClient.hold.wait(30)
        if what in FakeClient.refusal:
            raise FakeClient.refusal[what]

    def _open(self, kind: str, topic: str, options: dict[str, Any]) -> Opened:
        self._call(kind)
        self.opened.append(Opened(kind, topic, options))
        return self.opened[-1]

    def create_producer(self, topic: str, **options: Any) -> Opened:
        return self._open("producer", topic, options)

    def subscribe(self, topic: str, name: str, **options: Any) -> Opened:
        return self._open("consumer", topic, {"name": name, **options})

    def create_reader(self, topic: str, start: Any, **options: Any) -> Opened:
        return self._open("reader", topic, {"start": start, **options})

    def get_topic_partitions(self, topic: str) -> list[str]:
        self._call("round trip")
        return [topic]

    def close(self) -> None:
        self._call("close")
        self.closed = True
        for opened in self.opened:
            if opened.kind == "reader":
                opened.closed.set()

    def shutdown(self) -> None:
        self.shut_down = True
        FakeClient.hold.set()


@pytest.fixture(autouse=True)
def clients(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    FakeClient.made = []
    FakeClient.hold = threading.Event()
    FakeClient.hold.set()
    FakeClient.refusal = {}
    monkeypatch.setattr(pulsar, "Client", FakeClient)
    monkeypatch.setattr(link_module, "client_logger", lambda: "the logger")
    return FakeClient.made


def all_opened(clients: list[FakeClient]) -> list[Opened]:
    return [opened for client in clients for opened in client.opened]


async def test_producers_are_unbatched_and_never_block(clients: list[FakeClient]) -> None:
    link = PulsarClient(URL, Security())
    opened = await link.producer(TOPIC)
    assert (opened.kind, opened.topic) == ("producer", TOPIC)
    assert opened.options["batching_enabled"] is False
    assert opened.options["block_if_queue_full"] is False
    assert opened.options["send_timeout_millis"] >= 1_000
    await link.close()


async def test_services_share_a_subscription_and_each_dispatcher_has_its_own() -> None:
    link = PulsarClient(URL, Security())
    shared = await link.consumer(TOPIC, Mode.SHARED, "work-request", ignore)
    one = await link.consumer(TOPIC, Mode.FANOUT, "dispatch-me", ignore)
    other = await link.consumer(TOPIC, Mode.FANOUT, "dispatch-me", ignore)
    assert {each.kind for each in (shared, one, other)} == {"consumer"}
    assert shared.options["name"] == "work-request"
    assert shared.options["consumer_type"] == pulsar.ConsumerType.Shared
    for each in (one, other):
        assert each.options["name"].startswith("dispatch-me-"), "how an operator sees it"
        assert each.options["consumer_type"] == pulsar.ConsumerType.Exclusive
    assert one.options["name"] != other.options["name"], "or the second would be refused"
    for each in (shared, one, other):
        assert each.options["message_listener"] is ignore
        assert each.options["receiver_queue_size"] == RECEIVER_QUEUE
    await link.close()


async def test_a_fanout_consumer_of_a_persistent_topic_has_no_durable_subscription(clients: list[FakeClient]) -> None:
    link = PulsarClient(URL, Security())
    listened = await link.consumer(KEPT, Mode.FANOUT, "dispatch-me", ignore)
    (opened,) = all_opened(clients)
    assert (opened.kind, opened.options["start"]) == ("reader", pulsar.MessageId.latest)
    assert opened.options["subscription_role_prefix"].startswith("dispatch-me-")
    assert opened.options["receiver_queue_size"] == RECEIVER_QUEUE
    assert "reader_listener" not in opened.options, "pulsar-client never frees a reader with one"
    assert listened.is_connected()
    await link.close()
    assert not listened.is_connected()


async def test_both_directions_share_one_client(clients: list[FakeClient]) -> None:
    link = PulsarClient(URL, Security())
    await link.producer(TOPIC)
    await link.consumer(TOPIC, Mode.SHARED, "name", ignore)
    (client,) = clients
    assert [opened.kind for opened in client.opened] == ["producer", "consumer"]
    await link.close()
    assert client.closed


async def test_nothing_of_it_runs_on_the_loops_thread(clients: list[FakeClient]) -> None:
    link = PulsarClient(URL, Security())
    opened = await link.producer(TOPIC)
    await link.consumer(TOPIC, Mode.FANOUT, "name", ignore)
    await close_opened(opened)
    await close_opened(None)
    await link.close()
    assert opened.closed.is_set()
    assert threading.get_ident() not in {thread for client in clients for thread in client.threads}


def test_security_reaches_the_client(clients: list[FakeClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulsar, "AuthenticationToken", lambda token: ("token", token))
    monkeypatch.setattr(pulsar, "AuthenticationTLS", lambda certificate, key: ("tls", certificate, key))
    PulsarClient(URL, Security())
    PulsarClient(URL, Security(token="abc", trust_certs="ca.pem", validate_hostname=False))
    PulsarClient(URL, Security(certificate="agent.pem", key="agent-key.pem"))
    given = [client.options["authentication"] for client in clients]
    assert given == [None, ("token", "abc"), ("tls", "agent.pem", "agent-key.pem")]
    assert [client.options["tls_trust_certs_file_path"] for client in clients] == [None, "ca.pem", None]
    assert [client.options["tls_validate_hostname"] for client in clients] == [True, False, True]
    for option, file in (("tls_certificate_file_path", "agent.pem"), ("tls_private_key_file_path", "agent-key.pem")):
        assert [client.options[option] for client in clients] == [None, None, file]
    assert {client.options["logger"] for client in clients} == {"the logger"}


@pytest.mark.parametrize("error", [ValueError("scheme"), RuntimeError("odd"), pulsar.InvalidUrl("bad")])
def test_an_address_that_the_client_does_not_take_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_args: Any, **_options: Any) -> None:
        raise error

    monkeypatch.setattr(pulsar, "Client", refuse)
    with pytest.raises(TransportError, match="is not a broker address") as caught:
        PulsarClient(URL, Security())
    assert (caught.value.type, caught.value.may_have_run) == ("bad-address", False)


def opening(kind: str) -> Callable[[PulsarClient], Any]:
    def make(link: PulsarClient) -> Any:
        if kind == "producer":
            return link.producer(TOPIC)
        if kind == "consumer":
            return link.consumer(TOPIC, Mode.SHARED, "name", ignore)
        return link.consumer(KEPT, Mode.FANOUT, "name", ignore)

    return make


KINDS = pytest.mark.parametrize("kind", ["producer", "consumer", "reader"])


@KINDS
@pytest.mark.parametrize(
    ("error", "type"),
    [
        (pulsar.TopicNotFound, "no-such-namespace"),
        (pulsar.AuthorizationError, "unauthorized"),
        (pulsar.AuthenticationError, "unauthorized"),
        (pulsar.Timeout, "unreachable"),
        (pulsar.ConnectError, "unreachable"),
        (pulsar.ConsumerBusy, "topic-busy"),
        (pulsar.InvalidTopicName, "bad-topic"),
        (pulsar.UnknownError, "topic-refused"),
    ],
)
async def test_what_the_broker_refuses_is_a_typed_error(kind: str, error: type[Exception], type: str) -> None:
    FakeClient.refusal[kind] = error("said")
    link = PulsarClient(URL, Security())
    with pytest.raises(TransportError) as caught:
        await opening(kind)(link)
    assert (caught.value.type, caught.value.may_have_run) == (type, False)
    await link.close()


@pytest.mark.parametrize("kind", ["consumer", "reader"])
async def test_a_consumer_whose_round_trip_fails_takes_no_messages(clients: list[FakeClient], kind: str) -> None:
    FakeClient.refusal["round trip"] = pulsar.Timeout("said")
    link = PulsarClient(URL, Security())
    with pytest.raises(TransportError) as caught:
        await opening(kind)(link)
    assert caught.value.type == "unreachable"
    assert [opened.closed.is_set() for opened in all_opened(clients)] == [True], "nobody else could close it"
    await link.close()


@KINDS
async def test_whoever_gives_up_leaves_no_orphan(clients: list[FakeClient], kind: str) -> None:
    FakeClient.hold.clear()
    link = PulsarClient(URL, Security())
    task = await start_task(opening(kind)(link))
    await cancel_task(task)
    FakeClient.hold.set()
    await advance(0.001)  # no time passes while a thread is at work
    assert [orphan.closed.is_set() for orphan in all_opened(clients)] == [True], "it was made all the same, and closed"
    await link.close()


@KINDS
async def test_whoever_gives_up_does_not_hear_of_the_refusal(clients: list[FakeClient], kind: str) -> None:
    FakeClient.hold.clear()
    FakeClient.refusal[kind] = pulsar.Timeout("said")
    link = PulsarClient(URL, Security())
    task = await start_task(opening(kind)(link))
    await cancel_task(task)
    FakeClient.hold.set()
    await advance(0.001)
    assert all_opened(clients) == []
    await link.close()


async def test_closing_a_client_that_hangs_ends_with_its_shutdown(clients: list[FakeClient]) -> None:
    loop = virtual_loop()
    link = PulsarClient(URL, Security())
    FakeClient.hold.clear()
    loop.threads_may_hang = True
    started = loop.time()
    await link.close()
    assert loop.time() - started == pytest.approx(OPERATION_TIMEOUT_S + 1)
    assert all(client.shut_down for client in clients)
    loop.threads_may_hang = False


async def test_a_client_that_will_not_close_is_nobodys_trouble(clients: list[FakeClient]) -> None:
    FakeClient.refusal["close"] = pulsar.AlreadyClosed("said")
    link = PulsarClient(URL, Security())
    await link.close()
    link.close_now()
    assert not any(client.closed for client in clients)


def test_the_last_resort_needs_no_loop(clients: list[FakeClient]) -> None:
    link = PulsarClient(URL, Security())
    link.close_now()
    assert [client.closed for client in clients] == [True]


@KINDS
async def test_a_client_is_closed_behind_what_it_opens(clients: list[FakeClient], kind: str) -> None:
    """Closed before, it may leave the opening without an answer for ever."""
    FakeClient.hold.clear()
    link = PulsarClient(URL, Security())
    task = await start_task(opening(kind)(link))
    closing = await start_task(link.close())
    FakeClient.hold.set()
    await closing
    assert [client.closed for client in clients] == [True]
    await task
    assert [opened.kind for opened in all_opened(clients)] == [kind]


async def test_an_opening_that_is_never_answered_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = virtual_loop()
    FakeClient.hold.clear()
    loop.threads_may_hang = True
    link = PulsarClient(URL, Security())
    tasks = [asyncio.create_task(link.producer(f"{TOPIC}-{number}")) for number in range(3 * link_module.OPENINGS)]
    await idle()
    monkeypatch.setattr(FakeClient, "shutdown", lambda client: None)  # it does not end them either
    await link.close()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(ended, TransportError)
        assert (ended.type, ended.may_have_run) == ("closed", False)
    FakeClient.hold.set()
    loop.threads_may_hang = False


class Consumer:
    """As far as a durable subscription asks it."""

    def __init__(self, *answers: object, connected: bool = True) -> None:
        self._answers = list(answers)
        self._connected = connected
        self._consumer = self
        self.asked = 0
        self.threads: set[int] = set()

    def get_last_message_id_async(self, on_reply: Callable[[object, object], None]) -> None:
        """Reply on another thread, as pulsar-client does; never for ``None``."""
        self.asked += 1
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            reply = (answer, None) if isinstance(answer, pulsar.Result) else (pulsar.Result.Ok, answer)
            threading.Thread(target=on_reply, args=reply).start()

    def is_connected(self) -> bool:
        return self._connected

    def pause_message_listener(self) -> None:
        self.asked += 1
        self.threads.add(threading.get_ident())
        raise pulsar.AlreadyClosed


async def test_a_reader_begins_after_the_message_that_it_is_given(clients: list[FakeClient]) -> None:
    link = PulsarClient(URL, Security())
    await link.consumer(KEPT, Mode.FANOUT, "x", ignore)
    await link.consumer(KEPT, Mode.FANOUT, "x", ignore, after="seven")
    assert [opened.options["start"] for opened in all_opened(clients)] == [pulsar.MessageId.latest, "seven"]
    await link.close()


async def test_the_last_message_need_not_be_known() -> None:
    link, consumer = PulsarClient(URL, Security()), Consumer("seven", pulsar.Result.OperationNotSupported, None)
    assert [await link.last_message(consumer) for _ in range(3)] == ["seven", None, None]


@pytest.mark.parametrize(
    ("consumer", "answers", "asked"),
    [
        (Consumer("seven", "seven"), True, 2),
        (Consumer("seven", pulsar.Result.Timeout), False, 2),
        (Consumer(pulsar.Result.NotConnected), False, 1),
        (Consumer(RuntimeError("odd")), False, 1),
        (Consumer(pulsar.Result.OperationNotSupported), True, 1),
        (Consumer(pulsar.Result.OperationNotSupported, connected=False), False, 1),
        (Consumer("seven", None), None, 2),
        (Consumer(None, connected=False), False, 1),
    ],
)
async def test_a_broker_answers_twice_or_it_is_not_sure(consumer: Consumer, answers: bool | None, asked: int) -> None:
    assert await PulsarClient(URL, Security()).answers(consumer) is answers
    assert consumer.asked == asked


async def test_a_consumer_that_cannot_be_paused_brings_nothing_anyway() -> None:
    consumer = Consumer()
    await pause(consumer)
    assert consumer.asked == 1


async def test_nothing_is_opened_on_a_client_that_was_closed() -> None:
    link = PulsarClient(URL, Security())
    await link.close()
    await link.close()
    with pytest.raises(TransportError) as caught:
        await link.producer(TOPIC)
    assert (caught.value.type, caught.value.may_have_run) == ("closed", False)


async def test_a_closed_producer_takes_nothing_and_closes_again() -> None:
    with pytest.raises(pulsar.AlreadyClosed):
        send_message(CLOSED_HANDLE, b"", lambda *_: None)
    assert not CLOSED_HANDLE.is_connected()
    await close_opened(CLOSED_HANDLE)
