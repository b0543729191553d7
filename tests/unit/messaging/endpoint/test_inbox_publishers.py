"""Publishers to peers' inboxes: opened on demand, within limits, and closed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dispatch.errors import TransportError
from dispatch.messaging import endpoint
from dispatch.messaging.endpoint import (
    LINGER_S,
    MAX_WAITING,
    OPENINGS_AT_ONCE,
    OPENINGS_PER_S,
    PUBLISHERS_OF_ONE,
    REFUSALS,
    RETRY_S,
    UNUSED_S,
    InboxPublishers,
)
from dispatch.messaging.wire import derive_key, reply_topic
from dispatch.transports import TopicPublisher
from dispatch.transports.errors import opening_failed, unreachable
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle


def inbox(number: int, path: int = 0) -> str:
    return reply_topic("non-persistent://tg/response/work", f"{derive_key(str(number))}-peer", path)


class RecordingPublisher(MemoryPublisher):
    def __init__(self, transport: RecordingTransport, topic: str) -> None:
        super().__init__(transport, topic)
        self._owner = transport

    @property
    def opening_error(self) -> TransportError | None:
        return self._owner.lost.get(self.topic)

    @property
    def is_connected(self) -> bool:
        return True

    def send_packet(self, payload: bytes) -> bool:
        self._owner.sent.append((self.topic, payload))
        return True

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._owner.open.remove(self.topic)


class RecordingTransport(MemoryTransport):
    """Opening takes a moment; ``failure`` is raised instead."""

    def __init__(self) -> None:
        super().__init__("memory://inboxes")
        self.open: list[str] = []
        self.sent: list[tuple[str, bytes]] = []
        self.openings = 0
        self.lost: dict[str, TransportError] = {}
        """Why publishers that were open cannot be opened again."""
        self.failure: Exception | None = None
        self.refused: list[tuple[str, str]] = []
        """What was reported as refused by the broker."""
        self.takes = 0.01

    async def publisher(self, topic: str) -> RecordingPublisher:
        self.openings += 1
        await asyncio.sleep(self.takes)
        if self.failure is not None:
            raise self.failure
        self.open.append(topic)
        return RecordingPublisher(self, topic)


@asynccontextmanager
async def publishers() -> AsyncIterator[tuple[InboxPublishers, RecordingTransport, list[str]]]:
    transport, opened = RecordingTransport(), list[str]()
    found = InboxPublishers(
        transport, opened.append, lambda topic, error: transport.refused.append((topic, error.type))
    )
    yield found, transport, opened
    await found.close()
    await found.close()
    assert not transport.open


async def test_a_publisher_is_opened_when_it_is_needed() -> None:
    async with publishers() as (found, transport, opened):
        assert found.find(inbox(1)) is None
        assert found.find(inbox(1)) is None
        await advance(0.02)
        publisher: TopicPublisher | None = found.find(inbox(1))
        assert publisher is not None
        assert publisher.topic == inbox(1)
        assert opened == [inbox(1)]
        assert transport.openings == 1
        await found.open(inbox(1))
        assert transport.openings == 1


async def test_open_waits_for_an_opening_under_way() -> None:
    async with publishers() as (found, transport, _):
        await asyncio.gather(found.open(inbox(1)), found.open(inbox(1)))
        assert found.find(inbox(1)) is not None
        assert transport.openings == 1


async def test_a_publisher_that_cannot_be_opened_is_tried_again_later() -> None:
    async with publishers() as (found, transport, opened):
        transport.failure = unreachable("pulsar://x")
        with pytest.raises(TransportError, match="no Pulsar broker replies"):
            await found.open(inbox(1))
        with pytest.raises(TransportError, match="no Pulsar broker replies"):
            await found.open(inbox(1))
        assert transport.openings == 1, "not again at once"
        transport.failure = None
        await advance(RETRY_S)
        assert found.find(inbox(1)) is None
        await advance(0.02)
        assert opened == [inbox(1)]


async def test_an_inbox_that_the_broker_refuses_again_and_again_is_reported() -> None:
    async with publishers() as (found, transport, opened):
        transport.failure = opening_failed("AuthorizationError", url="pulsar://x", topic=inbox(1))
        assert found.find(inbox(1)) is None
        await advance((REFUSALS - 2) * RETRY_S + 0.5)
        transport.failure = None
        await advance(RETRY_S)
        assert (transport.openings, opened, transport.refused) == (REFUSALS, [inbox(1)], []), "tried again by itself"
        transport.failure = opening_failed("TopicNotFound", url="pulsar://x", topic=inbox(2))
        assert found.find(inbox(2)) is None
        await advance(10 * RETRY_S)
        assert transport.refused == [(inbox(2), "no-such-namespace")]
        assert transport.openings == 2 * REFUSALS, "not again, until it is needed"
        assert found.find(inbox(2)) is None
        await advance(0.02)
        assert transport.refused == [(inbox(2), "no-such-namespace")] * 2


async def test_a_broker_that_is_out_of_reach_refuses_no_inbox() -> None:
    async with publishers() as (found, transport, _):
        transport.failure = unreachable("pulsar://x")
        for _ in range(10):
            assert found.find(inbox(1)) is None
            await advance(RETRY_S + 0.1)
        assert transport.openings == 10
        assert transport.refused == []


async def test_a_publisher_that_cannot_be_reopened_is_closed() -> None:
    async with publishers() as (found, transport, opened):
        await found.open(inbox(1))
        transport.lost[inbox(1)] = opening_failed("TopicNotFound", url="pulsar://x", topic=inbox(1))
        assert found.find(inbox(1)) is None
        await idle()
        assert transport.open == []
        with pytest.raises(TransportError, match="has no namespace"):
            await found.open(inbox(1))
        transport.lost.clear()
        await advance(RETRY_S + 0.1)
        assert found.find(inbox(1)) is not None
        assert (opened, transport.refused) == ([inbox(1)] * 2, [])


async def test_closing_ends_the_attempts_to_open_a_refused_inbox() -> None:
    async with publishers() as (found, transport, _):
        transport.failure = opening_failed("TopicNotFound", url="pulsar://x", topic=inbox(1))
        found.find(inbox(1))
        await advance(0.1)
        await found.close()
        await advance(10)
        assert transport.openings == 1


async def test_an_error_of_any_kind_leaves_no_inbox_half_open() -> None:
    async with publishers() as (found, transport, _):
        transport.failure = RuntimeError("of a library")
        with pytest.raises(TransportError):
            await found.open(inbox(1))
        transport.failure = None
        await advance(RETRY_S)
        await found.open(inbox(1))


async def test_packets_without_a_session_wait_for_their_publisher_within_bounds() -> None:
    async with publishers() as (found, transport, _):
        for number in range(MAX_WAITING + 3):
            found.post(inbox(1), b"%d" % number)
        assert transport.sent == []
        await advance(0.02)
        assert transport.sent == [(inbox(1), b"%d" % number) for number in range(MAX_WAITING)]
        found.post(inbox(1), b"later")
        assert transport.sent[-1] == (inbox(1), b"later")


async def test_one_peer_has_a_limited_number() -> None:
    async with publishers() as (found, _, opened):
        for path in range(PUBLISHERS_OF_ONE + 5):
            found.find(inbox(1, path))
        found.find(inbox(2))
        await advance(0.02)
        assert len(opened) == PUBLISHERS_OF_ONE + 1
        assert found.refused == 5
        with pytest.raises(TransportError, match="was not opened"):
            await found.open(inbox(1, 99))


async def test_openings_are_limited_by_burst_and_rate() -> None:
    async with publishers() as (found, _, opened):
        for number in range(OPENINGS_AT_ONCE + 100):
            found.find(inbox(number))
        assert found.refused == 100
        await advance(1)
        for number in range(1_000, 1_000 + 2 * OPENINGS_PER_S):
            found.find(inbox(number))
        await advance(0.02)
        assert len(opened) == OPENINGS_AT_ONCE + OPENINGS_PER_S


async def test_openings_that_a_caller_waits_for_are_delayed_by_the_rate() -> None:
    async with publishers() as (found, _, opened):
        started = asyncio.get_running_loop().time()
        await asyncio.gather(*(found.open(inbox(number)) for number in range(OPENINGS_AT_ONCE + 2 * OPENINGS_PER_S)))
        assert 1.9 < asyncio.get_running_loop().time() - started < 2.1
        assert len(opened) == OPENINGS_AT_ONCE + 2 * OPENINGS_PER_S
        assert found.refused == 0


async def test_the_one_that_was_idle_longest_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_PUBLISHERS", 3)
    async with publishers() as (found, transport, _):
        for number in range(3):
            await found.open(inbox(number))
        assert found.find(inbox(0)) is not None
        await found.open(inbox(3))
        await idle()
        assert sorted(transport.open) == sorted([inbox(0), inbox(2), inbox(3)])
        transport.takes = 60.0
        for number in range(4, 7):
            found.find(inbox(number))
        assert found.refused == 0
        found.find(inbox(7))
        assert found.refused == 1, "all others are being opened"


async def test_an_unused_publisher_is_closed() -> None:
    async with publishers() as (found, transport, _):
        await found.open(inbox(1))
        await found.open(inbox(2))
        for _ in range(10):
            await advance(UNUSED_S / 4)
            assert found.find(inbox(2)) is not None
        assert transport.open == [inbox(2)]
        await advance(2 * UNUSED_S)
        assert len(found) == 0


async def test_closing_ends_openings_and_nothing_is_opened_afterwards() -> None:
    async with publishers() as (found, transport, opened):
        waiting = asyncio.create_task(found.open(inbox(1)))
        await idle()
        await found.close()
        with pytest.raises(TransportError, match="closed"):
            await waiting
        assert found.find(inbox(2)) is None
        with pytest.raises(TransportError, match="closed"):
            await found.open(inbox(2))
        assert (transport.openings, opened) == (1, [])


async def test_the_publisher_of_a_peer_whose_session_has_ended_is_closed_soon_unless_it_is_used() -> None:
    async with publishers() as (found, transport, _):
        for number in (1, 2):
            await found.open(inbox(number))
        found.expire([inbox(1), inbox(2), inbox(3)])
        await advance(LINGER_S - 0.1)
        assert len(transport.open) == 2
        assert found.find(inbox(2)) is not None, "a last packet"
        await advance(0.2)
        assert transport.open == [inbox(2)]
        await advance(LINGER_S)
        assert transport.open == []
        await found.open(inbox(1))
        found.expire([inbox(1)])
        for _ in range(10):  # another session of the same peer
            await advance(LINGER_S - 0.1)
            assert found.find(inbox(1)) is not None
