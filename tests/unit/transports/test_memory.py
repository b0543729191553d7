"""The embedded broker: as lossy as the real one where that is, and no more. What both have in common is in
test_conformance.py.
The fair queue is compared with a model in model/test_queues.py.
The publish window: never more outstanding than allowed, fair between flows, bounded, and exact in its books.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch.errors import TransportError
from dispatch.messaging.wire import MAX_MESSAGE_BYTES
from dispatch.transports import Message, Mode
from dispatch.transports.base import PublishWindow, QueueFullError
from dispatch.transports.memory import DRAIN_BATCH, RECEIVER_QUEUE, MemoryTransport
from tests.helpers.clock import idle, run
from tests.helpers.state_machine_settings import machine

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


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


async def test_brokers_of_different_names_are_different_and_of_one_name_the_same(inbox: Inbox) -> None:
    one, same, other = await opened("memory://one"), await opened("memory://one"), await opened("memory://two")
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


async def test_handlers_run_later_and_never_inside_publish(inbox: Inbox) -> None:
    transport = await opened()
    await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(transport, b"1", b"2")
    assert inbox.messages == []
    await asyncio.sleep(0)
    assert inbox.payloads == [b"1", b"2"]


async def test_what_a_subscribers_queue_cannot_take_is_dropped_and_counted(inbox: Inbox) -> None:
    transport = await opened()
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


async def test_a_long_queue_lets_other_tasks_have_their_turn(inbox: Inbox) -> None:
    transport = await opened()
    await transport.subscribe(TOPIC, inbox, mode=Mode.FANOUT, name="x")
    await publish(transport, *[b"x"] * (3 * DRAIN_BATCH))
    for turn in (1, 2, 3):
        await asyncio.sleep(0)
        assert len(inbox.messages) == turn * DRAIN_BATCH


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


async def test_a_message_too_large_fails_later_and_is_not_delivered(inbox: Inbox) -> None:
    transport = await opened()
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


async def test_a_closed_subscription_takes_nothing_new(inbox: Inbox) -> None:
    transport = await opened()
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
    for call in (lambda: publisher.publish(b"", {}, flow="test", on_failure=no_failure), lambda: one.broker()):
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


async def test_a_message_that_makes_its_handler_raise_does_not_come_again(inbox: Inbox) -> None:
    transport = await opened()

    def handler(message: Message) -> None:
        raise ValueError("cannot be handled")

    subscription = await transport.subscribe(KEPT, handler, mode=Mode.SHARED, name="x")
    await publish(transport, b"bad", topic=KEPT)
    await idle()
    await subscription.close()
    await transport.subscribe(KEPT, inbox, mode=Mode.SHARED, name="x")
    await idle()
    assert (inbox.payloads, transport.handler_errors) == ([], 1)


def window(size: int) -> PublishWindow[str]:
    return PublishWindow(size, 10, 100)


def test_what_waits_can_be_withdrawn_and_what_is_out_cannot() -> None:
    w = window(size=1)
    for item in "abcd":
        w.offer("tool", item, 2)
    assert not w.remove("tool", "a"), "it is out"
    assert not w.remove("other", "b")
    assert w.remove("tool", "c")
    assert not w.remove("tool", "c")
    assert (w.outstanding, len(w), w.bytes) == (1, 2, 4)
    w.settle()
    assert w.pop_queued() == "b"
    assert w.remove("tool", "d")
    assert not w.has_flow("tool")
    assert (len(w), w.bytes) == (0, 0)


@pytest.mark.parametrize("size", [0, -1])
def test_a_window_needs_at_least_one_message(size: int) -> None:
    with pytest.raises(ValueError, match="at least one message"):
        window(size=size)


class WindowMachine(RuleBasedStateMachine):
    """The window against the plainest model of itself: a list of queues."""

    SIZE, QUEUED, BYTES = 3, 6, 20

    def __init__(self) -> None:
        super().__init__()
        self.window: PublishWindow[int] = PublishWindow(self.SIZE, self.QUEUED, self.BYTES)
        self.flows: list[tuple[str, deque[tuple[int, int]]]] = []
        self.out: set[int] = set()
        self.count = 0

    def _queued(self) -> list[tuple[int, int]]:
        return [item for _, waiting in self.flows for item in waiting]

    @rule(flow=st.sampled_from("abc"), size=st.integers(1, 8), hold=st.booleans())
    def offer(self, flow: str, size: int, hold: bool) -> None:
        self.count += 1
        item = self.count
        queued = self._queued()
        goes = not hold and not queued and len(self.out) < self.SIZE
        full = len(queued) >= self.QUEUED or sum(s for _, s in queued) + size > self.BYTES
        try:
            went: bool | None = self.window.put(flow, item, size) if hold else self.window.offer(flow, item, size)  # type: ignore[func-returns-value]
        except QueueFullError:
            assert full
            assert not goes
            return
        assert bool(went) == goes
        if goes:
            self.out.add(item)
            return
        assert not full
        for name, waiting in self.flows:
            if name == flow:
                waiting.append((item, size))
                return
        self.flows.append((flow, deque([(item, size)])))

    @precondition(lambda self: self.out)
    @rule(data=st.data())
    def settle(self, data: Any) -> None:
        self.out.remove(data.draw(st.sampled_from(sorted(self.out))))
        self.window.settle()

    @rule()
    def take(self) -> None:
        taken = self.window.pop_queued()
        if not self.flows or len(self.out) >= self.SIZE:
            assert taken is None
            return
        flow, waiting = self.flows.pop(0)
        assert taken == waiting.popleft()[0]
        self.out.add(taken)
        if waiting:
            self.flows.append((flow, waiting))

    @rule(flow=st.sampled_from("abc"), back=st.integers(0, 8))
    def withdraw(self, flow: str, back: int) -> None:
        item = self.count - back
        for name, waiting in self.flows:
            if name == flow and (found := next((w for w in waiting if w[0] == item), None)) is not None:
                assert self.window.remove(flow, item)
                waiting.remove(found)
                self.flows = [(n, w) for n, w in self.flows if w]
                return
        assert not self.window.remove(flow, item)

    @rule()
    def drain(self) -> None:
        assert sorted(self.window.clear()) == sorted(item for item, _ in self._queued())
        self.flows = []

    @invariant()
    def the_books_are_right(self) -> None:
        queued = self._queued()
        assert self.window.outstanding == len(self.out) <= self.SIZE
        assert len(self.window) == len(queued) <= self.QUEUED
        assert self.window.bytes == sum(size for _, size in queued) <= self.BYTES
        for flow in "abc":
            assert self.window.has_flow(flow) == any(name == flow for name, _ in self.flows)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = machine(30, 40)
