"""When a further path is opened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dispatch.messaging.endpoint import PACKETS_PER_CHECK, SUSTAINED, PathOpener
from dispatch.protocol import OutgoingRequest, SessionTable
from dispatch.transports.memory import MemoryTransport
from tests.helpers.clock import idle


@asynccontextmanager
async def opener(waiting: int) -> AsyncIterator[tuple[PathOpener, SessionTable, list[list[str | None]]]]:
    """An opener beside a session with so many requests in flight; the inboxes that it reported."""
    transport, reported = MemoryTransport("memory://paths"), list[list[str | None]]()
    await transport.start()
    table = SessionTable("caller", "1", ["first"], random_bytes=lambda count: b"x" * count, secret="s")
    session = table.connect("callee", 0.0)
    for _ in range(waiting):
        session.send_request(OutgoingRequest(), "tool", b"", None, 0.0)
    paths = PathOpener(
        transport,
        "non-persistent://tg/response/path-{}".format,
        lambda inboxes: reported.append(list(inboxes)),
        lambda data: None,
    )
    yield paths, table, reported
    await paths.close()
    await transport.close()


async def test_large_replies_open_a_path_when_they_last() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(PACKETS_PER_CHECK * SUSTAINED - 1):
            paths.record_packet(100_000, 1, table, 0.0)
        await idle()
        assert reported == []
        paths.record_packet(100_000, 1, table, 0.0)
        await idle()
        assert reported == [["non-persistent://tg/response/path-1"]]


async def test_a_burst_opens_none() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(20):
            for _ in range(PACKETS_PER_CHECK):
                paths.record_packet(200_000, 1, table, 0.0)
            for _ in range(PACKETS_PER_CHECK):
                paths.record_packet(100, 1, table, 0.0)
        await idle()
        assert reported == []


async def test_many_small_replies_open_none() -> None:
    """The first path carries them: more paths gain nothing."""
    async with opener(waiting=256) as (paths, table, reported):
        for _ in range(20 * PACKETS_PER_CHECK):
            paths.record_packet(100_000, 10, table, 0.0)
        await idle()
        assert 9_000 < paths.mean_reply_bytes < 11_000
        assert reported == []


async def test_fragments_count_for_the_reply_that_they_belong_to() -> None:
    async with opener(waiting=1) as (paths, table, _):
        for _ in range(100):
            paths.record_packet(1_000_000, 0, table, 0.0)
            paths.record_packet(1_000_000, 1, table, 0.0)
        assert 1_900_000 < paths.mean_reply_bytes < 2_100_000


async def test_there_are_four_paths_at_most() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(20):
            for _ in range(PACKETS_PER_CHECK * SUSTAINED):
                paths.record_packet(1_000_000, 1, table, 0.0)
            await idle()
        assert len(reported) == 3
        assert len(reported[-1]) == 3


async def test_closing_ends_an_opening() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(PACKETS_PER_CHECK * SUSTAINED):
            paths.record_packet(1_000_000, 1, table, 0.0)
        assert reported == []
        await paths.close()
        await asyncio.sleep(1)
        assert reported == []
