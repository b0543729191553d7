"""A fault that is played with real processes on a broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.faults.__main__ import chosen
from benchmarks.faults.faults import FAULTS, Fault, Step
from benchmarks.faults.play import Meeting, Play
from benchmarks.faults.systems import SYSTEMS
from benchmarks.harness.broker import Endpoint

RESETS = Fault("lost-replies", "connections reset", (Step(3.0, "reset"), Step(3.5, "kill", 0)), over=3.5, rate=50.0)


@pytest.mark.pulsar
@pytest.mark.process
@pytest.mark.soak
def test_no_call_runs_twice_while_an_instance_is_killed(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    meeting = Meeting(pulsar_endpoint.service_url, None)
    outcome = Play(RESETS, "dispatch", SYSTEMS["dispatch"], meeting, 1, tmp_path).run()
    assert (outcome.twice, outcome.hung, outcome.untrue) == (0, 0, 0)
    assert outcome.right > 0.9 * outcome.calls > 200
    kept = json.loads((tmp_path / "lost-replies-dispatch.json").read_text())
    assert kept["seed"] == 1
    assert len(kept["journals"]) == 2


def test_cases_are_chosen_by_fault_and_system() -> None:
    assert [(system, fault.name) for system, fault in chosen(["cut/grpc"])] == [("grpc", "cut")]
    assert len(chosen(["/nats"])) == len(FAULTS)
    assert len(chosen([])) == len(FAULTS) * len(SYSTEMS)
    with pytest.raises(ValueError, match="there is no 'cut/smoke'"):
        chosen(["cut/smoke"])
