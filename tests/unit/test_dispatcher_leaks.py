"""Calls over a network with every fault leave nothing behind: no pending request, task, timer, credit or queued message."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.errors import Outcome
from dispatch.messaging.rpc.correlation import MAX_TOMBSTONES
from dispatch.messaging.rpc.exchange_outcome import Disposition
from tests.helpers.clock import virtual_loop
from tests.helpers.dispatcher_and_service import dispatching
from tests.helpers.faults import FaultPlan
from tests.helpers.internals import correlator_of
from tests.helpers.mixed_load import IN_FLIGHT, Load
from tests.helpers.run_profile import by_profile

EVERYTHING = FaultPlan(
    drop=0.01, delay=0.02, duplicate=0.02, reorder=0.02, malformed=0.01, missing_id=0.005, oversized_id=0.005,
    foreign_id=0.005, error=0.01, late_error=0.01, disconnect=0.0002,
)  # fmt: skip
ARRIVING = FaultPlan(
    drop=0.005, delay=0.01, duplicate=0.01, reorder=0.01, malformed=0.005, missing_id=0.005, oversized_id=0.005,
    foreign_id=0.005, raising=0.01,
)  # fmt: skip
NOTHING = FaultPlan()
CALLS = by_profile(short=20_000, long=100_000)
ENDS = {*map(str, Outcome), "cancelled", "left early"}

RARE = ("draining", "instance-restarted", "reply-evicted")
"""What needs an instance that goes, or more requests than it remembers."""
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
    exchange, server = correlator_of(load.dispatcher), load.server
    assert exchange.pending == 0, "the last call has ended"
    await load.settle()

    assert not load.ledger.wrong, load.ledger.wrong[:20]
    assert sorted(load.ledger.ends) == list(range(calls)), "every call has ended, once"
    assert set(load.ledger.kinds) <= ENDS
    assert exchange.pending == 0
    assert (server.running, server.queued) == (0, 0)
    assert load.waiting_to_go_out() == 0, "all credit has come back"
    replies = load.counted()
    assert replies["matched"] + replies["malformed"] >= load.ledger.kinds["answer"], "a packet carries many replies"
    assert load.most_tombstones <= MAX_TOMBSTONES
    assert load.most_running <= server.concurrency
    assert load.most_queued <= server.max_queue
    assert load.most_pending <= IN_FLIGHT

    # Everything is alive: once the network is well again each call succeeds, on the same connections and on another.
    load.network.heal()
    load.service_network.heal()
    async with dispatching() as other:
        for dispatcher in (load.dispatcher, other):
            calls = (dispatcher.call("work", {"n": n, "how": "answer", "seconds": 0}, timeout=2) for n in range(50))
            assert await asyncio.gather(*calls) == [f"answer {n}" for n in range(50)]
    assert exchange.pending == 0
    assert load.waiting_to_go_out() == 0
    await load.close()
    return load


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
    # A run in which a fault, an outcome or a disposition is missing has checked less than it claims.
    for end in ENDS - {Outcome.CANCELLED, Outcome.REJECTED}:
        assert kinds[end] > CALLS // 2_000, (end, kinds)
    for disposition in Disposition:
        assert counted[disposition] > CALLS // 200, counted
    happened = load.network.count + load.service_network.count
    for fault in {
        f"{way} {name}"
        for way, plan in (("out", EVERYTHING), ("in", ARRIVING))
        for name, _ in plan.list_probabilities(way)
    }:
        assert happened[fault] > CALLS // 5_000, (fault, happened)
    assert load.server.malformed > CALLS // 1_000
    expected = {reason: count for reason, count in load.server.refused.items() if reason not in RARE}
    assert all(count > CALLS // 5_000 for count in expected.values()), load.server.refused
    # A minute's worth of request ids is remembered, and no more.
    assert correlator_of(load.dispatcher).tombstones < load.most_tombstones < 60_000
    assert virtual_loop().time() > CALLS / 250
