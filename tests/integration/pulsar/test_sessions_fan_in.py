"""Many senders of large replies share one receiver's channel, from which the broker drops messages while it is full."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from dispatch.devtools.localbroker import Endpoint
from tests.helpers.endpoint_peers import peers
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar

SIZE = 100_000
EACH = 2
"""Requests at once of each callee."""
ROUNDS = by_profile(short=20, long=400)


@pytest.mark.long
@pytest.mark.parametrize("callees", [4, 20])
async def test_large_replies_of_many_at_once_are_hardly_retransmitted(pulsar_endpoint: Endpoint, callees: int) -> None:
    async with peers(pulsar_endpoint.service_url, callees) as (caller, others):
        sessions = [await caller.connect(callee.inbox) for callee in others]
        started = time.perf_counter()
        for _ in range(ROUNDS):
            requests = [caller.send(session, b"1:%d" % SIZE) for session in sessions for _ in range(EACH)]
            replies = await asyncio.gather(*(request.outcome for request in requests))
            assert [reply if isinstance(reply, bytes) else repr(reply) for reply in replies] == [
                b"1".ljust(SIZE, b".")
            ] * len(replies)
        calls = ROUNDS * EACH * callees
        per_second = calls / (time.perf_counter() - started)
        statistics = [session.statistics for callee in others for session in callee.table.sessions.values()]
        sent, retransmitted = (
            sum(getattr(each, name) for each in statistics) for name in ("packets_sent", "retransmissions")
        )
        sys.stdout.write(f"\n{per_second:,.0f} calls/s, {retransmitted} of {sent} packets retransmitted\n")
        assert sum(sum(callee.runs.values()) for callee in others) == calls
        assert caller.failures == []
        # A window that is divided too finely costs a round trip for every few kilobytes.
        assert sent <= 6 * calls
        # Without the losses that a probe's copy has repaired: these count as probes.
        assert retransmitted <= sent / 100
