"""The embedded broker: as lossy as the real one where that is, and no more. What both have in common is in
test_conformance.py.
The fair queue by itself; under a window: transports/test_publish_window.py; against a model: model/test_fair_queue.py.
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
from dispatch.transports import DurableMessage, Message, Mode
from dispatch.transports.base import FairQueue, PublishWindow, QueueFullError
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


def queue(*items: str, max_items: int = 10, max_bytes: int = 100) -> FairQueue[str]:
    """A queue of items like ``a1``: flow ``a``, one byte each."""
    made: FairQueue[str] = FairQueue(max_items, max_bytes)
    for item in items:
        made.put(item[0], item, 1)
    return made


def test_flows_take_turns_and_each_keeps_its_order() -> None:
    made = queue("a1", "a2", "a3", "b1", "c1", "b2")
    assert [made.pop() for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]
    assert (len(made), made.bytes) == (0, 0)


def test_a_flow_that_comes_back_goes_to_the_end() -> None:
    made = queue("a1", "b1")
    made.pop()
    made.put("a", "a2", 1)
    assert [made.pop(), made.pop()] == ["b1", "a2"]


def test_bounds_are_exact_in_items_and_in_bytes() -> None:
    made = queue("a1", "a2", max_items=2)
    with pytest.raises(QueueFullError):
        made.put("b", "b1", 1)
    made = queue("a1", max_bytes=3)
    with pytest.raises(QueueFullError):
        made.put("b", "b1", 3)
    made.put("b", "b1", 2)
    assert (len(made), made.bytes) == (2, 3)


def test_what_is_withdrawn_is_gone_and_leaves_no_empty_flow() -> None:
    made = queue("a1", "b1", "b2")
    assert made.remove("a", "a1")
    assert not made.remove("a", "a1")
    assert not made.remove("b", "a1")
    assert not made.has_flow("a")
    assert made.remove("b", "b1")
    assert made.has_flow("b")
    assert (len(made), made.bytes) == (1, 1)
    assert [made.pop(), made.pop()] == ["b2", None]


def test_clearing_gives_everything_back() -> None:
    made = queue("a1", "b1", "a2")
    assert sorted(made.clear()) == ["a1", "a2", "b1"]
    assert (len(made), made.bytes, made.pop(), made.has_flow("a")) == (0, 0, None, False)


def window(size: int = 2, max_queued: int = 10, max_queued_bytes: int = 100) -> PublishWindow[str]:
    return PublishWindow(size, max_queued, max_queued_bytes)


def test_what_fits_goes_at_once_and_the_rest_waits() -> None:
    w = window(size=2)
    assert [w.offer("tool", str(n), 1) for n in range(4)] == [True, True, False, False]
    assert (w.outstanding, w.queued, w.queued_bytes) == (2, 2, 2)
    assert w.pop_queued() is None, "the window is full"
    w.settle()
    assert w.pop_queued() == "2"
    assert (w.outstanding, w.queued) == (2, 1)


def test_nobody_overtakes_those_who_wait() -> None:
    w = window(size=1)
    w.offer("a", "1", 1)
    w.offer("a", "2", 1)
    w.settle()
    assert w.offer("b", "3", 1) is False, "the window has capacity, but other items are queued"
    assert [w.pop_queued(), w.pop_queued()] == ["2", None]


def test_a_busy_flow_does_not_keep_the_others_waiting() -> None:
    w = window(size=1, max_queued=100)
    w.offer("", "out", 1)
    for n in range(20):
        w.offer("busy", f"busy {n}", 1)
    for flow in ("b", "c"):
        for n in range(2):
            w.offer(flow, f"{flow} {n}", 1)
    taken = []
    for _ in range(8):
        w.settle()
        taken.append(w.pop_queued())
    assert taken == ["busy 0", "b 0", "c 0", "busy 1", "b 1", "c 1", "busy 2", "busy 3"]


def test_a_queue_full_of_messages_takes_no_more() -> None:
    w = window(size=1, max_queued=2)
    for n in range(3):
        w.offer("tool", str(n), 1)
    with pytest.raises(QueueFullError):
        w.offer("other", "x", 1)
    assert (w.queued, w.queued_bytes, w.waiting("other")) == (2, 2, False)
    w.settle()
    w.pop_queued()
    assert w.offer("other", "x", 1) is False


def test_a_queue_full_of_bytes_takes_no_more() -> None:
    w = window(size=1, max_queued_bytes=10)
    w.offer("tool", "out", 1_000)  # what goes at once is not in the queue
    w.offer("tool", "a", 6)
    with pytest.raises(QueueFullError):
        w.offer("tool", "b", 5)
    assert w.offer("tool", "c", 4) is False
    assert (w.queued, w.queued_bytes) == (2, 10)


def test_holding_queues_even_if_there_is_room() -> None:
    w = window(size=2)
    w.hold("tool", "a", 3)
    assert (w.outstanding, w.queued, w.queued_bytes) == (0, 1, 3)
    assert w.pop_queued() == "a"
    assert (w.outstanding, w.queued, w.queued_bytes) == (1, 0, 0)


def test_what_waits_can_be_withdrawn_and_what_is_out_cannot() -> None:
    w = window(size=1)
    for item in "abcd":
        w.offer("tool", item, 2)
    assert not w.withdraw("tool", "a"), "it is out"
    assert not w.withdraw("other", "b")
    assert w.withdraw("tool", "c")
    assert not w.withdraw("tool", "c")
    assert (w.outstanding, w.queued, w.queued_bytes) == (1, 2, 4)
    w.settle()
    assert w.pop_queued() == "b"
    assert w.withdraw("tool", "d")
    assert not w.waiting("tool")
    assert (w.queued, w.queued_bytes) == (0, 0)


def test_waiting_tells_of_one_flow_only() -> None:
    w = window(size=1)
    w.offer("a", "1", 1)
    assert not w.waiting("a"), "it is out, it does not wait"
    w.offer("a", "2", 1)
    assert (w.waiting("a"), w.waiting("b")) == (True, False)


def test_draining_empties_the_queue_and_leaves_what_is_out() -> None:
    w = window(size=1)
    for item in "abc":
        w.offer(item, item, 1)
    assert w.drain() == ["b", "c"]
    assert (w.outstanding, w.queued, w.queued_bytes) == (1, 0, 0)
    assert w.drain() == []
    w.settle()
    assert w.offer("a", "d", 1), "the window works on"


def test_more_than_is_out_cannot_be_settled() -> None:
    w = window(size=3)
    w.offer("a", "1", 1)
    w.offer("a", "2", 1)
    with pytest.raises(ValueError, match="3 settled, but only 2 outstanding"):
        w.settle(3)
    w.settle(2)
    assert w.outstanding == 0


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
            went: bool | None = self.window.hold(flow, item, size) if hold else self.window.offer(flow, item, size)  # type: ignore[func-returns-value]
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
                assert self.window.withdraw(flow, item)
                waiting.remove(found)
                self.flows = [(n, w) for n, w in self.flows if w]
                return
        assert not self.window.withdraw(flow, item)

    @rule()
    def drain(self) -> None:
        assert sorted(self.window.drain()) == sorted(item for item, _ in self._queued())
        self.flows = []

    @invariant()
    def the_books_are_right(self) -> None:
        queued = self._queued()
        assert self.window.outstanding == len(self.out) <= self.SIZE
        assert self.window.queued == len(queued) <= self.QUEUED
        assert self.window.queued_bytes == sum(size for _, size in queued) <= self.BYTES
        for flow in "abc":
            assert self.window.waiting(flow) == any(name == flow for name, _ in self.flows)


TestWindowMachine = WindowMachine.TestCase
TestWindowMachine.settings = machine(30, 40)
