"""A rate limit that eight dispatchers share, each in a process of its own: ``python -m benchmarks.fleet``.

The demand changes every few seconds, two users call, one process is killed, one has a clock that steps by an hour there and
back; ``--restart`` restarts the broker, which is its own. A table shows what was admitted in each period. ``--cost``
measures what the scope costs a call.

Exit code 1: the limit was not met. In any five seconds at most 110 % of it may be admitted. Without a fault, and from ten
seconds after each one on, at least 95 % of it must be, over all such times together. While the broker is away each one keeps
its share for four seconds and has an equal one two seconds later: 95 % of what this makes possible must be admitted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.report import aligned
from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces
from dispatch.policy import RateLimit
from dispatch.resilience.fleet import KEEP_S, RAISE_AFTER_S, REPORT_S, Fleet
from dispatch.resilience.leases import FleetRateLimiter, RateLease
from dispatch.resilience.rate_limit import LeakyBucket, RateLimiter

RATE, BURST = 100, 40
PERIOD_S: Final = 6.0
"""Seconds between two changes of the demand."""
READY_S: Final = 120.0
LEAST_SHARE, MOST_SHARE = 0.95, 1.1
RECOVERED_S: Final = 10.0
"""Seconds after a fault from which on the whole limit is used."""
BUSY_S: Final = 5.0
MAX_COST_US: Final = 1.0
CALLS: Final = 20_000


class Member:
    """A process with a dispatcher."""

    def __init__(self, url: str, fleet: str, clock_step: float, burst: int = BURST) -> None:
        policy = {"rate-limit": {"rate": f"{RATE}/s", "burst": burst, "scope": "fleet"}, "bulkhead": None}
        self.admitted: list[tuple[float, str]] = []
        """When each call was admitted, on the machine's monotonic clock, and its user."""
        self.demand: dict[str, float] = {}
        self.lines: list[str] = []
        self.is_ready = threading.Event()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fleet.worker", url, fleet, json.dumps(policy), str(clock_step)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            kind, *rest = line.split()
            if kind == "admitted":
                self.admitted.append((float(rest[0]), rest[1]))
            elif kind == "ready":
                self.is_ready.set()
            else:
                self.lines.append(line)

    def call(self, **rates: float) -> None:
        """Call at these rates of users from now on."""
        self.demand |= rates
        assert self.process.stdin is not None
        for user, rate in rates.items():
            self.process.stdin.write(f"{rate} {user}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@dataclass
class Period:
    """A part of the run.

    Attributes:
        event: its begin.
        begin, until: on the monotonic clock.
        equal: what equal shares admit of the demand in a second.
    """

    event: str
    begin: float
    until: float
    equal: float

    @property
    def least_while_away(self) -> float:
        """Calls that are admitted at least if the broker is away for the whole period."""
        seconds = self.until - self.begin
        kept, alone = KEEP_S - REPORT_S, KEEP_S + RAISE_AFTER_S
        return LEAST_SHARE * (RATE * min(kept, seconds) + self.equal * max(0.0, seconds - alone))


def run(
    url: str, members: int, seconds: float, restart: Iterator[None] | None, seed: int, burst: int = BURST
) -> tuple[str, bool]:
    """Return the table, and whether the limit was met."""
    fleet = f"bench-{secrets.token_hex(4)}"
    found = [Member(url, fleet, 3600.0 if number == 1 else 0.0, burst) for number in range(members)]
    try:
        for each in found:
            if not each.is_ready.wait(READY_S):
                raise SystemExit(f"a dispatcher was not ready within {READY_S:g} s:\n{''.join(each.lines)}")
        periods = _measure(found, seconds, restart, random.Random(seed))
    finally:
        for each in found:
            each.end()
    return tabulate([call for member in found for call in member.admitted], periods)


def _measure(
    members: list[Member], seconds: float, restart: Iterator[None] | None, chance: random.Random
) -> list[Period]:
    live = list(members)
    periods: list[Period] = []
    for number in range(1, max(1, round(seconds / PERIOD_S)) + 1):
        begin, event = time.monotonic(), "demand"
        if number == 7 and restart is not None:
            event = "broker restarted"  # with the demand as before: each keeps the share that it has
            next(restart)
        else:
            if number == 4:
                event = "one killed"
                live.pop().end()
            for each in live:
                each.call(ann=chance.choice((0, 5, 40, 80)), bob=chance.choice((0, 20)))
            live[0].call(ann=100.0, bob=40.0)
        time.sleep(max(0.0, begin + PERIOD_S - time.monotonic()))
        equal = sum(min(sum(each.demand.values()), RATE / len(live)) for each in live)
        periods.append(Period(event, begin, time.monotonic(), equal))
    return periods


def tabulate(admitted: Iterable[tuple[float, str]], periods: list[Period]) -> tuple[str, bool]:
    """Return a table of the calls by period, and whether the limit was met.

    Args:
        admitted: time and user of each call.
        periods: without gaps.
    """
    first, last = periods[0].begin, periods[-1].until
    calls = sorted(call for call in admitted if first <= call[0] < last)
    rows = [["period", "seconds", "admitted", f"of {RATE}/s", "at least", "by user"]]
    sound_from, sound, sound_s, is_met = first, 0, 0.0, True
    for period in periods:
        users = Counter(user for at, user in calls if period.begin <= at < period.until)
        least = ""
        if period.event == "demand":
            begin = min(max(period.begin, sound_from), period.until)
            sound += sum(begin <= at < period.until for at, _ in calls)
            sound_s += period.until - begin
        elif period.event == "one killed":
            sound_from = period.begin + RECOVERED_S
        else:
            sound_from = period.until + RECOVERED_S
            least = f"{period.least_while_away / RATE / (period.until - period.begin):.1%}"
            is_met = is_met and users.total() >= period.least_while_away
        by_user = " ".join(f"{user} {count}" for user, count in sorted(users.items()))
        rows.append(_row(period.event, period.until - period.begin, users.total(), least, by_user))
    steps = range(int((last - first - BUSY_S) * 2))
    windows = [(first + step * 0.5, first + step * 0.5 + BUSY_S) for step in steps]
    busiest = max(sum(begin <= at < until for at, _ in calls) for begin, until in windows) / (RATE * BUSY_S)
    rows += [
        _row("all", last - first, len(calls), "", f"busiest {BUSY_S:g} s: {busiest:.1%}, at most {MOST_SHARE:.1%}"),
        _row(f"without faults and {RECOVERED_S:g} s after each", sound_s, sound, f"{LEAST_SHARE:.1%}", ""),
    ]
    is_used = sound >= LEAST_SHARE * RATE * sound_s
    return aligned(rows), is_met and is_used and busiest <= MOST_SHARE


def _row(event: str, seconds: float, calls: int, *more: str) -> list[str]:
    return [event, f"{seconds:.1f}", f"{calls}", f"{calls / max(RATE * seconds, 1e-9):.1%}", *more]


def measure_cost() -> tuple[float, float]:
    """Return the processor time of a call's admission in µs, without and with the scope ``fleet``."""
    far = time.monotonic() + 1e6
    rate = RateLimit("1000000/s")
    core = Fleet("bench", time.monotonic, time.time)
    core._alone = 2  # the whole limit
    share = core.share_of("rate:t", rate.per_second)
    lease = RateLease("rate:t", rate.per_second, rate.capacity, {}, share, time.monotonic())
    shared = FleetRateLimiter(time.monotonic, bucket=lease.bucket)
    shared.counts, shared.quota = (lease.demand.counts,), None
    local = RateLimiter(time.monotonic, bucket=LeakyBucket(rate.capacity, rate.per_second))
    times: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(15):
        for is_shared, limiter in ((False, local), (True, shared)):
            begin = time.thread_time()
            for _ in range(CALLS):
                limiter.admit("ann", far)
            times[is_shared].append((time.thread_time() - begin) / CALLS * 1e6)
    return statistics.median(times[False]), statistics.median(times[True])


@contextlib.contextmanager
def own_broker() -> Iterator[tuple[str, Iterator[None]]]:
    """Run a broker, and yield its address and an iterator that restarts it with each step."""
    broker = LocalBroker.start()

    def restarts() -> Iterator[None]:
        while True:
            broker.kill()
            broker.restart()
            yield

    try:
        create_namespaces(Admin(broker.web_url))
        yield broker.service_url, restarts()
    finally:
        broker.stop()


def main() -> int:
    """Run the benchmark, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--burst", type=int, default=BURST, help=f"of the limit (default {BURST})")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--restart", action="store_true", help="restart the broker after 36 s")
    parser.add_argument("--cost", action="store_true", help="measure the cost of a call only")
    options = parser.parse_args()
    before, after = measure_cost()
    print(f"admission of a call: {before:.2f} µs in the process, {after:.2f} µs in a fleet, + {after - before:.2f} µs")
    is_met = after - before <= MAX_COST_US
    if not options.cost:
        with own_broker() as (url, restarts):
            restart = restarts if options.restart else None
            table, is_limit_met = run(url, options.members, options.seconds, restart, options.seed, options.burst)
        print(table)
        is_met = is_met and is_limit_met
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
