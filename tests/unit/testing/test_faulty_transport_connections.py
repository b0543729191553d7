"""Connections of the faulty transport: outages, the scope of faults, and delayed messages."""

from __future__ import annotations

import pytest

from dispatch.testing import FaultInjector, Faults, FaultyTransport, advance, idle
from dispatch.transports import Message, Mode
from dispatch.transports.memory import MemoryTransport
from tests.helpers.faulty_connection import TOPIC, ends

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
    monkeypatch.setattr("dispatch.testing.faults.MAX_DELAYED", 10)
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
