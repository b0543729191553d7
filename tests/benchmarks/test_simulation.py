"""The simulation of the real dispatcher and other clients, at half the load."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.simulation import cli
from benchmarks.simulation.record import Record
from benchmarks.simulation.report import figures
from benchmarks.simulation.run import simulate as run
from benchmarks.simulation.scenarios import ALL, THREE, find, quick
from benchmarks.simulation.targets import GOALS, Records, reached

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("simulation")]  # they share runs
SEED = 1
_PLAYED: dict[tuple[str, str], Record] = {}


def played(name: str, contender: str) -> Record:
    """The run of that seed; made once for all tests."""
    if (name, contender) not in _PLAYED:
        _PLAYED[name, contender] = run(name, contender, SEED, short=True)
    return _PLAYED[name, contender]


def in_trouble(name: str, contender: str) -> float:
    return played(name, contender).success(*find(name).trouble)


def test_another_seed_gives_other_figures() -> None:
    """That the same one gives the same figures, in another process, is seen below."""
    assert run("failing-of-two", "naive", SEED + 1, short=True).calls != played("failing-of-two", "naive").calls


def test_every_contender_gets_the_same_calls() -> None:
    scenario = quick(find("failing-of-two"))
    times = [pytest.approx(time) for time, _ in scenario.arrivals(SEED)]
    for contender in THREE:
        assert sorted(call.began for call in played("failing-of-two", contender).calls) == times


def test_a_slow_instance_is_left_alone() -> None:
    ours, naive = played("slow-instance", "ours"), played("slow-instance", "naive")
    since, until = find("slow-instance").trouble
    p99, theirs = ours.latency(0.99, since, until), naive.latency(0.99, since, until)
    assert p99 is not None
    assert theirs is not None
    assert p99 < theirs / 3
    assert ours.load(since, until, 0) < 0.03 * ours.load(since, until) < naive.load(since, until, 0)


@pytest.mark.parametrize("name", ["dead-instance", "failing-of-two", pytest.param("flapping", marks=pytest.mark.soak)])
def test_one_instance_in_trouble_costs_no_call(name: str) -> None:
    assert in_trouble(name, "ours") >= 0.999
    assert in_trouble(name, "ours") > max(in_trouble(name, "naive"), in_trouble(name, "unguarded"))


def test_overload_costs_no_goodput() -> None:
    since, until = find("overload").trouble
    ours, naive, unguarded = (
        played("overload", each).answered(since, until) for each in ("ours", "naive", "unguarded")
    )
    assert ours >= 0.9 * quick(find("overload")).capacity * (until - since)
    assert ours > 2 * max(naive, unguarded)
    assert played("overload", "unguarded").recovery(until) is None
    assert played("overload", "ours").recovery(until) is not None


def test_a_service_that_is_down_is_not_stormed() -> None:
    """Calls that wait get the places of the first instance that is ejected: some more requests than without ejections."""
    since, until = find("retry-storm").trouble
    ours, naive = (played("retry-storm", each).amplification(since, until) for each in ("ours", "naive"))
    assert ours < 1.5 * naive < 1.2


def test_a_herd_does_not_come_back_together() -> None:
    found = {goal.id: goal.met(figure) for goal, figure in reached({("herd", "ours"): played("herd", "ours")})}
    assert found["G16"]
    assert len(played("herd", "ours").probes(*find("herd").trouble)) >= 40, "of fifty"


def test_goals_are_read_off_the_runs_that_were_made() -> None:
    records: Records = {("overload", "ours"): played("overload", "ours")}
    found = reached(records)
    assert [(goal.id, goal.met(figure)) for goal, figure in found] == [("G12", True)] * 3
    goal = found[0][0]
    assert [goal.met(figure) for figure in (0.89, 0.9, None)] == [False, True, False]
    runs = {(scenario.name, contender) for scenario in ALL for contender in scenario.contenders}
    assert {need for each in GOALS for need in each.needs} <= runs


def test_the_command_prints_tables_and_writes_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--quick", "--only", "retry-storm", "--jobs", "2", "--out", str(tmp_path / "deep"), "--json"]
    assert cli.main([*arguments, str(tmp_path / "a.json")]) == 0
    out, err = capsys.readouterr()
    assert re.search(r"^retry-storm +ours-defaults +\d", out, re.MULTILINE)
    assert "G9" in out
    assert "[4/4]" in err
    assert (tmp_path / "deep" / "retry-storm.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads((tmp_path / "a.json").read_text())
    assert (told["seed"], told["quick"]) == (1, True)
    # Other processes, with other hash seeds, and the same figures.
    here = {each["contender"]: each for each in told["runs"]}
    for contender in ("ours", "naive"):
        assert here[contender] == json.loads(json.dumps(figures(played("retry-storm", contender))))
