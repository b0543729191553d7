"""Keep dispatch under load while processes are killed, drained and restarted and the catalogue is reloaded; print a table.

Two kinds of load run side by side. Counting services and dispatchers in processes of their own, which a seeded sequence of
faults kills, drains and restarts, whose topics are unloaded and whose clocks are stepped, show that each call is executed
at most once and that none is lost. A resident dispatcher and its service in this process call functions, a stream and an
MCP server all the time, with a reload every few seconds: what they hold when the others are gone must be what they held
before.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.helpers import wall_clock  # isort: skip - before what keeps time.time

import httpx

import dispatch
from benchmarks.harness.processes import ROOT
from benchmarks.suites.docs_page import markdown_table, replace_figures
from dispatch.devtools.localbroker import VERSION, Admin, LocalBroker, create_namespaces
from tests.helpers.call_records import End, Record, find_violations
from tests.helpers.catalogs import queues_of, unique_topic
from tests.helpers.fault_lab import FaultLab
from tests.integration.pulsar.test_broker_restart import first_lookup

QUARTERS = 4
FUNCTIONS = 20
FAULTS = ("kill", "restart", "drain", "dispatcher", "clock", "unload", "broker")
"""The last two only on a broker of the run's own."""
NAMESPACES = ("tg/request", "tg/response", "tg/notify")
PAGE = ROOT / "docs" / "explanation" / "soak.md"
STATM = Path("/proc/self/statm")
SETTLE_S = 30.0
"""Of the resident alone, before the others start."""
REST_S = 240.0
"""Within it topics and sessions of processes that are gone have ended: sessions after 60 s, their topics a minute later."""


def _functions() -> list[Any]:
    made = []
    for number in range(FUNCTIONS - 2):

        async def add(a: int, b: int, number: int = number) -> int:
            """Add two numbers."""
            return a + b + number

        add.__name__ = add.__qualname__ = f"add_{number}"
        made.append(dispatch.tool(read_only=True)(add))
    return made


class Stream(dispatch.ToolService):
    """Streams ``chunks`` chunks of ``size`` bytes."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> AsyncIterator[str]:
        for _ in range(arguments["chunks"]):
            yield "x" * arguments["size"]


class Held(NamedTuple):
    """What the resident dispatcher and its service hold, and the topics at the broker."""

    memory_mb: int
    files: int
    threads: int
    sessions: int
    topics: int

    def exceeds(self, before: Held) -> bool:
        """Whether it is more; of memory, which no process gives back, 1.5 times as much."""
        return self.memory_mb > 1.5 * before.memory_mb or any(
            now > then for now, then in zip(self[1:], before[1:], strict=True)
        )


@dataclass
class Quarter:
    """What a quarter of the run counted.

    Attributes:
        durations: of answered calls, how many took so many tenths of a millisecond.
    """

    calls: int = 0
    explained: int = 0
    violations: list[str] = field(default_factory=list)
    durations: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    resident: int = 0
    resident_failed: int = 0

    def add(self, records: Sequence[Record], violations: list[str]) -> None:
        """Add a batch of calls."""
        answered = [each for each in records if each.end == End.ANSWERED]
        self.calls += len(records)
        self.explained += len(records) - len(answered) - len(violations)
        self.violations += violations
        self.durations.update(int((each.finished - each.started) * 1e4) for each in answered)

    def percentile(self, share: float) -> float:
        """A percentile of the durations, in milliseconds."""
        rank, seen = share * self.durations.total(), 0
        for tenths in sorted(self.durations):
            seen += self.durations[tenths]
            if seen >= rank:
                return tenths / 10
        return 0.0

    def row(self, name: str, held: Held) -> tuple[str, ...]:
        """The row of the table."""
        twice = sum("executed" in each for each in self.violations)
        columns = (
            *(name, f"{self.calls:,}", self.faults.total(), f"{self.explained:,}", len(self.violations) - twice, twice),
            " / ".join(f"{self.percentile(each):.0f}" for each in (0.5, 0.99, 0.999)),
            *(f"{self.resident:,}", f"{self.resident_failed:,}", *held),
        )
        return tuple(map(str, columns))


COLUMNS = (
    *("quarter", "calls", "faults", "failed by a fault", "lost", "twice", "p50 / p99 / p99.9 ms"),
    *("resident's calls", "failed", "memory MB", "files", "threads", "sessions", "topics"),
)
BLANK = ("-",) * 8


class Resident:
    """A dispatcher and a service that live for the whole run.

    Args:
        url: of the broker.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._topic = unique_topic("resident")
        self._admins: tuple[str | None, ...] = ()
        self.quarter = Quarter()

    async def held(self, admin: Admin) -> Held:
        """Read what this process holds, and the topics at the broker."""
        pages = int(STATM.read_text().split()[1])  # noqa: ASYNC240 - not on a disk
        sessions = 0
        async with httpx.AsyncClient() as client:
            for url in self._admins:
                sessions += len((await client.get(f"{url}/api/sessions")).raise_for_status().json())
        return Held(
            round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6),
            len(os.listdir("/proc/self/fd")),
            threading.active_count(),
            sessions,
            sum([len(await asyncio.to_thread(admin.topics, each)) for each in NAMESPACES]),
        )

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
            dispatch.ToolServer(
                Stream(), self._url, service=self._topic, descriptor={"id": "resident"}, admin="127.0.0.1:0"
            ) as server,
            dispatch.connect(self._url, sources, admin="127.0.0.1:0") as dispatcher,
        ):
            self._admins = server.admin_url, dispatcher.admin_url
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


def inject(lab: FaultLab, admin: Admin, broker: LocalBroker | None, dice: random.Random) -> str:
    """Inject one fault; those of the broker only if it belongs to the run. Returns its name."""
    kind = dice.choice(FAULTS if broker is not None else FAULTS[:-2])
    name = dice.choice(sorted(lab.instances))
    if kind == "broker" and broker is not None:
        with lab.broker_away():
            broker.kill()
            broker.restart()
            first_lookup(broker.service_url)
    elif kind == "unload":
        with lab.broker_away():
            for namespace in NAMESPACES[:2]:
                admin._request("PUT", f"namespaces/{namespace}/unload")
    elif kind == "clock":
        ahead = dice.random() < 0.5
        lab.step_clocks(ahead=ahead)
        wall_clock.step(wall_clock.HOUR if ahead else -wall_clock.HOUR)
    elif kind == "dispatcher":
        lab.restart_dispatcher(dice.randrange(2))
    elif kind == "drain":
        lab.start_instance()
        lab.drain_instance(name)
    else:
        lab.kill_instance(name)
        lab.start_instance(name if kind == "restart" else None)
    return kind


def run_batch(
    url: str, admin: Admin, broker: LocalBroker | None, calls: int, dice: random.Random, ends: float, quarter: Quarter
) -> None:
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
            quarter.faults[inject(lab, admin, broker, dice)] += 1
        lab.wait_done()
        records = lab.record_file.records
        quarter.add(records, find_violations(records, lab.counts.all(), lab.faults))


async def soak(
    url: str, admin: Admin, broker: LocalBroker | None, minutes: float, calls: int
) -> tuple[list[Quarter], list[tuple[str, ...]], str]:
    """Run; return the quarters, the rows of the table, and what did not come to rest."""
    dice, resident, rows = random.Random(1), Resident(url), list[tuple[str, ...]]()
    quarters = []

    def report(row: tuple[str, ...]) -> None:
        rows.append(row)
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        sys.stdout.flush()

    async with resident.running():
        # All threads of the loop's pool start, so that none counts as one more later.
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.1) for _ in range((os.cpu_count() or 1) + 4)))
        await asyncio.sleep(min(SETTLE_S, minutes * 6))
        before = await resident.held(admin)
        report(COLUMNS)
        report(("before", *BLANK, *map(str, before)))
        start = time.monotonic()
        for number in range(QUARTERS):
            quarter = resident.quarter = Quarter()
            ends = start + minutes * 60 * (number + 1) / QUARTERS
            while not quarter.calls or time.monotonic() < ends:
                await asyncio.to_thread(run_batch, url, admin, broker, calls, dice, ends, quarter)
            quarters.append(quarter)
            report(quarter.row(str(number + 1), await resident.held(admin)))
        ends = time.monotonic() + REST_S
        while (after := await resident.held(admin)).exceeds(before) and time.monotonic() < ends:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(2)
        report(("at rest", *BLANK, *map(str, after)))
    return quarters, rows, f"more than before: {after} after {before}" if after.exceeds(before) else ""


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
        quarters, rows, unrest = asyncio.run(soak(url, admin, broker, given.minutes, calls))
    violations = [each for quarter in quarters for each in quarter.violations]
    sys.stdout.write("".join(f"{each}\n" for each in [*violations[:50], unrest] if each))
    faults = sum((each.faults for each in quarters), Counter[str]())
    summary = f"{sum(each.calls for each in quarters):,} calls, {faults.total()} faults ({dict(faults)}), "
    sys.stdout.write(f"{summary}{len(violations)} violations\n")
    if given.minutes >= 60:
        said = (
            f"One run on {datetime.now(UTC):%Y-%m-%d}, Pulsar {VERSION}, {os.cpu_count()} shared processors. Faults: "
        )
        said += ", ".join(f"{kind} {count}" for kind, count in faults.most_common()) + "."
        figures = f"{said}\n\n{markdown_table(rows[0], rows[1:])}"
        PAGE.write_text(replace_figures(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")
    return 1 if violations or unrest else 0


if __name__ == "__main__":
    sys.exit(main())
