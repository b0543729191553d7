"""A rate limit that eight dispatchers share, each in a process of its own: ``python -m benchmarks.fleet``.

The demand changes every few seconds, two users call, one process is killed, one has a clock that steps by an hour there and
back; ``--restart`` restarts the broker, which is its own. A table shows what was admitted in each period. ``--cost``
measures what the scope costs a call.
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
from collections.abc import Iterator
from typing import Final

from benchmarks.harness.report import aligned
from dispatch.devtools.localbroker import Admin, LocalBroker, create_namespaces
from dispatch.policy import RateLimit
from dispatch.resilience.aio import AsyncRateLimiter
from dispatch.resilience.fleet import Fleet
from dispatch.resilience.leases import FleetRateLimiter, RateLease
from dispatch.resilience.rate_limit import RateLimiter

RATE, BURST = 100, 40
PERIOD_S: Final = 6.0
"""Seconds between two changes of the demand."""
READY_S: Final = 120.0
LEAST_SHARE, MOST_SHARE = 0.95, 1.1
MAX_COST_US: Final = 1.0
CALLS: Final = 20_000


class Member:
    """A process with a dispatcher."""

    def __init__(self, url: str, fleet: str, clock_step: float) -> None:
        policy = {"rate-limit": {"rate": f"{RATE}/s", "burst": BURST, "scope": "fleet"}, "bulkhead": None}
        self.admitted: list[tuple[float, int, str]] = []
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
                self.admitted.append((float(rest[0]), int(rest[1]), rest[2]))
            elif kind == "ready":
                self.is_ready.set()
            else:
                self.lines.append(line)

    def demand(self, **rates: float) -> None:
        """Call at these rates of users from now on."""
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


def run(
    url: str, members: int, seconds: float, restart: Iterator[None] | None, seed: int
) -> tuple[list[list[str]], bool]:
    """Return the rows of the table, and whether the limit was met."""
    fleet = f"bench-{secrets.token_hex(4)}"
    found = [Member(url, fleet, 3600.0 if number == 1 else 0.0) for number in range(members)]
    try:
        for each in found:
            if not each.is_ready.wait(READY_S):
                raise SystemExit(f"a dispatcher was not ready within {READY_S:g} s:\n{''.join(each.lines)}")
        return _measure(found, seconds, restart, random.Random(seed))
    finally:
        for each in found:
            each.end()


def _measure(
    members: list[Member], seconds: float, restart: Iterator[None] | None, chance: random.Random
) -> tuple[list[list[str]], bool]:
    live = list(members)
    periods: list[tuple[float, float, str]] = []
    end = time.monotonic() + seconds
    number = 0
    while time.monotonic() < end:
        number += 1
        event = "demand"
        if number == 4:
            event = "one killed"
            live.pop().end()
        elif number == 7 and restart is not None:
            event = "broker restarted"
        for each in live:
            each.demand(ann=chance.choice((0, 5, 40, 80)), bob=chance.choice((0, 20)))
        live[0].demand(ann=100.0, bob=40.0)
        begin = time.monotonic()
        if event == "broker restarted" and restart is not None:
            next(restart)
        time.sleep(max(0.0, begin + PERIOD_S - time.monotonic()))
        periods.append((begin, time.monotonic(), event))
    return _rows(members, periods)


def _rows(members: list[Member], periods: list[tuple[float, float, str]]) -> tuple[list[list[str]], bool]:
    admitted = [each for member in members for each in member.admitted]
    rows = []
    for begin, until, event in periods:
        users: Counter[str] = Counter()
        for at, count, user in admitted:
            if begin <= at < until:
                users[user] += count
        share = users.total() / (RATE * (until - begin))
        by_user = " ".join(f"{user} {count}" for user, count in sorted(users.items()))
        rows.append([event, f"{until - begin:.1f}", f"{users.total()}", f"{share:.1%}", by_user])
    first, last = periods[0][0], periods[-1][1]
    total = sum(count for at, count, _ in admitted if first <= at < last)
    share = total / (RATE * (last - first))
    fives = [
        sum(count for at, count, _ in admitted if begin <= at < begin + 5.0) / (RATE * 5.0)
        for begin in [first + step * 0.5 for step in range(int((last - first - 5.0) * 2))]
    ]
    rows.append(["all", f"{last - first:.1f}", f"{total}", f"{share:.1%}", f"busiest 5 s: {max(fives):.1%}"])
    return rows, share >= LEAST_SHARE and max(fives) <= MOST_SHARE


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
    local: RateLimiter = AsyncRateLimiter(rate).limiter
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
            rows, is_limit_met = run(url, options.members, options.seconds, restart, options.seed)
        print(aligned([["period", "seconds", "admitted", f"of {RATE}/s", "by user"], *rows]))
        is_met = is_met and is_limit_met
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
