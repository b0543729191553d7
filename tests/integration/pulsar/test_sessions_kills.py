"""Calls of mixed sizes while instances and dispatchers are killed, drained and started again: each call is executed at most
once, and fails only where the instance that had it was killed; its error says truly whether the tool was executed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dispatch.devtools.localbroker import Endpoint
from tests.helpers.fault_lab import FaultLab

pytestmark = pytest.mark.pulsar

CALLS = 20_000
BETWEEN = 2_000
"""Calls that end between two faults."""


@pytest.mark.slow
def test_kills_and_restarts_under_load(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    with FaultLab(pulsar_endpoint.service_url, tmp_path, CALLS, dispatchers=2) as lab:
        first, second = lab.start_instance(), lab.start_instance()
        lab.start_dispatchers()
        lab.wait_finished(BETWEEN)
        lab.kill_instance(first)
        first = lab.start_instance()
        lab.wait_finished(BETWEEN)
        lab.restart_dispatcher(0)
        lab.wait_finished(BETWEEN)
        lab.kill_instance(second)
        lab.start_instance(second)
        lab.wait_finished(BETWEEN)
        lab.start_instance()
        lab.drain_instance(first)
        lab.wait_done()
        ends = lab.check()
        report(lab)
        assert ends["answered"] >= 0.95 * CALLS


def test_drain_of_one_of_two_instances_costs_no_call(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    with FaultLab(pulsar_endpoint.service_url, tmp_path, CALLS // 2, dispatchers=2) as lab:
        first, _ = lab.start_instance(), lab.start_instance()
        lab.start_dispatchers()
        for _ in range(2):
            lab.wait_finished(BETWEEN)
            lab.drain_instance(first)
            first = lab.start_instance()
        lab.wait_done()
        report(lab)
        assert lab.check() == {"answered": CALLS // 2}


def report(lab: FaultLab) -> None:
    sys.stdout.write(f"\n{dict(lab.count_ends())}, {lab.calls_per_second():,.0f} calls/s\n")
