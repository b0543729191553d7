"""Probabilities, filters and seeds of faults.
Faults apply to packets of sessions as to messages.
Each fault of a message has its effect in both directions, and is repeated with the same seed.
Connections of the faulty transport: outages, the scope of faults, and delayed messages.
The transports' conformance tests on a wrapped transport, without faults and with latency.
Durable messages on a faulty transport: acknowledged once handled, and delivered again when lost.
What the fault ``malformed`` makes of a payload cannot be read, also where a message has the fault twice: on its way to
the broker, and from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.errors import TransportError
from dispatch.messaging import wire
from dispatch.protocol.frames import PING, REPLY, REQUEST, VERSION, MalformedPacketError, decode_packet, encode_packet
from dispatch.testing import (
    FAULT_KINDS,
    INJECTED_ERROR,
    MALFORMED_PAYLOADS,
    NOT_OF_PACKETS,
    SINGLE_DIRECTION,
    FaultInjector,
    Faults,
    FaultSampler,
    FaultyTransport,
    advance,
    idle,
    malformed_payload,
)
from dispatch.transports import DurableMessage, Message, Mode, Publisher, Transport, open_transport
from dispatch.transports.memory import MemoryTransport
from tests.unit.transports import test_conformance as every
from tests.unit.transports import test_conformance_durable as kept

TOPIC = "non-persistent://tg/response/lab"


class Seen:
    """What arrives, as far as it can be read, and what publishing ended in."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failures: list[TransportError] = []

    def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def numbers(self) -> list[int]:
        """Of the messages; of the packets, which have no properties, -1 for an unreadable one."""
        texts = [message.properties().get("n") or message.data().decode("latin-1") for message in self.messages]
        return [int(text) if text.isdigit() else -1 for text in texts]

    def story(self) -> list[tuple[Any, ...]]:
        """What can be compared between two runs."""
        told: list[tuple[Any, ...]] = [(error.type, error.may_have_run) for error in self.failures]
        for message in self.messages:
            try:
                told.append((message.data(), tuple(sorted(message.properties().items()))))
            except (RuntimeError, UnicodeError) as error:
                told.append((type(error).__name__,))
        return told


@contextlib.asynccontextmanager
async def ends(
    *faults: Faults, direction: str = "out", topic: str = TOPIC, mode: Mode = Mode.FANOUT, sends_packets: bool = False
) -> AsyncIterator[tuple[FaultyTransport, Callable[[int], object], Seen]]:
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

        def publish(number: int) -> bool | None:
            if sends_packets:
                return publisher.send_packet(str(number).encode())
            payload = json.dumps({"error": None, "response": f"text {number}", "end_of_stream": True}).encode()
            properties = {"n": str(number), wire.Property.ID: f"{number:x}-0"}
            try:
                publisher.publish(payload, properties, flow="test", on_failure=seen.failures.append)
            except TransportError as error:
                seen.failures.append(error)
            return None

        yield faulty, publish, seen
    finally:
        await faulty.close()
        await plain.close()
    assert not publisher.send_packet(b"1"), "closed"


REQUESTS = "non-persistent://tg/request/joke"
REPLIES = "non-persistent://tg/response/dispatch-reply-"


def thrown(injector: FaultInjector, connection: int, topic: str, times: int = 300) -> list[str | None]:
    sampler = injector.find_sampler(connection, "out", topic)
    return [sampler.draw_fault() for _ in range(times)]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"drop": 1.1}, "drop=1.1"),
        ({"error": -0.1}, "error=-0.1"),
        ({"malformed": float("nan")}, "malformed=nan"),
        ({"drop": 0.6, "duplicate": 0.6}, "add up to 1.2"),
        ({"latency": (0.2, 0.1)}, "is not a range"),
        ({"latency": -1.0}, "latency=-1.0"),
        ({"latency": (0.0, float("inf"))}, "latency=inf"),
        ({"max_delay": -1.0}, "max_delay=-1.0"),
        ({"reconnect_after": float("nan")}, "reconnect_after=nan"),
        ({"direction": "up"}, "direction='up'"),
    ],
)
def test_an_invalid_value_is_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        Faults(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"drop": "0.1"}, "drop must be a number between 0 and 1, not a str."),
        ({"latency": "1"}, "latency must be a number of seconds, not a str."),
        ({"topics": 3}, "topics must be a pattern of topics, such as '*/request/*', or several, not an int."),
    ],
)
def test_a_value_of_another_type_is_named(values: dict[str, object], told: str) -> None:
    with pytest.raises(TypeError) as caught:
        Faults(**values)  # type: ignore[arg-type]
    assert str(caught.value) == told


@pytest.mark.parametrize("given", [{"drop": 1}, 0.3])
def test_what_is_no_faults_is_not_injected(given: Any) -> None:
    injector = FaultInjector()
    problem = r"^each fault must be Faults\(…\), such as Faults\(drop=0.1\), not a (dict|float)\.$"
    with pytest.raises(TypeError, match=problem):
        injector.inject(given)
    assert injector.faults == ()


def test_probabilities_may_add_up_to_one() -> None:
    share = 1 / len(FAULT_KINDS)
    assert len(Faults(**dict.fromkeys(FAULT_KINDS, share)).list_probabilities("out")) == len(FAULT_KINDS) - 1  # type: ignore[arg-type]


def test_repr_shows_the_values_that_were_given() -> None:
    assert repr(Faults(drop=0.1, seed=3)) == "Faults(drop=0.1, seed=3)"


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_each_fault_has_its_probability_and_direction(kind: str) -> None:
    for direction in ("out", "in"):
        sampler = FaultSampler(Faults(**{kind: 0.2}), direction, random.Random(1), random.Random(2))  # type: ignore[arg-type]
        counted = Counter(sampler.draw_fault() for _ in range(5_000))
        if SINGLE_DIRECTION.get(kind, direction) != direction:
            assert counted == {None: 5_000}
        else:
            assert counted.keys() == {kind, None}
            assert counted[kind] == pytest.approx(1_000, abs=150)  # 5 sigma


@given(st.integers(), st.floats(0, 10), st.floats(0, 10))
def test_delays_and_latencies_are_within_their_limits(seed: int, one: float, other: float) -> None:
    low, high = sorted((one, other))
    sampler = FaultSampler(Faults(latency=(low, high), max_delay=high), "out", random.Random(seed), random.Random(seed))
    assert all(low <= sampler.draw_latency() <= high for _ in range(20))
    assert all(0 <= sampler.draw_delay() <= high for _ in range(20))


def test_one_number_is_a_fixed_latency() -> None:
    assert FaultSampler(Faults(latency=2), "in", random.Random(1), random.Random(1)).draw_latency() == 2


def test_the_same_seed_draws_the_same_faults() -> None:
    plan = Faults(drop=0.3, duplicate=0.2, seed=5)
    assert thrown(FaultInjector(plan), 1, REQUESTS) == thrown(FaultInjector(plan), 1, REQUESTS)
    assert thrown(FaultInjector(plan), 1, REQUESTS) != thrown(FaultInjector(replace(plan, seed=6)), 1, REQUESTS)


def test_topics_and_connections_draw_independently() -> None:
    plan = Faults(drop=0.3)
    alone, beside = FaultInjector(plan), FaultInjector(plan)
    thrown(beside, 1, "non-persistent://tg/request/other")
    assert thrown(alone, 1, REQUESTS) == thrown(beside, 1, REQUESTS), "whatever other topics do"
    assert thrown(FaultInjector(plan), 2, REQUESTS) != thrown(FaultInjector(plan), 1, REQUESTS)


def test_drawing_details_does_not_change_later_faults() -> None:
    plan = Faults(drop=0.3, delay=0.3, latency=(0, 1))
    told = []
    for draws in (0, 3):
        sampler = FaultInjector(plan).find_sampler(1, "out", REQUESTS)
        told.append([(sampler.draw_fault(), [sampler.draw_delay() for _ in range(draws)])[0] for _ in range(100)])
    assert told[0] == told[1]


def test_ids_in_topic_names_do_not_change_the_faults() -> None:
    plan = Faults(drop=0.3)
    assert thrown(FaultInjector(plan), 1, REPLIES + "1f3a") == thrown(FaultInjector(plan), 1, REPLIES + "77b0")


def test_the_first_faults_that_apply_decide() -> None:
    injector = FaultInjector(
        Faults(drop=1, topics="*/request/*", direction="out"),
        Faults(duplicate=1, topics=("*/response/a", "*/response/b")),
    )
    assert thrown(injector, 1, REQUESTS, 1) == ["drop"]
    assert thrown(injector, 1, "persistent://tg/response/b", 1) == ["duplicate"]
    assert injector.find_sampler(1, "in", REQUESTS) is None
    assert injector.find_sampler(1, "out", "persistent://tg/response/c") is None


def test_random_decisions_continue_when_faults_change() -> None:
    plan = Faults(drop=0.3)
    whole = thrown(FaultInjector(plan), 1, REQUESTS, 40)
    injector = FaultInjector(plan)
    first = thrown(injector, 1, REQUESTS, 20)
    injector.heal()
    assert injector.find_sampler(1, "out", REQUESTS) is None
    injector.inject(plan)
    assert first + thrown(injector, 1, REQUESTS, 20) == whole
    assert injector.faults == (plan,)


def test_an_injector_cannot_be_combined_with_faults() -> None:
    injector = FaultInjector()
    assert FaultInjector.of([injector]) is injector
    with pytest.raises(TypeError, match="or one FaultInjector"):
        FaultInjector.of([Faults(), injector])


names = itertools.count()
Way = dict[str, Any]


@pytest.fixture(
    params=itertools.product(("out", "in"), (False, True)),
    ids=lambda way: f"{way[0]}-{'packets' if way[1] else 'messages'}",
)
def way(request: pytest.FixtureRequest) -> Way:
    """Where the faults are, and whether packets are sent: options of :func:`ends`."""
    direction, sends_packets = request.param
    return {"direction": direction, "sends_packets": sends_packets}


async def test_malformed_packets_arrive_unreadable() -> None:
    async with ends(Faults(malformed=1), sends_packets=True) as (_, send, seen):
        assert all(send(number) for number in range(100, 150))
        await idle()
        assert len(seen.numbers) == 50
        assert seen.numbers.count(-1) > 20


async def test_error_sends_nothing_and_late_error_sends_half() -> None:
    async with ends(Faults(error=1), sends_packets=True) as (faulty, send, seen):
        assert not send(1)
        faulty.injector.inject(Faults(late_error=1))
        assert all(send(number) for number in range(200))
        await idle()
        assert 50 < len(seen.numbers) < 150


async def test_an_interrupted_connection_sends_no_packet() -> None:
    async with ends(Faults(disconnect=1, reconnect_after=5), sends_packets=True) as (faulty, send, seen):
        send(1)
        assert not send(2)
        await advance(4.9)
        assert not send(3)
        assert faulty.count["out disconnected"] == 2
        assert seen.numbers == []


@pytest.mark.parametrize("kind", sorted(NOT_OF_PACKETS))
async def test_faults_of_ids_and_replies_do_not_apply(kind: str) -> None:
    async with ends(Faults(**{kind: 1.0}), sends_packets=True) as (faulty, send, seen):  # type: ignore[arg-type]
        assert send(1)
        await idle()
        assert seen.numbers == [1]
        assert not faulty.count


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


@pytest.mark.costly
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


async def test_dropped_messages_are_lost_and_no_others(way: Way) -> None:
    async with ends(Faults(drop=0.3), **way) as (faulty, publish, seen):
        for number in range(500):
            publish(number)
        await advance(60)
        dropped = faulty.count[f"{way['direction']} drop"]
        assert len(seen.messages) == 500 - dropped
        assert 100 < dropped < 200
        assert not seen.failures


async def test_duplicates_arrive_once_more_within_the_delay(way: Way) -> None:
    async with ends(Faults(duplicate=1, max_delay=2), **way) as (
        _,
        publish,
        seen,
    ):
        for number in range(50):
            publish(number)
        await idle()
        assert seen.numbers == list(range(50))
        await advance(2)
        assert Counter(seen.numbers) == dict.fromkeys(range(50), 2)


async def test_a_reordered_last_message_arrives_after_the_delay(way: Way) -> None:
    async with ends(Faults(reorder=1, max_delay=9), **way) as (
        _,
        publish,
        seen,
    ):
        publish(1)
        await idle()
        assert not seen.messages
        await advance(9)
        assert seen.numbers == [1]


@pytest.mark.parametrize("faults", [Faults(reorder=0.4, max_delay=4), Faults(delay=0.5, max_delay=4)])
async def test_reordered_and_delayed_messages_arrive_within_the_delay_out_of_order(faults: Faults, way: Way) -> None:
    async with ends(faults, **way) as (_, publish, seen):
        for number in range(100):
            publish(number)
        await advance(4)
        assert sorted(seen.numbers) == list(range(100)) != seen.numbers


async def test_latency_keeps_the_order(way: Way) -> None:
    loop = asyncio.get_running_loop()
    async with ends(Faults(latency=(0.5, 1.5)), **way) as (
        faulty,
        publish,
        seen,
    ):
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
            for decode in (wire.decode_reply, wire.decode_request):
                with contextlib.suppress(wire.MalformedMessageError):
                    decode(message.data())
                    readable += 1
        assert readable == 0


@pytest.mark.parametrize("direction", ["out", "in"])
async def test_tool_error_replaces_a_reply_with_a_tools_own_error(direction: str) -> None:
    async with ends(Faults(tool_error=1), direction=direction) as (faulty, publish, seen):
        publish(7)
        await idle()
        reply = wire.decode_reply(seen.messages[0].data())
        assert isinstance(reply.error, wire.ErrorInfo)
        assert (reply.error.type, reply.end_of_stream) == (INJECTED_ERROR, True)
        assert seen.messages[0].properties()[wire.Property.ID] == "7-0"
        assert faulty.count == {f"{direction} tool_error": 1}


@pytest.mark.parametrize(
    ("payload", "properties"),
    [
        (b"", {wire.Property.ID: "1"}),
        (b'{"user": "", "config": "{}", "arguments": "{}"}', {wire.Property.ID: "1"}),
        (b'{"response": "text"}', {}),
        (b'{"response": "text"}', {wire.Property.ID: "1", wire.Property.REPLY_TO: TOPIC}),
        (b'{"error": {"type": "overloaded"}}', {wire.Property.ID: "1", wire.Property.REFUSED: "overloaded"}),
        (b"[1]", {wire.Property.ID: "1"}),
        (b"\xff", {wire.Property.ID: "1"}),
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
        missing, oversized, foreign = (message.properties().get(wire.Property.ID, "") for message in seen.messages)
        assert missing == ""
        assert len(oversized) > wire.MAX_PROPERTY_BYTES
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
        assert [(error.type, error.may_have_run) for error in seen.failures] == [("publish-queue-full", False)]
        assert not seen.messages


async def test_late_error_fails_later_and_may_have_sent_the_message() -> None:
    async with ends(Faults(late_error=1)) as (_, publish, seen):
        for number in range(40):
            publish(number)
        await advance(3)
        assert len(seen.failures) == 40
        assert 0 < len(seen.messages) == sum(error.may_have_run for error in seen.failures) < 40


async def test_a_cancelled_publish_reports_no_failure() -> None:
    async with ends(Faults(delay=1)) as (faulty, _, seen):
        publisher = await faulty.publisher(TOPIC)
        failed = seen.failures.append
        tickets = [publisher.publish(b"", {"n": str(n)}, flow="test", on_failure=failed) for n in range(40)]
        withdrawn = [ticket.cancel() for ticket in tickets]
        assert set(withdrawn) == {True, False}, "some are in a queue of ours, others on their way"
        await advance(3)
        assert set(seen.numbers) == {n for n, gone in enumerate(withdrawn) if not gone}


# -- outages --------------------------------------------------------------------------------------------------------
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
    injectors = (shared, shared, FaultInjector())
    one, two, other = (FaultyTransport(MemoryTransport("memory://"), each) for each in injectors)
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


async def test_a_closed_connection_sends_nothing_more() -> None:
    async with ends(Faults(latency=1, duplicate=0.5)) as (faulty, publish, seen):
        for number in range(10):
            publish(number)
        await faulty.close()
        await advance(10)
        assert not seen.messages


# -- the scope of faults --------------------------------------------------------------------------------------------
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


# -- delayed messages -----------------------------------------------------------------------------------------------
async def test_flush_waits_for_delayed_messages() -> None:
    async with ends(Faults(latency=2)) as (faulty, publish, seen):
        for number in range(3):
            publish(number)
        await faulty.flush()
        await idle()
        assert seen.numbers == [0, 1, 2]


async def test_the_number_of_delayed_messages_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.testing.MAX_DELAYED", 10)
    async with ends(Faults(latency=2)) as (faulty, publish, seen):
        for number in range(15):
            publish(number)
        await advance(2)
        assert seen.numbers == list(range(10))
        assert faulty.count == {"out overflow": 5}


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


CALM = Faults()
SLOW = Faults(latency=(0.001, 0.01), direction="out")


@dataclass(frozen=True)
class Wrapped(every.Kind):
    faults: Faults = CALM

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Transport]:
        transport = FaultyTransport(open_transport(self.url), self.faults)
        await transport.start()
        try:
            yield transport
        finally:
            await transport.close()


@pytest.fixture(params=["calm", "calm, kept", "slow"])
def kind(request: pytest.FixtureRequest) -> every.Kind:
    scheme = "persistent" if "kept" in request.param else "non-persistent"
    return Wrapped("memory://", scheme, SLOW if request.param == "slow" else CALM)


@pytest.mark.costly
@pytest.mark.parametrize(
    "test",
    [
        every.test_payload_and_properties_arrive_as_they_were_sent,
        every.test_shared_subscribers_take_turns,
        every.test_fan_out_gives_everyone_everything_in_order,
        every.test_the_first_message_after_subscribing_is_delivered,
        every.test_a_handler_that_raises_costs_its_message_only,
        every.test_the_largest_message_passes_and_a_larger_one_is_refused,
        every.test_publishers_of_one_topic_are_closed_one_by_one,
        every.test_a_burst_beyond_the_window_arrives_in_order_within_each_flow,
        every.test_a_cancelled_message_does_not_report_its_failure,
        every.test_packets_arrive_in_order_without_properties,
        every.test_a_closed_transport_says_so,
    ],
)
async def test_a_wrapped_transport_is_one(kind: every.Kind, test: Callable[[every.Kind], Awaitable[None]]) -> None:
    await test(kind)


@pytest.mark.parametrize(
    "test",
    [
        kept.test_what_comes_while_nobody_listens_is_kept_for_those_who_did,
        kept.test_what_was_not_acknowledged_goes_to_another_subscriber_and_nothing_else,
        kept.test_then_is_called_later_and_what_was_settled_comes_to_nobody_else,
    ],
)
async def test_a_wrapped_transport_is_a_durable_one(test: Callable[[every.Kind], Awaitable[None]]) -> None:
    await test(Wrapped("memory://", "persistent"))


KEPT = "persistent://tg/request/lab"


async def _redelivered(url: str) -> list[int]:
    """What the next subscriber gets."""
    transport, seen = MemoryTransport(url), Seen()
    await transport.start()
    await transport.subscribe(KEPT, seen, mode=Mode.SHARED, name="test")
    await idle()
    await transport.close()
    return seen.numbers


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
            message.keep()

        await faulty.subscribe(KEPT, keeps, mode=Mode.SHARED, name="test")
        publish(1)
        await advance(5)
        await faulty.close()
        assert await _redelivered(faulty.url) == [1]


HEADER = (VERSION, 5, 0, 7, 100, 0, 0, 10, 48_000)
frames = st.one_of(
    st.just((PING,)),
    st.builds(lambda stream, text: (REPLY, stream, 0, text), st.integers(0, 1 << 40), st.binary(max_size=40)),
    st.builds(lambda text: (REQUEST, 1, 0, "tool", None, text), st.binary(max_size=40)),
)


@given(seed=st.integers(0, 1 << 32), frames=st.lists(frames, max_size=4), faults=st.integers(1, 4))
def test_a_packet_is_unreadable_after_any_number_of_faults(
    seed: int, frames: list[tuple[object, ...]], faults: int
) -> None:
    packet, rng = encode_packet(HEADER, frames), random.Random(seed)
    decode_packet(packet)
    for _ in range(faults):
        packet = malformed_payload(rng, packet)
        with pytest.raises(MalformedPacketError):
            decode_packet(packet)


class Drawn(random.Random):
    """Draws these whole numbers."""

    def __init__(self, *numbers: int) -> None:
        super().__init__(0)
        self._numbers = list(numbers)

    def randrange(self, *_bounds: int) -> int:  # type: ignore[override] # as it is called here
        return self._numbers.pop(0)


CUT, APPEND = 0, 2
"""Kinds of alteration."""


def test_cutting_what_was_appended_and_appending_what_was_cut_restore_no_message() -> None:
    packet = encode_packet(HEADER, [(REPLY, 3, 0, b"{}")])
    for original, decode, error in (
        (packet, decode_packet, MalformedPacketError),
        (wire.encode_reply(wire.Reply(None, "done", True)), wire.decode_reply, wire.MalformedMessageError),
    ):
        longer = malformed_payload(Drawn(APPEND), original)
        assert longer == original + b"}"
        cut = malformed_payload(Drawn(CUT, len(original) - 1), original)
        assert cut == original[:-1]
        for payload in (malformed_payload(Drawn(CUT, len(original)), longer), malformed_payload(Drawn(APPEND), cut)):
            with pytest.raises(error):
                decode(payload)


@given(seed=st.integers(0, 1 << 32), text=st.text(max_size=20), faults=st.integers(1, 4))
def test_a_request_and_a_reply_without_a_session_are_unreadable(seed: int, text: str, faults: int) -> None:
    for decode, payload in (
        (wire.decode_request, wire.encode_request("{}", "{}", text, limit=1_000)),
        (wire.decode_reply, wire.encode_reply(wire.Reply(None, text, True))),
    ):
        rng = random.Random(seed)
        decode(payload)
        for _ in range(faults):
            payload = malformed_payload(rng, payload)  # the next fault alters it again
            with pytest.raises(wire.MalformedMessageError):
                decode(payload)


@pytest.mark.parametrize("payload", MALFORMED_PAYLOADS, ids=range(len(MALFORMED_PAYLOADS)))
def test_no_listed_payload_is_a_packet(payload: bytes) -> None:
    with pytest.raises(MalformedPacketError):
        decode_packet(payload)
