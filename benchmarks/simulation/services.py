"""The simulated service: the duration of work, served by a plain queue or a real ToolServer."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from benchmarks.simulation.record import BIN_S, Record
from benchmarks.simulation.scenarios import FAILS_AFTER_S, Scenario
from dispatch import ToolError, ToolServer, ToolService
from dispatch.errors import TransportError
from dispatch.transports.memory import MemoryTransport

SPREAD = 0.3
"""Sigma of the log-normal duration of work: p99 is twice the median."""
TAIL = 20.0
BROKER = "memory://simulation"
REQUESTS = "non-persistent://tg/request/simulated"
RESPONSES = "non-persistent://tg/response/simulated"

Since = Callable[[], float]
"""Virtual seconds since the start of the scenario."""


class Work:
    """Duration and failure of each request at one instance. Seeded: the same for every contender."""

    def __init__(self, scenario: Scenario, instance: int, seed: int, since: Since) -> None:
        self._scenario = scenario
        self._instance = instance
        self._since = since
        self._chance = random.Random(f"{scenario.name} {seed} work {instance}")

    def next(self) -> tuple[float, bool]:
        """Return the duration in seconds and the failure of a request that starts now."""
        chance = self._chance
        condition = self._scenario.condition(self._since(), self._instance)
        seconds = self._scenario.work * chance.lognormvariate(0.0, SPREAD) * condition.slower
        failing, slow = chance.random() < condition.errors, chance.random() < condition.tail
        if failing:
            return FAILS_AFTER_S, True
        return seconds * (TAIL if slow else 1.0), False


class Unavailable(Exception):
    """The service answered with an error."""


class PlainInstance:
    """A worker with an unbounded queue, as in most services: it processes every request in order, also those whose callers
    have timed out."""

    def __init__(self, scenario: Scenario, instance: int, seed: int, since: Since, record: Record) -> None:
        self._work = Work(scenario, instance, seed, since)
        self._concurrency = scenario.concurrency
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self._running: dict[int, asyncio.TimerHandle] = {}
        self._begun = 0
        self._dead = False
        self._loop = asyncio.get_running_loop()
        self._since = since
        self._received = record.received[instance]
        self._record = record

    def request(self, caller: int) -> asyncio.Future[None]:
        """Send a request. A dead instance never answers."""
        answer: asyncio.Future[None] = self._loop.create_future()
        self._received[int(self._since() / BIN_S)] += 1
        if not self._dead:
            self._queue.append((answer, caller))
            self._next()
        return answer

    async def kill(self) -> None:
        """Kill the instance; its queued and running requests are lost."""
        self._dead = True
        for timer in self._running.values():
            timer.cancel()
        self._running.clear()
        self._queue.clear()

    async def start(self) -> None:
        """Start it, or start it again."""
        self._dead = False

    async def close(self) -> None:
        """Stop at the end of the scenario."""
        await self.kill()

    def _next(self) -> None:
        while self._queue and len(self._running) < self._concurrency:
            answer, caller = self._queue.popleft()
            self._record.begun.append((self._since(), caller))
            seconds, fails = self._work.next()
            self._begun += 1
            self._running[self._begun] = self._loop.call_later(seconds, self._done, self._begun, answer, fails)

    def _done(self, number: int, answer: asyncio.Future[None], fails: bool) -> None:
        del self._running[number]
        if not answer.done():
            if fails:
                answer.set_exception(Unavailable())
            else:
                answer.set_result(None)
        self._next()


class _Simulated(ToolService):
    """The service of a :class:`ServedInstance`: each request takes its simulated duration."""

    def __init__(self, work: Work, record: Record, since: Since) -> None:
        self._work = work
        self._record = record
        self._since = since
        self.dead = False

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        self._record.begun.append((self._since(), arguments["by"]))
        seconds, fails = self._work.next()
        await asyncio.sleep(seconds)
        if self.dead:
            await (
                asyncio.get_running_loop().create_future()
            )  # until the end of the run: a killed instance never answers
        if fails:
            raise ToolError("unavailable", "A dependency of this tool is unavailable.")
        return "done"


class ServedInstance:
    """A real :class:`dispatch.ToolServer` on the embedded broker."""

    def __init__(self, scenario: Scenario, instance: int, seed: int, since: Since, record: Record) -> None:
        self._work = Work(scenario, instance, seed, since)
        self._concurrency = scenario.concurrency
        self._instance = instance
        self._record = record
        self._since = since
        self._lives: list[tuple[ToolServer, _Simulated, MemoryTransport]] = []
        self._seen = 0

    async def start(self) -> None:
        """Start it, or start it again."""
        transport = MemoryTransport(BROKER)
        await transport.start()
        service = _Simulated(self._work, self._record, self._since)
        server = ToolServer(
            service,
            transport,
            request_queue=REQUESTS,
            response_queue=RESPONSES,
            service="simulated",
            instance=f"instance-{self._instance}",
            concurrency=self._concurrency,
        )
        await server.start()
        self._lives.append((server, service, transport))
        self._seen = 0

    async def kill(self) -> None:
        """Kill the instance: it receives, sends and completes nothing from now on."""
        _, service, transport = self._lives[-1]
        service.dead = True
        transport.cut()

    def count(self) -> None:
        """Record the requests received since the last count."""
        server = self._lives[-1][0]
        came = server.requests - self._seen
        if came:
            self._seen = server.requests
            self._record.received[self._instance][int(self._since() / BIN_S)] += came

    async def close(self) -> None:
        """Stop at the end of the scenario."""
        for server, _, transport in self._lives:
            with contextlib.suppress(TransportError):
                await server.close()
            await transport.close()
