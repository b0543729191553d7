"""Calls of mixed sizes while instances and dispatchers are killed, drained and started again: each call is executed at most
once, and fails only where the instance that had it was killed; its error says truly whether the tool was executed.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from benchmarks.harness.broker import Endpoint
from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces
from tests.helpers.fault_lab import FaultLab
from tests.integration.pulsar.test_broker_restart import first_lookup

pytestmark = pytest.mark.pulsar
CALLS = 3_000
BETWEEN = 300
"""Calls that are executed between two faults."""
MANY = int(os.environ.get("DISPATCH_SESSION_CALLS", "1_000_000"))
MANY_BETWEEN = 30_000
SEED = int(os.environ.get("DISPATCH_SESSION_SEED", "1"))


@pytest.mark.slow
def test_kills_and_restarts_under_load(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    with FaultLab(pulsar_endpoint.service_url, tmp_path, CALLS, dispatchers=2, in_flight=32) as lab:
        first, second = lab.start_instance(), lab.start_instance()
        lab.start_dispatchers()
        lab.wait_executed(BETWEEN)
        lab.kill_instance(first)
        first = lab.start_instance()
        lab.wait_executed(BETWEEN)
        lab.restart_dispatcher(0)
        lab.wait_executed(BETWEEN)
        lab.kill_instance(second)
        lab.start_instance(second)
        lab.wait_executed(BETWEEN)
        lab.start_instance()
        lab.drain_instance(first)
        lab.wait_done()
        ends = lab.check()
        report(lab)
        assert ends["answered"] >= 0.95 * CALLS


@pytest.mark.soak
def test_a_million_calls_with_faults_of_every_process(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    with LocalBroker.start() as broker:
        create_namespaces(Admin(broker.web_url))
        with FaultLab(broker.service_url, tmp_path, MANY, dispatchers=2) as lab:
            lab.start_instance()
            lab.start_instance()
            lab.start_dispatchers()
            lab.wait_executed(MANY_BETWEEN)
            while lab.executed < MANY - 4 * MANY_BETWEEN:
                inject_fault(lab, broker, dice)
                lab.wait_executed(MANY_BETWEEN, seconds=120)
            lab.wait_done()
            report(lab)
            ends = lab.check()
        assert ends["answered"] >= 0.99 * MANY


def inject_fault(lab: FaultLab, broker: LocalBroker, dice: random.Random) -> None:
    """Kill, restart or drain a process."""
    kind = dice.choice(["kill", "restart", "drain", "dispatcher", "broker"])
    name = dice.choice(sorted(lab.instances))
    sys.stdout.write(f"{lab.executed:,} calls executed: {kind}\n")
    if kind == "dispatcher":
        lab.restart_dispatcher(dice.randrange(2))
    elif kind == "broker":
        with lab.broker_away():
            broker.kill()
            broker.restart()
            first_lookup(broker.service_url)
    elif kind == "drain":
        lab.start_instance()
        lab.drain_instance(name)
    else:
        lab.kill_instance(name)
        lab.start_instance(name if kind == "restart" else None)


def report(lab: FaultLab) -> None:
    sys.stdout.write(f"\n{dict(lab.count_ends())}, {lab.calls_per_second():,.0f} calls/s\n")
