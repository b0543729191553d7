"""The embedded broker: as lossy as the real one where that is, and no more. What both have in common is in
test_conformance.py."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.transports import DurableMessage, Message, Mode
from dispatch.transports.memory import DRAIN_BATCH, RECEIVER_QUEUE, MemoryTransport
from tests.helpers.clock import idle, run

TOPIC = "non-persistent://tg/request/lab"


def no_failure(error: TransportError) -> None:
    raise AssertionError("nothing should fail") from error


async def opened(url: str = "memory://") -> MemoryTransport:
    transport = MemoryTransport(url)
    await transport.start()
    return transport


async def publish(transport: MemoryTransport, *payloads: bytes, topic: str = TOPIC) -> None:
    publisher = await transport.publisher(topic)
    for payload in payloads:
        publisher.publish(payload, {}, flow="test", on_failure=no_failure)


class Inbox:
    def __init__(self) -> None:
        self.messages: list[Message] = []

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def payloads(self) -> list[bytes]:
        return [message.data() for message in self.messages]


async def test_brokers_of_different_names_are_different_and_of_one_name_the_same() -> None:
    one, same, other = await opened("memory://one"), await opened("memory://one"), await opened("memory://two")
    inbox = Inbox()
    await same.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(one, b"hello")
    await publish(other, b"not for you")
    await idle()
    assert inbox.payloads == [b"hello"]
    assert (one.broker().dropped, other.broker().dropped) == (0, 1)


async def test_a_broker_is_gone_with_its_last_connection() -> None:
    one, two = await opened(), await opened()
    broker = weakref.ref(one.broker())
    assert two.broker() is broker()
    await one.close()
    assert broker() is not None
    await two.close()
    gc.collect()
    assert broker() is None


def test_a_broker_of_one_loop_is_not_that_of_another() -> None:
    async def scene() -> Any:
        return (await opened()).broker()

    assert run(scene) is not run(scene)


async def test_without_a_subscriber_nothing_is_kept() -> None:
    transport = await opened()
    await publish(transport, b"lost")
    assert transport.broker().dropped == 1
    inbox = Inbox()
    await transport.subscribe(TOPIC, inbox, mode=Mode.SHARED, name="x")
    await publish(transport, b"kept")
    await idle()
    assert inbox.payloads == [b"kept"]


async def test_handlers_run_later_and_never_inside_publish() -> None:
    transport = await opened()
    inbox = Inbox()
    await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(transport, b"1", b"2")
    assert inbox.messages == []
    await asyncio.sleep(0)
    assert inbox.payloads == [b"1", b"2"]


async def test_what_a_subscribers_queue_cannot_take_is_dropped_and_counted() -> None:
    transport = await opened()
    inbox = Inbox()
    await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(transport, *[b"x"] * (RECEIVER_QUEUE + 5))
    assert transport.broker().dropped == 5
    await idle()
    assert len(inbox.messages) == RECEIVER_QUEUE
    await publish(transport, b"there is room again")
    await idle()
    assert inbox.payloads[-1] == b"there is room again"


async def test_a_full_subscriber_is_passed_over_for_another_that_shares_its_name() -> None:
    transport = await opened()
    one, two = Inbox(), Inbox()
    await transport.subscribe(TOPIC, one, mode=Mode.SHARED, name="x")
    await publish(transport, *[b"1"] * RECEIVER_QUEUE)
    await transport.subscribe(TOPIC, two, mode=Mode.SHARED, name="x")
    await publish(transport, b"2", b"3")
    await idle()
    assert two.payloads == [b"2", b"3"]
    assert transport.broker().dropped == 0


async def test_a_long_queue_lets_other_tasks_have_their_turn() -> None:
    transport = await opened()
    inbox = Inbox()
    await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(transport, *[b"x"] * (3 * DRAIN_BATCH))
    for turn in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(inbox.messages) == turn * DRAIN_BATCH


async def test_a_handler_that_raises_costs_its_message_only() -> None:
    transport = await opened()
    got: list[bytes] = []

    def handler(message: Message) -> None:
        if message.data() == b"bad":
            raise ValueError("cannot be handled")
        got.append(message.data())

    await transport.subscribe(TOPIC, handler, mode=Mode.FANOUT, name="x")
    await publish(transport, b"1", b"bad", b"2")
    await idle()
    assert got == [b"1", b"2"]
    assert transport.handler_errors == 1


async def test_a_handler_may_publish_and_may_close_its_own_subscription() -> None:
    transport = await opened()
    publisher = await transport.publisher(TOPIC)
    got: list[bytes] = []
    closing: list[asyncio.Task[None]] = []

    def handler(message: Message) -> None:
        got.append(message.data())
        if len(got) < 3:
            publisher.publish(b"%d" % len(got), {}, flow="test", on_failure=no_failure)
        else:
            closing.append(asyncio.create_task(subscription.close()))

    subscription = await transport.subscribe(TOPIC, handler, mode=Mode.FANOUT, name="x")
    await publish(transport, b"0")
    await idle()
    await closing[0]
    assert got == [b"0", b"1", b"2"]


async def test_a_message_cannot_be_changed_by_whoever_sent_or_received_it() -> None:
    transport = await opened()
    one, two = Inbox(), Inbox()
    for inbox in (one, two):
        await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    properties = {"id": "1"}
    publisher = await transport.publisher(TOPIC)
    publisher.publish(b"x", properties, flow="test", on_failure=no_failure)
    properties["id"] = "changed"
    await idle()
    one.messages[0].properties()["id"] = "changed too"
    assert [inbox.messages[0].properties() for inbox in (one, two)] == [{"id": "1"}] * 2


async def test_a_message_too_large_fails_later_and_is_not_delivered() -> None:
    transport = await opened()
    inbox = Inbox()
    failures: list[TransportError] = []
    await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    publisher = await transport.publisher(TOPIC)
    publisher.publish(b"x" * (MAX_MESSAGE_BYTES + 1), {}, flow="test", on_failure=failures.append)
    assert failures == [], "never from inside the call"
    ticket = publisher.publish(b"x" * (MAX_MESSAGE_BYTES + 1), {}, flow="test", on_failure=no_failure)
    assert ticket.cancel() is False
    publisher.publish(b"x" * MAX_MESSAGE_BYTES, {}, flow="test", on_failure=no_failure)
    await idle()
    assert [(error.type, error.may_have_run) for error in failures] == [("request-too-large", False)]
    assert len(inbox.messages) == 1


async def test_a_closed_subscription_takes_nothing_new() -> None:
    transport = await opened()
    inbox = Inbox()
    subscription = await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(transport, b"before")
    await subscription.close()
    assert inbox.payloads == [b"before"], "what had arrived is still handled"
    await publish(transport, b"after")
    await subscription.close()
    await idle()
    assert inbox.payloads == [b"before"]
    assert transport.broker().dropped == 1


async def test_nothing_is_kept_of_a_subscription_that_is_closed() -> None:
    transport = await opened()
    for mode in (Mode.FANOUT, Mode.SHARED):
        closed = await transport.subscribe(TOPIC, Inbox(), mode=mode, name="x")
        stays = await transport.subscribe(TOPIC, Inbox(), mode=mode, name="x")
        gone = weakref.ref(closed)
        await closed.close()
        del closed
        gc.collect()
        assert gone() is None
        await stays.close()
    assert not transport.broker()._topics, "every dispatcher has topics of its own: they would add up"
    await publish(transport, b"x")
    assert transport.broker().dropped == 1


async def test_closing_a_connection_closes_its_subscriptions_and_not_others() -> None:
    one, two = await opened(), await opened()
    mine, theirs = Inbox(), Inbox()
    await one.subscribe(TOPIC, mine, mode=Mode.FANOUT, name="x")
    await two.subscribe(TOPIC, theirs, mode=Mode.FANOUT, name="x")
    publisher = await one.publisher(TOPIC)
    assert one.connected
    await one.close()
    await one.close()
    assert not one.connected
    await publish(two, b"hello")
    await idle()
    assert (mine.payloads, theirs.payloads) == ([], [b"hello"])
    for call in (
        lambda: publisher.publish(b"", {}, flow="test", on_failure=no_failure),
        lambda: one.broker(),
    ):
        with pytest.raises(TransportError) as caught:
            call()
        assert (caught.value.type, caught.value.may_have_run) == ("closed", False)
    with pytest.raises(TransportError):
        await one.subscribe(TOPIC, mine, mode=Mode.FANOUT, name="x")
    with pytest.raises(TransportError):
        await one.publisher(TOPIC)


async def test_a_publisher_is_writable_but_gives_others_a_turn() -> None:
    transport = await opened()
    publisher = await transport.publisher(TOPIC)
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "another")
    await publisher.writable("test")
    assert turns == ["another"]


KEPT = "persistent://tg/request/lab"


class Keeper(Inbox):
    """Acknowledges nothing by itself."""

    def __call__(self, message: Message) -> None:
        assert isinstance(message, DurableMessage)
        message.keep()
        super().__call__(message)


async def test_a_cut_connection_handles_nothing_more_and_leaves_what_it_had_to_others() -> None:
    one, two = await opened(), await opened()
    first, second = Keeper(), Inbox()
    await one.subscribe(KEPT, first, mode=Mode.SHARED, name="x")
    await publish(two, b"1", b"2", topic=KEPT)
    await idle()
    first.messages[0].acknowledge()  # type: ignore[attr-defined]
    await publish(two, b"3", topic=KEPT)  # it is in the queue of the first one
    one.cut()
    assert not one.connected
    first.messages[1].acknowledge()  # type: ignore[attr-defined] # too late
    await two.subscribe(KEPT, second, mode=Mode.SHARED, name="x")
    await idle()
    assert (first.payloads, second.payloads) == ([b"1", b"2"], [b"2", b"3"])
    with pytest.raises(TransportError, match="closed"):
        await publish(one, b"x", topic=KEPT)
    await one.close()


async def test_what_is_given_again_comes_before_what_waited() -> None:
    transport = await opened()
    first, second = Keeper(), Inbox()
    subscription = await transport.subscribe(KEPT, first, mode=Mode.SHARED, name="x")
    await publish(transport, *(b"%d" % number for number in range(3)), topic=KEPT)
    await idle()
    await subscription.close()
    await publish(transport, b"3", topic=KEPT)
    await transport.subscribe(KEPT, second, mode=Mode.SHARED, name="x")
    await publish(transport, b"4", topic=KEPT)
    await idle()
    assert second.payloads == [b"0", b"1", b"2", b"3", b"4"]
    assert transport.broker().dropped == 0


async def test_a_persistent_topic_drops_nothing_that_a_subscriber_cannot_take_yet() -> None:
    transport = await opened()
    for mode in (Mode.FANOUT, Mode.SHARED):
        inbox = Inbox()
        subscription = await transport.subscribe(KEPT, inbox, mode=mode, name="x")
        await publish(transport, *[b"x"] * (RECEIVER_QUEUE + 5), topic=KEPT)
        await idle()
        assert len(inbox.messages) == RECEIVER_QUEUE + 5
        await subscription.close()
    assert transport.broker().dropped == 0


async def test_a_topic_keeps_so_much_and_says_no_to_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.transports.memory.MAX_KEPT", 3)
    transport = await opened()
    await (await transport.subscribe(KEPT, Inbox(), mode=Mode.SHARED, name="x")).close()
    await publish(transport, b"1", b"2", b"3", topic=KEPT)
    failures: list[TransportError] = []
    publisher = await transport.publisher(KEPT)
    publisher.publish(b"4", {}, flow="test", on_failure=failures.append)
    assert failures == [], "never from inside the call"
    await idle()
    assert [(error.type, error.may_have_run) for error in failures] == [("send-failed", False)]
    inbox = Inbox()
    await transport.subscribe(KEPT, inbox, mode=Mode.SHARED, name="x")
    await idle()
    assert inbox.payloads == [b"1", b"2", b"3"]


async def test_a_message_that_makes_its_handler_raise_does_not_come_again() -> None:
    transport = await opened()
    inbox = Inbox()

    def handler(message: Message) -> None:
        raise ValueError("cannot be handled")

    subscription = await transport.subscribe(KEPT, handler, mode=Mode.SHARED, name="x")
    await publish(transport, b"bad", topic=KEPT)
    await idle()
    await subscription.close()
    await transport.subscribe(KEPT, inbox, mode=Mode.SHARED, name="x")
    await idle()
    assert (inbox.payloads, transport.handler_errors) == ([], 1)
