"""Connects and closes: file descriptors and threads, and whether the process survives."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness.processes import BenchmarkError, Child
from benchmarks.incidents.figures import Figure
from benchmarks.incidents.lab import Lab, queues, unique
from benchmarks.incidents.scenario import Scenario

DESCRIPTORS = 1_024
"""``ulimit -n`` of a login shell."""


def open_files(pid: int) -> int:
    """File descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    """Threads of a process."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def signal_name(returncode: int | None) -> str:
    """How a process ended, as ``SIGABRT`` or ``exit status 1``."""
    if returncode is None:
        return "no"
    return signal.Signals(-returncode).name if returncode < 0 else f"exit status {returncode}"


def run(lab: Lab) -> Iterator[Figure]:
    """Measure it."""
    count, step = (20, 10) if lab.short else (400, 40)
    broker = lab.brokers.get()
    with ExitStack() as stack:
        topic = unique("connects")
        spec: dict[str, Any] = {"url": broker.service_url, **queues(topic)}
        lab.start("service", spec, stack)
        own = queues(unique("connects-own"))
        spec |= {"descriptors": DESCRIPTORS, "own_request": own["request"], "own_response": own["response"]}
        for what in ("dispatchers", "services"):
            lab.progress.step(f"connects: {count} {what} connect and close", count * 0.15)
            worker = lab.start("connects", {**spec, "what": what}, stack)
            yield from measured(worker, what, count, step)


def measured(worker: Child, what: str, count: int, step: int) -> list[Figure]:
    """The figures of ``count`` connects in ``worker``; its end by a signal is one of them, and leaves the last batch out."""
    worker.ask({"times": 1}, 60)
    fds, running = [open_files(worker.pid)], [threads(worker.pid)]
    done, tried, error, ended = 0, 0, None, "no"
    while tried < count:
        try:
            answer = worker.ask({"times": step}, 120)
        except BenchmarkError as failed:
            ended = "hung" if "gave no answer" in str(failed) else signal_name(worker.returncode)
            break
        fds.append(open_files(worker.pid))
        running.append(threads(worker.pid))
        tried += step
        done += answer["done"]
        error = answer["error"] or error
    return [
        Figure(f"{what}: connects made, of {count}", done, wanted=str(count)),
        Figure(f"{what}: error of the others", error or "none", wanted="none"),
        Figure(f"{what}: file descriptors after the first", fds[0]),
        Figure(f"{what}: file descriptors at the last look", fds[-1], wanted="as after the first"),
        Figure(f"{what}: file descriptors for each connect", (fds[-1] - fds[0]) / done if done else None, wanted="0"),
        Figure(f"{what}: threads after the first", running[0]),
        Figure(f"{what}: threads at the last look", running[-1], wanted="as after the first"),
        Figure(f"{what}: process ended early", ended, wanted="no"),
    ]


SCENARIO = Scenario(
    "connects",
    f"a process connects and closes 400 times with {DESCRIPTORS:,} file descriptors",
    run,
    seconds=110,
    short_seconds=20,
)
