"""What a dispatcher holds stays constant over any number of activations of a catalogue.
The payload of a request stays within the limits of the broker and the policy.
Arguments are checked before a call where the policy says so: all mistakes at once, and nothing is sent.
A client that was made before ``reload`` applied its former policy to all later calls; each reload of other topics left
publishers, subscriptions and a pool open, and counted instances twice. Now the catalogue in force decides, and what only
former ones use is closed as soon as the calls that began with them have ended.
A reload between the decision to open a missing instance's topics and the task that opens them made that task fail with a
KeyError; and the times of the next tries were kept for services that were gone. Neither is so any more.
A warm call asks for nothing that is a system call: the running event loop is one in CPython 3.11 to 3.13. It enters few
functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import dispatch
from dispatch import (
    CallResult,
    Catalog,
    Dispatcher,
    Outcome,
    Policy,
    ThrottledError,
    ToolError,
    ToolService,
    ToolServiceClient,
)
from dispatch._internal import RETENTION_S
from dispatch.calls import call
from dispatch.calls.call import request_payload, schema_of_arguments
from dispatch.calls.resolution import ResolvedTool, ToolResolver
from dispatch.catalog.catalog import compare
from dispatch.documents import thaw
from dispatch.errors import InvalidArgumentsError, TransportError
from dispatch.messaging.endpoint import UNUSED_S
from dispatch.messaging.wire import PayloadTooLargeError, decode_request
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.routing.pool import AGAIN_S
from dispatch.schemas import MAX_VALIDATORS, SchemaValidator, ValidatorCache
from dispatch.transports.memory import MemoryPublisher, MemoryTransport
from tests.helpers.clock import advance
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import (
    BROKER,
    Peer,
    Service,
    catalog,
    dispatching,
    follow_instances,
    serving,
    stand,
    tool_of,
    topics_of,
)
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board, telling

PER_S = by_profile(short=2, long=10)
"""Activations per second; ten are as many as a registry makes at most."""
SETTLED = int(1.2 * RETENTION_S * PER_S)
"""Activations after which as much is dropped as is added."""
ACTIVATIONS = by_profile(short=150, long=2_000)


def service(name: str, *instances: str) -> dict[str, Any]:
    listed = [{"id": each, **topics_of(each)} for each in instances]
    return {"id": name, **topics_of(name), **({"instances": listed} if listed else {})}


def catalog_own(number: int) -> Catalog:
    """Each catalogue has tools and services with names of their own. Its instances, and its limit of users, vary."""
    own = {"policy": {"balancing": "least-request", "shared-user-rate-limit": f"{100 + number % 7}/s"}}
    return Catalog.of(
        [service("base", *(["base"] if number % 2 else [])), service(f"s{number}")],
        [
            tool_of("base", "base"),
            tool_of("base", f"t{number}", **(own if number % 3 == 0 else {})),
            tool_of(f"s{number}", f"silent{number}"),
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
            "users of subscriptions": sum(len(each.users) for each in channels._subscriptions._shared.values()),
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
@pytest.mark.alone
async def test_activations_leave_nothing_behind() -> None:
    board, transport = Board(), CountedTransport()
    async with (
        serving(Done(), at=topics_of("base"), instance="i"),
        Dispatcher(transport, Catalog.empty(), telemetry=board.telemetry()) as dispatcher,
    ):

        async def activate(numbers: range) -> None:
            for number in numbers:
                await dispatcher.reload(catalog_own(number))
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
        assert {kind: n for kind, n in holdings(dispatcher, transport).items() if n and kind != "tasks"} == {}


@pytest.mark.costly
async def test_an_activation_touches_only_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"t{number}" for number in range(500)]

    def tools(description: str, policy: Mapping[str, Any]) -> Catalog:
        services = [{**service(name), "policy": policy if name == "t7" else {}} for name in names]
        described = {"t3": description}
        return Catalog.of(services, [tool_of(name, name, description=described.get(name, "")) for name in names])

    found: list[str] = []

    def find(self: ToolResolver, key: tuple[bool, str, str | None]) -> ResolvedTool | None:
        found.append(key[1])
        return genuine(self, key)

    async with Dispatcher(CountedTransport(), tools("Former.", {})) as dispatcher:
        for name in names:
            target = dispatcher._live.resolver.tool(name)
            dispatcher._running.guards_of(target)
            dispatcher._running.pool_calls_of(target)
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


@pytest.mark.costly
@pytest.mark.parametrize(
    ("policy", "most"),
    [
        ({"max_request_bytes": 500}, 500),
        ({"max_request_bytes": 5_000}, 5_000),
        ({}, DEFAULT_SETTINGS.max_payload_bytes),
        ({"max_request_bytes": 2**30}, DEFAULT_SETTINGS.max_payload_bytes),
    ],
)
def test_no_more_is_sent_than_broker_and_policy_allow(policy: dict[str, Any], most: int) -> None:
    limits = Policy(**policy)
    around = len(request_payload("{}", {"text": ""}, "me", limits))
    payload = request_payload("{}", {"text": "x" * (most - around)}, "me", limits)
    assert len(payload) == most
    assert decode_request(payload).arguments == {"text": "x" * (most - around)}
    with pytest.raises(PayloadTooLargeError) as caught:
        request_payload("{}", {"text": "x" * (most - around + 1)}, "me", limits)
    assert (caught.value.size, caught.value.limit) == (most + 1, most)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "at": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
    "required": ["place"],
    "additionalProperties": False,
}
ARGUMENTS = [
    {"name": "topic", "type": "string", "description": "What about.", "required": True},
    {"name": "length", "type": "integer", "description": "How long.", "required": False},
    {"name": "style", "type": "string", "description": "Which way."},
]
TOOLS = catalog(
    model={"input-schema": SCHEMA},
    always={"input-schema": SCHEMA, "policy": {"check-arguments": "always"}},
    never={"input-schema": SCHEMA, "policy": {"check-arguments": "never"}},
    trustgraph={"arguments": ARGUMENTS},
    bare={},
)
WRONG = {"unit": "kelvin", "at": {"x": "1"}, "plce": "Oslo"}


def assert_refused(result: CallResult, service: Service) -> InvalidArgumentsError:
    assert result.outcome is Outcome.INVALID_ARGUMENTS
    assert isinstance(result.error, InvalidArgumentsError)
    assert (result.error.type, result.error.retryable, result.attempts) == ("invalid-arguments", False, 0)
    assert service.requests == []
    return result.error


@pytest.mark.parametrize(
    ("tool", "by_model", "is_checked"),
    [
        ("model", True, True),
        ("model", False, False),
        ("always", True, True),
        ("always", False, True),
        ("never", True, False),
        ("never", False, False),
        ("bare", True, False),
    ],
)
async def test_the_policy_decides_which_calls_are_checked(tool: str, by_model: bool, is_checked: bool) -> None:
    service = Service(lambda _: "done")
    async with stand(service, TOOLS) as (dispatcher, _):
        result = await dispatcher.execute(tool, WRONG, by_model=by_model)
        if is_checked:
            assert_refused(result, service)
        else:
            assert (result.text, len(service.requests)) == ("done", 1)
        if not by_model and is_checked:
            with pytest.raises(InvalidArgumentsError):
                await dispatcher.call(tool, WRONG)
            with pytest.raises(InvalidArgumentsError):
                await anext(dispatcher.stream(tool, WRONG))
            assert service.requests == []


async def test_the_error_names_all_mistakes_with_path_fault_and_allowed_values() -> None:
    service = Service(lambda _: "done")
    async with stand(service, TOOLS) as (dispatcher, _):
        error = assert_refused(await dispatcher.tool("model").execute(WRONG, by_model=True), service)
    for text in (
        "Tool 'model' was not executed: its arguments have 4 mistakes (",
        "/place is required",
        '/unit must be one of the allowed values: "celsius", "fahrenheit"',
        "/at/x must be an integer, not a string",
        '/plce is not an expected property: "place", "unit", "at"',
        "Correct the arguments.",
    ):
        assert text in error.message


async def test_valid_arguments_are_sent_unchanged() -> None:
    service = Service(lambda _: "done")
    arguments = {"place": "Oslo", "at": {"x": 1}}
    async with stand(service, TOOLS) as (dispatcher, _):
        assert (await dispatcher.execute("model", arguments, by_model=True)).text == "done"
    assert service.requests == [({}, arguments, "")]


@pytest.mark.parametrize(
    ("arguments", "mistakes"),
    [
        ({"topic": "cats"}, []),
        ({"topic": "cats", "more": 1}, []),
        ({}, ["/topic is required"]),
        ({"topic": 7, "length": "x"}, ["/topic must be a string", "/length must be an integer"]),
    ],
)
async def test_arguments_without_required_may_be_missing(arguments: dict[str, Any], mistakes: list[str]) -> None:
    service = Service(lambda _: "done")
    async with stand(service, TOOLS) as (dispatcher, _):
        tool = dispatcher.tool("trustgraph")
        assert tool.parameters["required"] == ["topic"]  # what the model is shown
        result = await tool.execute(arguments, by_model=True)
        if not mistakes:
            assert result.text == "done"
            return
        error = assert_refused(result, service)
        assert [each for each in mistakes if each not in error.message] == []


@pytest.mark.parametrize("tool", ["model", "trustgraph", "bare"])
async def test_models_are_shown_the_schema_that_calls_are_checked_against(tool: str) -> None:
    async with stand(Service(lambda _: "done"), TOOLS) as (dispatcher, _):
        assert dispatcher.tool(tool).parameters == thaw(schema_of_arguments(TOOLS.tool(tool)))


@pytest.mark.parametrize("text", ["'topic'", "KeyError: 'topic'"])
@pytest.mark.parametrize("tool", ["trustgraph", "bare"])
async def test_a_missing_argument_is_named(tool: str, text: str) -> None:
    """By the check; and where nothing is checked, the text of Python's KeyError is explained, of any service."""

    def raise_key_error(arguments: dict[str, Any]) -> str:
        if "topic" in arguments:
            raise ToolError("KeyError", "'cats'")
        raise ToolError("KeyError", text)

    service = Service(raise_key_error)
    async with stand(service, TOOLS) as (dispatcher, _):
        if tool == "trustgraph":
            refused = assert_refused(await dispatcher.execute(tool, {}, by_model=True), service)
            assert "the argument 'topic' is missing (/topic is required)" in refused.message
        unchecked = (await dispatcher.execute(tool, {})).error
        explained = unchecked.message.startswith("The argument 'topic' is missing.")
        assert (unchecked.type, explained) == ("KeyError", tool == "trustgraph")
        assert str(unchecked) == unchecked.message
        with pytest.raises(ToolError) as raised:
            await anext(dispatcher.stream(tool, {}))
        assert raised.value.message == unchecked.message
        assert (await dispatcher.execute(tool, {"topic": "cats"})).error.message == "'cats'"


@dataclasses.dataclass
class Place:
    x: int


async def test_arguments_are_checked_as_the_tool_receives_them() -> None:
    service = Service(lambda _: "done")
    async with stand(service, TOOLS) as (dispatcher, _):
        assert await dispatcher.call("always", {"place": datetime.date(2026, 1, 2), "at": Place(3)}) == "done"
        with pytest.raises(InvalidArgumentsError, match="/at/x must be an integer"):
            await dispatcher.call("always", {"place": "Oslo", "at": Place("3")})  # type: ignore[arg-type]
    assert service.requests == [({}, {"place": "2026-01-02", "at": {"x": 3}}, "")]


async def test_any_mapping_is_checked() -> None:
    class Lazy(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            return {"place": 7}[key]

        def __iter__(self) -> Any:
            return iter(["place"])

        def __len__(self) -> int:
            return 1

    async with stand(Service(lambda _: "done"), TOOLS) as (dispatcher, _):
        with pytest.raises(InvalidArgumentsError, match="/place must be a string"):
            await dispatcher.call("always", Lazy())


async def test_a_schema_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []

    class Counted(SchemaValidator):
        def __init__(self, schema: Any) -> None:
            compiled.append(schema)
            super().__init__(schema)

    monkeypatch.setattr("dispatch.schemas.SchemaValidator", Counted)
    async with stand(Service(lambda _: "done"), TOOLS) as (dispatcher, _):
        await dispatcher.call("model", {"place": "Oslo"})
        assert compiled == []  # no cost for unchecked calls
        for _ in range(3):
            await dispatcher.execute("model", {"place": "Oslo"}, by_model=True)
        assert len(compiled) == 1
        await dispatcher.reload(catalog(model={"input-schema": SCHEMA | {"required": ["unit"]}}))
        result = await dispatcher.execute("model", {"place": "Oslo"}, by_model=True)
        assert "/unit is required" in result.error.message
        assert len(compiled) == 2


def test_the_number_of_compiled_schemas_is_bounded() -> None:
    cache: ValidatorCache[Any] = call.ArgumentCheck()._validators
    tools = catalog(**{f"tool-{number}": {"arguments": ARGUMENTS} for number in range(MAX_VALIDATORS + 10)})
    for descriptor in tools.tools.values():
        cache.get(descriptor)
    assert len(cache) == MAX_VALIDATORS == 1_024


async def test_a_schema_that_is_none_fails_the_call_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(lambda _: "done")
    monkeypatch.setattr(call, "schema_of_arguments", lambda _: {"type": "text"})
    async with stand(service, TOOLS) as (dispatcher, _):
        error = assert_refused(await dispatcher.execute("model", {}, by_model=True), service)
        assert "the tool has no valid schema" in error.message


def test_the_schema_of_arguments() -> None:
    assert schema_of_arguments(TOOLS.tool("model")) is TOOLS.tool("model").input_schema
    assert schema_of_arguments(TOOLS.tool("bare")) == {"type": "object", "properties": {}, "required": []}


async def test_calls_of_a_removed_permission_are_refused_before_the_check() -> None:
    tools = catalog(work={"input-schema": SCHEMA, "permissions": ["tools:work"]})
    async with stand(Service(lambda _: "done"), tools) as (dispatcher, _):
        result = await dispatcher.execute("work", WRONG, by_model=True, user="alice")
        assert result.error.type == "not-permitted"  # its text names no argument


def services(*names: str, **tool: Any) -> Catalog:
    """A service with a tool for each name; ``name@n`` is served on topics of version ``n``."""
    made = [{"id": each.partition("@")[0], **topics_of(each.replace("@", ""))} for each in names]
    return Catalog.of(made, [tool_of(each["id"], each["id"], **tool) for each in made])


@contextlib.asynccontextmanager
async def servers(*names: str, work: Any = lambda _: "done") -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for each in names:
            name = each.replace("@", "")
            await stack.enter_async_context(serving(work, at=topics_of(name), instance=f"{name}-i"))
        yield


async def opened_by(tools: Catalog, *names: str) -> dict[tuple[str, str], int]:
    """What a dispatcher that never had another catalogue has open after a call of each tool."""
    transport = CountedTransport()
    async with dispatching(tools, transport=transport, client_id="d") as dispatcher:
        for name in names:
            assert (await dispatcher.execute(name)).ok
        return dict(transport.left_open)


# -- the policy in force ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("also_the_tool", [False, True])
async def test_a_client_made_before_a_reload_keeps_to_the_new_policy(also_the_tool: bool) -> None:
    rate = {"rate": "2/m", "burst": 2, "max-wait": 0}
    async with serving(lambda _: "done"), dispatching(catalog()) as dispatcher:
        client = ToolServiceClient(dispatcher, service="lab")
        await client.call("alice", {}, {})
        await dispatcher.reload(catalog(service={"policy": {"user-rate-limit": rate}}))
        other = ToolServiceClient(dispatcher, service="lab")
        passed = 0
        for number in range(80):
            with contextlib.suppress(ThrottledError):
                await (other if also_the_tool and number % 2 else client).call("alice", {}, {})
                passed += 1
        assert passed <= 3


async def test_a_call_that_began_before_a_reload_does_not_undo_it() -> None:
    """Its retry used to bring the former settings of the balancer and of the guards back."""
    tools = {"idempotent": True, "policy": {"attempt-timeout": 1, "retry": {"initial-backoff": 0.01}}}
    async with Peer.as_service() as peer, dispatching(catalog(work=tools)) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("work", timeout=10))
        await peer.request()
        await dispatcher.reload(
            catalog(service={"policy": {"outlier-detection": {"consecutive-failures": 77}}}, work=tools)
        )
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        assert (await call).ok
        (pool,) = dispatcher._running.pool_registry.of_service("lab")
        assert pool.balancer._detector.settings.consecutive_failures == 77


# -- what is open -----------------------------------------------------------------------------------------------------
async def test_reloads_leave_nothing_open() -> None:
    names = [f"a@{number}" for number in range(20)]
    transport = CountedTransport()
    async with servers(*names, "b"):
        async with dispatching(services(names[0], "b"), transport=transport, client_id="d") as dispatcher:
            for name in names:
                await dispatcher.reload(services(name, "b"))
                for tool in "ab":
                    assert (await dispatcher.execute(tool)).ok
            await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
            assert transport.left_open == await opened_by(services(names[-1], "b"), "a", "b")
            await dispatcher.reload(Catalog.empty())
            await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
            assert transport.left_open == {}
        assert transport.left_open == {}


async def test_calls_that_began_before_a_reload_end_as_they_began() -> None:
    gate = asyncio.Event()

    async def wait(_: dict[str, Any]) -> str:
        await gate.wait()
        return "done"

    transport = CountedTransport()
    async with (
        servers("a@1", work=wait),
        servers("a@2"),
        dispatching(services("a@1"), transport=transport, client_id="d") as dispatcher,
    ):
        calls = [asyncio.create_task(dispatcher.execute("a", timeout=300)) for _ in range(3)]
        await asyncio.sleep(1)
        await dispatcher.reload(services("a@2"))
        assert (await dispatcher.execute("a")).ok
        await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
        assert any(topic.endswith("/a1") for _, topic in transport.left_open)
        gate.set()
        assert all(result.ok for result in await asyncio.gather(*calls))
        await asyncio.sleep(2 * UNUSED_S)
        assert transport.left_open == await opened_by(services("a@2"), "a")


async def test_a_call_that_began_before_a_reload_is_repeated_where_it_began() -> None:
    tool = {"idempotent": True, "policy": {"attempt-timeout": 1, "retry": {"initial-backoff": 0.01}}}
    transport = CountedTransport()
    request = topics_of("a1")["request-queue"]
    async with (
        Peer._listening(request) as peer,
        dispatching(services("a@1", **tool), transport=transport) as dispatcher,
    ):
        call = asyncio.create_task(dispatcher.execute("a", timeout=10))
        await peer.request()
        await dispatcher.reload(Catalog.empty())
        await asyncio.sleep(0.5)
        _, properties = await peer.request()
        await peer.answer(properties, "done")
        assert (await call).text == "done"
        await asyncio.sleep(RETENTION_S)
        assert transport.left_open == {}


async def test_a_catalogue_that_comes_back_finds_its_pool() -> None:
    gate = asyncio.Event()

    async def wait(arguments: dict[str, Any]) -> str:
        if arguments:
            await gate.wait()
        return "done"

    async with servers("a@1", "a@2", work=wait), dispatching(services("a@1")) as dispatcher:
        call = asyncio.create_task(dispatcher.execute("a", {"wait": 1}))
        await asyncio.sleep(1)
        (before,) = dispatcher._running.pool_registry.of_service("a")
        await dispatcher.reload(services("a@2"))
        assert (await dispatcher.execute("a")).ok
        await dispatcher.reload(services("a@1"))
        assert dispatcher._running.pool_registry.of_service("a") == [before]
        gate.set()
        assert (await call).ok
        await asyncio.sleep(1)
        result = await dispatcher.execute("a")
        assert result.ok
        assert result.duration == 0.0


async def test_topics_that_are_needed_again_while_they_are_being_closed_are_opened_after_that() -> None:
    transport = CountedTransport()  # it refuses a second subscription of one name
    async with servers("a"), dispatching(services("a"), transport=transport, client_id="d") as dispatcher:
        assert (await dispatcher.execute("a")).ok
        for _ in range(3):
            await dispatcher.reload(Catalog.empty())
            await asyncio.sleep(0.001)
            await dispatcher.reload(services("a"))
            assert (await dispatcher.execute("a")).ok
        await asyncio.sleep(1)
        assert transport.left_open == await opened_by(services("a"), "a")


@pytest.mark.costly
async def test_topics_that_services_share_are_closed_with_the_last_of_them() -> None:
    """Both have one response topic, and a policy with further connections for large answers."""
    shared = {"response-queue": "non-persistent://tg/response/shared"}

    def tools(*names: str) -> Catalog:
        made = [{"id": name, **topics_of(name), **shared} for name in names]
        return Catalog.of(made, [tool_of(name, name, policy={"bulkhead": 200}) for name in names])

    transport = CountedTransport()
    async with contextlib.AsyncExitStack() as stack:
        for name in "ab":
            await stack.enter_async_context(serving(lambda _: "x" * 40_000, at={**topics_of(name), **shared}))
        dispatcher = await stack.enter_async_context(dispatching(tools("a", "b"), transport=transport, client_id="d"))
        for name in "ab":
            for _ in range(3):
                results = await asyncio.gather(*(dispatcher.execute(name) for _ in range(150)))
                assert all(result.ok for result in results)
        assert sum("dispatch-reply-" in topic for _, topic in transport.left_open) > 1
        await dispatcher.reload(tools("b"))
        await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
        assert ("subscription", shared["response-queue"]) in transport.left_open
        assert ("publisher", "non-persistent://tg/request/a") not in transport.left_open
        assert (await dispatcher.execute("b")).ok
        await dispatcher.reload(Catalog.empty())
        await asyncio.sleep(RETENTION_S + 2 * UNUSED_S)
        assert transport.left_open == {}
        await dispatcher.reload(tools("a"))
        assert (await dispatcher.execute("a")).ok


@pytest.mark.parametrize("then", ["ends", "is closed"])
async def test_topics_that_are_being_opened_during_a_reload_are_closed_too(then: str) -> None:
    transport = CountedTransport()
    async with servers("a"):
        dispatcher = Dispatcher(transport, services("a"))
        await dispatcher.start()
        transport.slow = 1.0
        call = asyncio.create_task(dispatcher.execute("a"))
        await asyncio.sleep(0.5)
        await dispatcher.reload(Catalog.empty())
        if then == "ends":
            assert (await call).ok
            await asyncio.sleep(RETENTION_S + 5)
            assert transport.left_open == {}
        await dispatcher.close()
        assert (await call).ok == (then == "ends")


# -- what is known ----------------------------------------------------------------------------------------------------
async def test_what_is_known_of_services_that_stay_stays() -> None:
    transport = CountedTransport()
    async with servers("a", "b"), dispatching(services("a", "b"), transport=transport) as dispatcher:
        for tool in "ab":
            assert (await dispatcher.execute(tool)).ok
        breaker, before = dispatcher.breaker("b"), dispatcher.instances("b")
        await dispatcher.reload(services("b"))
        await asyncio.sleep(1)
        assert dispatcher.breaker("b") is breaker
        assert [view.id for view in dispatcher.instances("b")] == [view.id for view in before] == ["b-i"]
        opened = dict(transport.left_open)
        assert (await dispatcher.execute("b")).duration == 0.0
        assert transport.left_open == opened


async def test_instances_are_counted_once() -> None:
    board = Board()
    async with servers("a@1", "a@2"), telling(board.telemetry(), services("a@1")) as dispatcher:
        changes = follow_instances(dispatcher)
        assert (await dispatcher.execute("a")).ok
        await dispatcher.reload(services("a@2"))
        assert (await dispatcher.execute("a")).ok
        counted = {name: value for name, value in board.read().items() if name.startswith("instances ")}
        assert sum(counted.values()) == 1
        found = [(each.instance, each.change) for each in changes]
        assert found == [("a1-i", "joined"), ("a1-i", "left"), ("a2-i", "joined")]


RELOADS = 20


class Refusing(MemoryTransport):
    """Refuses the topics of the instance ``missing``."""

    async def publisher(self, topic: str) -> MemoryPublisher:
        if "missing" in topic:
            raise TransportError("unauthorized", "not for you", may_have_run=False)
        return await super().publisher(topic)


def instance(name: str, number: int = 0) -> dict[str, str]:
    return {"id": name, **topics_of(f"lab-{name}-{number}")}


def with_a_missing_instance(number: int = 0) -> Catalog:
    return catalog(service={"instances": [instance("there"), instance("missing", number)]})


def another() -> Catalog:
    return Catalog.of([{"id": "other", **topics_of("other")}], [])


def served() -> Any:
    return serving(lambda _: "done", at=instance("there"), instance="there")


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
    return len(dispatcher._running.pool_registry._entries)


LIMITS = {"rate-limit": "1000/s", "user-rate-limit": "1000/s"}
PACKAGE = str(Path(dispatch.__file__).parent)


@pytest.mark.parametrize("policy", [{}, LIMITS, {"bulkhead": None, "breaker": None, "retry": 1}])
async def test_a_warm_call_does_not_ask_for_the_running_loop(policy: dict[str, Any]) -> None:
    asked: list[str] = []

    def observe(frame: FrameType, event: str, function: object) -> None:
        file = frame.f_code.co_filename
        is_ours = file.startswith(PACKAGE) and not file[len(PACKAGE) :].startswith(("/serving/", "/transports/"))
        if is_ours and event == "c_call" and function in (asyncio.get_running_loop, asyncio.current_task):
            asked.append(f"{file}:{frame.f_lineno}")

    async with stand(lambda _: "done", catalog(work={"policy": policy})) as (dispatcher, _):
        await dispatcher.call("work", user="alice")
        sys.setprofile(observe)
        try:
            answers = [await dispatcher.call("work", user="alice") for _ in range(2)]
        finally:
            sys.setprofile(None)
    assert answers == ["done", "done"]
    assert asked == []


MOST_ENTERED = {"calls": 90, "serving": 32}
"""Functions of dispatch that one of 64 calls enters, those of a packet divided by the calls in it: a measure of processor
time without noise. A coroutine counts each time it goes on. A shorter path lowers them; a longer one needs a reason."""


async def test_a_warm_call_enters_few_functions() -> None:
    entered: Counter[str] = Counter()

    def observe(frame: FrameType, event: str, _function: object) -> None:
        file = frame.f_code.co_filename
        part = file[len(PACKAGE) :]
        if event == "call" and file.startswith(PACKAGE) and not part.startswith(("/transports/", "/testing/")):
            entered["serving" if part.startswith("/serving/") else "calls"] += 1

    async with stand(lambda _: "done") as (dispatcher, _):
        await dispatcher.call("work")
        await asyncio.sleep(1)  # no further instances are expected
        sys.setprofile(observe)
        try:
            await asyncio.gather(*(dispatcher.call("work", user="alice", timeout=5) for _ in range(64)))
        finally:
            sys.setprofile(None)
    found = {side: round(count / 64) for side, count in entered.items()}
    assert found == {side: min(found[side], most) for side, most in MOST_ENTERED.items()}
