"""Keep dispatch under load while processes are killed, drained and restarted and the catalogue is reloaded; print a table.

Two kinds of load run side by side. Counting services and dispatchers in processes of their own, which a seeded sequence of
faults kills, drains and restarts, whose topics are unloaded and whose clocks are stepped, show that each call is executed
at most once and that none is lost. A resident dispatcher and its service in one process call functions, a stream and an MCP
server all the time, with a reload every few seconds: what they hold when the others are gone must be what they held before.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
import unittest.mock
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness.processes import READY_S, ROOT, Child, start
from benchmarks.harness.programs import write_page
from benchmarks.harness.report import markdown_table
from benchmarks.soak.resident import State
from dispatch.devtools.localbroker import VERSION, Admin, LocalBroker, create_namespaces
from tests.helpers.call_records import End, Record, find_violations
from tests.helpers.fault_lab import FaultLab
from tests.integration.pulsar.test_broker_restart import first_lookup

QUARTERS = 4
FAULTS = ("kill", "restart", "drain", "dispatcher", "clock", "unload", "broker")
"""The last two only on a broker of the run's own."""
NAMESPACES = ("tg/request", "tg/response", "tg/notify")
PAGE = ROOT / "docs" / "explanation" / "soak.md"
SETTLE_S = 30.0
"""Of the resident alone, before the others start."""
MOST_IN_USE = 1.25
"""Memory in use at rest, of that before. 36 outages of 4 s left it at 84 MB; single readings are 82 to 89 MB, with what is
in flight. 0.6 MB that stay with each restart of the broker exceed this in an hour."""
REST_S = 240.0
"""Within it topics and sessions of processes that are gone have ended: sessions after 60 s, their topics a minute later."""


class Held(NamedTuple):
    """What the resident dispatcher and its service hold, and the topics at the broker."""

    in_use_mb: int
    resident_mb: int
    files: int
    threads: int
    sessions: int
    topics: int

    def exceeds(self, before: Held) -> bool:
        """Whether it is more. Resident memory may be: it has free memory, in fragments, of each client of pulsar-client."""
        return self.in_use_mb > MOST_IN_USE * before.in_use_mb or any(
            now > then for now, then in zip(self[2:], before[2:], strict=True)
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
        twice = sum(each.endswith("times") for each in self.violations)
        columns = (
            *(name, f"{self.calls:,}", self.faults.total(), f"{self.explained:,}", len(self.violations) - twice, twice),
            " / ".join(f"{self.percentile(each):.0f}" for each in (0.5, 0.99, 0.999)),
            *(f"{self.resident:,}", f"{self.resident_failed:,}", *held),
        )
        return tuple(map(str, columns))


COLUMNS = (
    *("quarter", "calls", "faults", "failed by a fault", "lost", "twice", "p50 / p99 / p99.9 ms"),
    *("resident's calls", "failed", "MB in use", "MB resident", "files", "threads", "sessions", "topics"),
)
BLANK = ("-",) * 8


def ask(resident: Child) -> State:
    """Return what the resident holds, and its calls so far."""
    return State(**resident.ask({}, READY_S))


def inject(lab: FaultLab, admin: Admin, broker: LocalBroker | None, resident: Child, dice: random.Random) -> str:
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
                admin.unload(namespace)
    elif kind == "clock":
        ahead = dice.random() < 0.5
        lab.step_clocks(ahead=ahead)
        resident.signal(signal.SIGUSR1 if ahead else signal.SIGUSR2)
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
    url: str,
    admin: Admin,
    broker: LocalBroker | None,
    resident: Child,
    calls: int,
    dice: random.Random,
    ends: float,
    quarter: Quarter,
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
            quarter.faults[inject(lab, admin, broker, resident, dice)] += 1
        lab.wait_done()
        records = lab.record_file.records
        violations = find_violations(records, lab.counts.all(), lab.faults)
        quarter.add(records, violations)
        if violations:
            sys.stdout.write(lab.output())


def soak(
    url: str, admin: Admin, broker: LocalBroker | None, minutes: float, calls: int
) -> tuple[list[Quarter], list[tuple[str, ...]], str]:
    """Run; return the quarters, the rows of the table, and what did not come to rest."""
    dice, rows = random.Random(1), list[tuple[str, ...]]()
    quarters = []

    def report(row: tuple[str, ...]) -> None:
        rows.append(row)
        sys.stdout.write(f"| {' | '.join(row)} |\n")
        sys.stdout.flush()

    with contextlib.ExitStack() as stack:
        with unittest.mock.patch.dict(os.environ, PYTHONMALLOC="malloc"):  # so that the C library counts all memory
            resident = start("resident", stack, package="benchmarks.soak")
        resident.begin({"url": url})

        def read() -> tuple[State, Held]:
            state, topics = ask(resident), sum(len(admin.topics(each)) for each in NAMESPACES)
            holds = state.in_use_mb, state.resident_mb, state.files, state.threads, state.sessions
            return state, Held(*holds, topics)

        time.sleep(min(SETTLE_S, minutes * 6))
        last, before = read()
        report(COLUMNS)
        report(("before", *BLANK, *map(str, before)))
        began = time.monotonic()
        for number in range(QUARTERS):
            quarter = Quarter()
            ends = began + minutes * 60 * (number + 1) / QUARTERS
            while not quarter.calls or time.monotonic() < ends:
                run_batch(url, admin, broker, resident, calls, dice, ends, quarter)
            quarters.append(quarter)
            state, held = read()
            quarter.resident, quarter.resident_failed = state.calls - last.calls, state.failed - last.failed
            last = state
            report(quarter.row(str(number + 1), held))
        ends = time.monotonic() + REST_S
        while (after := read()[1]).exceeds(before) and time.monotonic() < ends:
            time.sleep(2)
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
        quarters, rows, unrest = soak(url, admin, broker, given.minutes, calls)
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
        write_page(PAGE, f"{said}\n\n{markdown_table(rows[0], rows[1:])}")
    return 1 if violations or unrest else 0


if __name__ == "__main__":
    sys.exit(main())
