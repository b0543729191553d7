"""Permissions from an application's callable: when it is asked, how long calls wait for it, and its failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatch import Outcome, RejectedError, Telemetry
from dispatch.permissions.authorizer import CACHE_S, FAILURE_CACHE_S, LOOKUP_TIMEOUT_S
from tests.helpers.dispatcher_and_service import serving
from tests.helpers.permitting_dispatcher import Directory, SpyTransport, permitting


async def test_a_callable_is_asked_once_a_minute_for_concurrent_callers() -> None:
    directory = Directory()
    async with serving(lambda _: "done"), permitting(directory) as dispatcher:
        results = await asyncio.gather(*(dispatcher.call("jokes", user="alice") for _ in range(30)))
        assert results == ["done"] * 30
        assert directory.asked == ["alice"]
        directory.grants = ()
        assert (await dispatcher.execute("jokes", user="alice")).ok, "cached"
        await asyncio.sleep(CACHE_S)
        with pytest.raises(RejectedError, match="does not have"):
            await dispatcher.call("jokes", user="alice")
        assert directory.asked == ["alice"] * 2
        await dispatcher.call("jokers", user="bob")
        assert directory.asked == ["alice"] * 2, "a tool without permissions asks for none"


async def test_a_synchronous_callable_is_accepted() -> None:
    async with (
        serving(lambda _: "done"),
        permitting(lambda user: {"tools:jokes"} if user == "alice" else ()) as dispatcher,
    ):
        assert await dispatcher.call("jokes", user="alice") == "done"
        with pytest.raises(RejectedError, match="does not have"):
            await dispatcher.call("jokes", user="bob")


async def test_a_callable_that_fails_refuses_calls_until_it_answers() -> None:
    directory, transport, registry = Directory(), SpyTransport(), CollectorRegistry()
    directory.error = RuntimeError("down")
    telemetry = Telemetry(registry=registry)
    async with serving(lambda _: "done"), permitting(directory, transport, telemetry=telemetry) as dispatcher:
        sent = transport.messages
        for _ in range(3):
            result = await dispatcher.execute("jokes", user="alice")
            error = result.error
            assert error is not None
            assert (error.type, error.rejected_by) == ("permissions-unavailable", "permissions")
            assert (error.retryable, error.retry_after) == (True, FAILURE_CACHE_S)
        assert directory.asked == ["alice"]
        assert transport.messages == sent
        assert (
            registry.get_sample_value(
                "dispatch_calls_total", {"tool": "jokes", "service": "lab", "outcome": "rejected"}
            )
            == 3
        )
        directory.error = None
        await asyncio.sleep(FAILURE_CACHE_S)
        assert await dispatcher.call("jokes", user="alice") == "done"
        assert transport.messages > sent, "the spy sees the messages of an allowed call"


@pytest.mark.parametrize(("timeout", "waits"), [(None, LOOKUP_TIMEOUT_S), (0.3, 0.3), (60, LOOKUP_TIMEOUT_S)])
async def test_a_call_waits_for_a_slow_callable_within_its_timeout(timeout: float | None, waits: float) -> None:
    directory = Directory()
    directory.seconds = 5.0
    async with permitting(directory) as dispatcher:
        result = await dispatcher.execute("jokes", user="alice", timeout=timeout)
    assert result.error is not None
    assert result.error.type == "permissions-unavailable"
    assert result.duration == pytest.approx(waits)


async def test_the_wait_counts_towards_the_deadline_of_the_call() -> None:
    directory = Directory()
    directory.seconds = 0.75

    async def work(_: Any) -> str:
        await asyncio.sleep(10)
        return "done"

    async with serving(work), permitting(directory) as dispatcher:
        result = await dispatcher.execute("jokes", user="alice", timeout=2.0)
    assert result.outcome is Outcome.TIMEOUT
    assert result.duration == pytest.approx(2.0, abs=0.01)


async def test_a_cancelled_caller_is_counted_and_the_request_serves_the_others() -> None:
    directory, registry = Directory(), CollectorRegistry()
    directory.seconds = 0.5
    async with (
        serving(lambda _: "done"),
        permitting(directory, telemetry=Telemetry(registry=registry)) as dispatcher,
    ):
        first, second = (asyncio.create_task(dispatcher.call("jokes", user="alice")) for _ in range(2))
        await asyncio.sleep(0.1)
        first.cancel()
        assert await second == "done"
        assert first.cancelled()
        assert directory.asked == ["alice"]
        read = registry.get_sample_value
        assert read("dispatch_calls_total", {"tool": "jokes", "service": "lab", "outcome": "cancelled"}) == 1
        assert read("dispatch_inflight_calls", {"tool": "jokes", "service": "lab"}) == 0


async def test_close_ends_calls_that_wait_for_permissions_and_later_ones_fail_as_closed() -> None:
    directory = Directory()
    directory.seconds = 0.5
    async with permitting(directory) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("jokes", user="alice"))
        await asyncio.sleep(0.1)
        await dispatcher.close()
        result = await call
        assert result.error is not None
        assert result.error.type in ("permissions-unavailable", "closed")
        later = await dispatcher.execute("jokes", user="bob")
        assert later.error is not None
        assert later.error.type == "closed"
