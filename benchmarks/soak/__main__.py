"""Keep dispatch under load while processes are killed, drained and restarted and the catalogue is reloaded; print a table.

Two kinds of load run side by side. Counting services and dispatchers in processes of their own, which a seeded sequence of
faults kills, drains and restarts, show that each call is executed at most once and that none is lost. A resident dispatcher
and its service in this process call functions, a stream and an MCP server all the time, with a reload every few seconds:
their memory, file descriptors and threads must not grow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dispatch
from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces
from tests.helpers.call_records import End, Record, find_violations
from tests.helpers.catalogs import queues_of, unique_topic
from tests.helpers.fault_lab import FaultLab
from tests.integration.pulsar.test_broker_restart import first_lookup

QUARTERS = 4
FUNCTIONS = 20
FAULTS = ("kill", "restart", "drain", "dispatcher", "unload", "broker")
NAMESPACES = ("tg/request", "tg/response")


def _functions() -> list[Any]:
    made = []
    for number in range(FUNCTIONS - 2):

        async def add(a: int, b: int, number: int = number) -> int:
            """Add two numbers."""
            return a + b + number

        add.__name__ = add.__qualname__ = f"add_{number}"
        made.append(dispatch.tool(add, read_only=True))
    return made


class Stream(dispatch.ToolService):
    """Streams ``chunks`` chunks of ``size`` bytes."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        for _ in range(arguments["chunks"]):
            yield "x" * arguments["size"]


@dataclass
class Quarter:
    """What a quarter of the run counted.

    Attributes:
        durations: of answered calls, in seconds.
    """

    calls: int = 0
    answered: int = 0
    explained: int = 0
    violations: list[str] = field(default_factory=list)
    durations: list[float] = field(default_factory=list)
    resident: int = 0
    resident_failed: int = 0
    memory_mb: float = 0.0
    files: int = 0
    threads: int = 0

    def add(self, records: list[Record], violations: list[str]) -> None:
        """Add a batch of calls."""
        self.calls += len(records)
        answered = [each for each in records if each.end == End.ANSWERED]
        self.answered += len(answered)
        self.explained += len(records) - len(answered) - len(violations)
        self.violations += violations
        self.durations += [each.finished - each.started for each in answered]

    def measure(self) -> None:
        """Read what this process uses."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.memory_mb = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        self.files = len(os.listdir("/proc/self/fd"))
        self.threads = threading.active_count()

    def row(self, name: str) -> str:
        """The row of the table."""
        ordered = sorted(self.durations) or [0.0]
        p50, p99, p999 = (ordered[min(len(ordered) - 1, int(len(ordered) * q))] * 1e3 for q in (0.5, 0.99, 0.999))
        twice = sum("executed" in each for each in self.violations)
        columns = (
            *(name, f"{self.calls:,}", f"{self.explained:,}", len(self.violations) - twice, twice),
            *(f"{p50:.1f} / {p99:.0f} / {p999:.0f}", f"{self.resident:,}", f"{self.resident_failed:,}"),
            *(f"{self.memory_mb:.0f}", self.files, self.threads),
        )
        return f"| {' | '.join(map(str, columns))} |"


COLUMNS = (
    *("quarter", "calls", "failed by a fault", "lost", "twice", "p50 / p99 / p99.9 ms"),
    *("resident's calls", "failed", "memory MB", "files", "threads"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"


class Resident:
    """A dispatcher and a service that live for the whole run.

    Args:
        url: of the broker.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._topic = unique_topic("resident")
        self.quarter = Quarter()

    def _catalog(self) -> dispatch.Catalog:
        requests, responses = queues_of(self._topic)
        service = {"id": "resident", "request-queue": requests, "response-queue": responses}
        tool = {
            "type": "tool-service",
            "name": "stream",
            "description": "Streams.",
            "service": "resident",
            "read-only": True,
        }
        return dispatch.Catalog.of([service], [tool])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[dispatch.Dispatcher]:
        """Call all tools, and load the catalogue again, until the block ends."""
        functions, servers = (
            dispatch.Functions(*_functions()),
            dispatch.McpServers(
                {"mcpServers": {"units": {"command": sys.executable, "args": ["examples/agent.py", "--mcp-server"]}}}
            ),
        )
        sources = [self._catalog(), functions, servers]
        async with (
            dispatch.ToolServer(Stream(), self._url, service=self._topic, descriptor={"id": "resident"}),
            dispatch.connect(self._url, sources) as dispatcher,
        ):
            tasks = [asyncio.create_task(each) for each in (self._call(dispatcher), self._reload(dispatcher, sources))]
            try:
                yield dispatcher
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, dispatcher: dispatch.Dispatcher) -> None:
        while True:
            for tool in dispatcher.catalog.tools:
                try:
                    if tool == "stream":
                        size = random.choice((10, 10_000, 200_000))
                        async for _ in dispatcher.stream(tool, {"chunks": 5, "size": size}, timeout=30):
                            pass
                    elif tool.startswith("add_"):
                        await dispatcher.call(tool, {"a": 1, "b": 2})
                    else:
                        await dispatcher.call(tool, {"miles": 26.2}, timeout=10)
                except dispatch.DispatchError:
                    self.quarter.resident_failed += 1
                self.quarter.resident += 1
            await asyncio.sleep(0.01)

    async def _reload(self, dispatcher: dispatch.Dispatcher, sources: list[Any]) -> None:
        while True:
            await asyncio.sleep(5)
            await dispatcher.reload([self._catalog(), *sources[1:]])


def inject(lab: FaultLab, admin: Admin, broker: LocalBroker | None, dice: random.Random) -> None:
    """Inject one fault; those of the broker only if it belongs to the run."""
    kind = dice.choice(FAULTS if broker is not None else FAULTS[:4])
    name = dice.choice(sorted(lab.instances))
    if kind == "broker" and broker is not None:
        with lab.broker_away():
            broker.kill()
            broker.restart()
            first_lookup(broker.service_url)
    elif kind == "unload":
        with lab.broker_away():
            for namespace in NAMESPACES:
                admin._request("PUT", f"namespaces/{namespace}/unload")
    elif kind == "dispatcher":
        lab.restart_dispatcher(dice.randrange(2))
    elif kind == "drain":
        lab.start_instance()
        lab.drain_instance(name)
    else:
        lab.kill_instance(name)
        lab.start_instance(name if kind == "restart" else None)


def run_batch(
    url: str, admin: Admin, broker: LocalBroker | None, calls: int, dice: random.Random, ends: float
) -> tuple[list[Record], list[str]]:
    """Make a batch of calls with a fault for each tenth of it; no fault after ``ends``."""
    with (
        tempfile.TemporaryDirectory(prefix="dispatch-soak-") as folder,
        FaultLab(url, Path(folder), calls, dispatchers=2) as lab,
    ):
        lab.start_instance()
        lab.start_instance()
        lab.start_dispatchers()
        while lab.executed < calls * 0.8 and time.monotonic() < ends:
            lab.wait_executed(calls // 10, seconds=300)
            inject(lab, admin, broker, dice)
        lab.wait_done()
        violations = find_violations(lab.record_file.records, lab.counts.all(), lab.faults)
        return [Record.from_buffer_copy(each) for each in lab.record_file.records], violations


async def soak(url: str, admin: Admin, broker: LocalBroker | None, minutes: float, calls: int) -> list[Quarter]:
    """Run; return the quarters, and a last one for the state at rest."""
    dice, resident = random.Random(1), Resident(url)
    quarters = []
    async with resident.running():
        start = time.monotonic()
        for number in range(QUARTERS):
            quarter = resident.quarter = Quarter()
            ends = start + minutes * 60 * (number + 1) / QUARTERS
            while not quarter.calls or time.monotonic() < ends:
                quarter.add(*await asyncio.to_thread(run_batch, url, admin, broker, calls, dice, ends))
            quarter.measure()
            quarters.append(quarter)
            sys.stdout.write(f"{HEAD if not number else ''}\n{quarter.row(str(number + 1))}".lstrip() + "\n")
            sys.stdout.flush()
    return quarters


@contextlib.contextmanager
def provide(url: str | None, web_url: str) -> Iterator[tuple[str, Admin, LocalBroker | None]]:
    """The broker: the one at ``url``, which is not killed, or one of the run's own."""
    if url is not None:
        yield url, Admin(web_url), None
        return
    with LocalBroker.start() as broker:
        create_namespaces(Admin(broker.web_url))
        yield broker.service_url, Admin(broker.web_url), broker


def main() -> int:
    """Run, print the table, and return the exit code: 1 if a call was lost or executed twice."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="duration; default 60, for a trial 2")
    parser.add_argument("--broker", metavar="URL", help="a broker that is not killed; default: one of the run's own")
    parser.add_argument(
        "--admin", metavar="URL", default="http://127.0.0.1:8080", help="admin interface of that broker"
    )
    parser.add_argument("--calls", type=int, help="calls of a batch; default 200,000, or 10,000 below ten minutes")
    given = parser.parse_args()
    calls = given.calls or (200_000 if given.minutes >= 10 else 10_000)
    with provide(given.broker, given.admin) as (url, admin, broker):
        quarters = asyncio.run(soak(url, admin, broker, given.minutes, calls))
    violations = [each for quarter in quarters for each in quarter.violations]
    sys.stdout.write("".join(f"{each}\n" for each in violations[:50]))
    sys.stdout.write(json.dumps({"violations": len(violations), "calls": sum(each.calls for each in quarters)}) + "\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
