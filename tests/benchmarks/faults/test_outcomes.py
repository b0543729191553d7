"""The figures of a case, from records of calls and journals of executions."""

from __future__ import annotations

from typing import Any

from benchmarks.faults.faults import FAULTS, Fault, Step
from benchmarks.faults.outcomes import Outcome, Record, judge, seconds_until_right
from benchmarks.faults.page import render, right_over_time
from benchmarks.faults.report import table

FAULT = Fault("killed", "an instance killed", (Step(3.0, "kill"),), over=3.0)


def call(number: int, began: float, kind: str = "right", took: float = 0.01, *, refused: bool = False) -> Record:
    """A call; those with even numbers must not be repeated."""
    return Record(began, began + took, kind, number, bool(number % 2), refused)


def judged(records: list[Record], *journals: list[int], stopped: tuple[int, ...] = (), **options: Any) -> Outcome:
    values = {"over": 3.0, "rate": 200.0, "cpu_s": 0.5, "memory_mib": 100.0, **options}
    return judge(FAULT, "dispatch", 7, records, journals, stopped, **values)


def test_executions_are_counted_over_all_journals() -> None:
    records = [call(0, 1), call(1, 1), call(2, 1), call(3, 1)]
    outcome = judged(records, [0, 1, 2], [0, 1, 3])
    assert (outcome.calls, outcome.right, outcome.failed) == (4, 4, 0)
    assert (outcome.twice, outcome.repeated) == (1, 1)
    assert outcome.cpu_us == 125_000


def test_what_errors_say_is_compared_with_the_journals() -> None:
    records = [
        call(0, 3.5, "no-instance", refused=True),
        call(2, 3.5, "no-instance", refused=True),
        call(4, 3.5, "timeout", took=5.0),
        call(6, 3.5, "hung", took=7.0),
    ]
    outcome = judged(records, [2, 4])
    assert (outcome.failed, outcome.refused, outcome.untrue, outcome.executed, outcome.hung) == (4, 2, 1, 2, 1)
    assert outcome.kinds == {"no-instance": 2, "timeout": 1, "hung": 1}
    assert outcome.p99_ms is None


def test_cancelled_calls_are_counted_apart() -> None:
    outcome = judged([call(0, 4, "cancelled"), call(2, 4, "cancelled"), call(4, 4)], [0, 4], stopped=(0,))
    assert (outcome.calls, outcome.failed, outcome.cancelled, outcome.stopped) == (1, 0, 2, 2)


def test_right_again_after_a_second_without_a_failure() -> None:
    steady = [call(number, 3 + number / 10) for number in range(50)]
    assert seconds_until_right(steady, 3.0, 8.0) == 0.0
    failing = [call(100, 3.2, "timeout"), call(101, 4.0, "timeout"), *steady]
    back = seconds_until_right(failing, 3.0, 8.0)
    assert back is not None
    assert 1.0 < back < 1.2
    assert seconds_until_right([*steady, call(102, 7.9, "timeout")], 3.0, 8.0) == 0.0
    assert seconds_until_right([call(1, 3 + number / 2, "timeout") for number in range(10)], 3.0, 8.0) is None


def test_the_page_has_a_column_for_each_system() -> None:
    outcome = judged([call(0, 3.5), call(2, 3.5, "timeout", took=5.0)], [0, 2, 2], stopped=())
    values = {**outcome.__dict__, "fault": FAULTS[1].name}
    run = {"date": "2026-11-26", "seed": 7, "machine": {"processors": 2, "load_before": 0.1}, "outcomes": [values]}
    lines = render(run).splitlines()
    assert f"| {FAULTS[1].title} | 50 %, **1 twice** |" in lines
    assert f"| {FAULTS[1].title} | 0 of 1; 1 executed; 5.0 s |" in lines
    assert "timeout 1" in table([outcome])


def test_shares_over_time_leave_cancelled_calls_out() -> None:
    calls = [{"began": 0.1, "kind": "right"}, {"began": 0.2, "kind": "timeout"}, {"began": 0.6, "kind": "cancelled"}]
    assert right_over_time(calls) == ([0.25], [50.0])
