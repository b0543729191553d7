"""A tool service of several instances, each a process of its own, which can be told to be well, slow, silent or refusing,
and be killed: ``python -m tests.helpers.degraded_service URL TOPIC FILE NUMBER``.

The state of each instance, and its count of requests, are in a file that all of them have mapped: to turn one ill takes no
message, and a count outlives its process. Each number there has one writer.
"""

from __future__ import annotations

import asyncio
import math
import mmap
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from pathlib import Path
from typing import Any

import dispatch

ROOT = Path(__file__).parents[2]
MEDIAN_S = 0.025
"""What the service's work takes, half of the time: a look-up in a database."""
SPREAD = 0.35
"""Of the work's logarithm: the p95 is 1.8 times the median, the p99 2.3 times."""
SLOWER = 10
"""So many times longer a slow instance takes for the same work."""
OUT_OF_ORDER = "out-of-order"
"""The type of the error of an instance that refuses."""
_STATE, _BEGUN, _ENDED, _CELLS = 0, 1, 2, 3


class State(IntEnum):
    """How an instance does."""

    WELL = 0
    SLOW = 1
    """Everything takes ten times as long."""
    SILENT = 2
    """It takes every request, says when asked that it is at work, and never answers: what it needs itself hangs."""
    REFUSING = 3
    """It answers every request at once with an error: what it needs itself refuses it."""


class Chart:
    """The file: a state and two counts for each instance.

    Args:
        path: of the file.
        instances: how many; None: as many as are there already.
    """

    def __init__(self, path: Path, instances: int | None = None) -> None:
        if instances is not None:
            path.write_bytes(bytes(8 * _CELLS * instances))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._cells = memoryview(self._map).cast("Q")

    def close(self) -> None:
        self._cells.release()
        self._map.close()

    def state(self, number: int) -> State:
        return State(self._cells[number * _CELLS + _STATE])

    def turn(self, number: int, state: State) -> None:
        self._cells[number * _CELLS + _STATE] = state

    def begin(self, number: int) -> None:
        self._cells[number * _CELLS + _BEGUN] += 1

    def end(self, number: int) -> None:
        self._cells[number * _CELLS + _ENDED] += 1

    def begun(self) -> list[int]:
        """Requests that each instance has begun to work on, in all its lives."""
        return list(self._cells[_BEGUN::_CELLS])

    def running(self) -> list[int]:
        """Requests that each one works on; those that it was killed over stay among them."""
        return [begun - ended for begun, ended in zip(self.begun(), self._cells[_ENDED::_CELLS], strict=True)]


class Unwell(dispatch.ToolService):
    """Answers with :func:`answer`, as its state allows."""

    def __init__(self, chart: Chart, number: int) -> None:
        self._chart = chart
        self._number = number
        self._rng = random.Random(number)

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        self._chart.begin(self._number)
        try:
            seconds = self._rng.lognormvariate(math.log(MEDIAN_S), SPREAD)
            match self._chart.state(self._number):
                case State.SILENT:
                    await asyncio.Event().wait()
                case State.REFUSING:
                    raise dispatch.ToolError(OUT_OF_ORDER, "The database refuses the connection.")
                case State.SLOW:
                    seconds *= SLOWER
            await asyncio.sleep(seconds)
            return answer(arguments["n"])
        finally:
            self._chart.end(self._number)


def answer(number: int) -> str:
    """The right answer to the call of that number."""
    return f"{number} squared is {number * number}"


class Processes:
    """The instances, as processes. They end with this one, however it ends.

    Args:
        url, topic: of the broker, and where the service is.
        path: of the chart.
        count: how many there are.

    Attributes:
        chart: how each one is to do.
    """

    def __init__(self, url: str, topic: str, path: Path, count: int) -> None:
        self._command = [sys.executable, "-m", __name__, url, topic, str(path)]
        self._lives: list[subprocess.Popen[str] | None] = [None] * count
        self._over = False
        self._lock = threading.Lock()
        self.chart = Chart(path, count)

    def __enter__(self) -> Processes:
        try:
            with ThreadPoolExecutor(len(self._lives)) as pool:
                list(pool.map(self._start, range(len(self._lives))))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        with self._lock:  # a restart that its test no longer waits for starts nothing any more
            self._over = True
        for number in range(len(self._lives)):
            self._kill(number)
        self.chart.close()

    def turn(self, states: Sequence[State]) -> None:
        """How each one does from now on."""
        for number, state in enumerate(states):
            self.chart.turn(number, state)

    async def restart(self, number: int) -> None:
        """Kill an instance (-9), and start it again; returns when it serves."""
        await asyncio.to_thread(self._kill, number)
        await asyncio.to_thread(self._start, number)

    def _start(self, number: int) -> None:
        command = [*self._command, str(number)]
        with self._lock:
            if self._over:
                return
            process = self._lives[number] = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        line = process.stdout.readline()
        assert line == "ready\n", f"instance {number} did not start: {line!r}"

    def _kill(self, number: int) -> None:
        process, self._lives[number] = self._lives[number], None
        if process is not None:
            process.kill()
            process.communicate()


async def _main(url: str, topic: str, path: str, number: int) -> None:
    service = Unwell(Chart(Path(path)), number)
    async with dispatch.ToolServer(service, url, service=topic, instance=f"{topic}-{number}"):
        print("ready", flush=True)  # noqa: T201 - what the parent waits for
        await asyncio.to_thread(sys.stdin.read)  # until the parent ends, however it ends
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
