"""How each of many numbered calls ended, in a file that survives the processes that make the calls, and the check of it.

:func:`find_violations` compares the records with the counting tool's own file (tests/helpers/counting_service.py) and with
the faults that were injected. A call fails only because of a fault, the tool is executed at most once for a call, and an
error that says that the tool was not executed is true.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from dispatch.errors import CallTimeoutError, DispatchError, ErrorType, Outcome, TransportError

ERROR_TYPES = tuple(map(str, ErrorType))
OTHER_TYPE = len(ERROR_TYPES)


class End(IntEnum):
    """How a call ended."""

    NOT_STARTED = 0
    UNFINISHED = 1
    """Started; the calling process was killed before it ended, unless it still runs."""
    ANSWERED = 2
    WRONG = 3
    """Answered, with another text than its own."""
    NOT_EXECUTED = 4
    """Failed; the error says that the tool was certainly not executed."""
    MAYBE_EXECUTED = 5
    """Failed; the tool may have been executed."""


class Record(ctypes.Structure):
    """One call; times are the machine's monotonic clock in seconds."""

    started: float
    finished: float
    end: int
    error: int

    _fields_ = (
        ("started", ctypes.c_double),
        ("finished", ctypes.c_double),
        ("end", ctypes.c_uint8),
        ("error", ctypes.c_uint8),
    )

    @property
    def error_type(self) -> str:
        return ERROR_TYPES[self.error] if self.error < OTHER_TYPE else "another type"


class RecordFile:
    """The records of ``calls`` calls in a file that several processes map at once."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        self.calls = len(memory) // ctypes.sizeof(Record)
        self.records: Sequence[Record] = (Record * self.calls).from_buffer(memory)

    @classmethod
    def create(cls, path: Path, calls: int) -> RecordFile:
        path.write_bytes(bytes(calls * ctypes.sizeof(Record)))
        return cls(path)


def is_certainly_not_executed(error: DispatchError) -> bool:
    """Read from the fields of an error whether it excludes that the tool was executed."""
    if isinstance(error, TransportError):
        return not error.may_have_run
    if isinstance(error, CallTimeoutError):
        return error.type == ErrorType.EXPIRED
    return error.outcome in (Outcome.REJECTED, Outcome.THROTTLED, Outcome.INVALID_ARGUMENTS)


def record_error(record: Record, error: DispatchError) -> None:
    """Record a failed call, without its time."""
    record.error = ERROR_TYPES.index(error.type) if error.type in ERROR_TYPES else OTHER_TYPE
    record.end = End.NOT_EXECUTED if is_certainly_not_executed(error) else End.MAYBE_EXECUTED


@dataclass(frozen=True)
class Fault:
    """A fault of the network or of a process, and the failures that it explains.

    Attributes:
        name: for reports.
        start, end: the interval in which it can end a call, on the machine's monotonic clock in seconds.
        explains: pairs of an :class:`End` and an error type.
        max_failures: failed calls that the fault may cause.
        max_unfinished: calls whose process was killed by it.
    """

    name: str
    start: float
    end: float
    explains: frozenset[tuple[End, str]] = frozenset()
    max_failures: int = 0
    max_unfinished: int = 0

    def overlaps(self, record: Record) -> bool:
        finished = record.finished if record.end > End.UNFINISHED else self.end
        return record.started <= self.end and finished >= self.start


def find_violations(records: Sequence[Record], executions: bytes, faults: Iterable[Fault] = ()) -> list[str]:
    """Compare the records with the number of executions of each call. Returns one line for each broken guarantee."""
    violations: list[str] = []
    failed: list[tuple[int, Record]] = []

    for number, (record, executed) in enumerate(zip(records, executions, strict=True)):
        end = End(record.end)
        if executed > 1:
            violations.append(f"call {number} was executed {executed} times")
        if end is End.NOT_STARTED:
            violations.append(f"call {number} was never made")
        elif end is End.WRONG:
            violations.append(f"call {number} got another answer than its own")
        elif end is End.ANSWERED and not executed:
            violations.append(f"call {number} was answered and never executed")
        elif end is End.NOT_EXECUTED and executed:
            violations.append(f"call {number} was executed, and its error ({record.error_type}) says that it was not")
        if end in (End.UNFINISHED, End.NOT_EXECUTED, End.MAYBE_EXECUTED):
            failed.append((number, record))

    # A fault explains at most as many calls as it can have hit. The earliest calls go to the faults that end first.
    causes = _Causes(faults)
    for number, record in sorted(failed, key=lambda each: each[1].started):
        if not causes.assign(record):
            violations.append(
                f"call {number} ended as {describe(record)} without a fault that explains it{causes.describe_last(record)}"
            )
    return violations


class _Causes:
    """How many failed calls each fault can still explain."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.end)
        self._failures = Counter({fault: fault.max_failures for fault in self._faults})
        self._unfinished = Counter({fault: fault.max_unfinished for fault in self._faults})

    def assign(self, record: Record) -> bool:
        """Assign the record to a fault that explains it. False: there is none."""
        for fault in self._faults:
            if record.end == End.UNFINISHED:
                capacity, is_explained = self._unfinished, True
            else:
                capacity, is_explained = self._failures, (End(record.end), record.error_type) in fault.explains
            if is_explained and capacity[fault] and fault.overlaps(record):
                capacity[fault] -= 1
                return True
        return False

    def describe_last(self, record: Record) -> str:
        """Return which fault began last before the end of the record, for a person who looks for the cause."""
        before = [fault for fault in self._faults if fault.start <= record.finished]
        if not before:
            return ""
        last = max(before, key=lambda fault: fault.start)
        return f"; {record.finished - last.start:.1f} s after the begin of '{last.name}'"


def describe(record: Record) -> str:
    """Return one word for how a call ended, with the type of its error."""
    name = End(record.end).name.lower()
    return f"{name} ({record.error_type})" if record.end in (End.NOT_EXECUTED, End.MAYBE_EXECUTED) else name


def count_ends(records: Iterable[Record]) -> Counter[str]:
    """Count how the calls ended."""
    return Counter(map(describe, records))
