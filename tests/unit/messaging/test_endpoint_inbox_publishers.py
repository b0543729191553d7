"""Publishers to peers' inboxes: opened on demand, within limits, and closed again.
Arguments and results beyond what the broker accepts as one message: whole between a dispatcher and an instance, otherwise
a clear error before anything is sent.
When a further path is opened.
Which inboxes an instance may send to.
Streams wait for room, and a closing process for the last acknowledgement.
Timers of sessions: never late, early at most, and bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch import Dispatcher, Policy, ToolServer
from dispatch.errors import InvalidArgumentsError, ToolError, TransportError
from dispatch.messaging import endpoint
from dispatch.messaging.wire import derive_key, instance_topic, reply_topic
from dispatch.protocol import CalleeSession, OutgoingRequest, SessionTable
from dispatch.transports import TopicPublisher
from dispatch.transports.errors import opening_failed, unreachable
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance, idle, start_task
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, Peer, Service, catalog, read, serving
from tests.helpers.faults import FaultPlan, FaultyTransport


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
async def publishers() -> AsyncIterator[tuple[endpoint.InboxPublishers, RecordingTransport, list[str]]]:
    transport, opened = RecordingTransport(), list[str]()
    found = endpoint.InboxPublishers(
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
        await advance(endpoint.RETRY_S)
        assert found.find(inbox(1)) is None
        await advance(0.02)
        assert opened == [inbox(1)]


async def test_an_inbox_that_the_broker_refuses_again_and_again_is_reported() -> None:
    async with publishers() as (found, transport, opened):
        transport.failure = opening_failed("AuthorizationError", url="pulsar://x", topic=inbox(1))
        assert found.find(inbox(1)) is None
        await advance((endpoint.REFUSALS - 2) * endpoint.RETRY_S + 0.5)
        transport.failure = None
        await advance(endpoint.RETRY_S)
        # Tried again by itself.
        assert (transport.openings, opened, transport.refused) == (endpoint.REFUSALS, [inbox(1)], [])
        transport.failure = opening_failed("TopicNotFound", url="pulsar://x", topic=inbox(2))
        assert found.find(inbox(2)) is None
        await advance(10 * endpoint.RETRY_S)
        assert transport.refused == [(inbox(2), "no-such-namespace")]
        assert transport.openings == 2 * endpoint.REFUSALS, "not again, until it is needed"
        assert found.find(inbox(2)) is None
        await advance(0.02)
        assert transport.refused == [(inbox(2), "no-such-namespace")] * 2


async def test_a_broker_that_is_out_of_reach_refuses_no_inbox() -> None:
    async with publishers() as (found, transport, _):
        transport.failure = unreachable("pulsar://x")
        for _ in range(10):
            assert found.find(inbox(1)) is None
            await advance(endpoint.RETRY_S + 0.1)
        assert (transport.openings, transport.refused) == (10, [])


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
        await advance(endpoint.RETRY_S + 0.1)
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
        await advance(endpoint.RETRY_S)
        await found.open(inbox(1))


async def test_packets_without_a_session_wait_for_their_publisher_within_bounds() -> None:
    async with publishers() as (found, transport, _):
        for number in range(endpoint.MAX_WAITING + 3):
            found.post(inbox(1), b"%d" % number)
        assert transport.sent == []
        await advance(0.02)
        assert transport.sent == [(inbox(1), b"%d" % number) for number in range(endpoint.MAX_WAITING)]
        found.post(inbox(1), b"later")
        assert transport.sent[-1] == (inbox(1), b"later")


async def test_one_peer_has_a_limited_number() -> None:
    async with publishers() as (found, _, opened):
        for path in range(endpoint.PUBLISHERS_OF_ONE + 5):
            found.find(inbox(1, path))
        found.find(inbox(2))
        await advance(0.02)
        assert len(opened) == endpoint.PUBLISHERS_OF_ONE + 1
        assert found.refused == 5
        with pytest.raises(TransportError, match="was not opened"):
            await found.open(inbox(1, 99))


async def test_openings_are_limited_by_burst_and_rate() -> None:
    async with publishers() as (found, _, opened):
        for number in range(endpoint.OPENINGS_AT_ONCE + 100):
            found.find(inbox(number))
        assert found.refused == 100
        await advance(1)
        for number in range(1_000, 1_000 + 2 * endpoint.OPENINGS_PER_S):
            found.find(inbox(number))
        await advance(0.02)
        assert len(opened) == endpoint.OPENINGS_AT_ONCE + endpoint.OPENINGS_PER_S


@pytest.mark.costly
async def test_openings_that_a_caller_waits_for_are_delayed_by_the_rate() -> None:
    async with publishers() as (found, _, opened):
        started = asyncio.get_running_loop().time()
        await asyncio.gather(
            *(found.open(inbox(number)) for number in range(endpoint.OPENINGS_AT_ONCE + 2 * endpoint.OPENINGS_PER_S))
        )
        assert 1.9 < asyncio.get_running_loop().time() - started < 2.1
        assert len(opened) == endpoint.OPENINGS_AT_ONCE + 2 * endpoint.OPENINGS_PER_S
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
            await advance(endpoint.UNUSED_S / 4)
            assert found.find(inbox(2)) is not None
        assert transport.open == [inbox(2)]
        await advance(2 * endpoint.UNUSED_S)
        assert len(found) == 0


async def test_closing_ends_openings_and_nothing_is_opened_afterwards() -> None:
    async with publishers() as (found, transport, opened):
        waiting = await start_task(found.open(inbox(1)))
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
        await advance(endpoint.LINGER_S - 0.1)
        assert len(transport.open) == 2
        assert found.find(inbox(2)) is not None, "a last packet"
        await advance(0.2)
        assert transport.open == [inbox(2)]
        await advance(endpoint.LINGER_S)
        assert transport.open == []
        await found.open(inbox(1))
        found.expire([inbox(1)])
        for _ in range(10):  # another session of the same peer
            await advance(endpoint.LINGER_S - 0.1)
            assert found.find(inbox(1)) is not None


LIMIT = 10_000
"""Bytes that the broker takes as one message here."""


def memory(limit: int = LIMIT) -> MemoryTransport:
    transport = MemoryTransport(BROKER)
    transport.max_message_bytes = limit
    return transport


def text(size: int) -> str:
    return "".join(f"{index};" for index in range(size))[:size]


@contextlib.asynccontextmanager
async def sides(
    work: Any, *, fault: FaultPlan | None = None, server_options: dict[str, Any] | None = None, **policy: Any
) -> AsyncIterator[tuple[Dispatcher, ToolServer, FaultyTransport]]:
    """Both sides on a broker with a small limit; ``fault`` is what the service's connection does once they have met."""
    network = FaultyTransport(memory(), outgoing=FaultPlan(), incoming=FaultPlan(), seed=1)
    await network.start()
    settings = Policy(**{**UNGUARDED, **policy})
    async with (
        serving(work, broker=network, **(server_options or {})) as server,
        Dispatcher(memory(), catalog(), policy=settings) as dispatcher,
    ):
        await dispatcher.call("work", {"size": 1, "first": True})  # they have met
        if fault is not None:
            network.change(outgoing=fault, incoming=fault)
        yield dispatcher, server, network
        network.heal()
    await network.close()


def sized(arguments: dict[str, Any]) -> str:
    return text(arguments["size"])


# -- answers --------------------------------------------------------------------------------------------------------
@pytest.mark.costly
@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT, LIMIT + 1, 10 * LIMIT, 100 * LIMIT])
async def test_an_answer_of_any_size_arrives_whole(size: int) -> None:
    async with sides(sized) as (dispatcher, _, _):
        result = await dispatcher.execute("work", {"size": size})
        assert (result.text, result.chunks) == (text(size), 1)


@pytest.mark.parametrize("letter", ["ü", "😀", "\x01", '"'])
async def test_letters_that_take_many_bytes(letter: str) -> None:
    async with sides(lambda _: letter * 3_000) as (dispatcher, _, _):
        assert await dispatcher.call("work") == letter * 3_000


@pytest.mark.parametrize("bad", ["\ud800", "x" * 5 * LIMIT + "\ud800"])
async def test_a_large_text_that_is_none_is_an_error(bad: str) -> None:
    async with sides(lambda a: "ok" if a.get("first") else bad) as (dispatcher, _, _):
        with pytest.raises(ToolError) as caught:
            await dispatcher.call("work")
        assert caught.value.type == "invalid-result"


async def test_the_caller_and_the_service_each_have_a_limit() -> None:
    async with sides(sized, max_response_bytes=5_000) as (dispatcher, _, _):
        assert len(await dispatcher.call("work", {"size": 5_000})) == 5_000
        with pytest.raises(TransportError, match="'max-response-bytes'"):
            await dispatcher.call("work", {"size": 5_001})
    async with sides(sized, server_options={"max_payload_bytes": 4_000}) as (dispatcher, _, _):
        assert len(await dispatcher.call("work", {"size": 4_000})) == 4_000
        with pytest.raises(ToolError, match="4,001 bytes, the limit is 4,000"):
            await dispatcher.call("work", {"size": 4_001})


async def test_a_stream_keeps_its_chunks_whatever_their_size() -> None:
    chunks = ["small", text(7 * LIMIT), "", "small again", text(3 * LIMIT)]

    async def items() -> AsyncIterator[str]:
        for chunk in chunks:
            yield chunk

    async def work(arguments: dict[str, Any]) -> Any:
        return "met" if arguments.get("first") else items()

    async with sides(work) as (dispatcher, _, _):
        got: list[str] = []
        await read(dispatcher.stream("work"), got)
        assert got == [chunk for chunk in chunks if chunk]
        assert await dispatcher.call("work") == "".join(chunks)


async def test_a_large_result_is_one_chunk_of_a_stream() -> None:
    async with sides(sized) as (dispatcher, _, _):
        got: list[str] = []
        await read(dispatcher.stream("work", {"size": 9 * LIMIT}), got)
        assert got == [text(9 * LIMIT)]


# -- requests -------------------------------------------------------------------------------------------------------
def told(arguments: dict[str, Any]) -> str:
    return arguments.get("fill", "none")[-20:]


@pytest.mark.costly
@pytest.mark.parametrize("size", [LIMIT - 200, LIMIT, 10 * LIMIT, 300 * LIMIT])
async def test_arguments_of_any_size_arrive_whole_and_run_once(size: int) -> None:
    service = Service(told)
    async with sides(service) as (dispatcher, _, _):
        assert (await dispatcher.execute("work", {"fill": text(size)})).text == text(size)[-20:]
        assert [arguments.get("fill") for _, arguments, _ in service.requests[1:]] == [text(size)]


async def test_beyond_the_limit_of_the_policy_nothing_is_sent_and_the_error_names_it() -> None:
    async with sides(told, max_request_bytes=5_000) as (dispatcher, server, _):
        with pytest.raises(InvalidArgumentsError, match="'max-request-bytes'"):
            await dispatcher.call("work", {"fill": text(5_000)})
        assert server.requests == 1
    async with sides(told, max_request_bytes=500) as (dispatcher, server, _):
        with pytest.raises(InvalidArgumentsError, match="'max-request-bytes'"):
            await dispatcher.call("work", {"fill": text(500)})


async def test_nobody_who_takes_parts_is_known() -> None:
    async with Peer.as_service() as peer, Dispatcher(memory(), catalog()) as dispatcher:
        with pytest.raises(InvalidArgumentsError, match="no instance is known") as caught:
            await dispatcher.call("work", {"fill": text(LIMIT)})
        error = caught.value
        assert (error.type, error.retryable) == ("request-too-large", False)
        assert peer.arrived.empty()
        with pytest.raises(InvalidArgumentsError, match="no instance is known"):
            await anext(dispatcher.stream("work", {"fill": text(LIMIT)}))
        assert dispatcher.pending_requests == 0


@pytest.mark.costly
async def test_an_instance_that_is_gone_in_the_middle_is_noticed_long_before_the_timeout() -> None:
    service = Service(told)
    async with sides(service, timeout=100.0) as (dispatcher, _, network):
        call = asyncio.create_task(dispatcher.execute("work", {"fill": text(900 * LIMIT)}))
        await asyncio.sleep(0)
        network.change(incoming=FaultPlan(drop=1.0))
        result = await call
        assert isinstance(result.error, TransportError)
        assert result.error.type == "instance-lost"
        assert result.duration < 45  # 30 s of it wait for another instance
        assert len(service.requests) == 1
        assert dispatcher.pending_requests == 0


@asynccontextmanager
async def opener(waiting: int) -> AsyncIterator[tuple[endpoint.PathOpener, SessionTable, list[list[str | None]]]]:
    """An opener beside a session with so many requests in flight; the inboxes that it reported."""
    transport, reported = MemoryTransport("memory://paths"), list[list[str | None]]()
    await transport.start()
    table = SessionTable("caller", "1", ["first"], random_bytes=lambda count: b"x" * count, secret="s")
    session = table.connect("callee", 0.0)
    for _ in range(waiting):
        session.send_request(OutgoingRequest(), "tool", b"", None, 0.0)
    inbox_of = "non-persistent://tg/response/path-{}".format
    paths = endpoint.PathOpener(transport, inbox_of, lambda inboxes: reported.append([*inboxes]), lambda data: None)
    yield paths, table, reported
    await paths.close()
    await transport.close()


async def test_large_replies_open_a_path_when_they_last() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(endpoint.PACKETS_PER_CHECK * endpoint.SUSTAINED - 1):
            paths.record_packet(100_000, 1, table, 0.0)
        await idle()
        assert reported == []
        paths.record_packet(100_000, 1, table, 0.0)
        await idle()
        assert reported == [["non-persistent://tg/response/path-1"]]


async def test_a_burst_opens_none() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(20):
            for _ in range(endpoint.PACKETS_PER_CHECK):
                paths.record_packet(200_000, 1, table, 0.0)
            for _ in range(endpoint.PACKETS_PER_CHECK):
                paths.record_packet(100, 1, table, 0.0)
        await idle()
        assert reported == []


async def test_many_small_replies_open_none() -> None:
    """The first path carries them: more paths gain nothing."""
    async with opener(waiting=256) as (paths, table, reported):
        for _ in range(20 * endpoint.PACKETS_PER_CHECK):
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
            for _ in range(endpoint.PACKETS_PER_CHECK * endpoint.SUSTAINED):
                paths.record_packet(1_000_000, 1, table, 0.0)
            await idle()
        assert len(reported) == 3
        assert len(reported[-1]) == 3


async def test_closing_ends_an_opening() -> None:
    async with opener(waiting=8) as (paths, table, reported):
        for _ in range(endpoint.PACKETS_PER_CHECK * endpoint.SUSTAINED):
            paths.record_packet(1_000_000, 1, table, 0.0)
        assert reported == []
        await paths.close()
        await asyncio.sleep(1)
        assert reported == []


SECRET = "the secret of a caller"
KEY = derive_key(SECRET)
RESPONSES = "non-persistent://tg/response/work"
INBOX = reply_topic(RESPONSES, f"{KEY}-agent")


@pytest.mark.parametrize("path", [0, 1, 3])
def test_the_inboxes_of_the_holder_of_the_secret_are_allowed(path: int) -> None:
    assert endpoint.ReplyPermission(RESPONSES)(reply_topic(RESPONSES, f"{KEY}-agent", path), SECRET)


@pytest.mark.parametrize(
    "inbox",
    [
        INBOX.replace("/response/", "/request/"),
        INBOX.replace("tg/", "other/"),
        INBOX.replace("non-persistent", "persistent"),
        INBOX.replace(KEY, derive_key("of another caller")),
        "non-persistent://tg/response/work",
        f"non-persistent://tg/response/dispatch-reply-{KEY[:-1]}-agent",
        "no topic",
        "",
        INBOX + "x" * 1_000,
    ],
)
def test_other_topics_are_not_allowed(inbox: str) -> None:
    assert not endpoint.ReplyPermission(RESPONSES)(inbox, SECRET)


@pytest.mark.parametrize("secret", ["", "another", SECRET + "x" * 100])
def test_other_secrets_are_not_allowed(secret: str) -> None:
    assert not endpoint.ReplyPermission(RESPONSES)(INBOX, secret)


def test_further_namespaces_can_be_allowed() -> None:
    elsewhere = INBOX.replace("/response/", "/agents/")
    assert not endpoint.ReplyPermission(RESPONSES)(elsewhere, SECRET)
    assert endpoint.ReplyPermission(RESPONSES, ["tg/agents"])(elsewhere, SECRET)


def test_persistent_topics_can_be_allowed() -> None:
    persistent = INBOX.replace("non-persistent", "persistent")
    assert endpoint.ReplyPermission(RESPONSES, allows_persistent=True)(persistent, SECRET)
    assert endpoint.ReplyPermission(RESPONSES, allows_persistent=True)(INBOX, SECRET)


def test_inboxes_that_are_named_are_remembered_within_bounds() -> None:
    permission = endpoint.ReplyPermission(RESPONSES)
    for number in range(endpoint.MAX_KNOWN + 10):
        permission(f"non-persistent://tg/response/{number}", SECRET)
    assert permission._find_owner.cache_info().currsize <= endpoint.MAX_KNOWN
    assert permission(INBOX, SECRET)


def test_the_inboxes_of_one_dispatcher_have_one_owner() -> None:
    assert (
        endpoint.find_inbox_owner(INBOX) == endpoint.find_inbox_owner(reply_topic(RESPONSES, f"{KEY}-agent", 2)) == KEY
    )
    instance = instance_topic("non-persistent://tg/request/work", "one")
    assert endpoint.find_inbox_owner(instance) == instance
    assert endpoint.find_inbox_owner("no topic") == "no topic"


class Fake:
    """A session as the waiters read it."""

    def __init__(self) -> None:
        self.queued_bytes = 0
        self.without_credit: set[int] = set()
        self.is_closed = False
        self.is_at_rest = True

    def has_credit(self, stream: int) -> bool:
        return stream not in self.without_credit


def fake(**state: Any) -> CalleeSession:
    session = Fake()
    for name, value in state.items():
        setattr(session, name, value)
    return cast(CalleeSession, session)


async def test_a_stream_waits_until_its_own_session_has_room() -> None:
    waiters, full, other = endpoint.SendWaiters(), Fake(), fake()
    full.queued_bytes = endpoint.WRITABLE_BYTES + 1
    session = cast(CalleeSession, full)
    await waiters.writable(other, 0)
    writers = [asyncio.create_task(waiters.writable(session, 0)) for _ in range(2)]
    await idle()
    waiters.release(session)
    waiters.release(other)
    await idle()
    assert len(waiters) == 1
    assert not any(writer.done() for writer in writers)
    full.queued_bytes = endpoint.WRITABLE_BYTES
    writers[0].cancel()
    waiters.release(session)
    await writers[1]
    assert len(waiters) == 0


async def test_a_stream_of_a_session_that_ends_continues() -> None:
    waiters, full = endpoint.SendWaiters(), Fake()
    full.queued_bytes = endpoint.WRITABLE_BYTES + 1
    writer = await start_task(waiters.writable(cast(CalleeSession, full), 0))
    full.is_closed = True
    waiters.release(cast(CalleeSession, full))
    await writer
    await waiters.writable(cast(CalleeSession, full), 0)


async def test_a_stream_waits_for_its_own_credit() -> None:
    waiters, slow = endpoint.SendWaiters(), Fake()
    session = cast(CalleeSession, slow)
    slow.without_credit = {1, 2}
    await waiters.writable(session, 0)
    writers = [asyncio.create_task(waiters.writable(session, stream)) for stream in (1, 2)]
    await idle()
    slow.without_credit = {2}
    waiters.release(session)
    await writers[0]
    assert len(waiters) == 1
    slow.without_credit = set()
    waiters.release(session)
    await writers[1]
    assert len(waiters) == 0


async def test_a_stream_that_has_lost_its_room_meanwhile_waits_on() -> None:
    """Others of the session were released at the same time, and have filled it."""
    waiters, full = endpoint.SendWaiters(), Fake()
    session = cast(CalleeSession, full)
    full.queued_bytes = endpoint.WRITABLE_BYTES + 1
    writer = await start_task(waiters.writable(session, 0))
    full.queued_bytes = 0
    waiters.release(session)
    full.queued_bytes = endpoint.WRITABLE_BYTES + 1
    await idle()
    assert not writer.done()
    full.is_closed = True
    waiters.release(session)
    await writer


async def test_other_tasks_run_beside_a_tool_that_never_waits() -> None:
    waiters, ran = endpoint.SendWaiters(), []
    asyncio.get_running_loop().call_soon(ran.append, True)
    for _ in range(endpoint.CHUNKS_PER_TURN):
        await waiters.writable(fake(), 0)
    assert ran


async def test_a_flush_waits_until_every_session_is_at_rest() -> None:
    waiters, busy = endpoint.SendWaiters(), Fake()
    sessions = [fake(), cast(CalleeSession, busy)]
    await waiters.at_rest(sessions)
    busy.is_at_rest = False
    flush = await start_task(waiters.at_rest(sessions))
    waiters.release_at_rest()
    await idle()
    assert not flush.done()
    busy.is_at_rest = True
    waiters.release_at_rest()
    await flush


@pytest.mark.parametrize("wait", ["writable", "at_rest"])
async def test_closing_lets_all_continue(wait: str) -> None:
    waiters = endpoint.SendWaiters()
    session = fake(queued_bytes=endpoint.WRITABLE_BYTES + 1, is_at_rest=False)
    task = await start_task(waiters.writable(session, 0) if wait == "writable" else waiters.at_rest([session]))
    waiters.close()
    await task
    assert len(waiters) == 0


def test_a_session_is_due_at_its_time() -> None:
    timers: endpoint.SessionTimers[str] = endpoint.SessionTimers()
    timers.schedule("a", 2.0)
    timers.schedule("b", 1.0)
    assert timers.next_due == 1.0
    assert timers.pop_due(0.5) == []
    assert timers.pop_due(1.0) == ["b"]
    assert timers.pop_due(5.0) == ["a"]
    assert timers.next_due == math.inf


def test_a_later_time_adds_no_entry_and_an_earlier_one_does() -> None:
    timers: endpoint.SessionTimers[str] = endpoint.SessionTimers()
    for _ in range(1000):
        timers.schedule("a", 5.0)
        timers.schedule("a", 7.0)
    timers.schedule("a", math.inf)
    assert len(timers) == 1
    timers.schedule("a", 3.0)
    assert len(timers) == 2
    assert timers.next_due == 3.0


def test_a_session_that_alternates_between_soon_and_late_leaves_no_entries() -> None:
    """A request: due in milliseconds; its reply: due in ten seconds."""
    timers: endpoint.SessionTimers[str] = endpoint.SessionTimers()
    now = 0.0
    for _ in range(1000):
        timers.schedule("a", now + 10.0)
        timers.schedule("a", now + 0.005)
        now += 0.006
        assert "a" in timers.pop_due(now)
    assert len(timers) <= 2


def test_a_discarded_session_is_not_reported() -> None:
    timers: endpoint.SessionTimers[str] = endpoint.SessionTimers()
    timers.schedule("a", 1.0)
    timers.schedule("b", 1.0)
    timers.discard("a")
    timers.discard("unknown")
    assert timers.pop_due(2.0) == ["b"]
    timers.schedule("b", 3.0)
    timers.clear()
    assert timers.pop_due(9.0) == []


times = st.floats(0, 100)


@given(st.lists(st.tuples(st.sampled_from("abc"), times, times), max_size=60))
def test_every_session_is_reported_by_the_time_it_is_due(steps: list[tuple[str, float, float]]) -> None:
    timers: endpoint.SessionTimers[str] = endpoint.SessionTimers()
    wanted: dict[str, float] = {}
    now = 0.0
    for session, delay, passed in steps:
        wanted[session] = min(wanted.get(session, math.inf), now + delay)
        timers.schedule(session, now + delay)
        now += passed
        reported = set(timers.pop_due(now))
        assert {each for each, at in wanted.items() if at <= now} <= reported
        assert not any(at <= now for at in [timers.next_due])
        for each in reported:
            if wanted.get(each, math.inf) <= now:
                del wanted[each]
            else:
                timers.schedule(each, wanted.get(each, math.inf))
