"""An invoker without a transport: the requests of a turn of the loop are answered by one callback in the next turn.

It stands for an endpoint with sessions, which delivers all replies of a packet in one callback, and costs nothing itself but
the future of each request.
"""

from __future__ import annotations

import asyncio
import random
from typing import cast

from dispatch.calls.attempt import Attempt, Call
from dispatch.messaging.request import Answer
from dispatch.policy import Balancing, OutlierDetection
from dispatch.routing.instance import Channel, InFlight, Instances
from dispatch.routing.pool import InstancePool

ANSWER = Answer("done")


class StubChannel:
    """The part of a channel that an instance pool reads: no instance is announced."""

    hello = None
    hello_at = 0.0
    request_queue = "requests"

    def __init__(self) -> None:
        self.instances = Instances()
        self.requests = InFlight()


def instance_pool(instances: int) -> InstancePool:
    """Return a pool of that many instances, on the running loop's clock."""
    return InstancePool(
        [(f"i{number}", 1.0, cast(Channel, StubChannel())) for number in range(instances)],
        balancing=Balancing(),
        outlier_detection=OutlierDetection(),
        clock=asyncio.get_running_loop().time,
        randomness=random.random,
        greet=lambda route: None,
    )


class Turn:
    """The requests of one turn of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[Answer]] = []

    def send(self) -> asyncio.Future[Answer]:
        """Return the future of a request that is answered in the next turn."""
        if not self._waiting:
            self._loop.call_soon(self._answer)
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(ANSWER)


class InstantInvoker:
    """Invokes nothing (:class:`~dispatch.calls.attempt.Invoker`).

    Args:
        instances: that the balancer chooses from; 0: there is no balancer.
    """

    def __init__(self, instances: int) -> None:
        self._pool = instance_pool(instances) if instances else None
        self._turn = Turn()
        self._now = asyncio.get_running_loop().time
        self._id = 0

    def is_ready(self, call: Call) -> bool:
        """Return True."""
        return True

    async def await_ready(self, call: Call) -> None:
        """Return at once."""

    def attribute_failure(self, attempt: Attempt) -> None:
        """No attempt fails."""

    def has_untried(self, call: Call) -> bool:
        """No call is hedged."""
        return False

    async def invoke(self, attempt: Attempt) -> None:
        """Pick an instance, and await the answer: as an invoker over sessions does."""
        call = attempt.call
        attempt.start(self._now())
        if self._pool is not None:
            call.guards.pool = self._pool
            selected = self._pool.pick(call.guards, call.tried)
            assert selected is not None
            attempt.selected = selected
            call.tried.append(selected.pick.instance)
        attempt.request = call.observer.on_request("topic", "topic", "", attempt.number, attempt.reason)
        attempt.sent = True
        call.requests += 1
        attempt.conclude(await self._turn.send())
