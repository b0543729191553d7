"""Versions of one tool side by side, over the embedded broker.
A tool as an agent framework takes it.
Calls of tools with permissions: a refused call sends nothing and charges no guard.
The audit log: one line for each decision on a tool with permissions.
Visibility of tools with permissions: a user sees, and errors name, the tools that the user may call.
Permissions from an application's callable: when it is asked, how long calls wait for it, and its failures.
An edit of a value from 1 to ``true`` or 1.0 was not in force: in Python the three are equal.
The descriptor key ``permissions`` was accepted and shown, but every user could call the tool. It is enforced, without
grants too; a value that is not understood is an error, because a restriction that is ignored is worse than none.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from benchmarks.catalog.folder_edits import write_file
from dispatch import CallResult, Catalog, Dispatcher, Grants, Outcome, RejectedError, Telemetry
from dispatch._internal import RETENTION_S
from dispatch.documents import FrozenDict
from dispatch.errors import InvalidArgumentsError, ToolError
from dispatch.permissions import CACHE_S, FAILURE_CACHE_S, LOOKUP_TIMEOUT_S, GrantsFunction
from dispatch.resilience.breaker import State
from dispatch.transports.memory import MemoryTransport
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, check, service_item, tool_item
from tests.helpers.clock import advance
from tests.helpers.descriptor_folder import SERVICE, TOOL, make_folder
from tests.helpers.dispatcher_and_service import (
    BROKER,
    Service,
    catalog,
    dispatching,
    serving,
    stand,
    tool_of,
    topics_of,
)
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board, Spans, telling

GRANTS = Grants.of(
    {"users": {"alice": ["tools:*"], "mallory": ["tools:*", "!tools:jokes"]}, "everyone": ["tools:time"]}
)


class SpyTransport(MemoryTransport):
    """Counts the messages that are published, and the topics that are opened for it."""

    def __init__(self) -> None:
        super().__init__(BROKER)
        self.messages = 0

    async def publisher(self, *args: Any, **options: Any) -> Any:
        self.messages += 1
        return SpyPublisher(self, await super().publisher(*args, **options))


class SpyPublisher:
    """Counts its messages for a :class:`SpyTransport`."""

    def __init__(self, transport: SpyTransport, publisher: Any) -> None:
        self._transport = transport
        self._publisher = publisher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._publisher, name)

    def publish(self, *args: Any, **options: Any) -> Any:
        self._transport.messages += 1
        return self._publisher.publish(*args, **options)


class Directory:
    """A callable that counts its requests."""

    def __init__(self, grants: Collection[str] = ("tools:jokes",)) -> None:
        self.grants = grants
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.seconds = 0.0

    async def __call__(self, user: str) -> Collection[str]:
        self.asked.append(user)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.grants


@contextlib.asynccontextmanager
async def permitting(
    grants: Grants | GrantsFunction | None, transport: MemoryTransport | None = None, **options: Any
) -> AsyncIterator[Dispatcher]:
    """A started dispatcher with two tools that require permissions, and one that requires none."""
    tools = catalog(
        jokes={"permissions": ["tools:jokes"], "tags": ["fun"]},
        time={"permissions": ["tools:time"], "tags": ["fun"]},
        jokers={"tags": ["fun"]},
    )
    async with Dispatcher(transport or MemoryTransport(BROKER), tools, grants=grants, **options) as dispatcher:
        yield dispatcher


async def read_stream(dispatcher: Dispatcher, tool: str, user: str) -> str:
    return "".join([chunk async for chunk in dispatcher.stream(tool, user=user)])


ONE, TWO = "1.4.0", "2.0.0"
CALLS_VERSIONS = by_profile(short=10_000, long=100_000)
CALLERS = 64
FRAGILE = {"breaker": {"consecutive-failures": 2, "open-duration": 30}, "retry": 1}


def versions(share: float | None = None, *names: str, **keys: Any) -> Catalog:
    """Two versions of the tool ``work``, each with a version of the service ``lab``."""
    rollout = {} if share is None else {"rollout": {TWO: share}}
    keys_of = {ONE: keys | rollout, TWO: keys}
    return Catalog.of(
        [{"id": "lab", "version": version, **topics_of(version)} for version in names or (ONE, TWO)],
        [
            tool_of("lab", "work", version=version, requires=version, **keys_of[version])
            for version in names or (ONE, TWO)
        ],
    )


class Services:
    """A service for each version, which replies with its version; ``silent`` ones do not."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.silent: set[str] = set()

    def work(self, version: str) -> Callable[[dict[str, Any]], Any]:
        async def invoke(_: dict[str, Any]) -> str:
            self.calls[version] += 1
            if version in self.silent:
                await asyncio.sleep(3600)
            return version

        return invoke


@contextlib.asynccontextmanager
async def services(*names: str, work: Callable[[str], Any] | None = None) -> AsyncIterator[Services]:
    """``work``: returns the work of a version, in the place of :meth:`Services.work`."""
    made = Services()
    async with contextlib.AsyncExitStack() as stack:
        for name in names or (ONE, TWO):
            at = topics_of(name)
            await stack.enter_async_context(serving((work or made.work)(name), at=at, instance=f"i-{name}"))
        yield made


def dispatcher_of(catalog: Catalog, seed: int = 5) -> Dispatcher:
    return Dispatcher(MemoryTransport(BROKER), catalog, randomness=random.Random(seed).random)


# -- selection ------------------------------------------------------------------------------------------------------
async def test_a_call_selects_a_version() -> None:
    async with services(), dispatcher_of(versions(0)) as dispatcher:
        assert await dispatcher.call("work") == ONE
        assert await dispatcher.call("work", version="^2") == TWO
        assert (await dispatcher.execute("work", version=">=1 <2")).text == ONE
        assert [chunk async for chunk in dispatcher.stream("work", version="2")] == [TWO]
        handle = dispatcher.tool("work", version="^2")
        assert (handle.version, await handle.invoke()) == ("^2", TWO)
        assert [chunk async for chunk in handle.stream()] == [TWO]
        assert await dispatcher.tool("work").invoke() == ONE
        assert {view.id for view in dispatcher.instances("lab")} == {f"i-{ONE}", f"i-{TWO}"}


async def test_a_version_that_does_not_exist_is_named_with_those_that_do() -> None:
    board = Board()
    async with services(), telling(board.telemetry(), versions(0)) as dispatcher:
        with pytest.raises(RejectedError, match=r"'\^3', there are 2\.0\.0, 1\.4\.0") as caught:
            await dispatcher.call("work", version="^3")
        assert caught.value.type == "version-mismatch"
        assert (await dispatcher.execute("work", version="^3")).outcome is Outcome.REJECTED
        with pytest.raises(InvalidArgumentsError, match="Correct 'version'"):
            await dispatcher.call("work", version="newest")
        unknown = await dispatcher.execute("wrok", version=1.4)  # type: ignore[arg-type] # a mistake of the caller
        assert unknown.outcome is Outcome.INVALID_ARGUMENTS
        with pytest.raises(RejectedError, match=r"'\^3'"):
            dispatcher.tool("work", version="^3")
        assert (board["calls_total work rejected"], board["calls_total work invalid_arguments"]) == (2, 1)
        assert board["inflight_calls work"] == 0


async def test_a_range_that_a_user_may_not_see_the_tool_of_names_no_version() -> None:
    async with services(), dispatcher_of(versions(0, permissions=["tools:work"])) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work", version="^2")
        assert caught.value.type == "not-permitted"


# -- guards ---------------------------------------------------------------------------------------------------------
async def test_each_version_has_a_breaker_and_the_canarys_share_goes_back() -> None:
    async with services() as made, dispatcher_of(versions(50, policy=FRAGILE)) as dispatcher:
        users = [f"user-{number}" for number in range(40)]
        before = {user: await dispatcher.call("work", user=user) for user in users}
        assert set(before.values()) == {ONE, TWO}
        canary = dispatcher.breaker("work", version="2")
        assert canary is not dispatcher.breaker("work")
        canary.force_open()
        assert {await dispatcher.call("work", user=user) for user in users} == {ONE}
        assert dispatcher.breaker("work").state is State.CLOSED
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work", version="2")
        assert caught.value.type == "circuit-open"
        canary.reset()
        assert {user: await dispatcher.call("work", user=user) for user in users} == before
        assert made.calls[TWO] == 2 * sum(version == TWO for version in before.values())


async def test_a_failing_canary_opens_its_own_circuit_only() -> None:
    async with services() as made, dispatcher_of(versions(100, policy=FRAGILE)) as dispatcher:
        made.silent.add(TWO)
        results = [await dispatcher.execute("work", user=f"user-{number}", timeout=1) for number in range(20)]
        assert [str(result.outcome) for result in results] == ["timeout"] * 2 + ["success"] * 18
        assert made.calls == {TWO: 2, ONE: 18}
        states = [dispatcher.breaker("work", version=version).state for version in ("1", "2")]
        assert states == [State.CLOSED, State.OPEN]
        made.silent.clear()
        await advance(60)
        assert (await dispatcher.call("work", user="alice"), made.calls[TWO]) == (TWO, 3), "a half-open call"


async def test_a_canary_raises_no_rate_limit() -> None:
    limited = {"rate-limit": {"rate": "5/s", "burst": 5, "max-wait": 0}, "retry": 1}
    async with services(), dispatcher_of(versions(50, policy=limited)) as dispatcher:
        results = [await dispatcher.execute("work", user=f"user-{number}") for number in range(40)]
        assert Counter(result.outcome for result in results) == {Outcome.SUCCESS: 5, Outcome.THROTTLED: 35}


async def test_retries_stay_on_the_version() -> None:
    policy = {"retry": {"max-attempts": 3, "initial-backoff": 0.1}, "attempt-timeout": 1, "breaker": None}
    calls: Counter[str] = Counter()

    def slow_once(version: str) -> Callable[[dict[str, Any]], Any]:
        async def invoke(_: dict[str, Any]) -> str:
            calls[version] += 1
            if calls[version] == 1:
                await asyncio.sleep(60)
            return version

        return invoke

    tools = versions(100, policy=policy, idempotent=True)
    async with services(work=slow_once), dispatcher_of(tools) as dispatcher:
        result = await dispatcher.execute("work")
        assert (result.text, result.attempts) == (TWO, 2)
        assert calls == {TWO: 2}


async def test_equal_calls_of_two_versions_share_nothing() -> None:
    gate = asyncio.Event()

    def waiting(version: str) -> Callable[[dict[str, Any]], Any]:
        async def invoke(_: dict[str, Any]) -> str:
            await gate.wait()
            return version

        return invoke

    tools = versions(0, policy={"single-flight": True}, **{"read-only": True})
    async with services(work=waiting), dispatcher_of(tools) as dispatcher:
        calls = [asyncio.create_task(dispatcher.call("work", version=version)) for version in ("1", "2")]
        await advance(1)
        gate.set()
        assert await asyncio.gather(*calls) == [ONE, TWO]


# -- metrics --------------------------------------------------------------------------------------------------------
async def test_calls_are_counted_by_version_until_the_version_is_removed() -> None:
    board = Board()
    async with services(), telling(board.telemetry(), versions(0)) as dispatcher:
        for version in ("1", "2", "2"):
            await dispatcher.call("work", version=version)
        assert (board[f"version_calls_total work {ONE} ok"], board[f"version_calls_total work {TWO} ok"]) == (1, 2)
        assert board["calls_total work success"] == 3
        assert board["circuit_state work closed"] == 2, "a circuit for each version"
        await dispatcher.reload(versions(None, ONE))
        await advance(RETENTION_S + 1)
        assert f"version_calls_total work {TWO} ok" not in board.read()
        assert board[f"version_calls_total work {ONE} ok"] == 1
        await dispatcher.reload(Catalog.empty())
        await advance(RETENTION_S + 1)
        assert not [key for key in board.read() if " work " in f"{key} "]


async def test_a_tool_without_a_version_has_no_series_by_version() -> None:
    board = Board()
    async with services(ONE), telling(board.telemetry(), catalog(service=topics_of(ONE))) as dispatcher:
        await dispatcher.call("work")
        assert not [key for key in board.read() if key.startswith("version_calls")]


# -- instances ------------------------------------------------------------------------------------------------------
async def test_a_requirement_restricts_the_instances_of_one_service() -> None:
    def lab(*names: str) -> Mapping[str, Any]:
        instances = [{"id": name, "version": name, **topics_of(name)} for name in names]
        return {"id": "lab", **topics_of("lab"), "instances": instances}

    tools = [tool_of("lab", "any"), tool_of("lab", "second", requires="^2")]
    async with services() as made, dispatcher_of(Catalog.of([lab(ONE, TWO)], tools)) as dispatcher:
        assert Counter([await dispatcher.call("any") for _ in range(6)]) == {ONE: 3, TWO: 3}
        assert {await dispatcher.call("second") for _ in range(6)} == {TWO}
        await dispatcher.reload(Catalog.of([lab(ONE)], tools))
        with pytest.raises(RejectedError, match=r"requires version '\^2' of 'lab', and there are 1\.4\.0") as caught:
            await dispatcher.call("second")
        assert caught.value.type == "version-mismatch"
        assert await dispatcher.call("any") == ONE
        assert made.calls[TWO] == 9


# -- a rollout under load -------------------------------------------------------------------------------------------
@pytest.mark.long
async def test_a_share_of_calls_without_a_user_and_no_user_on_both_versions() -> None:
    async with services() as made, dispatcher_of(versions(5)) as dispatcher:
        seen: dict[str, set[str]] = {}

        async def call(caller: int) -> None:
            for number in range(CALLS_VERSIONS // CALLERS // 2):
                await dispatcher.call("work")
                if number % 4 == 0:
                    user = f"user-{(caller * 7 + number) % 500}"
                    seen.setdefault(user, set()).add(await dispatcher.call("work", user=user))

        async with asyncio.TaskGroup() as callers:
            for caller in range(CALLERS):
                callers.create_task(call(caller))
        assert sum(len(found) for found in seen.values()) == len(seen) == 500
        assert made.calls[TWO] > 0
    async with services() as made, dispatcher_of(versions(5)) as dispatcher:
        for _ in range(CALLS_VERSIONS):
            await dispatcher.call("work")
        share = made.calls[TWO] / CALLS_VERSIONS
        assert abs(share - 0.05) < by_profile(short=0.0065, long=0.003)  # three standard deviations, or 4.3


@pytest.mark.long
async def test_a_rollout_from_0_to_100_and_back_under_load_fails_no_call() -> None:
    """64 callers with and without users, while the share is changed and a version is removed and returns."""
    async with services() as made, dispatcher_of(versions(0)) as dispatcher:
        ended, results = asyncio.Event(), Counter[str]()

        async def call(caller: int) -> None:
            number = 0
            while not ended.is_set():
                number += 1
                user = "" if caller % 2 else f"user-{number % 50}"
                result = await dispatcher.execute("work", user=user)
                assert result.error is None, result.error
                results[result.text] += 1
                await asyncio.sleep(0.03)

        async with asyncio.TaskGroup() as callers:
            for caller in range(CALLERS):
                callers.create_task(call(caller))
            for share in (0, 1, 5, 25, 50, 100, 50, 25, 5, 1, 0):
                await dispatcher.reload(versions(share))
                before = made.calls.copy()
                await advance(0.3)
                if share in (0, 100):
                    await advance(0.3)
                    gone = TWO if share == 0 else ONE
                    assert made.calls[gone] - before[gone] <= CALLERS, "calls that had begun"
            await dispatcher.reload(versions(None, ONE))
            # In the long form the canary's guards are dropped.
            await advance(by_profile(short=1.0, long=RETENTION_S + 1))
            await dispatcher.reload(versions(50))
            await advance(1)
            ended.set()
        assert sum(results.values()) == sum(made.calls.values())
        assert min(results[ONE], results[TWO]) > 1_000


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"topic": {"type": "string", "enum": ["cats", "dogs"]}, "words": {"type": ["integer", "null"]}},
    "required": ["topic"],
    "additionalProperties": False,
}
TOOLS = catalog(
    work={
        "description": "Does work.",
        "arguments": [
            {"name": "topic", "type": "string", "description": "What about.", "required": True},
            {"name": "length", "type": "integer", "description": "How long.", "required": False},
            {"name": "style", "type": "string", "description": "Which way."},
        ],
    },
    bare={},
    schema={"input-schema": SCHEMA},
    report={"output-schema": {"type": "array", "items": {"type": "string"}}, "policy": {"max-result-chars": 400}},
)


async def test_a_tool_is_called_with_named_arguments_on_behalf_of_its_user() -> None:
    service = Service(lambda arguments: f"about {arguments['topic']}")
    async with stand(service, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("work", user="alice")
        assert await tool.invoke(topic="cats") == "about cats"
        assert [chunk async for chunk in tool.stream(topic="dogs")] == ["about dogs"]
        assert service.requests == [({}, {"topic": "cats"}, "alice"), ({}, {"topic": "dogs"}, "alice")]
        assert (tool.name, tool.description, tool.user) == ("work", "Does work.", "alice")
        assert (tool.read_only, tool.destructive) == (False, None)
        assert repr(tool) == "BoundTool('work')"


async def test_no_name_of_an_argument_is_taken() -> None:
    service = Service(lambda arguments: "done")
    names: dict[str, Any] = {"self": 1, "tool": 2, "user": 3, "timeout": 4, "arguments": 5, "name": 6}
    async with stand(service, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("work")
        await tool.invoke(**names)
        assert [chunk async for chunk in tool.stream(**names)] == ["done"]
    assert service.requests == [({}, names, "")] * 2


async def test_its_parameters_are_a_json_schema() -> None:
    async with stand(lambda _: "done", TOOLS) as (dispatcher, _):
        assert dispatcher.tool("work").parameters == {
            "type": "object",
            "properties": {
                "topic": {"type": "string", "description": "What about."},
                "length": {"type": "integer", "description": "How long."},
                "style": {"type": "string", "description": "Which way."},
            },
            "required": ["topic"],
        }
        assert dispatcher.tool("bare").parameters == {"type": "object", "properties": {}, "required": []}


async def test_its_parameters_are_a_copy_of_its_input_schema() -> None:
    async with stand(lambda _: "done", TOOLS) as (dispatcher, _):
        parameters = dispatcher.tool("schema").parameters
        assert parameters == SCHEMA
        assert type(parameters["properties"]["words"]["type"]) is list
        parameters["properties"].clear()
        assert dispatcher.tool("schema").parameters == SCHEMA
        assert await dispatcher.tool("schema").invoke(topic="cats") == "done"


async def test_it_raises_what_a_call_raises() -> None:
    def work(_: Any) -> None:
        raise ValueError("no such city")

    async with stand(work, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("work")
        with pytest.raises(ToolError, match="no such city"):
            await tool.invoke()
        with pytest.raises(InvalidArgumentsError):
            await tool.invoke(topic=object())


async def test_its_results_are_formatted_for_a_model() -> None:
    answers = iter(['[ "a" ]', "[7]", json.dumps(["word"] * 500)])
    async with stand(lambda _: next(answers), TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("report", user="alice")
        assert tool.format_result(await tool.execute()) == {"content": [{"type": "text", "text": '["a"]'}]}
        error, answer = tool.format_result(await tool.execute())["content"]
        assert json.loads(error["text"])["error"] == "invalid-output"
        assert "/0 must be a string, not an integer" in error["text"]
        assert answer["text"] == "[7]"
        (part,) = tool.format_result(await tool.execute())["content"]
        assert len(part["text"]) <= 400
        found = re.search(r'read_result\(handle="(.+)", offset=(\d+)\)', part["text"])
        handle, offset = found[1], int(found[2])
        rest = dispatcher.results.read(handle, offset=offset, user="alice")
        assert json.loads(part["text"][:offset] + rest.text) == ["word"] * 500
        assert await dispatcher.results.tool("alice").invoke(handle=handle, offset=offset) == rest.text
        with pytest.raises(InvalidArgumentsError, match="no stored result has this handle"):
            dispatcher.results.read(handle, user="bob")
        assert tool.format_result(await dispatcher.execute("missing"))["isError"]
        await dispatcher.reload(catalog())  # the tool is removed
        assert len(tool.format_result(CallResult("report", Outcome.SUCCESS, '["a", "b"]'))["content"]) == 1


async def test_an_answer_is_what_a_model_reads() -> None:
    answers = iter(["[]", '["a"]', "[7]"])
    async with stand(lambda _: next(answers), TOOLS) as (dispatcher, _):
        users: list[tuple[str, bool]] = []
        dispatcher.on_call(lambda call: users.append((call.user, call.by_model)))
        tool = dispatcher.tool("report", user="alice")
        assert await tool.answer({}) == ("[]", False, None)
        assert await tool.answer({}, user="bob") == ('["a"]', False, None)
        assert users == [("alice", True), ("bob", True)]
        invalid = await tool.answer({})
        assert (invalid.is_error, invalid.error) == (True, None)
        assert invalid.text.endswith("\n[7]")
        await dispatcher.reload(catalog())
        removed = await tool.answer({})
        assert json.loads(removed.text)["error"] == removed.error.type == "unknown-tool"
        assert dispatcher.format_result(await dispatcher.execute("report"))["isError"]


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
        assert (transport.messages, dispatcher.pending_requests) == (sent, 0)
        assert str(dispatcher.breaker("jokes").state) == "closed"
        guards = dispatcher._running.guards_of(dispatcher._live.resolver.tool("jokes"))
        assert guards.bulkhead.guard.granted == 0
        read = registry.get_sample_value
        assert read("dispatch_rejections_total", {"tool": "jokes", "service": "lab", "by": "permissions"}) == 50
        assert read("dispatch_calls_total", {"tool": "jokes", "service": "lab", "outcome": "rejected"}) == 0
        assert read("dispatch_calls_total", {"tool": "jokes", "service": "lab", "outcome": "refused"}) == 50
        assert read("dispatch_attempts_total", {"tool": "jokes", "service": "lab", "reason": "first"}) == 0
        assert read("dispatch_inflight_calls", {"tool": "jokes", "service": "lab"}) == 0


async def test_a_refused_call_with_wrong_arguments_is_refused_for_the_permission() -> None:
    async with permitting(GRANTS) as dispatcher:
        result = await dispatcher.execute("jokes", {"x": object()}, user="bob")
        assert (result.outcome, result.attempts) == (Outcome.REJECTED, 0)
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
@pytest.mark.costly
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
        assert refused.error.alternatives == ("time", "jokers")
        assert "another tool (time, jokers)" in refused.error.message


async def test_alternatives_of_a_failed_call_name_no_hidden_tool() -> None:
    async with permitting(GRANTS) as dispatcher:
        for user, alternatives in (("alice", ("jokes", "time")), ("mallory", ("time",)), ("bob", ("time",))):
            assert (await dispatcher.execute("jokers", user=user, timeout=1)).error.alternatives == alternatives


async def test_while_a_callables_answer_is_not_cached_tools_with_permissions_are_hidden() -> None:
    directory = Directory(["tools:*"])
    async with permitting(directory) as dispatcher:
        assert dispatcher.tool("jokers", user="alice").name == "jokers"
        with pytest.raises(RejectedError, match=r"Use Dispatcher\.tools\(\)") as caught:
            dispatcher.tool("jokes", user="alice")
        assert (caught.value.type, caught.value.retryable) == ("permissions-unavailable", True)
        assert (await dispatcher.execute("joke", user="alice")).error.alternatives == ("jokers",)
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
        assert [tool.name for tool in (await dispatcher.tools(text="jokers", user="alice"))] == ["jokers"]
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
    grants = {"alice": {"tools:jokes"}, "bob": ()}
    async with serving(lambda _: "done"), permitting(grants.__getitem__) as dispatcher:
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
            error = (await dispatcher.execute("jokes", user="alice")).error
            assert (error.type, error.rejected_by) == ("permissions-unavailable", "permissions")
            assert (error.retryable, error.retry_after) == (True, FAILURE_CACHE_S)
        assert (directory.asked, transport.messages) == (["alice"], sent)
        rejected = {"tool": "jokes", "service": "lab", "outcome": "rejected"}
        assert registry.get_sample_value("dispatch_calls_total", rejected) == 3
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
    assert (result.error.type, result.duration) == ("permissions-unavailable", pytest.approx(waits))


async def test_the_wait_counts_towards_the_deadline_of_the_call() -> None:
    directory = Directory()
    directory.seconds = 0.75

    async with serving(lambda _: asyncio.sleep(10, "done")), permitting(directory) as dispatcher:
        result = await dispatcher.execute("jokes", user="alice", timeout=2.0)
    assert (result.outcome, result.duration) == (Outcome.TIMEOUT, pytest.approx(2.0, abs=0.01))


async def test_a_cancelled_caller_is_counted_and_the_request_serves_the_others() -> None:
    directory, registry = Directory(), CollectorRegistry()
    directory.seconds = 0.5
    async with serving(lambda _: "done"), permitting(directory, telemetry=Telemetry(registry=registry)) as dispatcher:
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
        assert (await call).error.type in ("permissions-unavailable", "closed")
        assert (await dispatcher.execute("jokes", user="bob")).error.type == "closed"


class Echo(dispatch.ToolService):
    async def invoke(self, config: dict[str, object], arguments: object, user: str = "") -> str:
        return json.dumps(config)


@pytest.mark.wall_clock
@pytest.mark.costly
async def test_the_service_receives_the_edited_value(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tools")
    write_file(folder, "tool-service/joke-service.json", SERVICE | {"config-params": [{"name": "limit"}]})
    write_file(folder, "tool/tell-joke.json", TOOL | {"limit": 1})
    broker = f"memory://{tmp_path.name}"
    async with (
        dispatch.ToolServer(Echo(), broker, service="joke"),
        dispatch.connect(broker, dispatch.Folder(folder, id="jokes")) as dispatcher,
    ):
        for value in (1, True, 1.0, [1], [True], {"a": 1}, {"a": 1.0}):
            write_file(folder, "tool/tell-joke.json", TOOL | {"limit": value})
            await dispatcher.registry.refresh("jokes")
            assert await dispatcher.call("tell-joke") == json.dumps({"limit": value})


@pytest.mark.parametrize("other", [{"a": True}, {"a": 1.0}, {"a": 2}, {"b": 1}, {}])
def test_frozen_objects_that_are_not_the_same_json_differ(other: dict[str, object]) -> None:
    frozen = FrozenDict({"a": 1})
    assert frozen != FrozenDict(other)
    assert FrozenDict({"a": (frozen,)}) != FrozenDict({"a": (FrozenDict(other),)})
    assert frozen == FrozenDict({"a": 1})
    assert frozen == {"a": 1}


INVALID: list[tuple[Any, str, str]] = [
    ([], "permissions", "the list is empty"),  # may be meant as "no user may call it"
    ("admin", "permissions", "not a list"),
    ([""], "permissions[0]", "an empty text"),
    (["tools:*"], "permissions[0]", "'*' and '!' are for grants"),
    (["a", "!b"], "permissions[1]", "'*' and '!' are for grants"),
    (["a b"], "permissions[0]", "a blank"),
    ([1], "permissions[0]", "instead of a text"),
]


@pytest.mark.parametrize(
    ("service", "tool"),
    [({"permissions": ["lab"]}, {}), ({}, {"permissions": ["lab"]}), ({"permissions": ["a"]}, {"permissions": ["b"]})],
)
async def test_a_tool_with_permissions_is_not_called_without_grants(service: Any, tool: Any) -> None:
    spy = Service(lambda _: "done")
    async with serving(spy), dispatching(catalog(service=service, work=tool)) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work", user="alice")
    assert (caught.value.type, spy.requests) == ("not-permitted", [])


@pytest.mark.parametrize(("value", "key", "text"), INVALID)
def test_a_value_that_is_not_understood_is_an_error_in_tools_and_services(value: Any, key: str, text: str) -> None:
    for items in (
        (service_item(), tool_item(TELL_JOKE | {"permissions": value})),
        (service_item(JOKE_SERVICE | {"permissions": value}), tool_item()),
    ):
        (problem,) = check(*items)
        assert problem.key == key
        assert text in problem.problem
        assert problem.fix


def test_null_is_a_missing_key() -> None:
    assert not check(service_item(JOKE_SERVICE | {"permissions": None}), tool_item(TELL_JOKE | {"permissions": None}))


def test_a_config_param_of_that_name_goes_to_the_service() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "permissions"}]}
    tool = {key: value for key, value in TELL_JOKE.items() if key != "style"}
    descriptor = Catalog.of([service], [tool | {"permissions": "any"}]).tool("tell-joke")
    assert (descriptor.config, descriptor.permissions) == ({"permissions": "any"}, ())
