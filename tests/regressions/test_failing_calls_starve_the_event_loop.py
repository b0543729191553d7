"""A caller that tried again at once while its topic could not be used kept the event loop for itself: the task that opens
the topic again never ran, and the outage never ended. A call that fails without being sent gives the event loop a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import dispatch
from dispatch.errors import TransportError
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, UNGUARDED, catalog, dispatching, serving

PERSISTENT = "persistent://tg/request/lab"
"""The plain exchange: a session queues what cannot be sent."""


class Publisher(MemoryPublisher):
    def publish(self, *args: object, **named: object) -> object:  # type: ignore[override]
        if isinstance(self._transport, Unusable) and self._transport.is_unusable:
            raise TransportError("unreachable", "The topic is being opened again.", may_have_run=False)
        return super().publish(*args, **named)  # type: ignore[arg-type]


class Unusable(MemoryTransport):
    """Its topics cannot be used until a task of its own has run."""

    is_unusable = False

    async def publisher(self, topic: str) -> MemoryPublisher:
        return Publisher(self, topic)

    async def open_again(self) -> None:
        await asyncio.sleep(0)
        self.is_unusable = False


async def execute(dispatcher: dispatch.Dispatcher) -> bool:
    return (await dispatcher.execute("work", timeout=60)).ok


async def stream(dispatcher: dispatch.Dispatcher) -> bool:
    try:
        return [chunk async for chunk in dispatcher.stream("work", timeout=60)] == ["done"]
    except TransportError:
        return False


@pytest.mark.parametrize("is_answered", [execute, stream])
async def test_a_topic_is_opened_again_beside_calls_that_fail_at_once(
    is_answered: Callable[[dispatch.Dispatcher], Awaitable[bool]],
) -> None:
    transport = Unusable(BROKER)
    async with (
        serving(lambda _: "done", request_queue=PERSISTENT),
        dispatching(
            catalog(service={"request-queue": PERSISTENT}),
            transport=transport,
            policy=dispatch.Policy(**UNGUARDED),
        ) as dispatcher,
    ):
        assert await is_answered(dispatcher)
        transport.is_unusable = True
        opening = asyncio.create_task(transport.open_again())
        for calls in range(1_000):
            if await is_answered(dispatcher):
                assert calls > 0
                break
        else:
            pytest.fail("the task that opens the topic again did not run during 1,000 calls")
        await opening
