"""What a dispatcher holds stays constant over any number of activations of a catalogue."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from dispatch import Catalog, Dispatcher, Policy, ToolService
from dispatch._internal import RETENTION_S
from dispatch.calls.resolution import ResolvedTool, ToolResolver
from tests.helpers.clock import advance
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board

PER_S = by_profile(short=2, long=10)
"""Activations per second; ten are as many as a registry makes at most."""
SETTLED = int(1.2 * RETENTION_S * PER_S)
"""Activations after which as much is dropped as is added."""
ACTIVATIONS = by_profile(short=150, long=10_000)


def service(name: str, *instances: str) -> dict[str, Any]:
    def topics(id: str) -> dict[str, str]:
        return {
            "id": id,
            "request-queue": f"non-persistent://tg/request/{id}",
            "response-queue": f"non-persistent://tg/response/{id}",
        }

    return {**topics(name), **({"instances": [topics(each) for each in instances]} if instances else {})}


def tool(name: str, service: str, **keys: Any) -> dict[str, Any]:
    return {"type": "tool-service", "name": name, "description": "Does it.", "service": service, **keys}


def catalog(number: int) -> Catalog:
    """Each catalogue has tools and services with names of their own. Its instances, and its limit of users, vary."""
    own = {"policy": {"balancing": "least-request", "shared-user-rate-limit": f"{100 + number % 7}/s"}}
    return Catalog.of(
        [service("base", *(["base"] if number % 2 else [])), service(f"s{number}")],
        [
            tool("base", "base"),
            tool(f"t{number}", "base", **(own if number % 3 == 0 else {})),
            tool(f"silent{number}", f"s{number}"),
        ],
    )


class Done(ToolService):
    """It records no requests."""

    async def invoke(self, config: dict[str, Any], arguments: dict[str, Any], user: str = "") -> str:
        return "done"


def holdings(dispatcher: Dispatcher, transport: CountedTransport) -> Counter[str]:
    """The number of each kind of object that activations and calls create."""
    runtime = dispatcher._running
    guards, pools, channels = runtime.guard_registry, runtime.pool_registry, runtime.channels
    counts = Counter(kind.partition(" ")[0] for kind, _ in transport.left_open)
    counts.update(
        {
            "guards": len(guards._guards),
            "retained guards": len(guards._retention),
            "limits of users": len(guards._users) + len(guards._user_holders),
            "pools": len(pools._entries),
            "retained pools": len(pools._retention),
            "owners": len(pools._by_owner),
            "services": len(pools._services),
            "topics": len(pools._holders),
            "channels": len(channels._open),
            "endpoints": len(channels._endpoints),
            "sessions": sum(len(each.table.sessions) for each in channels._endpoints.values()),
            "counted replies": len(channels._replies),
            "users of subscriptions": len(channels._subscriptions._topics),
            "instances": len(channels.discovery._instances),
            "handshakes": len(channels.discovery._handshakes),
            "sessions with requests": len(runtime.sessions._sessions),
            "tasks": len(asyncio.all_tasks()),
        }
    )
    return counts


def measure() -> int:
    """Return the bytes in use."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.long
async def test_activations_leave_nothing_behind() -> None:
    board, transport = Board(), CountedTransport()
    topics = {
        "request_queue": "non-persistent://tg/request/base",
        "response_queue": "non-persistent://tg/response/base",
    }
    async with (
        serving(Done(), instance="i", **topics),
        Dispatcher(transport, Catalog.empty(), telemetry=board.telemetry()) as dispatcher,
    ):

        async def activate(numbers: range) -> None:
            for number in numbers:
                await dispatcher.reload(catalog(number))
                for name in ("base", f"t{number}"):
                    assert (await dispatcher.execute(name, user=f"u{number % 50}")).ok
                if number % 10 == 0:
                    assert not (await dispatcher.execute(f"silent{number}", timeout=0.01)).ok
                await advance(1 / PER_S)

        tracemalloc.start()
        try:
            await activate(range(SETTLED))
            before, series, size = holdings(dispatcher, transport), len(board.read()), measure()
            await activate(range(SETTLED, SETTLED + ACTIVATIONS))
            grown = measure() - size
        finally:
            tracemalloc.stop()
        after = holdings(dispatcher, transport)
        assert {kind: (before[kind], n) for kind, n in after.items() if abs(n - before[kind]) > 2} == {}
        assert abs(len(board.read()) - series) < 20  # an instance more or less
        assert grown < 2**20
        await dispatcher.reload(Catalog.empty())
        await advance(RETENTION_S + 5)
        rest = holdings(dispatcher, transport)
        assert {kind: n for kind, n in rest.items() if n and kind != "tasks"} == {}


async def test_an_activation_touches_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(500)]

    def tools(description: str, policy: Mapping[str, Any]) -> Catalog:
        services = [{**service(name), "policy": policy if name == "t7" else {}} for name in names]
        described = {"t3": description}
        return Catalog.of(services, [{**tool(name, name), "description": described.get(name, "")} for name in names])

    found: list[str] = []

    def find(self: ToolResolver, label: str, version: str | None, *, is_tool: bool) -> ResolvedTool | None:
        found.append(label)
        return genuine(self, label, version, is_tool=is_tool)

    async with Dispatcher(CountedTransport(), tools("Former.", {})) as dispatcher:
        for name in names:
            tool_of = dispatcher._live.resolver.tool(name)
            dispatcher._running.guards_of(tool_of)
            dispatcher._running.pool_calls_of(tool_of)
        genuine = ToolResolver.find_guarded
        monkeypatch.setattr(ToolResolver, "find_guarded", find)
        await dispatcher.reload(tools("Other.", {}))
        assert set(found) == {"t3"}
        found.clear()
        await dispatcher.reload(tools("Other.", {"retry": 1}))
        assert set(found) == {"t7"}
        found.clear()
        await dispatcher.reload(policy=Policy(retry=None))
        assert set(found) == set(names)
        assert dispatcher._running.guards_of(dispatcher._live.resolver.tool("t9")).policy.retry is None
