"""TrustGraph's published client, which acknowledges nothing, gets large answers of our service, many at a time.

Without a pace the broker drops 2 to 12 % of them (measured: 350 of 6,000, never fewer than 27 of 1,500). With it, on a
quiet machine, 0 of 6,000 were lost, and 1 of 6,000 without the broker's receipts. But losses are a matter of how long the
operating system keeps a process waiting: on two processors that others kept busy, 4 of 10 rounds lost 2 to 16 (without
receipts 5 of 10, up to 28). Hence further rounds, each on new connections: on such a machine it takes twelve bad ones in
a row to fail for nothing; six came once, when three others kept the two processors busy. Twelve rounds without a pace do
not hold one that loses 1 in 1,000 at most.
"""

from __future__ import annotations

import asyncio
import secrets

import pytest

from tests.helpers.python_processes import running
from tests.integration.interop.large_reply_service import READY
from tests.integration.interop.peers import their_client

pytestmark = pytest.mark.pulsar

SIZE = 100_000
AT_ONCE = 64
CALLS = 1_000
ROUNDS = 12
ALLOWED = CALLS // 1_000
TIMEOUT_S = 5.0


async def lost_in_a_round(url: str) -> int:
    """Calls without an answer; the others had the right one."""
    topic = f"interop-{secrets.token_hex(6)}"
    lost = 0
    with running("-m", "tests.integration.interop.large_reply_service", url, topic, ready=READY):
        async with their_client(url, topic) as client:
            numbers = iter(range(CALLS))

            async def caller() -> None:
                nonlocal lost
                for _ in numbers:
                    try:
                        text = await client.call({}, {"size": SIZE}, timeout=TIMEOUT_S)
                    except TimeoutError:
                        lost += 1
                    else:
                        assert text == "x" * SIZE

            async with asyncio.TaskGroup() as callers:
                for _ in range(AT_ONCE):
                    callers.create_task(caller())
    return lost


async def test_of_64_large_answers_at_a_time_one_in_a_thousand_is_lost_at_most(url: str) -> None:
    rounds: list[int] = []
    while len(rounds) < ROUNDS:
        rounds.append(await lost_in_a_round(url))
        if rounds[-1] <= ALLOWED:
            return
    pytest.fail(f"of {CALLS} answers of {SIZE} bytes, {AT_ONCE} at a time, were lost: {rounds}")
