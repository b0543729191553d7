"""A tool that changes state and counts, as a process of its own:
``python -m tests.helpers.counting_service URL TOPIC COUNTS [INSTANCES]``.
``TOPIC`` is a short name, or two whole ones with a comma between; ``INSTANCES`` are the names of the instances in this
process, with commas between. It prints ``ready``; SIGTERM drains it, SIGUSR1 and SIGUSR2 move its wall clock by an hour.

Each call has a number; the service keeps how often it was told to do each, in a file of its own that survives it, one byte
a number, written before it answers: a process that is killed has still counted what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.helpers import wall_clock  # isort: skip - before what keeps time.time

import dispatch
from tests.helpers.python_processes import running


class Counting(dispatch.ToolService):
    """Answers with ``size`` bytes, or with ``chunks`` of them; ``seconds`` before that, if given, or ``seconds_at_first``
    when it is told to do it for the first time."""

    def __init__(self, counts: mmap.mmap) -> None:
        self.counts = counts

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> Any:
        number, size = arguments["n"], arguments.get("size", 1)
        self.counts[number] = min(255, self.counts[number] + 1)
        if self.counts[number] == 1 and "seconds_at_first" in arguments:
            await asyncio.sleep(arguments["seconds_at_first"])
        elif arguments.get("seconds"):
            await asyncio.sleep(arguments["seconds"])
        if arguments.get("chunks"):
            return self._stream(number, arguments["chunks"], size)
        return answer(number, size)

    async def _stream(self, number: int, chunks: int, size: int) -> AsyncIterator[str]:
        for index in range(chunks):
            yield answer(index, size)


def answer(number: int, size: int) -> str:
    """An answer of ``size`` bytes that no other call has."""
    return f"{number:08d}".ljust(size, "x")


class Counts:
    """The file with the counts, for ``calls`` numbers."""

    def __init__(self, path: Path, calls: int) -> None:
        self.path = path
        path.write_bytes(bytes(calls))

    def __getitem__(self, number: int) -> int:
        return self.all()[number]

    def all(self) -> bytes:
        return self.path.read_bytes()


@contextlib.contextmanager
def counting_process(url: str, topic: str, counts: Counts, *, instance: str = "") -> Iterator[subprocess.Popen[str]]:
    """The service, ready. Killed at the end, if it still lives; and it ends with this process."""
    with running(*arguments_of_process(url, topic, counts, instance), ready="ready") as program:
        yield program.process


def arguments_of_process(url: str, topic: str, counts: Counts, *instances: str) -> tuple[str, ...]:
    """The arguments of Python for the service with these instances."""
    return "-m", __name__, url, topic, str(counts.path), ",".join(instances)


async def _main(url: str, topic: str, path: str, instances: str = "") -> None:
    loop, drained = asyncio.get_running_loop(), asyncio.Event()
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as counts:  # noqa: ASYNC230 - before anything is served
        request_queue, _, response_queue = topic.partition(",")
        servers = [
            dispatch.ToolServer(
                Counting(counts),
                url,
                service=None if response_queue else topic,
                request_queue=request_queue if response_queue else None,
                response_queue=response_queue or None,
                instance=instance or None,
                concurrency=256,
                max_queue=10_000,
            )
            for instance in instances.split(",")
        ]
        async with contextlib.AsyncExitStack() as stack:
            for server in servers:
                await stack.enter_async_context(server)
            loop.add_signal_handler(signal.SIGTERM, drained.set)
            wall_clock.step_on_signals()
            print("ready", flush=True)  # noqa: T201 - what the parent waits for
            await drained.wait()
            await asyncio.gather(*(server.drain() for server in servers))
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:5]))
