"""The records of calls, and that each broken guarantee is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dispatch.errors import (
    CallTimeoutError,
    DispatchError,
    ErrorType,
    RejectedError,
    ThrottledError,
    ToolError,
    TransportError,
)
from tests.helpers.call_records import (
    End,
    Fault,
    Record,
    RecordFile,
    count_ends,
    find_violations,
    is_certainly_not_executed,
    record_error,
)

LOST = (End.MAYBE_EXECUTED, "instance-lost")
KILL = Fault("kill", 10.0, 12.0, frozenset({LOST}), max_failures=1)


def record(end: End, started: float = 9.0, finished: float = 11.0, error: str = "instance-lost") -> Record:
    return Record(started, finished, end, tuple(ErrorType).index(ErrorType(error)))


@pytest.mark.parametrize(("end", "executed"), [(End.ANSWERED, 1), (End.MAYBE_EXECUTED, 0), (End.MAYBE_EXECUTED, 1)])
def test_allowed_ends(end: End, executed: int) -> None:
    assert find_violations([record(end)], bytes([executed]), [KILL]) == []


@pytest.mark.parametrize(
    ("each", "executed", "violation"),
    [
        (record(End.ANSWERED), 2, "executed 2 times"),
        (record(End.ANSWERED), 0, "never executed"),
        (record(End.WRONG), 1, "another answer"),
        (record(End.NOT_STARTED), 0, "never made"),
        (record(End.NOT_EXECUTED), 1, "says that it was not"),
        (record(End.NOT_EXECUTED), 0, "without a fault"),
        (record(End.UNFINISHED), 0, "without a fault"),
        (record(End.MAYBE_EXECUTED, started=12.1, finished=13.0), 0, "without a fault"),
        (record(End.MAYBE_EXECUTED, started=8.0, finished=9.9), 0, "without a fault"),
        (record(End.MAYBE_EXECUTED, error="timeout"), 0, "without a fault"),
    ],
)
def test_violations(each: Record, executed: int, violation: str) -> None:
    found = find_violations([each], bytes([executed]), [KILL])
    assert any(violation in line for line in found), found


def test_a_fault_explains_as_many_calls_as_it_can_have_hit() -> None:
    two = [record(End.MAYBE_EXECUTED), record(End.MAYBE_EXECUTED)]
    assert find_violations(two, bytes(2), [KILL]) == [
        "call 1 ended as maybe_executed (instance-lost) without a fault that explains it; 1.0 s after the begin of 'kill'"
    ]
    assert find_violations(two, bytes(2), [KILL, replace(KILL, name="later", end=14.0)]) == []
    crash = Fault("crash", 10.0, 12.0, max_unfinished=1)
    started = [record(End.UNFINISHED, finished=0.0), record(End.UNFINISHED, started=12.5, finished=0.0)]
    assert find_violations(started, bytes(2), [crash]) == [
        "call 1 ended as unfinished without a fault that explains it"
    ]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TransportError("instance-lost", "lost"), False),
        (TransportError("disconnected", "down", may_have_run=False), True),
        (CallTimeoutError("late", limit_name="call"), False),
        (CallTimeoutError("late", limit_name="call", type="expired"), True),
        (RejectedError("draining", "drains"), True),
        (ThrottledError("overloaded", "busy"), True),
        (ToolError("odd", "no"), False),
    ],
)
def test_errors_that_exclude_execution(error: DispatchError, expected: bool) -> None:
    assert is_certainly_not_executed(error) is expected
    each = Record()
    record_error(each, error)
    assert each.end == (End.NOT_EXECUTED if expected else End.MAYBE_EXECUTED)
    assert each.error_type == (error.type if error.type != "odd" else "another type")


def test_records_are_shared_between_processes(tmp_path: Path) -> None:
    here, there = RecordFile.create(tmp_path / "records", 3), RecordFile(tmp_path / "records")
    there.records[1].end = End.ANSWERED
    assert count_ends(here.records) == {"not_started": 2, "answered": 1}
