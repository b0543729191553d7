"""Calls over a network with every fault leave nothing behind: no pending request, task, timer or queued message.
Very many calls of every kind over a faulty transport, on virtual time; every one is followed to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from dispatch import Dispatcher, Outcome, ToolServer, ToolService
from dispatch.errors import DispatchError, ToolError
from dispatch.messaging.flow import PacedPublisher
from dispatch.messaging.plain import MAX_TOMBSTONES
from dispatch.messaging.request import Disposition
from dispatch.protocol.table import SessionTable
from dispatch.transports.memory import MemoryTransport
from tests.at_most_once.quiescence import assert_dispatcher_rests, assert_server_rests
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.dispatcher_and_service import BROKER, REQUESTS, RESPONSES, UNGUARDED, catalog, dispatching
from tests.helpers.faults import FaultPlan, FaultyTransport
from tests.helpers.internals import correlator_of, tables_of
from tests.helpers.run_profile import by_profile

EVERYTHING = FaultPlan(
    drop=0.01, delay=0.02, duplicate=0.02, reorder=0.02, malformed=0.01, missing_id=0.005, oversized_id=0.005,
    foreign_id=0.005, error=0.01, late_error=0.01, disconnect=0.0005,
)  # fmt: skip
ARRIVING = FaultPlan(
    drop=0.005, delay=0.01, duplicate=0.01, reorder=0.01, malformed=0.005, missing_id=0.005, oversized_id=0.005,
    foreign_id=0.005, raising=0.01,
)  # fmt: skip
NOTHING = FaultPlan()
CALLS = by_profile(short=4_000, long=50_000)
ENDS = {*map(str, Outcome), "cancelled", "left early"}
RARE = (
    *("draining", "expired", "invalid-request", "request-too-large", "reply-evicted"),
    *("invalid-arguments", "unknown-tool"),
)
"""What needs an instance that goes, a caller that withdraws no request at its deadline, a damaged request that passes for
one, an instance with a lower limit than its callers, an idempotency key, or served functions."""
OF_PLAIN_MESSAGES = {"missing_id", "oversized_id", "foreign_id"}
"""Faults that a packet of a session does not have when it is published: it has no properties."""
PROFILES = {
    "everything": (EVERYTHING, ARRIVING),
    "lossy": (FaultPlan(drop=0.3), FaultPlan(drop=0.1)),
    "out of order": (FaultPlan(delay=0.3, reorder=0.3, max_delay=1), FaultPlan(delay=0.2, reorder=0.2, max_delay=1)),
    "twice": (FaultPlan(duplicate=0.8, max_delay=6), FaultPlan(duplicate=0.3)),
    "rubbish": (FaultPlan(malformed=0.1, missing_id=0.1, oversized_id=0.1, foreign_id=0.1), FaultPlan(raising=0.2)),
    "failing": (FaultPlan(error=0.2, late_error=0.3, disconnect=0.002), NOTHING),
}


async def scene(calls: int, seed: int, profile: str) -> Load:
    """Run the calls of a profile and see that nothing is left; the loop's runner sees to tasks and timers."""
    load = Load(calls, seed, *PROFILES[profile])
    await load.run()
    running, server = load.dispatcher._running, load.server
    assert running.pending == 0, "the last call has ended"
    await load.settle()

    assert not load.ledger.wrong, load.ledger.wrong[:20]
    assert sorted(load.ledger.ends) == list(range(calls)), "every call has ended, once"
    assert set(load.ledger.kinds) <= ENDS
    assert running.pending == 0
    assert (server.running, server.queued) == (0, 0)
    assert load.waiting_to_go_out() == 0
    matched = load.counted()[Disposition.MATCHED]
    assert load.ledger.replies <= matched <= load.replies_sent, "each reply that a caller received, once"
    assert load.most_tombstones <= MAX_TOMBSTONES
    assert load.most_running <= server.concurrency
    assert load.most_queued <= server.max_queue
    assert 0 < load.most_pending <= IN_FLIGHT

    # Everything is alive: once the network is well again each call succeeds, on the same connections and on another.
    load.network.heal()
    load.service_network.heal()
    async with dispatching() as other:
        for dispatcher in (load.dispatcher, other):
            calls = (dispatcher.call("work", {"n": n, "how": "answer", "seconds": 0}, timeout=2) for n in range(50))
            assert await asyncio.gather(*calls) == [f"answer {n}" for n in range(50)]
    assert running.pending == 0
    assert load.waiting_to_go_out() == 0
    await advance(1)
    assert_dispatcher_rests(load.dispatcher)
    assert_server_rests(server)
    await load.close()
    return load


def count_duplicates(table: SessionTable) -> int:
    """Return the number of packets that arrived again, in sessions that are open or have ended."""
    return table.ended.statistics.duplicates + sum(each.statistics.duplicates for each in table.sessions.values())


@pytest.mark.costly
@pytest.mark.parametrize("profile", sorted(PROFILES.keys() - {"everything"}))
async def test_nothing_leaks(profile: str) -> None:
    load = await scene(1_500, 1, profile)
    kinds = load.ledger.kinds
    assert kinds[Outcome.SUCCESS] > 50, kinds
    assert kinds["cancelled"] > 20, kinds


@pytest.mark.slow
@pytest.mark.long
async def test_calls_with_every_fault_and_every_outcome_leave_nothing_behind() -> None:
    load = await scene(CALLS, 20_260, "everything")
    kinds, counted = load.ledger.kinds, load.counted()
    # A run in which a fault, an outcome or a disposition is missing has checked less than it claims. A damaged packet is
    # dropped and sent again, so that it makes no call's arguments invalid.
    for end in ENDS - {Outcome.CANCELLED, Outcome.REJECTED, Outcome.INVALID_ARGUMENTS}:
        assert kinds[end] > CALLS // 2_000, (end, kinds)
    # Sessions recognize copies and strangers by their packets, which are fewer than replies.
    assert counted[Disposition.LATE] > CALLS // 200, counted
    assert counted[Disposition.MALFORMED] > CALLS // 500, counted
    tables = [*tables_of(load.dispatcher), load.server.session_table]
    assert all(count_duplicates(table) > CALLS // 200 for table in tables)
    happened = load.network.count + load.service_network.count
    for fault in {
        f"{way} {name}"
        for way, plan in (("out", EVERYTHING), ("in", ARRIVING))
        for name, _ in plan.list_probabilities(way)
        if way == "in" or name not in OF_PLAIN_MESSAGES
    }:
        assert happened[fault] > CALLS // 5_000, (fault, happened)
    assert load.server.malformed > CALLS // 1_000
    assert load.server.refused["invalid-request"] <= CALLS // 5_000, "only of a plain request, before a session is open"
    expected = {reason: count for reason, count in load.server.refused.items() if reason not in RARE}
    assert all(count > CALLS // 5_000 for count in expected.values()), load.server.refused
    assert load.most_tombstones < CALLS // 200, "only of plain requests: sessions remember no id"
    assert virtual_loop().time() > CALLS / 250


IN_FLIGHT = 400
"""Calls under way at once, at most."""


class Worker(ToolService):
    """Does what the arguments say: answer, stream, fail, or take long; every text holds the call's number.

    Attributes:
        replies: results, errors, chunks and ends of streams that it can have caused, at most.
    """

    def __init__(self) -> None:
        self.replies = 0

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        number, how = arguments["n"], arguments["how"]
        self.replies += 1  # the result, the error, or the end of the stream
        if how == "stream":
            return self._stream(number, arguments["chunks"], arguments["seconds"])
        if arguments["seconds"]:
            await asyncio.sleep(arguments["seconds"])
        if how == "error":
            raise ToolError("odd", f"no {number}")
        if how == "unprintable":
            raise UnprintableError
        return f"answer {number}"

    async def _stream(self, number: int, chunks: int, seconds: float) -> AsyncIterator[str]:
        for index in range(chunks):
            if seconds and index % 3 == 2:
                await asyncio.sleep(seconds)
            self.replies += 1
            yield f"{number}:{index};"


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise ValueError("not even that")


@dataclass
class Ledger:
    """How each call ended, by its number; more than one entry for a number would be an error.

    Attributes:
        replies: results, errors of tools and chunks that callers have received.
    """

    ends: dict[int, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    replies: int = 0

    def end(self, number: int, how: str) -> None:
        if number in self.ends:
            self.wrong.append(f"call {number} ended as {self.ends[number]} and as {how}")
        self.ends[number] = how
        self.kinds[how] += 1

    def check(self, right: bool, number: int, what: str) -> None:
        if not right:
            self.wrong.append(f"call {number}: {what}")


class Load:
    """Runs ``calls`` calls; then :attr:`ledger`, :attr:`dispatcher`, :attr:`server` and :attr:`network` tell how it went."""

    def __init__(self, calls: int, seed: int, plan: FaultPlan, incoming: FaultPlan) -> None:
        self.calls = calls
        self.rng = random.Random(f"load {seed}")
        self.network = FaultyTransport(MemoryTransport(BROKER), outgoing=plan, incoming=incoming, seed=seed)
        self.service_network = FaultyTransport(MemoryTransport(BROKER), outgoing=plan, incoming=incoming, seed=seed + 1)
        self.ledger = Ledger()
        self.dispatcher = Dispatcher(self.network, catalog(work={"policy": UNGUARDED}))
        self.worker = Worker()
        self.server = ToolServer(
            self.worker,
            self.service_network,
            request_queue=REQUESTS,
            response_queue=RESPONSES,
            concurrency=64,
            max_queue=64,
        )
        self.most_pending = 0
        self.most_running = 0
        self.most_queued = 0
        self.most_tombstones = 0

    async def run(self) -> None:
        """All the calls, from the first to the end of the last; the dispatcher and the server stay open."""
        await self.service_network.start()
        await self.server.start()
        await self.dispatcher.start()
        room = asyncio.Semaphore(IN_FLIGHT)
        tasks: set[asyncio.Task[None]] = set()
        rng = self.rng
        for number in range(self.calls):
            await room.acquire()
            task = asyncio.create_task(self._call(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: room.release())
            if rng.random() < 0.1:
                asyncio.get_running_loop().call_later(rng.random() ** 3, task.cancel)
            if number % 16 == 0:
                self._look()
                rush = number // 1_000 % 4 == 3  # now and then more comes than can be worked off
                await asyncio.sleep(rng.random() * (0.02 if rush else 0.15))
        while tasks:
            await asyncio.wait(set(tasks))
        self._look()

    async def close(self) -> None:
        await self.dispatcher.close()
        await self.server.close()
        await self.service_network.close()

    def _look(self) -> None:
        self.most_pending = max(self.most_pending, self.dispatcher._running.pending)
        self.most_tombstones = max(self.most_tombstones, correlator_of(self.dispatcher).tombstones)
        self.most_running = max(self.most_running, self.server.running)
        self.most_queued = max(self.most_queued, self.server.queued)

    def _arguments(self, number: int) -> dict[str, Any]:
        rng = self.rng
        how = rng.choices(("answer", "stream", "error", "unprintable"), (70, 20, 8, 2))[0]
        seconds = rng.choices((0.0, rng.random() * 0.3, rng.random() * 4), (60, 30, 10))[0]
        return {"n": number, "how": how, "seconds": seconds, "chunks": rng.randrange(12)}

    async def _call(self, number: int) -> None:
        rng, ledger = self.rng, self.ledger
        arguments = self._arguments(number)
        timeout = rng.choice((0.01, 0.2, 1.0, 3.0, 8.0))
        try:
            if rng.random() < 0.25:
                await self._read(number, arguments, timeout)
            else:
                await self._get(number, arguments, timeout)
        except asyncio.CancelledError:
            ledger.end(number, "cancelled")
        except DispatchError as error:
            ledger.end(number, error.outcome)
            self._check_error(number, error)
        except Exception as error:  # would be a leak of another kind: an error without a type
            ledger.end(number, "untyped")
            ledger.wrong.append(f"call {number} raised {error!r}")

    async def _get(self, number: int, arguments: dict[str, Any], timeout: float) -> None:
        ledger = self.ledger
        result = await self.dispatcher.execute("work", arguments, timeout=timeout)
        ledger.end(number, result.outcome)
        ledger.check(result.duration <= timeout + 0.01, number, f"took {result.duration} s of {timeout} s")
        if result.error is not None:
            self._check_error(number, result.error)
            return
        ledger.replies += max(1, arguments["chunks"]) if arguments["how"] == "stream" else 1
        whole = "".join(f"{number}:{index};" for index in range(arguments["chunks"]))
        right = whole if arguments["how"] == "stream" else f"answer {number}"
        ledger.check(result.text == right, number, f"got {result.text[:60]!r} instead of {right[:60]!r}")

    async def _read(self, number: int, arguments: dict[str, Any], timeout: float) -> None:
        ledger, got = self.ledger, 0
        leaves = self.rng.randrange(1, 6) if self.rng.random() < 0.3 else None
        idle_timeout = self.rng.choice((0.5, 2.0))
        stream = self.dispatcher.stream("work", arguments, timeout=timeout, idle_timeout=idle_timeout)
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                right = f"{number}:{got};" if arguments["how"] == "stream" else f"answer {number}"
                ledger.check(chunk == right, number, f"got chunk {chunk[:60]!r} instead of {right!r}")
                got += 1
                ledger.replies += 1
                if got == leaves:
                    ledger.end(number, "left early")
                    return
        ledger.end(number, Outcome.SUCCESS)
        expected = arguments["chunks"] if arguments["how"] == "stream" else 1
        ledger.check(got == expected, number, f"{got} of {expected} chunks and no error")

    def _check_error(self, number: int, error: DispatchError) -> None:
        self.ledger.replies += isinstance(error, ToolError)
        if type(error) is ToolError and error.type == "odd":
            self.ledger.check(error.message == f"no {number}", number, f"got another's error: {error.message}")
        self.ledger.check("try again" not in error.message.lower(), number, "is told to try again")

    async def settle(self) -> None:
        """Let everything that is still under way between the two come to its end."""
        await advance(120)

    def waiting_to_go_out(self) -> int:
        """Messages that wait for their turn, in the dispatcher and in the server."""
        channels, router = self.dispatcher._running.channels, self.server._router
        assert channels is not None
        assert router is not None
        publishers = [channel.publisher for channel in channels._open.values()]
        return sum(each.queued for each in publishers if isinstance(each, PacedPublisher)) + router._waiting

    @property
    def replies_sent(self) -> int:
        """Replies that the instance can have sent, at most, each once: results, errors, chunks, ends and refusals."""
        return self.worker.replies + sum(self.server.refused.values())

    def counted(self) -> dict[Disposition, int]:
        return self.dispatcher.reply_counts()
