"""Two endpoints over the embedded broker and over Pulsar."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator

import pytest

from dispatch.devtools.localbroker import Endpoint, LocalBroker, create_namespaces
from dispatch.errors import TransportError
from dispatch.protocol import Settings
from dispatch.testing import FaultInjector, Faults, FaultyTransport
from tests.helpers.endpoint_peers import peers

URLS = ["memory", pytest.param("pulsar", marks=pytest.mark.pulsar)]


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "memory":
        yield "memory://"
    else:
        yield request.getfixturevalue("pulsar_endpoint").service_url


async def test_a_request_gets_its_reply(url: str) -> None:
    async with peers(url) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        assert await caller.call(session, b"1:3") == b"1.."
        assert session.peer_name == "callee-0"
        assert callee.runs == {b"1": 1}
    assert callee.closed == [("caller", "closed")]


async def test_a_reply_of_ten_megabytes(url: str) -> None:
    async with peers(url) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        reply = await caller.call(session, b"7:10000000")
        assert reply == b"7".ljust(10_000_000, b".")


async def test_many_requests_share_packets(url: str) -> None:
    async with peers(url) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        before = session.statistics.packets_sent
        replies = await asyncio.gather(*(caller.call(session, b"%d:20" % number) for number in range(500)))
        assert replies == [(b"%d" % number).ljust(20, b".") for number in range(500)]
        assert session.statistics.packets_sent - before < 50
        assert set(callee.runs.values()) == {1}


@pytest.mark.parametrize("size", [50, 20_000, 300_000])
async def test_nothing_is_lost_or_run_twice_with_one_packet_of_twenty_dropped_each_way(url: str, size: int) -> None:
    faults = FaultInjector(Faults(drop=0.05, direction="out", seed=size))
    async with peers(url, wrap=lambda inner: FaultyTransport(inner, faults)) as (caller, [callee]):
        session = await caller.connect(callee.inbox)
        count = max(160, 4_000_000 // (size + 1_000))

        async def call_several(start: int) -> None:
            for number in range(start, start + count // 8):
                reply = await caller.call(session, b"%d:%d" % (number, size))
                assert reply == (b"%d" % number).ljust(size, b".")

        await asyncio.gather(*(call_several(10_000 * start) for start in range(8)))
        assert faults.count["out drop"] > 0
        assert set(callee.runs.values()) == {1}
        assert not caller.failures
        faults.heal()


async def test_half_open_sessions_that_give_way_to_others_expire_all_the_same() -> None:
    """One session ends and another begins with the same packet: the number of sessions does not change."""
    settings = Settings(max_half_open=1, half_open=0.5)
    async with peers("memory://", settings=settings) as (caller, [callee]):
        for _ in range(3):
            session = caller.table.connect(callee.inbox, asyncio.get_running_loop().time())
            ((_, hello),) = session.packets_to_send(asyncio.get_running_loop().time())
            callee.endpoint.receive_packet(hello)
            caller.table.end(session, asyncio.get_running_loop().time())
        assert len(callee.table.sessions) == 1
        await asyncio.sleep(2)
        assert callee.table.sessions == {}


@pytest.mark.pulsar
async def test_twenty_callees_that_answer_at_once_lose_next_to_nothing(pulsar_endpoint: Endpoint) -> None:
    async with peers(pulsar_endpoint.service_url, callees=20, has_paths=True) as (caller, callees):
        sessions = [await caller.connect(callee.inbox) for callee in callees]
        for number in range(30):
            payload = b"%d:100000" % number
            replies = await asyncio.gather(*(caller.call(session, payload) for session in sessions))
            assert replies == [(b"%d" % number).ljust(100_000, b".")] * 20
        of_callees = [each.statistics for callee in callees for each in callee.table.sessions.values()]
        sent = sum(each.packets_sent for each in of_callees)
        assert sum(each.retransmissions for each in of_callees) <= 0.01 * sent
        assert all(set(callee.runs.values()) == {1} for callee in callees)


@pytest.mark.pulsar
@pytest.mark.slow
async def test_sessions_survive_a_restart_of_the_broker_under_load() -> None:
    with LocalBroker.start() as broker:
        create_namespaces(broker.admin())
        async with peers(broker.service_url) as (caller, [callee]):
            session = await caller.connect(callee.inbox)
            numbers, is_over = itertools.count(), False
            answered, has_answered = list[float](), asyncio.Event()

            async def call_again_and_again() -> None:
                while not is_over:
                    number = b"%d" % next(numbers)
                    assert await caller.call(session, number + b":20") == number.ljust(20, b".")
                    answered.append(time.monotonic())
                    has_answered.set()

            workers = [asyncio.create_task(call_again_and_again()) for _ in range(64)]
            while len(answered) < 1_000:
                has_answered.clear()
                await has_answered.wait()
            broker.kill()
            await asyncio.to_thread(broker.restart)
            back = await first_delivery(broker.service_url)
            async with asyncio.timeout(30):
                while answered[-1] < back:
                    has_answered.clear()
                    await has_answered.wait()
            is_over = True
            await asyncio.gather(*workers)
            assert caller.failures == caller.closed == []
            assert len(callee.runs) == next(numbers)
            assert set(callee.runs.values()) == {1}
            assert min(at for at in answered if at > back) - back < 2


async def first_delivery(url: str) -> float:
    """Return when a broker that has just started has delivered a message between new connections."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(TransportError):  # it accepts connections before it opens topics
                async with peers(url) as (caller, [callee]):
                    await caller.connect(callee.inbox)
                return time.monotonic()
