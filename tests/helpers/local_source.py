"""A source with one tool that a function of the test executes, in the process of its dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import dispatch
from dispatch.calls.local import LocalCall, LocalInstance
from dispatch.catalog.items import Item
from dispatch.messaging.wire import local_queue, local_reply_queue
from dispatch.routing.instance import Instances

Execute = Callable[[LocalCall], Awaitable[Any]]


class Local:
    """A source with one tool, ``run``, that a function of the test executes."""

    id = "local"

    def __init__(self, execute: Execute, **policy: Any) -> None:
        self._execute = execute
        self.policy = policy
        self.keys: dict[str, Any] = {}
        self.instances = Instances(LocalInstance(self.execute))
        self.request_queue = local_queue("local", "function")

    async def execute(self, call: LocalCall) -> Any:
        return await self._execute(call)

    async def discover(self) -> Sequence[Item]:
        service = {
            "id": "local",
            "request-queue": self.request_queue,
            "response-queue": local_reply_queue("local", "function"),
        }
        tool = {
            "type": "tool-service",
            "name": "run",
            "description": "Runs.",
            "service": "local",
            "policy": self.policy,
            **self.keys,
        }
        return [Item("local", "tool-service", "local", service), Item("run", "tool", "run", tool)]

    async def changes(self) -> AsyncIterator[None]:
        await asyncio.get_running_loop().create_future()
        yield


def connect(execute: Execute, **policy: Any) -> dispatch.Dispatcher:
    return dispatch.connect("memory://", [Local(execute, **policy)])


async def chunks(*texts: str, wait: float = 0.0) -> AsyncIterator[str]:
    for text in texts:
        yield text
        await asyncio.sleep(wait)
