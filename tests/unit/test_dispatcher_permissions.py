"""Calls of tools with permissions: a refused call sends nothing and charges no guard."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import Dispatcher, Grants, Outcome, RejectedError, Telemetry
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, Service, catalog, serving
from tests.helpers.permitting_dispatcher import GRANTS, SpyTransport, permitting, read_stream

REFUSALS = [
    ("bob", "does not have the permission 'tools:jokes'"),
    ("mallory", "is denied"),
    ("", "a call without a user"),
]
CALLS: dict[str, Callable[[Dispatcher, str], Any]] = {
    "call": lambda dispatcher, user: dispatcher.call("jokes", user=user),
    "stream": lambda dispatcher, user: read_stream(dispatcher, "jokes", user),
}


@pytest.mark.parametrize("kind", CALLS)
async def test_a_permitted_call_is_executed(kind: str) -> None:
    service = Service(lambda _: "done")
    async with serving(service), permitting(GRANTS) as dispatcher:
        assert await CALLS[kind](dispatcher, "alice") == "done"
        assert await dispatcher.tool("jokes", user="alice").invoke() == "done"
    assert [user for _, _, user in service.requests] == ["alice", "alice"]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(("user", "reason"), REFUSALS)
async def test_a_refused_call_sends_nothing_and_charges_no_guard(kind: str, user: str, reason: str) -> None:
    registry, transport = CollectorRegistry(), SpyTransport()
    async with permitting(GRANTS, transport, telemetry=Telemetry(registry=registry)) as dispatcher:
        sent = transport.messages
        for _ in range(50):
            with pytest.raises(RejectedError) as caught:
                await CALLS[kind](dispatcher, user)
        error = caught.value
        assert (error.type, error.rejected_by, error.retryable) == ("not-permitted", "permissions", False)
        assert reason in error.message
        assert transport.messages == sent
        assert dispatcher.pending_requests == 0
        breaker = dispatcher.breaker("jokes")
        assert str(breaker.state) == "closed"
        guards = dispatcher._running.guards_of(dispatcher._live.resolver.tool("jokes"))
        assert guards.bulkhead is not None
        assert guards.bulkhead.guard.granted == 0
        read = registry.get_sample_value
        assert read("dispatch_rejections_total", {"tool": "jokes", "service": "lab", "by": "permissions"}) == 50
        assert read("dispatch_calls_total", {"tool": "jokes", "service": "lab", "outcome": "rejected"}) == 0
        assert read("dispatch_calls_total", {"tool": "jokes", "service": "lab", "outcome": "refused"}) == 50
        assert read("dispatch_attempts_total", {"tool": "jokes", "service": "lab", "reason": "first"}) == 0
        assert read("dispatch_inflight_calls", {"tool": "jokes", "service": "lab"}) == 0


async def test_execute_returns_the_refusal_as_a_result() -> None:
    async with permitting(GRANTS) as dispatcher:
        result = await dispatcher.execute("jokes", user="bob")
    assert (result.outcome, result.attempts) == (Outcome.REJECTED, 0)
    assert result.error is not None
    assert result.error.type == "not-permitted"


async def test_a_refused_call_with_wrong_arguments_is_refused_for_the_permission() -> None:
    async with permitting(GRANTS) as dispatcher:
        result = await dispatcher.execute("jokes", {"x": object()}, user="bob")
        assert result.error is not None
        assert result.error.type == "not-permitted"
        for user in (["alice"], 5, None):
            wrong = await dispatcher.execute("jokes", user=user)  # type: ignore[arg-type] # wrong on purpose
            assert wrong.outcome is Outcome.INVALID_ARGUMENTS


async def test_without_grants_only_tools_with_permissions_are_refused() -> None:
    async with serving(lambda _: "done"), permitting(None) as dispatcher:
        assert await dispatcher.call("jokers", user="alice") == "done"
        with pytest.raises(RejectedError, match="the dispatcher has no grants") as caught:
            await dispatcher.call("jokes", user="alice")
        assert caught.value.type == "not-permitted"


async def test_a_version_mismatch_names_versions_to_permitted_users_only() -> None:
    tools = catalog(jokes={"permissions": ["tools:jokes"], "version": "1.4.2"})
    async with Dispatcher(MemoryTransport(BROKER), tools, grants=GRANTS) as dispatcher:
        for user, is_named in (("alice", True), ("bob", False), ("mallory", False), ("", False)):
            error = (await dispatcher.execute("jokes", user=user, version="^3")).error
            assert error is not None
            assert (error.type, "1.4.2" in error.message) == ("version-mismatch", is_named)
            with pytest.raises(RejectedError) as raised:
                dispatcher.tool("jokes", user=user, version="^3")
            assert ("1.4.2" in str(raised.value)) == is_named


async def test_permissions_of_a_service_apply_to_all_its_tools_and_to_calls_without_a_tool() -> None:
    tools = catalog(service={"permissions": ["services:lab"]}, work={"permissions": ["tools:work"]}, open={})
    grants = Grants.of(
        {"users": {"alice": ["tools:work", "services:lab"], "bob": ["tools:work"], "carol": ["services:lab"]}}
    )
    async with serving(lambda _: "done"), Dispatcher(MemoryTransport(BROKER), tools, grants=grants) as dispatcher:
        allowed = {
            (user, tool)
            for user in ("alice", "bob", "carol")
            for tool in ("work", "open")
            if (await dispatcher.execute(tool, user=user)).ok
        }
        assert allowed == {("alice", "work"), ("alice", "open"), ("carol", "open")}
        client = dispatch.ToolServiceClient(dispatcher, service="lab")
        assert await client.call("carol", {}, {}) == "done"
        assert await client.call_streaming("carol", {}, {}, lambda _: None) == "done"
        with pytest.raises(RejectedError, match="services:lab"):
            await client.call("bob", {}, {})
        with pytest.raises(RejectedError, match="a call without a user"):
            await client.call_streaming({}, {}, lambda _: None)


@pytest.mark.parametrize("grants", ["grants.json", 5, {"users": {}}])
def test_anything_else_is_refused_when_connecting(grants: Any) -> None:
    with pytest.raises(TypeError, match=r"grants must be dispatch\.Grants or a callable"):
        dispatch.connect("memory://", grants=grants)


# -- a watched file ---------------------------------------------------------------------------------------------------


@pytest.mark.wall_clock
async def test_a_changed_file_is_in_force_within_seconds_and_a_broken_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": ["tools:*"]}}))

    async def becomes(allowed: bool) -> None:
        async with asyncio.timeout(10):
            # The change comes from a thread that polls a file, and has no event.
            while (await dispatcher.execute("jokes", user="alice")).ok is not allowed:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async with serving(lambda _: "done"), permitting(Grants.load(file)) as dispatcher:
        await becomes(True)
        file.write_text(json.dumps({"users": {}}))
        await becomes(False)
        file.write_text('{"users": {"alice": ["*"]')
        await asyncio.sleep(1.5)  # longer than the interval of the checks: nothing may change
        assert not (await dispatcher.execute("jokes", user="alice")).ok
        file.write_text(json.dumps({"users": {"alice": ["tools:jokes"]}}))
        await becomes(True)
