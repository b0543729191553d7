"""Each fault of a message has its effect in both directions, and is repeated with the same seed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest

from dispatch.messaging.wire import (
    MAX_PROPERTY_BYTES,
    ErrorInfo,
    MalformedMessageError,
    Property,
    decode_reply,
    decode_request,
)
from dispatch.testing import Faults, advance, idle
from dispatch.testing.faults import FAULT_KINDS, INJECTED_ERROR, SINGLE_DIRECTION
from tests.helpers.faulty_connection import TOPIC, ends


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
        tickets = [
            publisher.publish(b"", {"n": str(n)}, flow="test", on_failure=seen.failures.append) for n in range(40)
        ]
        waiting = [ticket.waits for ticket in tickets]
        withdrawn = [ticket.cancel() for ticket in tickets]
        assert waiting == withdrawn
        assert set(withdrawn) == {True, False}, "some are in a queue of ours, others on their way"
        await advance(3)
        assert set(seen.numbers) == {n for n, gone in enumerate(withdrawn) if not gone}
