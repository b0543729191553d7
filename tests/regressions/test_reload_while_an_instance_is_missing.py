"""A reload between the decision to open a missing instance's topics and the task that opens them made that task fail with a
KeyError; and the times of the next tries were kept for services that were gone. Neither is so any more."""

from __future__ import annotations

import asyncio
from typing import Any

import dispatch
from dispatch._internal import RETENTION_S
from dispatch.catalog import Catalog
from dispatch.catalog.catalog import compare
from dispatch.errors import TransportError
from dispatch.routing.pool import AGAIN_S
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.dispatcher_and_service import BROKER, catalog, dispatching, serving

RELOADS = 20


class Refusing(MemoryTransport):
    """Refuses the topics of the instance ``missing``."""

    async def publisher(self, topic: str) -> MemoryPublisher:
        if "missing" in topic:
            raise TransportError("unauthorized", "not for you", may_have_run=False)
        return await super().publisher(topic)


def topics(name: str, number: int = 0) -> dict[str, str]:
    return {
        "id": name,
        "request-queue": f"non-persistent://tg/request/lab-{name}-{number}",
        "response-queue": f"non-persistent://tg/response/lab-{name}-{number}",
    }


def with_a_missing_instance(number: int = 0) -> Catalog:
    return catalog(service={"instances": [topics("there"), topics("missing", number)]})


def another() -> Catalog:
    return Catalog.of(
        [
            {
                "id": "other",
                "request-queue": topics("o")["request-queue"],
                "response-queue": topics("o")["response-queue"],
            }
        ],
        [],
    )


def served() -> Any:
    there = topics("there")
    return serving(
        lambda _: "done", request_queue=there["request-queue"], response_queue=there["response-queue"], instance="there"
    )


async def test_a_reload_before_the_missing_topics_are_tried_again() -> None:
    async with served(), dispatching(with_a_missing_instance(), transport=Refusing(BROKER)) as dispatcher:
        assert await dispatcher.call("work") == "done"
        await advance(AGAIN_S)
        call = asyncio.create_task(dispatcher.execute("work"))  # decides to try again
        resolver = dispatcher._live.resolver.renewed(another(), dispatcher._live.policy)
        asyncio.get_running_loop().call_soon(
            dispatcher._running.renew, resolver, compare(dispatcher.catalog, another())
        )
        assert (await call).ok
        await advance(1)  # an exception that nobody retrieved would fail this test


async def test_times_of_the_next_tries_are_dropped_with_their_services() -> None:
    async with served(), dispatching(with_a_missing_instance(), transport=Refusing(BROKER)) as dispatcher:
        for number in range(RELOADS):
            await dispatcher.reload(with_a_missing_instance(number))
            assert await dispatcher.call("work") == "done"
            await advance(AGAIN_S)
        assert retained(dispatcher) == 1
        await dispatcher.reload(another())
        await advance(RETENTION_S)
        assert retained(dispatcher) == 0


def retained(dispatcher: dispatch.Dispatcher) -> int:
    return len(dispatcher._running._pools._entries)
