"""The client of a compared system, under an open load whose calls are recorded."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from typing import Any

from benchmarks.incidents.figures import RIGHT, WRONG
from benchmarks.incidents.roles.load import answer_to
from benchmarks.peers.system import Call, Place, System, load
from benchmarks.workers.channel import Channel
from benchmarks.workers.pacing import Pacer

HUNG, CANCELLED = "hung", "cancelled"
HUNG_S = 2.0
"""Seconds after its deadline at which a call counts as hung."""
REACH_S = 30.0
WARM_UP, WARM_S = 100, 5.0
"""A system is warm once so many calls in a row, or all calls for so many seconds, were answered rightly."""

Row = tuple[float, float, str, int, bool, bool]
"""Beginning, end, kind, number, whether the call may be repeated, and whether its error excludes that it was executed."""


class Caller:
    """Makes calls at random times, each second one not repeatable, whether or not earlier ones have ended."""

    def __init__(self, system: System, call: Call, timeout: float, seed: int) -> None:
        self._system = system
        self._call = call
        self._patience = timeout + HUNG_S
        self._random = random.Random(seed)
        self._number = 0
        self._pacer = Pacer(self._make_next)
        self._cancel_s = 0.0
        self.rate = 0.0
        self.records: list[Row] = []

    async def reach(self) -> None:
        """Call until the system is warm.

        Raises:
            TimeoutError: no call was answered in time.
        """
        right, wrong_at = 0, time.monotonic()
        async with asyncio.timeout(REACH_S):
            while right < WARM_UP and time.monotonic() < wrong_at + WARM_S:
                await self._make(-1, repeatable=bool(right % 2))
                kind = self.records.pop()[2]
                right += 1
                if kind != RIGHT:
                    right, wrong_at = 0, time.monotonic()
                    await asyncio.sleep(0.1)

    def begin(self, rate: float) -> None:
        """Begin the load."""
        self.rate = rate
        self._pacer.begin(lambda: self._random.expovariate(self.rate))

    def cancel_after(self, seconds: float) -> None:
        """Cancel every fourth call after so many seconds from now on; 0: none."""
        self._cancel_s = seconds

    def _make_next(self) -> Coroutine[Any, Any, None]:
        number, self._number = self._number, self._number + 1
        cancel = self._cancel_s if number % 8 in (0, 5) else 0.0
        return self._make(number, repeatable=bool(number % 2), cancel=cancel)

    async def _make(self, number: int, *, repeatable: bool, cancel: float = 0.0) -> None:
        began, refused = time.monotonic(), False
        try:
            async with asyncio.timeout(cancel or self._patience) as limit:
                text = await self._call({"call": number}, repeatable=repeatable)
            kind = RIGHT if text == answer_to(str(number)) else WRONG
        except Exception as error:
            if limit.expired():
                kind = CANCELLED if cancel else HUNG
            else:
                failure = self._system.read_failure(error)
                kind, refused = failure.kind, failure.is_refused
        self.records.append((began, time.monotonic(), kind, number, repeatable, refused))

    async def end(self) -> list[Row]:
        """End the load, wait for the calls in flight, and return the records."""
        await self._pacer.end(self._patience + HUNG_S)
        return self.records


async def main() -> None:
    """Execute the driver's commands."""
    channel = Channel()
    spec = channel.first()
    place = Place(**{**spec["place"], "ports": tuple(spec["place"]["ports"])})
    system = load(spec["system"])
    async with system.connect(place) as call:
        caller = Caller(system, call, place.timeout, spec["seed"])
        await caller.reach()
        channel.ready()
        async for command in channel.commands():
            answer: dict[str, Any] = {}
            match command["do"]:
                case "begin":
                    caller.begin(command["rate"])
                case "rate":
                    caller.rate = command["value"]
                case "cancel":
                    caller.cancel_after(command["value"])
                case "cancel-none":
                    caller.cancel_after(0.0)
                case "end":
                    answer = {"records": await caller.end()}
            channel.say(answer)
        os._exit(0)  # a connection that hangs must not delay the end of the run


if __name__ == "__main__":
    asyncio.run(main())
