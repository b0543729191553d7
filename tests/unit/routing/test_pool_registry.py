"""Pools of services, in virtual time: retained after a removal, dropped after the last call, and found again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatch import Catalog, Dispatcher
from dispatch._internal import RETENTION_S
from tests.helpers.clock import advance
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import REQUESTS, RESPONSES, catalog, dispatching, serving
from tests.helpers.listed_instances import (
    answers,
    instance,
    listed,
    pool_of,
    pools_in,
    request_topics,
    server,
    serving_all,
)
from tests.helpers.telemetry_capture import Board, telling


async def test_the_pool_of_a_removed_service_is_retained_for_a_time() -> None:
    transport = CountedTransport()
    async with serving_all("a", "b"), dispatching(listed("a"), transport=transport) as dispatcher:
        assert await answers(dispatcher, 1) == {"a": 1}
        pool = pool_of(dispatcher)
        await dispatcher.reload(Catalog.empty())
        assert dispatcher._running.pool_registry.all() == []
        await advance(RETENTION_S - 0.001)
        assert request_topics(transport) == {"a-0"}
        await dispatcher.reload(listed("a", "b"))  # it returns, with one more instance
        await advance(1)
        assert pool_of(dispatcher) is pool
        assert await answers(dispatcher, 4) == {"a": 2, "b": 2}
        await advance(RETENTION_S)
        assert pool_of(dispatcher) is pool
        await dispatcher.reload(Catalog.empty())
        await advance(RETENTION_S + 1)
        assert (pools_in(dispatcher), transport.left_open) == (0, {})
        await dispatcher.reload(listed("a"))
        assert await answers(dispatcher, 1) == {"a": 1}
        assert pool_of(dispatcher) is not pool


async def test_the_pool_of_a_removed_service_is_retained_until_its_last_call_has_ended() -> None:
    """The call waits for the backoff of its retry when the time is over: it has no request in flight then."""
    transport, requests = CountedTransport(), list[Any]()

    async def work(arguments: dict[str, Any]) -> str:
        requests.append(arguments)
        await asyncio.sleep(60 if len(requests) == 1 else 0)
        return "done"

    policy = {"retry": {"initial-backoff": 200, "max-backoff": 200}, "timeout": 600, "attempt-timeout": 1}
    tools = catalog(service={"instances": [instance("a")], "policy": policy}, work={"idempotent": True})
    async with server("a", work), Dispatcher(transport, tools, randomness=lambda: 0.9) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work"))
        await advance(0.5)
        await dispatcher.reload(Catalog.empty())
        await advance(100)
        assert (len(requests), dispatcher.pending_requests, call.done()) == (1, 0, False)
        assert request_topics(transport) == {"a-0"}
        assert (await call).ok
        assert len(requests) == 2
        await advance(RETENTION_S + 1)
        assert (pools_in(dispatcher), transport.left_open) == (0, {})


async def test_a_call_that_began_before_the_removal_of_its_service_opens_a_pool_that_is_dropped() -> None:
    """Its tool was resolved before, and no call had opened the topics, or they have been closed since."""
    transport = CountedTransport()
    async with serving_all("a"), dispatching(listed("a"), transport=transport) as dispatcher:
        tool = dispatcher._live.resolver.tool("work")
        await dispatcher.reload(Catalog.empty())
        assert (await dispatcher._running_calls.perform(tool, {})).text == "a"
        assert dispatcher._running.pool_registry.all() == []
        assert dispatcher.reply_counts()["matched"] == 1
        await advance(RETENTION_S + 1)
        assert (pools_in(dispatcher), transport.left_open) == (0, {})
        assert dispatcher._running.guard_registry.all() == []


async def test_series_of_a_service_stay_while_the_catalogue_has_it() -> None:
    def moved(number: int) -> Catalog:
        topics = {"request-queue": f"{REQUESTS}-a-{number}", "response-queue": f"{RESPONSES}-a-{number}"}
        return catalog(service={**topics, "policy": {}})

    board = Board()
    async with server("a"), telling(board.telemetry(), moved(0)) as dispatcher:
        assert await answers(dispatcher, 3) == {"a": 3}
        await dispatcher.reload(moved(1))  # and no call opens the pool of the new topics
        await advance(RETENTION_S)
        assert pools_in(dispatcher) == 0
        assert board.replies() == {"matched": 3}
        await dispatcher.reload(Catalog.empty())
        assert board.of("lab") == []


async def test_a_shared_call_keeps_the_pool_with_which_it_began() -> None:
    gate = asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    def moved(number: int) -> Catalog:
        topics = {"request-queue": f"{REQUESTS}-a-{number}", "response-queue": f"{RESPONSES}-a-{number}"}
        return catalog(service=topics, work={"read-only": True, "policy": {"single-flight": True, "timeout": 600}})

    transport = CountedTransport()
    async with server("a", wait), dispatching(moved(0), transport=transport) as dispatcher:
        first = asyncio.create_task(dispatcher.execute("work"))
        await advance(1)
        await dispatcher.reload(moved(1))
        other = asyncio.create_task(dispatcher.execute("work"))  # shares the request of the first one
        await advance(1)
        first.cancel()
        await advance(2 * RETENTION_S)
        assert request_topics(transport) == {"a-0"}
        gate.set()
        assert (await other).ok
        await advance(1)
        assert request_topics(transport) == set()


@pytest.mark.parametrize("own", [False, True])
async def test_a_tool_with_balancing_settings_of_its_own_has_a_pool_of_its_own(own: bool) -> None:
    settings = {"policy": {"balancing": "least-request"}} if own else {}
    with_own, without = catalog(work=settings, other={}), catalog(work={}, other={})
    async with serving(lambda _: "done"), dispatching(with_own) as dispatcher:
        for tool in ("work", "other"):
            await dispatcher.call(tool)
        assert pools_in(dispatcher) == 1 + own
        await dispatcher.reload(without)
        for tool in ("work", "other"):
            await dispatcher.call(tool)
        await advance(RETENTION_S)
        assert pools_in(dispatcher) == 1
        await dispatcher.reload(catalog(other={}))
        await advance(RETENTION_S)
        assert pools_in(dispatcher) == 1
        assert await dispatcher.call("other") == "done"
