"""Each fault has its effect in both directions, and is repeated with the same seed."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from dispatch.errors import TransportError
from dispatch.messaging.wire.codec import ErrorInfo, MalformedMessageError, decode_reply, decode_request
from dispatch.messaging.wire.properties import MAX_PROPERTY_BYTES, Property
from dispatch.testing import FaultInjector, Faults, FaultyTransport, advance, idle
from dispatch.testing.faults import FAULT_KINDS, SINGLE_DIRECTION
from dispatch.testing.malformed import INJECTED_ERROR
from dispatch.transports import DurableMessage, Message, Mode, Publisher
from dispatch.transports.memory import MemoryTransport

TOPIC = "non-persistent://tg/response/lab"
KEPT = "persistent://tg/request/lab"
names = itertools.count()


class Seen:
    """What arrives, as far as it can be read, and what publishing ended in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failures: list[TransportError] = []

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def numbers(self) -> list[int]:
        return [int(message.properties()["n"]) for message in self.messages]

    def story(self) -> list[tuple[Any, ...]]:
        """What can be compared between two runs."""
        told: list[tuple[Any, ...]] = [(error.type, error.sent) for error in self.failures]
        for message in self.messages:
            try:
                told.append((message.data(), tuple(sorted(message.properties().items()))))
            except (RuntimeError, UnicodeError) as error:
                told.append((type(error).__name__,))
        return told


@contextlib.asynccontextmanager
async def ends(
    *faults: Faults, direction: str = "out", topic: str = TOPIC, mode: Mode = Mode.FANOUT
) -> AsyncIterator[tuple[FaultyTransport, Callable[[int], None], Seen]]:
    """A publisher and a subscriber on one broker; the connection of one of them has the faults."""
    url = f"memory://faults-{next(names)}"
    faulty, plain = FaultyTransport(MemoryTransport(url), *faults), MemoryTransport(url)
    sending, receiving = (faulty, plain) if direction == "out" else (plain, faulty)
    seen = Seen()
    await faulty.start()
    await plain.start()
    try:
        await receiving.subscribe(topic, seen, mode=mode, name="test")
        publisher: Publisher = await sending.publisher(topic)

        def publish(number: int) -> None:
            payload = json.dumps({"error": None, "response": f"text {number}", "end_of_stream": True}).encode()
            properties = {"n": str(number), Property.ID: f"{number:x}-0"}
            try:
                publisher.publish(payload, properties, flow="test", on_failure=seen.failures.append)
            except TransportError as error:
                seen.failures.append(error)

        yield faulty, publish, seen
    finally:
        await faulty.close()
        await plain.close()


async def story(kind: str, direction: str, seed: int) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """Two hundred messages, one each 0.13 s, of which every fourth meets the fault."""
    plan = Faults(**{kind: 0.25}, seed=seed)  # type: ignore[arg-type]
    async with ends(plan, direction=direction) as (faulty, publish, seen):
        for number in range(200):
            publish(number)
            await advance(0.13)  # no part of an outage: none ends just as a message comes
        await advance(5)
        return seen.story(), faulty.count


WAYS = [(kind, way) for kind in FAULT_KINDS for way in ("out", "in") if SINGLE_DIRECTION.get(kind, way) == way]


@pytest.mark.parametrize(("kind", "direction"), WAYS)
async def test_the_same_seed_repeats_a_fault_exactly(kind: str, direction: str) -> None:
    first, count = await story(kind, direction, 1)
    assert count[f"{direction} {kind}"] > 10
    assert (first, count) == await story(kind, direction, 1)
    assert first != (await story(kind, direction, 2))[0]
    nothing, _ = await story("drop", "in" if direction == "out" else "out", 1)
    assert first != nothing


async def test_without_faults_messages_are_unchanged() -> None:
    for direction in ("out", "in"):
        async with ends(direction=direction) as (faulty, publish, seen):
            for number in range(100):
                publish(number)
            await idle()
            assert seen.numbers == list(range(100))
            assert not faulty.count


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_dropped_messages_are_lost_and_no_others(direction: str) -> None:
    async with ends(Faults(drop=0.3), direction=direction) as (faulty, publish, seen):
        for number in range(500):
            publish(number)
        await advance(60)
        assert len(seen.messages) == 500 - faulty.count[f"{direction} drop"]
        assert 100 < faulty.count[f"{direction} drop"] < 200
        assert not seen.failures


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_duplicates_arrive_once_more_within_the_delay(direction: str) -> None:
    async with ends(Faults(duplicate=1, max_delay=2), direction=direction) as (_, publish, seen):
        for number in range(50):
            publish(number)
        await idle()
        assert seen.numbers == list(range(50))
        await advance(2)
        assert Counter(seen.numbers) == dict.fromkeys(range(50), 2)


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_a_reordered_message_arrives_after_the_next(direction: str) -> None:
    async with ends(Faults(reorder=0.4, max_delay=9), direction=direction) as (_, publish, seen):
        for number in range(100):
            publish(number)
        await advance(9)
        assert sorted(seen.numbers) == list(range(100)) != seen.numbers


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_a_reordered_last_message_arrives_after_the_delay(direction: str) -> None:
    async with ends(Faults(reorder=1, max_delay=9), direction=direction) as (_, publish, seen):
        publish(1)
        await idle()
        assert not seen.messages
        await advance(9)
        assert seen.numbers == [1]


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_delayed_messages_arrive_within_the_delay_out_of_order(direction: str) -> None:
    async with ends(Faults(delay=0.5, max_delay=4), direction=direction) as (_, publish, seen):
        for number in range(100):
            publish(number)
        await advance(4)
        assert sorted(seen.numbers) == list(range(100)) != seen.numbers


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_latency_keeps_the_order(direction: str) -> None:
    loop = asyncio.get_running_loop()
    async with ends(Faults(latency=(0.5, 1.5)), direction=direction) as (faulty, publish, seen):
        began = loop.time()
        for number in range(100):
            publish(number)
        await advance(0.499)
        assert not seen.messages
        await advance(1.002)
        assert seen.numbers == list(range(100))
        faulty.heal()
        publish(100)
        await idle()
        assert (seen.numbers[-1], loop.time()) == (100, pytest.approx(began + 1.501))


async def test_order_is_kept_when_latency_is_removed() -> None:
    async with ends(Faults(latency=1)) as (faulty, publish, seen):
        publish(0)
        faulty.heal()
        publish(1)
        await idle()
        assert not seen.messages
        await advance(1)
        assert seen.numbers == [0, 1]


async def test_malformed_replies_are_not_readable() -> None:
    async with ends(Faults(malformed=1)) as (_, publish, seen):
        for number in range(300):
            publish(number)
        await idle()
        readable = 0
        for message in seen.messages:
            for decode in (decode_reply, decode_request):
                with contextlib.suppress(MalformedMessageError):
                    decode(message.data())
                    readable += 1
        assert readable == 0


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_tool_error_replaces_a_reply_with_a_tools_own_error(direction: str) -> None:
    async with ends(Faults(tool_error=1), direction=direction) as (faulty, publish, seen):
        publish(7)
        await idle()
        reply = decode_reply(seen.messages[0].data())
        assert isinstance(reply.error, ErrorInfo)
        assert (reply.error.type, reply.end_of_stream) == (INJECTED_ERROR, True)
        assert seen.messages[0].properties()[Property.ID] == "7-0"
        assert faulty.count == {f"{direction} tool_error": 1}


@pytest.mark.parametrize(
    ("payload", "properties"),
    [
        (b"", {Property.ID: "1"}),
        (b'{"user": "", "config": "{}", "arguments": "{}"}', {Property.ID: "1"}),
        (b'{"response": "text"}', {}),
        (b'{"response": "text"}', {Property.ID: "1", Property.REPLY_TO: TOPIC}),
        (b'{"error": {"type": "overloaded"}}', {Property.ID: "1", Property.REFUSED: "overloaded"}),
        (b"[1]", {Property.ID: "1"}),
        (b"\xff", {Property.ID: "1"}),
    ],
)
async def test_tool_error_does_not_change_other_messages(payload: bytes, properties: dict[str, str]) -> None:
    async with ends(Faults(tool_error=1)) as (faulty, _, seen):
        publisher = await faulty.publisher(TOPIC)
        publisher.publish(payload, properties, flow="test", on_failure=seen.failures.append)
        await idle()
        assert [(message.data(), message.properties()) for message in seen.messages] == [(payload, properties)]
        assert not faulty.count


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_ids_are_missing_oversized_or_foreign(direction: str) -> None:
    async with ends(Faults(missing_id=1), direction=direction) as (faulty, publish, seen):
        publish(1)
        await idle()
        faulty.injector.inject(Faults(oversized_id=1))
        publish(2)
        await idle()
        faulty.injector.inject(Faults(foreign_id=1))
        publish(3)
        await idle()
        missing, oversized, foreign = (message.properties().get(Property.ID, "") for message in seen.messages)
        assert missing == ""
        assert len(oversized) > MAX_PROPERTY_BYTES
        assert foreign not in ("", "3-0")


async def test_raising_makes_reading_a_message_raise() -> None:
    async with ends(Faults(raising=1), direction="in") as (_, publish, seen):
        for number in range(40):
            publish(number)
        await idle()
        assert Counter(each[0] for each in seen.story()).keys() == {"RuntimeError", "UnicodeError"}


async def test_error_makes_publishing_raise_without_sending() -> None:
    async with ends(Faults(error=1)) as (_, publish, seen):
        publish(1)
        await advance(5)
        assert [(error.type, error.sent) for error in seen.failures] == [("publish-queue-full", False)]
        assert not seen.messages


async def test_late_error_fails_later_and_may_have_sent_the_message() -> None:
    async with ends(Faults(late_error=1)) as (_, publish, seen):
        for number in range(40):
            publish(number)
        await advance(3)
        assert len(seen.failures) == 40
        assert 0 < len(seen.messages) == sum(error.sent for error in seen.failures) < 40


async def test_a_cancelled_publish_reports_no_failure() -> None:
    async with ends(Faults(delay=1)) as (faulty, _, seen):
        publisher = await faulty.publisher(TOPIC)
        tickets = [
            publisher.publish(b"", {"n": str(n)}, flow="test", on_failure=seen.failures.append) for n in range(40)
        ]
        waiting = [ticket.waits for ticket in tickets]
        withdrawn = [ticket.cancel() for ticket in tickets]
        assert waiting == withdrawn
        assert set(withdrawn) == {True, False}, "some are in a queue of ours, others on their way"
        await advance(3)
        assert set(seen.numbers) == {n for n, gone in enumerate(withdrawn) if not gone}


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_a_disconnected_connection_is_restored_after_reconnect_after(direction: str) -> None:
    async with ends(direction=direction) as (faulty, publish, seen):
        faulty.disconnect(5)
        assert not faulty.connected
        publish(1)
        await advance(4.9)
        publish(2)
        await advance(0.2)
        assert faulty.connected
        publish(3)
        await idle()
        assert seen.numbers == [3]
        assert faulty.count == {f"{direction} disconnected": 2}
        assert [error.type for error in seen.failures] == (["unreachable"] * 2 if direction == "out" else [])


async def test_an_injector_interrupts_all_its_connections_and_no_other() -> None:
    shared = FaultInjector()
    one, two, other = (
        FaultyTransport(MemoryTransport("memory://"), each) for each in (shared, shared, FaultInjector())
    )
    for transport in (one, two, other):
        await transport.start()
    shared.disconnect(5)
    assert [each.connected for each in (one, two, other)] == [False, False, True]
    await advance(5.1)
    assert [each.connected for each in (one, two, other)] == [True, True, True]
    for transport in (one, two, other):
        await transport.close()


async def test_a_change_of_faults_restores_a_connection() -> None:
    async with ends() as (faulty, publish, seen):
        faulty.disconnect(1e6)
        faulty.heal()
        publish(1)
        await idle()
        assert seen.numbers == [1]


async def test_faults_apply_to_matching_topics_only() -> None:
    async with ends(Faults(drop=1, topics="*/request/*")) as (faulty, publish, seen):
        publish(1)
        await idle()
        assert seen.numbers == [1]
        faulty.injector.inject(Faults(drop=1, topics=("*/request/*", "*/response/lab")))
        publish(2)
        await idle()
        assert seen.numbers == [1]


async def test_further_connections_have_the_same_faults() -> None:
    async with ends(Faults(drop=1)) as (faulty, _, seen):
        another = faulty.another()
        await another.start()
        publisher = await another.publisher(TOPIC)
        publisher.publish(b"", {"n": "1"}, flow="test", on_failure=seen.failures.append)
        await idle()
        assert not seen.messages
        faulty.heal()
        publisher.publish(b"", {"n": "2"}, flow="test", on_failure=seen.failures.append)
        await idle()
        assert seen.numbers == [2]
        await another.close()


async def test_flush_waits_for_delayed_messages() -> None:
    async with ends(Faults(latency=2)) as (faulty, publish, seen):
        for number in range(3):
            publish(number)
        await faulty.flush()
        await idle()
        assert seen.numbers == [0, 1, 2]


async def test_the_number_of_delayed_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.testing.delay_queue.MAX_DELAYED", 10)
    async with ends(Faults(latency=2)) as (faulty, publish, seen):
        for number in range(15):
            publish(number)
        await advance(2)
        assert seen.numbers == list(range(10))
        assert faulty.count == {"out overflow": 5}


async def test_a_closed_connection_sends_nothing_more() -> None:
    async with ends(Faults(latency=1, duplicate=0.5)) as (faulty, publish, seen):
        for number in range(10):
            publish(number)
        await faulty.close()
        await advance(10)
        assert not seen.messages


# -- messages that a broker keeps -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "faults", [Faults(delay=1), Faults(latency=1), Faults(reorder=0.5), Faults(duplicate=1), Faults(malformed=1)]
)
async def test_a_durable_message_is_acknowledged_after_it_was_handled(faults: Faults) -> None:
    async with ends(faults, direction="in", topic=KEPT, mode=Mode.SHARED) as (faulty, publish, seen):
        for number in range(20):
            publish(number)
        await advance(5)
        assert set(seen.numbers) == set(range(20))
        assert all(isinstance(message, DurableMessage) for message in seen.messages)
        await faulty.close()
        assert await _redelivered(faulty.url) == []


async def test_a_lost_durable_message_is_delivered_to_the_next_subscriber() -> None:
    for faults in (Faults(drop=1), Faults(disconnect=1), Faults(latency=1e6)):
        async with ends(faults, direction="in", topic=KEPT, mode=Mode.SHARED) as (faulty, publish, seen):
            for number in range(20):
                publish(number)
            await advance(5)
            assert not seen.messages
            await faulty.close()
            assert await _redelivered(faulty.url) == list(range(20))


async def test_a_handler_can_keep_a_delayed_durable_message() -> None:
    async with ends(Faults(delay=1), direction="in", topic=KEPT, mode=Mode.SHARED) as (faulty, publish, _):
        await faulty.close()
        await faulty.start()

        def keeps(message: Message) -> None:
            assert isinstance(message, DurableMessage)
            message.keep()

        await faulty.subscribe(KEPT, keeps, mode=Mode.SHARED, name="test")
        publish(1)
        await advance(5)
        await faulty.close()
        assert await _redelivered(faulty.url) == [1]


async def test_an_error_of_a_handler_on_a_delayed_message_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with ends(Faults(delay=1), direction="in") as (faulty, publish, seen):

        def fails(message: Message) -> None:
            raise LookupError("its own")

        await faulty.subscribe(TOPIC, fails, mode=Mode.FANOUT, name="test")
        publish(1)
        await advance(5)
        assert seen.numbers == [1]
        assert "failed: LookupError" in caplog.text
        assert faulty.handler_errors == 1


async def _redelivered(url: str) -> list[int]:
    """What the next subscriber gets."""
    transport, seen = MemoryTransport(url), Seen()
    await transport.start()
    await transport.subscribe(KEPT, seen, mode=Mode.SHARED, name="test")
    await idle()
    await transport.close()
    return seen.numbers
