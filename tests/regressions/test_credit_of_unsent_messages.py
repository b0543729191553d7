"""Messages that were never sent kept their flow-control credit: after a publish that raised, or after calls whose requests
were withdrawn from the queue, the next call waited although nothing was in flight. Now it is sent at once."""

from __future__ import annotations

import asyncio

import pytest

from dispatch import Dispatcher
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, Peer, catalog, dispatching, serving
from tests.helpers.pausable_connection import HeldTransport

CALLS = 300
"""Their requests are more than the credit of 48,000 bytes, of which each takes 512 bytes and its payload."""
TOOLS = catalog(work={"policy": UNGUARDED})
WAYS = pytest.mark.parametrize("how", ["holds", "refuses"])


async def _fail(dispatcher: Dispatcher, timeout: float) -> None:
    """Make calls while the connection sends nothing."""
    results = await asyncio.gather(*(dispatcher.execute("work", timeout=timeout) for _ in range(CALLS)))
    assert not any(result.ok for result in results)


async def _next_call(dispatcher: Dispatcher, transport: HeldTransport) -> float:
    """Let messages pass again. Returns the duration of one call in virtual time, in which only waiting takes any."""
    transport.release()
    result = await dispatcher.execute("work")
    assert result.ok
    return result.duration


@WAYS
async def test_the_call_after_unsent_ones_is_sent_at_once(how: str) -> None:
    transport = HeldTransport(BROKER)
    async with serving(lambda _: "done"), dispatching(TOOLS, transport=transport) as dispatcher:
        assert (await dispatcher.execute("work")).ok
        setattr(transport, how, True)
        await _fail(dispatcher, 0.5)
        assert await _next_call(dispatcher, transport) == 0.0


@WAYS
async def test_it_is_so_with_a_third_party_service_of_large_answers(how: str) -> None:
    async def answer(peer: Peer) -> None:
        while True:
            _, properties = await peer.request()
            await peer.answer(properties, "x" * 1_000_000)

    transport = HeldTransport(BROKER)
    async with Peer.as_service() as peer, dispatching(TOOLS, transport=transport) as dispatcher:
        answering = asyncio.create_task(answer(peer))
        for _ in range(8):
            assert (await dispatcher.execute("work")).ok
            await asyncio.sleep(1)
        setattr(transport, how, True)
        await _fail(dispatcher, 0.04)
        assert await _next_call(dispatcher, transport) == 0.0
        answering.cancel()
