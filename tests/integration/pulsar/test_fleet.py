"""Dispatchers of one fleet in processes of their own, on a genuine broker: limits hold for all of them together."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

import dispatch
from benchmarks.fleet.__main__ import Member, own_broker, run
from benchmarks.harness.broker import Endpoint
from dispatch.calls.fleet import quota_topic
from tests.helpers.python_processes import environment

pytestmark = pytest.mark.pulsar

READY_S = 60.0


@contextmanager
def members(endpoint: Endpoint, fleet: str, *steps: float) -> Iterator[list[Member]]:
    """Run a process for each step of its clock."""
    with ExitStack() as stack:
        found = []
        for step in steps:
            member = Member(endpoint.service_url, fleet, step)
            stack.callback(member.end)
            found.append(member)
        for member in found:
            assert member.is_ready.wait(READY_S), "".join(member.lines)
        yield found


def admitted(members: list[Member], since: float, until: float) -> int:
    return sum(since <= at < until for each in members for at, _ in each.admitted)


def test_processes_share_a_rate_and_a_killed_one_returns_its_share(pulsar_endpoint: Endpoint) -> None:
    fleet = f"t{secrets.token_hex(4)}"
    with members(pulsar_endpoint, fleet, 0.0, 3600.0) as (one, other):
        begin = time.monotonic()
        one.call(ann=150.0)
        other.call(ann=5.0)
        time.sleep(3.0)
        shown = subprocess.run(
            [sys.executable, "-m", "dispatch", "--broker", pulsar_endpoint.service_url, "stats", "--fleet", fleet],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        assert "rate:work" in shown
        assert shown.count("leader") == shown.count("member") == 1
        middle = time.monotonic()
        assert admitted([one], begin, middle) > admitted([other], begin, middle) > 0
        one.end()
        other.call(ann=150.0)
        time.sleep(8.0)
        end = time.monotonic()
        # The share is there before ten seconds have passed; a busy machine may not use all of it.
        assert admitted([other], end - 2.0, end) > 0.6 * 200
        assert admitted([one, other], begin, end) <= 1.1 * 100 * (end - begin) + 40


async def test_a_quota_survives_the_end_of_all(pulsar_endpoint: Endpoint) -> None:
    @dispatch.tool(read_only=True)
    async def work() -> str:
        """Do nothing."""
        return "done"

    fleet, counts = f"t{secrets.token_hex(4)}", []
    assert quota_topic(fleet).startswith("persistent://")
    for _ in range(3):
        async with dispatch.connect(
            pulsar_endpoint.service_url, catalog=[dispatch.Functions(work)], policy={"quota": "20/month"}, fleet=fleet
        ) as dispatcher:
            results = [await dispatcher.execute("work") for _ in range(8)]
            counts.append(sum(each.error is None for each in results))
    assert counts == [8, 8, 4]


@pytest.mark.soak
@pytest.mark.alone
def test_eight_processes_with_a_kill_a_restart_and_a_clock_that_steps() -> None:
    with own_broker() as (url, restart):
        table, is_met = run(url, 8, 60.0, restart, 1)
    assert is_met, f"\n{table}"
