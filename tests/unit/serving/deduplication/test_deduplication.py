"""What a dispatcher no longer waits for is forgotten by its service, whatever else it still waits for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import ToolServer
from dispatch.messaging.wire.codec import encode_request
from dispatch.messaging.wire.properties import Property
from dispatch.serving.deduplication.deduplication import MAX_SETTLED_CHARS
from tests.helpers.clock import advance, idle
from tests.helpers.dispatcher_and_service import Peer, serving, stand
from tests.helpers.session import REPLY_TOPIC, from_peer

MAX_EXCEPTED, SETTLED_EVERY = 16, 32


async def work(arguments: dict[str, Any]) -> str:
    await asyncio.sleep(arguments.get("seconds", 0))
    return "x" * 1_000


def remembered(server: ToolServer) -> int:
    assert server._recall is not None
    return len(server._recall.ledger)


@pytest.mark.parametrize("slow", [0, 1, MAX_EXCEPTED])
async def test_calls_that_take_long_do_not_make_it_remember_all_that_came_since(slow: int) -> None:
    async with stand(work) as (dispatcher, server):
        waiting = [asyncio.create_task(dispatcher.call("work", {"seconds": 20})) for _ in range(slow)]
        await idle()
        for _ in range(10 * SETTLED_EVERY):
            await dispatcher.call("work")
        assert slow <= remembered(server) <= slow + SETTLED_EVERY
        await advance(20)
        assert [len(each) for each in await asyncio.gather(*waiting)] == [1_000] * slow


@pytest.mark.parametrize("said", ["", "x", "5,x", ",", "5,,3", "-5", "9" * (MAX_SETTLED_CHARS + 1)])
async def test_what_cannot_be_read_settles_nothing(said: str) -> None:
    async with serving(work) as server, Peer.as_caller(REPLY_TOPIC) as peer:
        for number, settled in ((1, None), (2, said)):
            properties = from_peer(number)
            if settled is not None:
                properties[Property.SETTLED] = settled
            await peer.send(server.request_queue, encode_request("{}", "{}"), properties)
            await peer.arrived.get()
        assert remembered(server) == 2


async def test_what_is_settled_is_forgotten_but_for_what_is_named() -> None:
    async with serving(work) as server, Peer.as_caller(REPLY_TOPIC) as peer:
        for number in range(1, 10):
            properties = from_peer(number)
            if number == 9:
                properties[Property.SETTLED] = "8,2,5"
            await peer.send(server.request_queue, encode_request("{}", "{}"), properties)
            await peer.arrived.get()
        assert remembered(server) == 4, "2, 5, 8 and 9"
