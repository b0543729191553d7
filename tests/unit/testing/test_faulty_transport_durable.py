"""Durable messages on a faulty transport: acknowledged once handled, and delivered again when lost."""

from __future__ import annotations

import pytest

from dispatch.testing import Faults, advance, idle
from dispatch.transports import DurableMessage, Message, Mode
from dispatch.transports.memory import MemoryTransport
from tests.helpers.faulty_connection import Seen, ends

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
            assert isinstance(message, DurableMessage)
            message.keep()

        await faulty.subscribe(KEPT, keeps, mode=Mode.SHARED, name="test")
        publish(1)
        await advance(5)
        await faulty.close()
        assert await _redelivered(faulty.url) == [1]
