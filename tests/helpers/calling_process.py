"""A dispatcher that calls the counting tool again and again, as a process of its own that may be killed and started again.

``python -m tests.helpers.calling_process URL TOPIC RECORDS FIRST LAST IN_FLIGHT`` makes the calls of ``range(FIRST, LAST)``
that no earlier process has started, so many at once, and records the end of each one in the file. It prints ``ready`` after
its first answer, and exits when all calls have ended. SIGUSR1 and SIGUSR2 move its wall clock by an hour.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.helpers import wall_clock  # isort: skip - before what keeps time.time

import dispatch
from tests.helpers.call_records import End, Record, RecordFile, record_error
from tests.helpers.catalogs import catalog_of
from tests.helpers.mixed_calls import arguments_of, is_right

TIMEOUT_S = 180.0
"""Far beyond every outage of the tests, also two in a row on a machine that starts a broker in 50 s: a call that runs out of
time was lost."""
PAUSE_S = 0.05
"""Between the calls of a caller after an error that excludes execution: an outage must not use up all numbers."""


async def call(dispatcher: dispatch.Dispatcher, number: int, record: Record) -> None:
    """Make one call and record it."""
    arguments = arguments_of(number)
    record.started = time.monotonic()
    record.end = End.UNFINISHED
    result = await dispatcher.execute("echo", arguments, timeout=TIMEOUT_S)
    record.finished = time.monotonic()
    if result.error is None:
        record.end = End.ANSWERED if is_right(result.text, arguments) else End.WRONG
        return
    record_error(record, result.error)
    sys.stdout.write(f"{number}: {result.error!r}\n")
    if record.end == End.NOT_EXECUTED:
        await asyncio.sleep(PAUSE_S)


async def _main(url: str, topic: str, path: str, first: int, last: int, in_flight: int) -> None:
    wall_clock.step_on_signals()
    records = RecordFile(Path(path)).records
    numbers = iter(number for number in range(first, last) if records[number].end == End.NOT_STARTED)

    async def caller(numbers: Iterator[int]) -> None:
        for number in numbers:
            await call(dispatcher, number, records[number])

    async with dispatch.connect(url, catalog_of(topic)) as dispatcher:
        for number in numbers:
            await call(dispatcher, number, records[number])
            if records[number].end == End.ANSWERED:
                break
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.gather(*(caller(numbers) for _ in range(in_flight)))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:4], *map(int, sys.argv[4:7])))
