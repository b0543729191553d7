"""On a genuine broker: what a dispatcher has open stays constant while the catalogue changes again and again."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import dispatch
from benchmarks.harness.broker import Endpoint
from dispatch import _internal
from dispatch.devtools.localbroker import Admin, AdminError, create_namespaces
from tests.helpers.catalogs import unique_topic
from tests.helpers.dispatcher_and_service import UNGUARDED
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.pulsar

ACTIVATIONS = by_profile(short=50, long=600)
"""10,000 take 16 minutes; on the embedded broker, as many are made in seconds (tests/unit/calls/test_runtime.py)."""
INTERVAL_S = 0.05
RETENTION_S = 2.0
"""Shorter than in use, so that the numbers settle during a short run, too."""
SETTLE_S = 30.0
"""Seconds in which a busy broker closes what was closed."""
LIFETIME_S = RETENTION_S + 3.0
"""Seconds after which a busy machine has closed the topics of a removed service."""


class Done(dispatch.ToolService):
    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return "done"


def service(namespace: str, name: str, *instances: str) -> dict[str, Any]:
    def topics(id: str) -> dict[str, Any]:
        return {
            "id": id,
            "request-queue": f"non-persistent://{namespace}/request-{id}",
            "response-queue": f"non-persistent://{namespace}/response-{id}",
        }

    return {**topics(name), "instances": [topics(each) for each in instances], "policy": UNGUARDED}


def catalog(namespace: str, number: int | None = None) -> dispatch.Catalog:
    """A service whose instances vary with ``number``, and a service and a tool that only this catalogue has."""
    instances = ("a", "b") if number is None else (("a",), ("a", "b"), ("b",), ("b", "a"))[number % 4]
    services, tools = [service(namespace, "base", *instances)], {"work": "base"}
    if number is not None:
        services.append(service(namespace, f"s{number}"))
        tools |= {f"t{number}": "base", f"silent{number}": f"s{number}"}
    return dispatch.Catalog.of(
        services,
        [
            {"type": "tool-service", "name": name, "description": "Does it.", "service": each}
            for name, each in tools.items()
        ],
    )


def count_open(admin: Admin, namespace: str) -> tuple[int, int]:
    """Return the number of producers and of consumers that the broker has in the namespace."""

    def count(topic: str) -> tuple[int, int]:
        try:
            stats = admin.stats(topic)
        except AdminError as error:
            if error.status != 404:
                raise
            return 0, 0  # the broker has removed the unused topic meanwhile
        consumers = sum(len(each["consumers"]) for each in stats["subscriptions"].values())
        return len(stats["publishers"]), consumers

    with ThreadPoolExecutor(8) as threads:
        counts = list(threads.map(count, admin.topics(namespace)))
    return sum(producers for producers, _ in counts), sum(consumers for _, consumers in counts)


def count_settled(admin: Admin, namespace: str, wanted: tuple[int, int]) -> tuple[int, int]:
    """Return :func:`count_open` as soon as it is as ``wanted``, and after :data:`SETTLE_S` in any case."""
    end = time.monotonic() + SETTLE_S
    while (counts := count_open(admin, namespace)) != wanted and time.monotonic() < end:
        time.sleep(0.5)
    return counts


@pytest.mark.long
@pytest.mark.usefixtures("strangers")
async def test_producers_and_consumers_stay_constant(
    pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_internal, "RETENTION_S", RETENTION_S)
    admin, namespace = pulsar_endpoint.admin(), f"tg/{unique_topic('activations')}"
    create_namespaces(admin, [namespace])
    failed: list[dispatch.CallResult] = []
    is_over = False

    async def keep_calling(dispatcher: dispatch.Dispatcher) -> int:
        calls = 0
        while not (is_over or failed):
            result = await dispatcher.execute("work", timeout=30)
            calls += 1
            if not result.ok:
                failed.append(result)
        return calls

    def serving(id: str) -> dispatch.ToolServer:
        topics = service(namespace, id)
        return dispatch.ToolServer(
            Done(),
            broker=pulsar_endpoint.service_url,
            request_queue=topics["request-queue"],
            response_queue=topics["response-queue"],
            instance=id,
        )

    async with (
        serving("a"),
        serving("b"),
        dispatch.connect(pulsar_endpoint.service_url, catalog(namespace)) as dispatcher,
    ):
        for _ in range(20):
            assert await dispatcher.call("work") == "done"
        await asyncio.sleep(1)
        idle = await asyncio.to_thread(count_open, admin, namespace)
        callers = [asyncio.create_task(keep_calling(dispatcher)) for _ in range(4)]
        silent: set[asyncio.Task[dispatch.CallResult]] = set()
        peaks: list[int] = []
        for number in range(ACTIVATIONS):
            await dispatcher.reload(catalog(namespace, number))
            assert (await dispatcher.execute(f"t{number}", timeout=30)).ok
            task = asyncio.create_task(dispatcher.execute(f"silent{number}", timeout=0.5))
            silent.add(task)
            task.add_done_callback(silent.discard)
            peaks.append(len(dispatcher._running.channels._open))
            await asyncio.sleep(INTERVAL_S)
        is_over = True
        calls = sum(await asyncio.gather(*callers))
        await asyncio.gather(*silent)
        await dispatcher.reload(catalog(namespace))
        for _ in range(20):
            assert await dispatcher.call("work") == "done"
        assert await asyncio.to_thread(count_settled, admin, namespace, idle) == idle
        assert failed == []
        assert calls > ACTIVATIONS
        assert max(peaks) <= LIFETIME_S / INTERVAL_S
        assert max(peaks) > 10
