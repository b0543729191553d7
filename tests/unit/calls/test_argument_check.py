"""Arguments are checked before a call where the policy says so: all mistakes at once, and nothing is sent."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

import pytest

from dispatch import CallResult, Dispatcher, Outcome, ToolError
from dispatch.calls import call
from dispatch.calls.call import schema_of_arguments
from dispatch.documents import thaw
from dispatch.errors import InvalidArgumentsError
from dispatch.schemas import MAX_VALIDATORS, SchemaValidator, ValidatorCache
from tests.helpers.dispatcher_and_service import Service, catalog, stand

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
