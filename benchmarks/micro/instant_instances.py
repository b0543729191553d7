"""Instances without a transport: the requests of a turn of the loop are answered by one callback in the next turn.

They stand for instances with sessions, which deliver all replies of a packet in one callback, and cost nothing but the
future of each request.
"""

from __future__ import annotations

import asyncio
import random

from dispatch.calls.resolution import ResolvedTool
from dispatch.messaging.request import Answer, Request
from dispatch.policy import Balancing, OutlierDetection
from dispatch.routing.instance import Channel, Instances
from dispatch.routing.pool import InstancePool

ANSWER = Answer("done")


class Turn:
    """The requests of one turn of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[Answer]] = []
        self._requests: list[Request] = []

    def send(self) -> asyncio.Future[Answer]:
        """Return a future that is done in the next turn."""
        self._await_turn()
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting.append(future)
        return future

    def settle(self, request: Request) -> None:
        """Settle a request in the next turn."""
        self._await_turn()
        self._requests.append(request)

    def _await_turn(self) -> None:
        if not (self._waiting or self._requests):
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        requests, self._requests = self._requests, []
        for future in waiting:
            future.set_result(ANSWER)
        for request in requests:
            request.settle(ANSWER)


class InstantInstance:
    """Answers in the next turn (:class:`~dispatch.routing.instance.Instance`)."""

    is_named = True
    is_suspect = has_key_memory = is_loss_counted = False
    incarnation = topic = next_request_id = ""
    version = None

    def __init__(self, name: str, turn: Turn) -> None:
        self.name = name
        self._turn = turn

    def send(self, request: Request, _attempt: object) -> None:
        """Settle ``request`` in the next turn."""
        self._turn.settle(request)

    def find_requests(self) -> tuple[Request, ...]:
        """Return none: each request ends at once."""
        return ()


def instance_pool(instances: int) -> InstancePool:
    """Return a pool of that many instances, on the running loop's clock."""
    turn = Turn()
    channel = Channel(Instances(*(InstantInstance(f"i{number}", turn) for number in range(instances))))
    return InstancePool(
        [("instant", 1.0, None, channel)],
        balancing=Balancing(),
        outlier_detection=OutlierDetection(),
        clock=asyncio.get_running_loop().time,
        randomness=random.random,
    )


class InstantPools:
    """Has one pool for all tools (:class:`~dispatch.calls.attempt.Pools`).

    Args:
        instances: in it.
    """

    def __init__(self, instances: int) -> None:
        self._pool = instance_pool(instances)

    def get(self, _tool: ResolvedTool) -> InstancePool:
        """Return the pool."""
        return self._pool

    async def open(self, _tool: ResolvedTool, _deadline: float) -> InstancePool:
        """Return the pool."""
        return self._pool
