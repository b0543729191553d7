"""A service whose instances the catalogue lists, and the pools of a dispatcher."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

from dispatch import Catalog, Dispatcher
from dispatch.routing.pool import InstancePool
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, catalog, serving


def instance(name: str, *, weight: float = 1.0, number: int = 0) -> dict[str, Any]:
    """An instance of the catalogue; ``number``: of its topics."""
    return {
        "id": name,
        "weight": weight,
        "request-queue": f"{REQUESTS}-{name}-{number}",
        "response-queue": f"{RESPONSES}-{name}-{number}",
    }


def listed(*instances: str | dict[str, Any], **policy: Any) -> Catalog:
    """A catalogue of the service with these instances; without any: its own topics. ``policy``: of the service; without slow
    start, so that shares are exact."""
    topics = [instance(each) if isinstance(each, str) else each for each in instances]
    keys = {"instances": topics} if topics else {}
    return catalog(service={**keys, "policy": {"outlier-detection": None, **policy}})


def server(name: str, work: Any = None, *, number: int = 0) -> Any:
    topics = instance(name, number=number)
    return serving(
        work or (lambda _: name),
        request_queue=topics["request-queue"],
        response_queue=topics["response-queue"],
        instance=name,
    )


@contextlib.asynccontextmanager
async def serving_all(*names: str) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            await stack.enter_async_context(server(name))
        yield


async def answers(dispatcher: Dispatcher, count: int) -> Mapping[str, int]:
    return Counter([await dispatcher.call("work") for _ in range(count)])


def pool_of(dispatcher: Dispatcher) -> InstancePool:
    (pool,) = dispatcher._running.pool_registry.of_service("lab")
    return pool


def pools_in(dispatcher: Dispatcher) -> int:
    return len(dispatcher._running.pool_registry._entries)


def request_topics(transport: CountedTransport) -> set[str]:
    """The instances whose request topic is open."""
    opened = (topic for kind, topic in transport.left_open if kind == "publisher")
    return {topic.removeprefix(f"{REQUESTS}-") for topic in opened if topic.startswith(f"{REQUESTS}-")}
