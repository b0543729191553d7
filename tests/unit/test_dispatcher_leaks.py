"""Calls over a network with every fault leave nothing behind: no pending request, task, timer or queued message."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.errors import Outcome
from dispatch.messaging.plain import MAX_TOMBSTONES
from dispatch.messaging.request import Disposition
from dispatch.protocol.table import SessionTable
from tests.at_most_once.quiescence import assert_dispatcher_rests, assert_server_rests
from tests.helpers.clock import advance, virtual_loop
from tests.helpers.dispatcher_and_service import dispatching
from tests.helpers.faults import FaultPlan
from tests.helpers.internals import tables_of
from tests.helpers.mixed_load import IN_FLIGHT, Load
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
CALLS = by_profile(short=20_000, long=100_000)
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


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("profile", PROFILES)
async def test_nothing_leaks(profile: str, seed: int) -> None:
    load = await scene(1_500, seed, profile)
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
