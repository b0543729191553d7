"""Lanes: more connections for large answers, when they are worth it, and the least busy one for each."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch import ToolService
from dispatch.dispatcher import Dispatcher
from dispatch.errors import TransportError
from dispatch.messaging.flow.credit import CREDIT_BYTES
from dispatch.messaging.wire.properties import Property
from dispatch.routing.reply_connections import CROWDED, MEAN_OF, RETRY_S, SUSTAINED, ReplyConnection, ReplyConnections
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import advance, idle, run
from tests.helpers.dispatcher_and_service import BROKER, dispatching, serving
from tests.helpers.run_profile import examples

LARGE = CREDIT_BYTES
MOST = 4


class Connected:
    """A connection, as a lane sees it."""

    def __init__(self) -> None:
        self.connected = True


class Opened:
    """Opens lanes, or fails to."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.refusal: TransportError | None = None
        self.hold = asyncio.Event()
        self.hold.set()

    async def __call__(self, number: int) -> ReplyConnection:
        self.numbers.append(number)
        await self.hold.wait()
        if self.refusal is not None:
            raise self.refusal
        return ReplyConnection(f"lane-{number}", Connected())


def lanes_with(opened: Opened, mean: int = LARGE) -> ReplyConnections:
    lanes = ReplyConnections(ReplyConnection("lane-0", Connected()), opened)
    for _ in range(20 * MEAN_OF):
        lanes.record_reply(mean)
    return lanes


async def crowd(
    lanes: ReplyConnections, *, waiting: int = 2 * CROWDED, most: int = MOST, times: int = SUSTAINED
) -> None:
    for _ in range(times):
        lanes.pick(waiting, most)
    await idle()


async def test_one_is_enough_for_small_answers() -> None:
    opened = Opened()
    lanes = lanes_with(opened, mean=CREDIT_BYTES // 100)
    await crowd(lanes, waiting=200, times=10 * SUSTAINED)
    assert (opened.numbers, len(lanes)) == ([], 1)


async def test_one_is_enough_for_few_answers() -> None:
    opened = Opened()
    lanes = lanes_with(opened)
    await crowd(lanes, waiting=CROWDED - 1, times=10 * SUSTAINED)
    assert (opened.numbers, len(lanes)) == ([], 1)


async def test_a_burst_opens_none() -> None:
    opened = Opened()
    lanes = lanes_with(opened)
    for _ in range(10):
        await crowd(lanes, times=SUSTAINED - 1)
        lanes.pick(0, MOST)
    assert opened.numbers == []


async def test_they_open_one_after_the_other_up_to_the_limit() -> None:
    opened = Opened()
    lanes = lanes_with(opened)
    opened.hold.clear()
    await crowd(lanes, times=5 * SUSTAINED)
    assert opened.numbers == [1], "the next one when this one is there"
    opened.hold.set()
    await idle()
    await crowd(lanes, times=20 * SUSTAINED)
    for _ in range(5):
        await crowd(lanes)
    assert opened.numbers == [1, 2, 3]
    assert len(lanes) == MOST


async def test_one_that_cannot_be_opened_is_tried_again_later() -> None:
    opened = Opened()
    opened.refusal = TransportError("unreachable", "No.", sent=False)
    lanes = lanes_with(opened)
    for _ in range(5):
        await crowd(lanes)
    assert (opened.numbers, len(lanes)) == ([1], 1)
    opened.refusal = None
    await advance(RETRY_S)
    await crowd(lanes)
    assert (opened.numbers, len(lanes)) == ([1, 1], 2)


async def test_closing_ends_an_opening() -> None:
    opened = Opened()
    opened.hold.clear()
    lanes = lanes_with(opened)
    await crowd(lanes)
    await lanes.close()
    assert len(lanes) == 1
    assert lanes._opening is None


async def three_lanes() -> ReplyConnections:
    lanes = lanes_with(Opened())
    while len(lanes) < 3:
        await crowd(lanes, most=3)
    return lanes


def spread(lanes: ReplyConnections, *, waiting: int, most: int, picks: int) -> list[int]:
    for _ in range(picks):
        lanes.pick(waiting, most).waiting += 1
    return [lane.waiting for lane in lanes._lanes]


async def test_answers_are_spread_to_where_the_fewest_are_waited_for() -> None:
    three = await three_lanes()
    assert spread(three, waiting=30, most=3, picks=30) == [10, 10, 10]
    three._lanes[1].waiting = 0
    assert spread(three, waiting=20, most=3, picks=9) == [10, 9, 10]


async def test_policy_says_how_many_may_be_used() -> None:
    three = await three_lanes()
    assert spread(three, waiting=30, most=1, picks=6) == [6, 0, 0]
    assert spread(three, waiting=30, most=2, picks=6) == [6, 6, 0]


async def test_few_answers_stay_on_the_first() -> None:
    three = await three_lanes()
    assert spread(three, waiting=1, most=3, picks=5) == [5, 0, 0]
    for _ in range(20 * MEAN_OF):
        three.record_reply(100)
    assert spread(three, waiting=50, most=3, picks=5) == [10, 0, 0], "nor do small ones leave it"


async def test_one_that_is_not_connected_is_left_out() -> None:
    three = await three_lanes()
    assert isinstance(three._lanes[2].connection, Connected)
    three._lanes[2].connection.connected = False
    assert spread(three, waiting=30, most=3, picks=10) == [5, 5, 0]


@given(st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 70_000)), max_size=200), st.integers(1, 16))
@settings(max_examples=examples(50), deadline=None)
def test_a_lane_is_always_one_that_is_there(steps: list[tuple[int, int]], most: int) -> None:
    async def scenario() -> None:
        lanes = ReplyConnections(ReplyConnection("lane-0", Connected()), Opened())
        for size, waiting in steps:
            lanes.record_reply(size)
            assert lanes.pick(waiting, most) in lanes._lanes[:most]
            await asyncio.sleep(0)
        assert len(lanes) <= most
        await lanes.close()

    run(scenario)


class Large(ToolService):
    """Answers with as much as it is told."""

    async def invoke(self, config: dict[str, object], arguments: dict[str, int], user: str = "") -> str:
        await asyncio.sleep(0.01)
        return "x" * arguments["size"]


class Counting(MemoryTransport):
    """A connection that knows how many there are of it."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.made: list[MemoryTransport] = []

    def another(self) -> MemoryTransport:
        self.made.append(super().another())
        return self.made[-1]


async def calls(dispatcher: Dispatcher, *, size: int, at_once: int, rounds: int = 10) -> None:
    for _ in range(rounds):
        results = await asyncio.gather(*(dispatcher.execute("work", {"size": size}) for _ in range(at_once)))
        assert [len(result.text) for result in results] == [size] * at_once


@pytest.mark.parametrize(
    ("size", "most", "connections"), [(100_000, 4, 3), (100_000, 2, 1), (100_000, 1, 0), (100, 4, 0)]
)
async def test_a_dispatcher_opens_and_uses_them(
    size: int, most: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.calls.invokers.instance_invoker.MAX_REPLY_CONNECTIONS", most)
    transport = Counting(BROKER)
    async with (
        serving(Large()) as server,
        dispatching(transport=transport) as dispatcher,
    ):
        await calls(dispatcher, size=size, at_once=100)
        assert len(transport.made) == connections
        before = dict(dispatcher.reply_counts())
        await calls(dispatcher, size=size, at_once=100)
        assert sum(dispatcher.reply_counts().values()) == sum(before.values()) + 1_000, "each came once"
        assert server._replies is not None
        topics = [topic for topic in server._replies._topics if "dispatch-reply-" in topic]
        assert len(topics) == 1 + connections
        assert all(lane.waiting == 0 for lanes in dispatcher._running.routes._lanes.values() for lane in lanes._lanes)
    assert not any(made.connected for made in transport.made), "closed with the dispatcher"


async def test_a_cancelled_call_leaves_its_lane() -> None:
    async with serving(Large()), dispatching() as dispatcher:
        await dispatcher.call("work", {"size": 1})
        tasks = [asyncio.create_task(dispatcher.execute("work", {"size": 1})) for _ in range(10)]
        await asyncio.sleep(0)
        (lanes,) = dispatcher._running.routes._lanes.values()
        assert lanes.first.waiting == 10
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert lanes.first.waiting == 0


def test_its_name_says_where_it_belongs() -> None:
    from dispatch.messaging.wire.topics import reply_topic

    topic = "non-persistent://tg/response/work"
    assert reply_topic(topic, "abc") == "non-persistent://tg/response/dispatch-reply-abc"
    assert reply_topic(topic, "abc", 2) == "non-persistent://tg/response/dispatch-reply-abc-2"
    assert Property.REPLY_TO == "reply-to"
