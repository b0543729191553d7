"""Counting services and dispatchers in processes of their own that are killed, drained and started again under load."""

from __future__ import annotations

import contextlib
import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from dispatch.server import DEFAULT_DRAIN_S
from tests.helpers.call_records import End, Fault, RecordFile, count_ends, find_violations
from tests.helpers.catalogs import unique_topic
from tests.helpers.counting_service import Counts, arguments_of_process
from tests.helpers.python_processes import END_S, Running

LOST = frozenset({(End.MAYBE_EXECUTED, "instance-lost"), (End.NOT_EXECUTED, "instance-lost")})
RESTARTED = frozenset({(End.MAYBE_EXECUTED, "instance-restarted"), (End.NOT_EXECUTED, "instance-restarted")})
DISCONNECTED = frozenset({(End.NOT_EXECUTED, "disconnected")})
SILENCE_S = 15.0
"""A killed instance is given up within 10 s without a sign of life; the rest is for a busy machine."""
RECONNECT_S = 5.0
"""Within it calls leave again after a broker is back, also on a busy machine."""
CALLS_S = 600.0
"""The longest time for all calls of a test."""


class FaultLab:
    """See the module. Used with ``with``: at its end all processes are gone.

    Args:
        url: of the broker.
        folder: for the files.
        calls: numbers of the calls of all dispatchers together.
        dispatchers: processes that make them, each an equal part.
        in_flight: calls at once of each dispatcher.
    """

    def __init__(self, url: str, folder: Path, calls: int, *, dispatchers: int = 1, in_flight: int = 64) -> None:
        self.url = url
        self.topic = unique_topic("counting")
        self.counts = Counts(folder / "counts", calls)
        self._records_path = folder / "records"
        self.record_file = RecordFile.create(self._records_path, calls)
        self.in_flight = in_flight
        self.faults: list[Fault] = []
        self.instances: dict[str, Running] = {}
        self._calls = calls
        self._part = -(-calls // dispatchers)
        self._dispatchers: list[Running | None] = [None] * dispatchers
        self._names = itertools.count(1)
        self._programs: list[Running] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> FaultLab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _run(self, *arguments: str) -> Running:
        program = Running(arguments, "ready")
        self._programs.append(program)
        self._stack.callback(program.clear)
        return program

    # -- instances ----------------------------------------------------------------------------------------------

    def start_instance(self, name: str | None = None) -> str:
        """Start a process with one instance, and wait until it is ready. Returns the instance's name."""
        name = name or f"instance-{next(self._names)}"
        program = self._run(*arguments_of_process(self.url, self.topic, self.counts, name))
        program.wait_ready()
        self.instances[name] = program
        return name

    def start_instances(self, processes: int, each: int) -> None:
        """Start processes with several instances each."""
        programs = []
        for _ in range(processes):
            names = [f"instance-{next(self._names)}" for _ in range(each)]
            programs.append(self._run(*arguments_of_process(self.url, self.topic, self.counts, *names)))
        for program in programs:
            program.wait_ready()

    def kill_instance(self, name: str) -> None:
        """Kill it (SIGKILL). What was sent to it may fail."""
        killed = time.monotonic()
        self._check_running(name)
        self.instances.pop(name).end(signal.SIGKILL)
        most = self.in_flight * len(self._dispatchers)
        self._add_fault(f"kill of {name}", killed, SILENCE_S, LOST | RESTARTED, max_failures=most)

    def _check_running(self, name: str) -> None:
        """Fail if the instance has ended by itself: no fault explains the calls that it had."""
        program = self.instances[name]
        code = program.process.poll()
        assert code is None, f"{name} ended by itself with exit code {code}:\n{program.text()}"

    def drain_instance(self, name: str) -> None:
        """Drain it (SIGTERM) and wait for its end. No call may fail for that."""
        assert self.instances.pop(name).end(signal.SIGTERM, DEFAULT_DRAIN_S + END_S) == 0

    def step_clocks(self, *, ahead: bool) -> None:
        """Move the wall clock of every second process by an hour. No call may fail for that."""
        programs = [*self.instances.values(), *(each for each in self._dispatchers if each is not None)]
        for program in programs[::2]:
            program.process.send_signal(signal.SIGUSR1 if ahead else signal.SIGUSR2)

    # -- dispatchers --------------------------------------------------------------------------------------------

    def start_dispatcher(self, number: int) -> None:
        """Start the dispatcher of this number, which continues with the calls that a former one has not started."""
        first, last = self._range(number)
        arguments = (self.url, self.topic, str(self._records_path), str(first), str(last), str(self.in_flight))
        program = self._run("-m", "tests.helpers.calling_process", *arguments)
        program.wait_ready()
        self._dispatchers[number] = program

    def start_dispatchers(self) -> None:
        for number in range(len(self._dispatchers)):
            self.start_dispatcher(number)

    def kill_dispatcher(self, number: int) -> None:
        """Kill it (SIGKILL): its calls remain unfinished."""
        program = self._dispatchers[number]
        assert program is not None
        killed = time.monotonic()
        program.end(signal.SIGKILL)
        self._add_fault(f"kill of dispatcher {number}", killed, 1.0, max_unfinished=self.in_flight)

    def restart_dispatcher(self, number: int) -> None:
        self.kill_dispatcher(number)
        self.start_dispatcher(number)

    def _range(self, number: int) -> tuple[int, int]:
        return number * self._part, min(self._calls, (number + 1) * self._part)

    # -- the broker ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def broker_away(self) -> Iterator[None]:
        """The broker is away in this block: calls fail because nothing can be sent, and none that was sent is lost."""
        began = time.monotonic()
        yield
        away = time.monotonic() - began
        self._add_fault("broker away", began, away + RECONNECT_S, DISCONNECTED, max_failures=self._calls)

    def _add_fault(
        self,
        name: str,
        start: float,
        seconds: float,
        explains: frozenset[tuple[End, str]] = frozenset(),
        *,
        max_failures: int = 0,
        max_unfinished: int = 0,
    ) -> None:
        self.faults.append(
            Fault(name, start, start + seconds, explains, max_failures=max_failures, max_unfinished=max_unfinished)
        )

    # -- calls --------------------------------------------------------------------------------------------------

    @property
    def executed(self) -> int:
        """Calls that the tool has been executed for."""
        counts = self.counts.all()
        return len(counts) - counts.count(0)

    @property
    def is_calling(self) -> bool:
        """Whether a dispatcher still makes calls."""
        return any(program is not None and program.process.poll() is None for program in self._dispatchers)

    def wait_executed(self, calls: int, seconds: float = 60.0) -> None:
        """Wait until the tool has been executed for so many more calls."""
        target, deadline = self.executed + calls, time.monotonic() + seconds
        while self.executed < target and self.is_calling:
            assert time.monotonic() < deadline, f"only {self.executed} of {target} calls executed:\n{self.output()}"
            time.sleep(0.02)

    def wait_done(self) -> None:
        """Wait until all dispatchers have made their calls. The instances still run."""
        deadline = time.monotonic() + CALLS_S
        for program in self._dispatchers:
            code = program.process.wait(max(1.0, deadline - time.monotonic()))
            assert code == 0, f"exit code {code}:\n{program.text()}"
        for name in self.instances:
            self._check_running(name)

    def output(self) -> str:
        """The last lines of all processes, also of those that have ended."""
        return "".join(f"{' '.join(each.process.args[3:])}:\n{each.text()[-2_000:]}" for each in self._programs)

    def check(self) -> Counter[str]:
        """Check every guarantee. Returns how the calls ended."""
        violations = find_violations(self.record_file.records, self.counts.all(), self.faults)
        ends = self.count_ends()
        summary = "\n".join([*violations[:20], f"{len(violations)} violations", str(dict(ends))])
        assert not violations, f"{summary}\n{self.output()[-3_000:]}"
        return ends

    def count_ends(self) -> Counter[str]:
        """How the calls ended until now."""
        return count_ends(self.record_file.records)

    def calls_per_second(self) -> float:
        """From the first call's start to the last call's end."""
        records = [record for record in self.record_file.records if record.end > End.UNFINISHED]
        return len(records) / (max(r.finished for r in records) - min(r.started for r in records))
