"""What a dispatcher holds stays constant over any number of activations of a catalogue.
The payload of a request stays within the limits of the broker and the policy.
Arguments are checked before a call where the policy says so: all mistakes at once, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import gc
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from dispatch import CallResult, Catalog, Dispatcher, Outcome, Policy, ToolError, ToolService
from dispatch._internal import RETENTION_S
from dispatch.calls import call
from dispatch.calls.call import request_payload, schema_of_arguments
from dispatch.calls.resolution import ResolvedTool, ToolResolver
from dispatch.documents import thaw
from dispatch.errors import InvalidArgumentsError
from dispatch.messaging.wire import PayloadTooLargeError, decode_request
from dispatch.protocol.settings import DEFAULT_SETTINGS
from dispatch.schemas import MAX_VALIDATORS, SchemaValidator, ValidatorCache
from tests.helpers.clock import advance
from tests.helpers.counted_transport import CountedTransport
from tests.helpers.dispatcher_and_service import Service, catalog, serving, stand
from tests.helpers.run_profile import by_profile
from tests.helpers.telemetry_capture import Board

PER_S = by_profile(short=2, long=10)
"""Activations per second; ten are as many as a registry makes at most."""
SETTLED = int(1.2 * RETENTION_S * PER_S)
"""Activations after which as much is dropped as is added."""
ACTIVATIONS = by_profile(short=150, long=2_000)


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


def catalog_own(number: int) -> Catalog:
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
@pytest.mark.alone
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
        assert unchecked is not None
        explained = unchecked.message.startswith("The argument 'topic' is missing.")
        assert (unchecked.type, explained) == ("KeyError", tool == "trustgraph")
        assert str(unchecked) == unchecked.message
        with pytest.raises(ToolError) as raised:
            await anext(dispatcher.stream(tool, {}))
        assert raised.value.message == unchecked.message
        own = (await dispatcher.execute(tool, {"topic": "cats"})).error
        assert own is not None
        assert own.message == "'cats'"


@dataclasses.dataclass
class Place:
    x: int


async def test_arguments_are_checked_as_the_tool_receives_them() -> None:
    service = Service(lambda _: "done")
    async with stand(service, TOOLS) as (dispatcher, _):
        arguments = {"place": datetime.date(2026, 1, 2), "at": Place(3)}
        assert await dispatcher.call("always", arguments) == "done"
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
        assert result.error is not None
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
        assert isinstance(dispatcher, Dispatcher)
        result = await dispatcher.execute("work", WRONG, by_model=True, user="alice")
        assert result.error is not None
        assert result.error.type == "not-permitted"  # its text names no argument
