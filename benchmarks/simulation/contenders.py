"""Clients of the simulated service: one without guards, one with simple guards written by hand, and dispatch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from benchmarks.simulation.services import BROKER, REQUESTS, RESPONSES, PlainInstance, Unavailable
from dispatch import Catalog, Dispatcher
from dispatch.transports.memory import MemoryTransport

CALL_S = 3.0
"""The timeout of a call, for every contender."""
ATTEMPT_S = 1.0
"""The timeout of one attempt, for contenders that retry."""

DEFAULTS: dict[str, Any] = {
    "timeout": CALL_S,
    "attempt-timeout": ATTEMPT_S,
    "balancing": "peak-ewma",
    "bulkhead": 16,
    "retry": {"retryable-errors": ["unavailable"]},
    "breaker": {"count-tool-errors": True},
    "outlier-detection": {"count-tool-errors": True},
}
"""dispatch's policy with the default open and ejection times. The timeouts are those of every contender; 16 concurrent calls
are more than twice the need of a healthy service; the service returns the error ``unavailable`` when it cannot work, so that
error counts as a failure."""

POLICY: dict[str, Any] = {
    **DEFAULTS,
    "breaker": {"count-tool-errors": True, "max-open-duration": 10},
    "outlier-detection": {"count-tool-errors": True, "base-ejection-time": 5, "slow-start-window": 5},
}
"""The same for a tool with a hundred calls per second: probes after seconds, instead of 30 to 300 s, cost only a handful of
requests. In force in every scenario without DEFAULTS."""


class Failure(Exception):
    """A call without an answer. Its text is the type of the error; ``sent``: requests sent for it."""

    def __init__(self, type: str, sent: int) -> None:
        super().__init__(type)
        self.sent = sent


class Contender(Protocol):
    """A client of the simulated service."""

    async def call(self) -> int:
        """Make one call. Return the number of requests sent for it.

        Raises:
            Failure: no answer.
        """

    async def close(self) -> None:
        """No more calls."""


class Unguarded:
    """One request to the next instance, with a timeout."""

    def __init__(self, instances: Sequence[PlainInstance], number: int) -> None:
        self._instances = instances
        self._number = number
        self._next = number

    async def call(self) -> int:
        self._next += 1
        try:
            async with asyncio.timeout(CALL_S):
                await self._instances[self._next % len(self._instances)].request(self._number)
        except TimeoutError:
            raise Failure("timeout", 1) from None
        except Unavailable:
            raise Failure("unavailable", 1) from None
        return 1

    async def close(self) -> None:
        """Nothing is held."""


class Naive:
    """Three attempts for every failure, 0.1 s apart, each with a timeout, at a random instance; a breaker that opens for
    five seconds after five consecutive failures, and then admits every call until one fails."""

    ATTEMPTS = 3
    PAUSE_S = 0.1
    FAILURES = 5
    OPEN_S = 5.0

    def __init__(self, instances: Sequence[PlainInstance], number: int, seed: int) -> None:
        self._instances = instances
        self._number = number
        self._chance = random.Random(f"naive {seed} {number}")
        self._loop = asyncio.get_running_loop()
        self._failures = 0
        self._open_until = float("-inf")

    async def call(self) -> int:
        why, sent = "open", 0
        for attempt in range(self.ATTEMPTS):
            if attempt:
                await asyncio.sleep(self.PAUSE_S)
            if self._loop.time() < self._open_until:
                break
            sent += 1
            try:
                async with asyncio.timeout(ATTEMPT_S):
                    await self._chance.choice(self._instances).request(self._number)
            except (TimeoutError, Unavailable) as failure:
                why = "timeout" if isinstance(failure, TimeoutError) else "unavailable"
                self._failures += 1
                if self._failures >= self.FAILURES:
                    self._open_until = self._loop.time() + self.OPEN_S
            else:
                self._failures = 0
                return sent
        raise Failure(why, sent)

    async def close(self) -> None:
        """Nothing is held."""


class Ours:
    """A real :class:`dispatch.Dispatcher` on the embedded broker, with :data:`POLICY` or :data:`DEFAULTS`."""

    def __init__(self, number: int, seed: int, policy: Mapping[str, Any]) -> None:
        service = {"id": "simulated", "request-queue": REQUESTS, "response-queue": RESPONSES}
        tool = {
            "type": "tool-service",
            "name": "work",
            "description": "Works for a while.",
            "service": "simulated",
            "read-only": True,
            "policy": dict(policy),
        }
        self._number = number
        self.dispatcher = Dispatcher(
            MemoryTransport(BROKER),
            Catalog.of([service], [tool]),
            client_id=f"dispatcher-{number}",
            randomness=random.Random(f"ours {seed} {number}").random,
        )

    async def start(self) -> None:
        """Connect, and find the instances by a first call."""
        await self.dispatcher.start()
        await self.dispatcher.execute("work", {"by": self._number})

    async def call(self) -> int:
        result = await self.dispatcher.execute("work", {"by": self._number})
        if result.error is not None:
            raise Failure(result.error.type, result.attempts)
        return result.attempts

    async def close(self) -> None:
        await self.dispatcher.close()
