"""``dispatch.Functions`` on the embedded transport: every kind of function, injection, and refusals."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import datetime
import enum
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

import dispatch
from dispatch.catalog import CatalogError


@dispatch.tool(read_only=True)
def add(a: int, b: int = 0) -> int:
    """Add two whole numbers."""
    return a + b


NO_LIMIT = object()


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date | None = None


class Order(pydantic.BaseModel):
    id: int


def connect(*functions: Any, **options: Any) -> dispatch.Dispatcher:
    return dispatch.connect("memory://", catalog=[dispatch.Functions(*functions, **options)])


async def test_a_function_is_a_tool() -> None:
    async with connect(add) as dispatcher:
        assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
        tool = dispatcher.tool("add")
        assert (tool.description, tool.read_only) == ("Add two whole numbers.", True)
        assert tool.parameters["properties"]["b"] == {"type": "integer", "default": 0}
        (status,) = dispatcher.registry.sources()
        assert (status.id, status.state, status.tools) == ("functions", "ok", 1)


async def test_every_kind_of_function() -> None:
    class Shop:
        async def find(self, name: str) -> str:
            return f"found {name}"

    async def count(to: int) -> AsyncIterator[Any]:
        for number in range(to):
            yield {"n": number}
        yield "end"

    def later() -> Any:
        return Shop().find("later")

    def chunks() -> Any:
        return count(1)

    async with connect(add, Shop().find, count, later, chunks) as dispatcher:
        assert await dispatcher.call("find", {"name": "tea"}) == "found tea"
        assert [chunk async for chunk in dispatcher.stream("count", {"to": 2})] == ['{"n": 0}', '{"n": 1}', "end"]
        assert await dispatcher.call("count", {"to": 1}) == '{"n": 0}end'
        assert await dispatcher.call("later") == "found later"
        assert await dispatcher.call("chunks") == '{"n": 0}end'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ein Text ☕", "ein Text ☕"),
        (None, "null"),
        ([1, 2.5, True], "[1, 2.5, true]"),
        ({"größe": 1}, '{"größe": 1}'),
        ({1: "a"}, '{"1": "a"}'),
        (Point(1, datetime.date(2026, 1, 2)), '{"x": 1, "when": "2026-01-02"}'),
        ([Colour.RED, {"a"}, (1,)], '["red", ["a"], [1]]'),
        (Order(id=1), '{"id": 1}'),
        ([Order(id=1)], '[{"id": 1}]'),
    ],
)
async def test_results(value: Any, text: str) -> None:
    async def give() -> Any:
        return value

    async with connect(give) as dispatcher:
        assert await dispatcher.call("give") == text


async def test_a_result_that_json_cannot_express() -> None:
    async def give() -> Any:
        return object()

    async with connect(give) as dispatcher:
        with pytest.raises(dispatch.ToolError, match="JSON cannot express a object") as caught:
            await dispatcher.call("give")
        assert caught.value.type == "TypeError"


async def test_arguments_have_the_types_of_the_signature() -> None:
    seen: list[Any] = []

    async def record(point: Point, colour: Colour, order: Order) -> None:
        seen.extend((point, colour, order))

    async with connect(record) as dispatcher:
        await dispatcher.call("record", {"point": {"x": 1.0}, "colour": "red", "order": {"id": 2}})
        assert seen == [Point(1), Colour.RED, Order(id=2)]
        result = await dispatcher.execute("record", {"point": {"x": "1"}, "colour": "red", "order": {"id": 2}})
        assert isinstance(result.error, dispatch.InvalidArgumentsError)
        assert "/point/x must be an integer, not a string" in result.error.message
        assert result.attempts == 0


@pytest.mark.parametrize(
    "error", [ValueError("no such order"), KeyError("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(1)]
)
async def test_what_a_function_raises_is_the_tool_s_error(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    async with connect(fail, fail_async) as dispatcher:
        for name in ("fail", "fail_async"):
            result = await dispatcher.execute(name)
            assert isinstance(result.error, dispatch.ToolError)
            expected = "RuntimeError" if isinstance(error, StopIteration) else type(error).__name__
            assert result.error.type == expected


async def test_own_types_of_errors() -> None:
    def fail() -> None:
        raise dispatch.ToolError("no-stock", "There is no tea.")

    async with connect(fail) as dispatcher:
        with pytest.raises(dispatch.ToolError, match=r"^There is no tea\.$") as caught:
            await dispatcher.call("fail")
        assert caught.value.type == "no-stock"


async def test_providers_and_the_context_are_injected() -> None:
    created: list[str] = []

    def create() -> Database:
        created.append("database")
        return Database("orders")

    def find(
        key: str,
        database: Database | None,
        context: Annotated[dispatch.CallContext, "the call"],
        *,
        other: dispatch.CallContext | None = None,
    ) -> str:
        assert database is not None
        assert other is context
        return f"{key} in {database.name} for {context.user}"

    dispatcher = connect(find)
    dispatcher.provide(Database, create)
    async with dispatcher:
        assert list(dispatcher.tool("find").parameters["properties"]) == ["key"]
        assert await dispatcher.call("find", {"key": "a"}, user="alice") == "a in orders for alice"
        assert await dispatcher.call("find", {"key": "b"}, user="bob") == "b in orders for bob"
        assert len(created) == 2
        for name in ("database", "context"):
            result = await dispatcher.execute("find", {"key": "a", name: {"name": "other", "user": "root"}})
            assert isinstance(result.error, dispatch.InvalidArgumentsError)
            assert f'/{name} is not an expected property: "key"' in result.error.message


async def test_a_provider_may_be_a_coroutine_function() -> None:
    async def open_database() -> Database:
        await asyncio.sleep(0)
        return Database("orders")

    async def find(database: Database) -> str:
        return database.name

    dispatcher = connect(find)
    dispatcher.provide(Database, open_database)  # type: ignore[arg-type]
    async with dispatcher:
        assert await dispatcher.call("find") == "orders"


async def test_a_type_without_provider_is_refused_and_the_others_are_tools() -> None:
    def find(database: Database) -> str:
        return database.name

    async with connect(find, add) as dispatcher:
        assert await dispatcher.call("add", {"a": 1}) == "1"
        (status,) = dispatcher.registry.sources()
        assert (status.tools, status.refused) == (1, 1)
        assert (await dispatcher.execute("find")).error.type == "unknown-tool"  # type: ignore[union-attr]
        dispatcher.provide(Database, Database("late"))
        await dispatcher.registry.refresh("functions")
        assert await dispatcher.call("find") == "late"


def test_mistakes_are_listed_when_the_source_is_created() -> None:
    def search(*words: str, limit: Any = NO_LIMIT) -> None: ...

    def größe() -> None: ...

    with pytest.raises(CatalogError) as caught:
        dispatch.Functions(search, größe, add)
    keys = [(problem.file.rpartition(".")[2], problem.key) for problem in caught.value.problems]
    assert keys == [("search", "*words"), ("search", "limit"), ("größe", "")]


@pytest.mark.parametrize(
    ("declared", "key"),
    [
        ({"permissions": "tools:math"}, "permissions"),
        ({"read_only": True, "destructive": True}, "destructive"),
        ({"version": "2"}, "version"),
        ({"policy": {"timeout": -1}}, "policy.timeout"),
        ({"policy": {"timeouts": 1}}, "policy.timeouts"),
    ],
)
def test_mistakes_of_a_declaration_are_listed_likewise(declared: dict[str, Any], key: str) -> None:
    with pytest.raises(CatalogError) as caught:
        dispatch.Functions(dispatch.tool(name="run", **declared)(lambda: None))
    assert [problem.key for problem in caught.value.problems] == [key]


def test_two_functions_of_one_name() -> None:
    with pytest.raises(CatalogError, match=r"has the name 'add' already\. Fix: give one of them another name"):
        dispatch.Functions(add, dispatch.tool(name="add")(lambda: None))


async def test_two_versions_of_one_name() -> None:
    first = dispatch.tool(name="greet", version="1.0.0")(lambda: "hello")
    second = dispatch.tool(name="greet", version="2.0.0")(lambda: "good day")
    async with connect(first, second) as dispatcher:
        assert await dispatcher.call("greet") == "good day"
        assert await dispatcher.call("greet", version="^1.0") == "hello"


async def test_namespaces() -> None:
    async with connect(add, namespace="crm") as dispatcher:
        assert await dispatcher.call("crm-add", {"a": 2}) == "2"


def test_what_is_no_function() -> None:
    with pytest.raises(TypeError, match=r"'shop' is no function\. Fix: write Functions"):
        dispatch.Functions("shop")  # type: ignore[arg-type]


async def test_two_sources_of_functions() -> None:
    def subtract(a: int, b: int) -> int:
        return a - b

    sources = [dispatch.Functions(add), dispatch.Functions(subtract, id="more")]
    async with dispatch.connect("memory://", catalog=sources) as dispatcher:
        assert await dispatcher.call("add", {"a": 2, "b": 1}) == "3"
        assert await dispatcher.call("subtract", {"a": 2, "b": 1}) == "1"


async def test_a_source_belongs_to_one_dispatcher_at_a_time() -> None:
    functions = dispatch.Functions(add)
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        assert await dispatcher.call("add", {"a": 1}) == "1"
        with pytest.raises(RuntimeError, match="Fix: create a Functions for each dispatcher"):
            await dispatch.connect("memory://", catalog=[functions]).start()
    async with dispatch.connect("memory://", catalog=[functions]) as dispatcher:
        assert await dispatcher.call("add", {"a": 1}) == "1"


async def test_a_source_is_added_and_removed_while_the_dispatcher_runs() -> None:
    async with dispatch.connect("memory://", catalog=[]) as dispatcher:
        await dispatcher.registry.add_source(dispatch.Functions(add))
        assert await dispatcher.call("add", {"a": 1}) == "1"
        await dispatcher.registry.remove_source("functions")
        assert (await dispatcher.execute("add", {"a": 1})).error.type == "unknown-tool"  # type: ignore[union-attr]


async def test_a_descriptor_may_give_a_function_another_name() -> None:
    async with connect(add) as dispatcher:
        tool = {"type": "tool-service", "description": "Adds.", "service": "functions"}
        await dispatcher.registry.put("tool", {**tool, "name": "sum", "tool": "add"})
        assert await dispatcher.call("sum", {"a": 1, "b": 1}) == "2"
        await dispatcher.registry.put("tool", {**tool, "name": "other", "tool": "subtract"})
        result = await dispatcher.execute("other")
        assert isinstance(result.error, dispatch.RejectedError)
        assert result.error.message == (
            "Tool 'other' was not executed: its source has no function 'subtract'. Use another tool, or correct 'tool' "
            "in its descriptor."
        )


async def test_context_variables_reach_threads() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    def read() -> str:
        return variable.get()

    async with connect(read) as dispatcher:
        variable.set("set by the caller")
        assert await dispatcher.call("read") == "set by the caller"


async def test_a_failed_reload_leaves_the_functions_in_force(tmp_path: Path) -> None:
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "bad.json").write_text("{")
    async with connect(add) as dispatcher:
        with pytest.raises(CatalogError):
            await dispatcher.reload([dispatch.Functions(add), tmp_path])
        gc.collect()
        assert await dispatcher.call("add", {"a": 1}) == "1"
        await dispatcher.reload([dispatch.Functions(add)])
        gc.collect()
        assert await dispatcher.call("add", {"a": 1}) == "1"


async def test_the_end_of_a_stream_closes_its_generator() -> None:
    ends: list[str] = []

    async def count() -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(1)
        finally:
            ends.append("closed")

    async with connect(count) as dispatcher:
        async with contextlib.aclosing(dispatcher.stream("count")) as chunks:
            assert await anext(chunks) == "x"
        await asyncio.sleep(0)
        assert ends == ["closed"]
        result = await dispatcher.execute("count", timeout=2.5)
        assert result.outcome == "timeout"
        await asyncio.sleep(0)
        assert ends == ["closed", "closed"]


async def test_an_unchanged_function_is_the_same_item() -> None:
    functions = dispatch.Functions(add)
    first, second = await functions.discover(), await functions.discover()
    assert all(one is other for one, other in zip(first, second, strict=True))
