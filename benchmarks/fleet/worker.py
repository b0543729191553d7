"""One dispatcher of the fleet: calls a tool as the driver asks, and writes when each call was admitted.

Lines on its input: ``RATE USER`` (calls a second from now on; several lines for several users), ``end``. Lines on its
output: ``ready``, then ``admitted TIME USER`` for each call (seconds on the machine's monotonic clock).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from typing import Any

import dispatch

STEP_S = 0.02
"""Seconds between two groups of calls."""
REPORT_S = 0.1


class Caller:
    """Makes calls at changing rates."""

    def __init__(self, dispatcher: dispatch.Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.rates: dict[str, float] = {}
        self.admitted: list[tuple[float, str]] = []
        self.tasks: set[asyncio.Task[None]] = set()

    async def call(self, user: str) -> None:
        result = await self.dispatcher.execute("work", user=user)
        if result.error is None:
            self.admitted.append((time.monotonic(), user))

    async def run(self) -> None:
        due: Counter[str] = Counter()
        owed: dict[str, float] = {}
        last = time.monotonic()
        while True:
            await asyncio.sleep(STEP_S)
            now = time.monotonic()
            for user, rate in self.rates.items():
                owed[user] = owed.get(user, 0.0) + rate * (now - last)
                due[user], owed[user] = int(owed[user]), owed[user] % 1.0
                for _ in range(due[user]):
                    task = asyncio.create_task(self.call(user))
                    self.tasks.add(task)
                    task.add_done_callback(self.tasks.discard)
            last = now

    async def report(self) -> None:
        while True:
            await asyncio.sleep(REPORT_S)
            admitted, self.admitted = self.admitted, []
            print("".join(f"admitted {at:.3f} {user}\n" for at, user in admitted), end="", flush=True)


async def main(url: str, fleet: str, policy: dict[str, Any], clock_step: float) -> None:
    if clock_step:
        honest = time.time
        began = time.monotonic()
        # A clock that jumps there and back every ten seconds.
        time.time = lambda: honest() + clock_step * (int(time.monotonic() - began) // 10 % 2)
    tool = dispatch.Functions(dispatch.tool(read_only=True)(work))
    async with dispatch.connect(url, catalog=[tool], policy=policy, fleet=fleet) as dispatcher:
        caller = Caller(dispatcher)
        tasks = [asyncio.create_task(caller.run()), asyncio.create_task(caller.report())]
        print("ready", flush=True)
        while (line := await asyncio.to_thread(sys.stdin.readline)).strip() not in ("", "end"):
            rate, _, user = line.strip().partition(" ")
            caller.rates[user] = float(rate)
        for task in tasks:
            task.cancel()


async def work() -> str:
    """Do nothing."""
    return ""


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), float(sys.argv[4])))
