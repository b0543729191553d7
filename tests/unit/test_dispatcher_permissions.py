"""Calls of tools with permissions: a refused call sends nothing and charges no guard.
The audit log: one line for each decision on a tool with permissions.
Visibility of tools with permissions: a user sees, and errors name, the tools that the user may call.
Permissions from an application's callable: when it is asked, how long calls wait for it, and its failures.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from dispatch import Dispatcher, Grants, Outcome, RejectedError, Telemetry
from dispatch.permissions.authorizer import CACHE_S, FAILURE_CACHE_S, LOOKUP_TIMEOUT_S
from dispatch.transports.memory import MemoryTransport
from tests.helpers.dispatcher_and_service import BROKER, Service, catalog, serving
from tests.helpers.permitting_dispatcher import GRANTS, Directory, SpyTransport, permitting, read_stream
from tests.helpers.telemetry_capture import Spans

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


async def test_each_decision_on_a_tool_with_permissions_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    async with serving(lambda _: "done"), permitting(GRANTS) as dispatcher:
        await dispatcher.call("jokes", {"secret": "4711"}, user="alice")
        for user in ("bob", "mallory", ""):
            await dispatcher.execute("jokes", {"secret": "4711"}, user=user)
        await dispatcher.call("jokers", user="bob")
        await dispatcher.tools(user="bob")
    assert [record.getMessage() for record in caplog.records] == [
        "allowed: 'jokes' for user 'alice' (granted)",
        "refused: 'jokes' for user 'bob' (not-granted tools:jokes)",
        "refused: 'jokes' for user 'mallory' (denied tools:jokes)",
        "refused: 'jokes' for user '' (not-granted tools:jokes)",
    ]
    facts = [
        {key: value for key, value in vars(each).items() if key.startswith("dispatch_")} for each in caplog.records
    ]
    assert facts[1] == {
        "dispatch_user": "bob",
        "dispatch_tool": "jokes",
        "dispatch_decision": "refused",
        "dispatch_reason": "not-granted",
        "dispatch_permission": "tools:jokes",
        "dispatch_trace_id": "",
    }
    assert "4711" not in json.dumps([vars(each) for each in caplog.records], default=str)


async def test_a_name_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    async with permitting(GRANTS) as dispatcher:
        await dispatcher.execute("jokes", user="bob' (granted)\nallowed: 'x")
    (record,) = caplog.records
    assert "\n" not in record.getMessage()


async def test_unavailable_permissions_and_missing_grants_have_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    directory = Directory()
    directory.error = RuntimeError("down")
    for grants in (directory, None):
        async with permitting(grants) as dispatcher:
            await dispatcher.execute("jokes", user="alice")
    records = [vars(record) for record in caplog.records if record.name == "dispatch.audit"]
    assert [each["dispatch_reason"] for each in records] == ["unavailable", "no-grants"]


async def test_a_line_names_the_trace_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dispatch.audit")
    spans = Spans()
    async with permitting(GRANTS, telemetry=spans.telemetry()) as dispatcher:
        await dispatcher.execute("jokes", user="bob")
    context = spans.one("execute_tool").context
    assert context is not None
    (record,) = caplog.records
    assert vars(record)["dispatch_trace_id"] == f"{context.trace_id:032x}"
    caplog.clear()
    with spans.provider.get_tracer("agent").start_as_current_span("agent") as span:
        async with permitting(GRANTS, telemetry=Telemetry(traces="off", metrics=False)) as dispatcher:
            await dispatcher.execute("jokes", user="bob")
        async with permitting(GRANTS, telemetry=Telemetry(traces="propagation-only", metrics=False)) as dispatcher:
            await dispatcher.execute("jokes", user="bob")
    traces = {vars(record)["dispatch_trace_id"] for record in caplog.records}
    assert traces == {f"{span.get_span_context().trace_id:032x}"}


VISIBLE = {"alice": ["jokes", "time", "jokers"], "bob": ["time", "jokers"], "": ["time", "jokers"]}


@pytest.mark.parametrize("user", VISIBLE)
@pytest.mark.parametrize("is_callable", [False, True])
async def test_a_user_sees_the_tools_that_the_user_may_call(user: str, is_callable: bool) -> None:
    async def ask(name: str) -> Collection[str]:
        return ["tools:*"] if name == "alice" else ["tools:time"]

    async with permitting(ask if is_callable else GRANTS) as dispatcher:
        tools = await dispatcher.tools(user=user)
        assert [tool.name for tool in tools] == VISIBLE[user]
        assert {tool.user for tool in tools} == {user}
        found = await dispatcher.tools(text="joke", user=user)
        assert [tool.name for tool in found] == [name for name in VISIBLE[user] if "joke" in name]
        for tool in ("jokes", "time", "jokers"):
            if tool in VISIBLE[user]:
                assert dispatcher.tool(tool, user=user).name == tool
            else:
                with pytest.raises(RejectedError) as caught:
                    dispatcher.tool(tool, user=user)
                assert caught.value.type == "not-permitted"


@pytest.mark.parametrize(("user", "near"), [("alice", ("jokes", "jokers")), ("bob", ("jokers",))])
@pytest.mark.parametrize("how", ["execute", "stream", "tool"])
async def test_errors_name_no_hidden_tool(user: str, near: tuple[str, ...], how: str) -> None:
    async def ask(dispatcher: Dispatcher) -> object:
        if how == "tool":
            return dispatcher.tool("joke", user=user)
        return await (read_stream(dispatcher, "joke", user) if how == "stream" else dispatcher.call("joke", user=user))

    async with permitting(GRANTS) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await ask(dispatcher)
        error = caught.value
        assert error.type == "unknown-tool"
        assert set(error.alternatives) == set(near)
        assert ("jokes" in error.message) is (user == "alice")
        refused = await dispatcher.execute("jokes", user="bob")
        assert refused.error is not None
        assert refused.error.alternatives == ("time", "jokers")
        assert "another tool (time, jokers)" in refused.error.message


async def test_alternatives_of_a_failed_call_name_no_hidden_tool() -> None:
    async with permitting(GRANTS) as dispatcher:
        for user, alternatives in (("alice", ("jokes", "time")), ("mallory", ("time",)), ("bob", ("time",))):
            result = await dispatcher.execute("jokers", user=user, timeout=1)
            assert result.error is not None
            assert result.error.alternatives == alternatives


async def test_while_a_callables_answer_is_not_cached_tools_with_permissions_are_hidden() -> None:
    directory = Directory(["tools:*"])
    async with permitting(directory) as dispatcher:
        assert dispatcher.tool("jokers", user="alice").name == "jokers"
        with pytest.raises(RejectedError, match=r"Use Dispatcher\.tools\(\)") as caught:
            dispatcher.tool("jokes", user="alice")
        assert (caught.value.type, caught.value.retryable) == ("permissions-unavailable", True)
        result = await dispatcher.execute("joke", user="alice")
        assert result.error is not None
        assert result.error.alternatives == ("jokers",)
        await dispatcher.tools(user="alice")
        assert dispatcher.tool("jokes", user="alice").name == "jokes"


async def test_a_list_fails_if_permissions_are_needed_and_unavailable() -> None:
    directory = Directory()
    directory.error = RuntimeError("down")
    async with permitting(directory) as dispatcher:
        with pytest.raises(RejectedError, match="Report the failure") as caught:
            await dispatcher.tools(user="alice")
        assert caught.value.type == "permissions-unavailable"
        assert "tools()" not in caught.value.message
        found = await dispatcher.tools(text="jokers", user="alice")
        assert [tool.name for tool in found] == ["jokers"]
    async with permitting(None) as dispatcher:
        assert [tool.name for tool in await dispatcher.tools(user="alice")] == ["jokers"]


def test_handles_are_available_before_the_start() -> None:
    dispatcher = dispatch.connect(
        "memory://", catalog(work={"permissions": ["a"]}), grants=Grants.of({"everyone": ["a"]})
    )
    assert dispatcher.tool("work").name == "work"


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
