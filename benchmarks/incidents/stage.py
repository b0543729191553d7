"""Plays cases: a pool of instance processes and one agent, which one case after the other uses."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from benchmarks.harness.processes import Child
from benchmarks.incidents.cases import Case, Event
from benchmarks.incidents.lab import queues, start_role, unique
from benchmarks.incidents.outcomes import Played, Record
from benchmarks.workers.proc import read_memory

ANSWER_S = 60.0
"""Seconds until a process answers a command, at most."""


class Stage:
    """The processes of one checkout at one broker. A context manager: leaving it ends them.

    Args:
        product: the checkout whose ``dispatch`` is imported.
        url: of the broker.
    """

    def __init__(self, product: Path, url: str) -> None:
        self._product = product
        self._spec = {"url": url}
        self._stack = contextlib.ExitStack()
        self._idle: list[Child] = []
        self._agent: Child | None = None

    def __enter__(self) -> Stage:
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def play(self, case: Case) -> Played:
        """Play a case.

        Raises:
            BenchmarkError: a process ended or gave no answer.
        """
        instances = self._take(case.processes)
        agent, self._agent = self._agent or self._start("agent"), None
        with _Round(case, self._folder, instances, agent) as round:
            played = round.play()
        self._idle += round.survivors
        self._agent = agent
        return played

    def _take(self, count: int) -> list[Child]:
        taken = [self._idle.pop() if self._idle else None for _ in range(count)]
        return [each or self._start("instance") for each in taken]

    def _start(self, role: str) -> Child:
        return start_role(role, self._product, self._spec, self._stack)


class _Round:
    """One case that is played. After the context, ``survivors`` are the processes that can be used again."""

    def __init__(self, case: Case, folder: Path, instances: list[Child], agent: Child) -> None:
        self._case = case
        self._queues = queues(unique("incident"))
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._instances = instances
        self._agent = agent
        self._paused: set[int] = set()
        self._serving: set[int] = set()
        self.survivors: list[Child] = []

    def __enter__(self) -> _Round:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._paused):
            self._resume(number)
        if kind is None:
            for number in self._serving:
                self._instances[number].ask({"do": "close"}, ANSWER_S)
            self.survivors = [each for each in self._instances if each.returncode is None]
        else:
            for each in (*self._instances, self._agent):
                each.kill()

    def play(self) -> Played:
        """Play it, and return what happened."""
        case = self._case
        for number in range(case.instances):
            self._do(Event(0, "serve", number))
        for number in self._serving:
            reset_memory_peak(self._instances[number].pid)
        before = {number: read_memory(self._instances[number].pid) for number in self._serving}
        self._agent.ask(
            {
                **self._queues,
                "tools": [asdict(each) for each in case.tools],
                "policy": dict(case.policy),
                "warm_up": case.warm_up,
            },
            ANSWER_S,
        )
        began = time.monotonic()
        if case.calls:
            self._agent.ask({"do": "calls", "calls": [dict(each) for each in case.calls]}, ANSWER_S)
        if case.rate:
            self._agent.ask({"do": "begin", "rate": case.rate}, ANSWER_S)
        over = began
        for number, event in enumerate(case.events):
            time.sleep(max(0.0, began + event.at - time.monotonic()))
            self._do(event)
            if number == case.over:
                over = time.monotonic()
        left = max(0.0, began + case.seconds - time.monotonic())
        if case.rate:
            time.sleep(left)
        else:
            self._agent.ask({"do": "wait", "seconds": left}, left + ANSWER_S)
        rows = self._agent.ask({"do": "end", "seconds": case.grace_s}, 2 * case.grace_s + ANSWER_S)["records"]
        growth = [
            read_memory(self._instances[number].pid, "VmHWM") - was
            for number, was in before.items()
            if number in self._serving
        ]
        return Played(began, over, [Record(*row) for row in rows], self._journals(), max(growth, default=0.0))

    def _do(self, event: Event) -> None:
        number, process = event.instance, self._instances[event.instance]
        match event.do:
            case "serve":
                options = {**self._case.options.get(number, {})}
                slowness = options.pop("slowness", 1.0)
                command = {
                    "do": "serve",
                    **self._queues,
                    "instance": f"instance-{number}",
                    "journal": str(self._journal(number)),
                    "slowness": slowness,
                    "options": options,
                }
                process.ask(command, ANSWER_S)
                self._serving.add(number)
            case "kill":
                process.kill()
                self._serving.discard(number)
            case "pause":
                process.signal(signal.SIGSTOP)
                self._paused.add(number)
            case "resume":
                self._resume(number)
            case "drain":
                process.ask({"do": "drain"}, ANSWER_S)
                self._serving.discard(number)
            case "block":
                process.ask({"do": "block", "seconds": event.seconds}, ANSWER_S)

            case "note":
                pass

    def _resume(self, number: int) -> None:
        self._instances[number].signal(signal.SIGCONT)
        self._paused.discard(number)

    def _journal(self, number: int) -> Path:
        return self._folder / str(number)

    def _journals(self) -> dict[int, list[int]]:
        """The calls that each instance executed."""
        paths = {number: self._journal(number) for number in range(len(self._instances))}
        return {
            number: [int(line) for line in path.read_text().split()] for number, path in paths.items() if path.exists()
        }


def reset_memory_peak(pid: int) -> None:
    """Set ``VmHWM`` of a process to what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
