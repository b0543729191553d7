"""``dispatch.Functions`` on the embedded transport: every kind of function, injection, and refusals.
The conversion of JSON arguments to the types of a signature.
Docstrings in three styles, and without docstring-parser.
Parameters of callables, and members of annotations.
Providers of values by type.
Types of parameters as JSON Schema, and JSON values in these types.
What ``@dispatch.tool`` declares.
The executor of functions, without a dispatcher.
Functions as tools: descriptors, injected parameters, and every error of a registration.
``dispatch.ToolPackage``: the functions of a package, and modules that cannot be imported.
"""

from __future__ import annotations

import asyncio
import collections.abc
import contextlib
import contextvars
import dataclasses
import datetime
import enum
import functools
import gc
import os
import sys
import threading
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, Optional, Protocol, TypedDict, Union

import annotated_types
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

import dispatch
from dispatch.calls.local import CallContext, LocalCall, RefusedCallError
from dispatch.catalog import CatalogError
from dispatch.documents import Report
from dispatch.errors import InvalidArgumentsError, ThrottledError
from dispatch.functions import FunctionExecutor, FunctionTool, Providers
from dispatch.functions.schema import (
    NO_DECLARATION,
    REQUIRED,
    Arguments,
    Definitions,
    UnsupportedTypeError,
    as_json_type,
    decode_custom,
    describe_type,
    find_declaration,
    find_injected_type,
    iterate_members,
    read_docstring,
    read_parameters,
    tool,
    unwrap,
)
from dispatch.messaging.wire import encode_custom


@dispatch.tool(read_only=True)
def add(a: int, b: int = 0) -> int:
    """Add two whole numbers."""
    return a + b


NO_LIMIT = object()


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class Vault: ...


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str] = dataclasses.field(default_factory=list)


PointAlias = TypeAliasType("PointAlias", Point)  # "type PointAlias = Point" since Python 3.12


class Order(pydantic.BaseModel):
    id: int
    parts: list[Order] = []


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


@dataclasses.dataclass(frozen=True)
class Item:
    name: str
    quantity: int = 1


@dataclasses.dataclass(slots=True)
class Cart:
    items: list[Item]
    best: Item | None = None
    owner: Any = None

    def __post_init__(self) -> None:
        self.owner = [self]


async def test_a_dataclass_of_an_argument_has_the_defaults_of_its_fields() -> None:
    def read(item: Item, cart: Cart) -> list[Any]:
        return [item, vars(item), [vars(each) for each in cart.items], {1: cart.best}]

    async with connect(read) as dispatcher:
        item = {"name": "lamp"}
        text = await dispatcher.call("read", {"item": item, "cart": {"items": [item], "best": item}})
    whole = {"name": "lamp", "quantity": 1}
    assert msgspec.json.decode(text) == [whole, whole, [whole], {"1": whole}]


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
            if isinstance(error, KeyError | SystemExit):  # texts that say nothing without the class
                assert result.error.message == f"{expected}: {error}"


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
        refused = (await dispatcher.execute("find")).error
        assert refused.type == "unknown-tool"
        assert refused.message == (
            "No tool was executed: the tool 'find' was refused when it was loaded (database: the type 'Database' is neither "
            "provided nor a type of JSON values). Use another tool; to have this one, call dispatch.provide(Database, …) in "
            "its module, or dispatcher.provide(Database, …) before the dispatcher starts; or annotate a type such as str "
            "or a dataclass."
        )
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
    fix = r"a str is no function\. Fix: for a package or module write ToolPackage\('shop'\)\."
    with pytest.raises(TypeError, match=fix):
        dispatch.Functions("shop")  # type: ignore[arg-type]


class Adder:
    def __call__(self, a: int) -> int: ...


class Shop:
    def __init__(self) -> None: ...

    def price(self, product: str) -> float: ...

    def order(self, product: str) -> str: ...


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Adder, "the class Adder is no function. Fix: give an object of it: Functions(Adder())."),
        (
            Shop,
            "the class Shop is no function. Fix: give methods of an object of it: Functions(shop.price, shop.order).",
        ),
        (Shop(), "a Shop is no function. Fix: give its methods: Functions(shop.price, shop.order)."),
        (Vault, "the class Vault is no function. Fix: write Functions(add, find)."),
        (3, "an int is no function. Fix: write Functions(add, find)."),
        ([add], "a list is no function. Fix: write a star before it: Functions(*functions)."),
    ],
)
def test_a_class_or_an_object_in_place_of_its_functions(given: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        dispatch.Functions(given)
    assert str(caught.value) == message


def test_what_a_decorator_accepts() -> None:
    with pytest.raises(TypeError, match=r"policy must be a dict such as \{'timeout': 5\}, not a Policy\."):
        dispatch.tool(policy=dispatch.Policy(timeout=5))  # type: ignore[call-overload]
    assert find_declaration(tool(tags=None, permissions=None)(lambda: 0)) == NO_DECLARATION  # type: ignore[call-overload]


async def test_an_object_has_the_name_of_its_class() -> None:
    class Adder:
        def __call__(self, a: int, b: int) -> int:
            """Add."""
            return a + b

    async with connect(functools.partial(Adder(), b=1)) as dispatcher:
        assert await dispatcher.call("Adder", {"a": 1}) == "2"


async def test_an_object_that_is_a_decorator_has_docstring_types_and_declaration_of_its_function() -> None:
    class Logged:
        def __init__(self, function: Callable[..., Any]) -> None:
            functools.update_wrapper(self, function, updated=())
            self.function = function

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.function(*args, **kwargs)

    @Logged
    @tool(read_only=True)
    async def add_one(number: int) -> int:
        """Add one."""
        return number + 1

    async with connect(add_one) as dispatcher:
        bound = dispatcher.tool("add_one")
        assert (bound.description, bound.read_only) == ("Add one.", True)
        assert await bound.invoke(number=1) == "2"


def test_a_declaration_is_found_below_partial_objects_and_on_methods_of_a_class() -> None:
    class Shop:
        @tool(permissions=["shop:read"])
        @staticmethod
        def find(name: str) -> str:
            return name

        @tool(permissions=["shop:read"])
        @classmethod
        def open(cls) -> str:
            return cls.__name__

        @tool(permissions=["shop:read"])
        def sell(self, name: str, number: int) -> str:
            return name * number

    shop = Shop()
    partial = functools.partial(functools.partial(shop.sell), "tea")
    own = tool(name="own")(functools.partial(shop.sell, "tea"))
    for function in (Shop.find, shop.find, Shop.open, shop.sell, partial):
        assert read(function).describe("functions")["permissions"] == ("shop:read",)
    assert "permissions" not in read(own).describe("functions")
    assert (Shop.find("tea"), Shop.open(), own(2)) == ("tea", "Shop", "teatea")


async def test_parameters_may_have_any_name() -> None:
    def store(data: str, cls: str = "none", __secret: int = 3, _field: str = "") -> list[Any]:
        return [data, cls, __secret, _field]

    async with connect(store) as dispatcher:
        assert await dispatcher.call("store", {"data": "x"}) == '["x", "none", 3, ""]'
        assert await dispatcher.call("store", {"data": "x", "__secret": 4.0, "cls": "y"}) == '["x", "y", 4, ""]'
        error = (await dispatcher.execute("store", {"data": "x", "__secret": "y"})).error
        assert "/__secret must be an integer, not a string" in error.message


def test_a_default_whose_text_cannot_be_read_is_reported() -> None:
    class Proxy:
        def __repr__(self) -> str:
            raise RuntimeError("outside of a request")

    def find(app: Any = Proxy()) -> None: ...  # noqa: B008 - of a framework

    problem = r"app: JSON cannot express the default value \(the text of a Proxy cannot be read"
    with pytest.raises(CatalogError, match=problem):
        dispatch.Functions(find)


async def test_an_alias_of_a_provided_type_is_injected() -> None:
    async def find(point: PointAlias, number: int) -> int:
        return point.x + number

    dispatcher = connect(find)
    dispatcher.provide(Point, Point(3))
    async with dispatcher:
        assert list(dispatcher.tool("find").parameters["properties"]) == ["number"]
        assert await dispatcher.call("find", {"number": 4}) == "7"


async def test_types_of_pydantic_and_times() -> None:
    def visit(page: pydantic.HttpUrl, at: datetime.datetime | None = None) -> list[str]:
        return [page.host or "", str(at)]

    async with connect(visit) as dispatcher:
        properties = dispatcher.tool("visit").parameters["properties"]
        assert (properties["page"]["format"], properties["at"]["anyOf"][0]["format"]) == ("uri", "date-time")
        args = {"page": "https://pulsar.apache.org/x", "at": "2026-01-02T03:04:05"}
        assert await dispatcher.call("visit", args) == '["pulsar.apache.org", "2026-01-02 03:04:05"]'
        error = (await dispatcher.execute("visit", {"page": "x"})).error
        assert "/page: Input should be a valid URL" in error.message


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


async def test_a_dispatcher_that_was_refused_a_source_does_not_release_it() -> None:
    def find(database: Database) -> str:
        return database.name

    functions = dispatch.Functions(find)

    def make(name: str) -> dispatch.Dispatcher:
        dispatcher = dispatch.connect("memory://", catalog=[functions])
        dispatcher.provide(Database, Database(name))
        return dispatcher

    async with make("orders") as first:
        await make("never started").close()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="another dispatcher uses the source 'functions'"):
                await make("invoices").start()
        async with dispatch.connect("memory://", catalog=[]) as other:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="another dispatcher uses the source 'functions'"):
                    await other.reload([functions])
                with pytest.raises(RuntimeError, match="another dispatcher uses the source 'functions'"):
                    await other.registry.add_source(functions)
                assert other.registry.sources() == ()
            await other.registry.add_source(dispatch.Functions(add))
            assert await other.call("add", {"a": 1}) == "1"
        assert await first.call("find") == "orders"


def test_a_dispatcher_that_is_closed_on_another_loop_releases_its_source() -> None:
    functions = dispatch.Functions(add)

    async def begin(dispatcher: dispatch.Dispatcher) -> None:
        await dispatcher.start()
        assert await dispatcher.call("add", {"a": 1}) == "1"

    for _ in range(2):
        dispatcher = dispatch.connect("memory://", catalog=[functions])
        asyncio.run(begin(dispatcher))
        asyncio.run(dispatcher.close())


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
        for key, shown in (("subtract", "subtract"), (None, "None"), (3, "3"), (["add"], "['add']")):
            await dispatcher.registry.put("tool", {**tool, "name": "other", "tool": key})
            result = await dispatcher.execute("other")
            assert isinstance(result.error, dispatch.RejectedError)
            assert result.error.message == (
                f"Tool 'other' was not executed: its source has no function '{shown}'. Use another tool, or correct 'tool' "
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


def arguments_of(function: Any) -> Arguments:
    report = Report("test")
    arguments = Arguments(read_parameters(function, report), {}, report)
    assert report.problems == []
    return arguments


def paint(point: Point, colour: Colour = Colour.RED, size: float = 1, name: str | None = None) -> None: ...


PAINT = arguments_of(paint)


def test_an_argument_that_is_not_given_is_not_passed() -> None:
    assert PAINT.schema["properties"]["colour"] == {"$ref": "#/$defs/Colour", "default": "red"}
    assert PAINT.convert("paint", {"point": {"x": 1}}) == ([], {"point": Point(1)})
    assert PAINT.convert("paint", {"point": {"x": 1}, "name": None}) == ([], {"point": Point(1), "name": None})


def test_positional_parameters() -> None:
    def move(x: int, y: int = 2, z: int = 3, /, speed: int = 4) -> None: ...

    arguments = arguments_of(move)
    assert arguments.convert("move", {"x": 1}) == ([1], {})
    assert arguments.convert("move", {"x": 1, "z": 5, "speed": 6}) == ([1, 2, 5], {"speed": 6})


POINT = {"x": 1}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({}, "the argument 'point' is missing (/point is required)"),
        ({"point": {}}, "/point/x is required"),
        ({"point": {"x": "1"}}, "/point/x must be an integer, not a string"),
        ({"point": {"x": 1.5}}, "/point/x must be an integer, not a number"),
        ({"point": {"x": True}}, "/point/x must be an integer, not a boolean"),
        ({"point": {"x": 1, "tags": ["a", 2]}}, "/point/tags/1 must be a string, not an integer"),
        ({"point": POINT, "colour": "green"}, '/colour must be one of the allowed values: "blue", "red"'),
        ({"point": POINT, "color": "red"}, '/color is not an expected property: "point", "colour", "size", "name"'),
    ],
)
def test_a_mistake_is_named_with_its_path(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgumentsError) as caught:
        PAINT.convert("paint", values)
    if problem[0] == "/":
        problem = f"its arguments have a mistake ({problem})"
    assert caught.value.message == f"Tool 'paint' was not executed: {problem}. Correct the arguments."
    assert caught.value.type == "invalid-arguments"


def test_keys_of_other_types_than_texts() -> None:
    def score(points: dict[int, Point]) -> None: ...

    assert arguments_of(score).convert("score", {"points": {"1": {"x": 2}}}) == ([], {"points": {1: Point(2)}})


def test_a_mistake_in_a_key_is_named_with_the_path_of_its_object() -> None:
    def score(points: list[dict[int, int]]) -> None: ...

    with pytest.raises(InvalidArgumentsError, match=r"executed: /points/0: a key: Expected `int`, got `str`\. Correct"):
        arguments_of(score).convert("score", {"points": [{"one": 2}]})


def test_whole_numbers_may_be_written_with_a_point() -> None:
    values = {"point": {"x": 3.0}, "size": 2.0}
    _, named = PAINT.convert("paint", values)
    assert named == {"point": Point(3), "size": 2.0}
    assert isinstance(named["point"].x, int)
    assert isinstance(named["size"], float)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["point", "colour", "size", "name", "z"]), JSON))
def test_any_json_is_converted_or_refused(values: dict[str, Any]) -> None:
    try:
        positional, named = PAINT.convert("paint", values)
    except InvalidArgumentsError:
        return
    assert positional == []
    assert named.keys() == values.keys()


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), JSON, max_size=4))
def test_values_of_any_type_pass_unchanged(values: dict[str, Any]) -> None:
    def record(given: Any) -> None: ...

    assert arguments_of(record).convert("record", {"given": values}) == ([], {"given": values})


GOOGLE = """Add two numbers.

    The result is exact.

    Args:
        a: The first number,
            a whole one.
        b (int): The second number.

    Returns:
        Their sum.
"""
NUMPY = """Add two numbers.

    The result is exact.

    Parameters
    ----------
    a : int
        The first number,
        a whole one.
    b, c : int
        The second number.

    Returns
    -------
    int
        Their sum.
"""
SPHINX = """Add two numbers.

    The result is exact.

    :param a: The first number,
        a whole one.
    :param int b: The second number.
    :returns: Their sum.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_description_and_parameters_of_each_style(text: str) -> None:
    found = read_docstring(text)
    assert found.description == "Add two numbers.\n\nThe result is exact."
    assert found.parameters["a"] == "The first number, a whole one."
    assert found.parameters["b"] == "The second number."
    assert found.parameters.get("c") == ("The second number." if text is NUMPY else None)


@pytest.mark.parametrize("text", [None, "", "  \n "])
def test_no_docstring(text: str | None) -> None:
    assert read_docstring(text) == ("", {})


def test_plain_text_is_the_description() -> None:
    assert read_docstring("Zähle 数え上げ.\n\n  More: of it.") == ("Zähle 数え上げ.\n\nMore: of it.", {})


def test_without_docstring_parser_the_whole_text_is_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docstring_parser", None)
    found = read_docstring(GOOGLE)
    assert found.description.startswith("Add two numbers.\n\nThe result is exact.\n\nArgs:\n    a: The first number,")
    assert found.parameters == {}


class Shop:
    def __call__(self, name: str) -> str:
        return name

    def find(self, name: str, /, limit: int = 3) -> None: ...


def names_of(function: Any) -> list[str]:
    report = Report("test")
    found = [parameter.name for parameter in read_parameters(function, report)]
    assert report.problems == []
    return found


def test_parameters_have_resolved_types_and_defaults() -> None:
    name, limit = read_parameters(Shop().find, Report("test"))
    assert (name.name, name.annotation, name.default, name.kind) == ("name", str, REQUIRED, name.POSITIONAL_ONLY)
    assert (limit.name, limit.annotation, limit.default) == ("limit", int, 3)
    assert limit.kind is limit.POSITIONAL_OR_KEYWORD
    (x,) = read_parameters(lambda x: x, Report("test"))
    assert (x.name, x.annotation, x.default) == ("x", Any, REQUIRED)


def test_every_kind_of_callable() -> None:
    shop = Shop()
    assert names_of(shop) == ["name"]
    assert names_of(functools.partial(shop.find, "tea")) == ["limit"]
    assert names_of(functools.partial(functools.partial(shop.find), limit=3)) == ["name", "limit"]
    for function in (shop, Shop.__call__, functools.partial(shop), functools.partial(shop.__call__, "x")):
        assert unwrap(function) is Shop.__call__


@pytest.mark.parametrize(
    ("annotation", "members"),
    [
        (int, [int]),
        (None, [None]),
        (Optional[int], [int]),  # noqa: UP045 - the old form
        (int | None | str, [int, str]),
        (Annotated[Annotated[int, 1] | None, 2], [int]),
        (Union[Annotated[int, 1], list[str]], [int, list[str]]),  # noqa: UP007 - the old form
        (list[int], [list[int]]),
    ],
)
def test_members(annotation: Any, members: list[Any]) -> None:
    assert list(iterate_members(annotation)) == members


def test_the_first_provided_member_is_injected() -> None:
    assert find_injected_type(str | Shop | int, lambda type: type in (Shop, int)) is Shop
    assert find_injected_type(str | None, lambda type: type is Shop) is None


class CallableVault(Vault):
    def __call__(self) -> str:
        return "not a factory"


class Reader(Protocol):
    def read(self) -> str: ...


class File:
    def read(self) -> str:
        return "text"


def test_an_instance_and_a_factory() -> None:
    providers = Providers()
    assert Vault not in providers
    database = CallableVault()
    providers.add(Vault, database)
    assert Vault in providers
    assert providers.get(Vault) is providers.get(Vault) is database
    providers.add(Vault, Vault)
    assert providers.get(Vault) is not providers.get(Vault)


def test_a_protocol_that_cannot_be_checked() -> None:
    providers = Providers()
    file = File()
    providers.add(Reader, file)
    assert providers.get(Reader) is file
    providers.add(Reader, lambda: "created")
    assert providers.get(Reader) == "created"
    providers.add(Reader, File)
    assert isinstance(providers.get(Reader), File)


def test_what_cannot_be_provided() -> None:
    providers = Providers()
    with pytest.raises(TypeError, match=r"provide\(\) needs a class, not 'Database'\. Fix"):
        providers.add("Database", Vault())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the provider of Vault is 3, neither an instance of it nor a function\. Fix"):
        providers.add(Vault, 3)

    def open_vault() -> Iterator[Vault]:
        yield Vault()

    async def await_vault() -> AsyncIterator[Vault]:
        yield Vault()

    for provider in (open_vault, await_vault):
        fix = r"the provider of Vault is a generator, .* Fix: write 'return' in its place"
        with pytest.raises(TypeError, match=fix):
            providers.add(Vault, provider)
    providers.add(collections.abc.Iterator, open_vault)
    assert isinstance(next(providers.get(collections.abc.Iterator)), Vault)
    with pytest.raises(LookupError, match=r"no provider of Vault\. Fix: call dispatcher\.provide\(Vault"):
        providers.get(Vault)


class Place(TypedDict, total=False):
    city: str


@pydantic.dataclasses.dataclass
class Checked:
    amount: Annotated[int, pydantic.Field(ge=1)]


@dataclasses.dataclass
class Basket:
    order: Order | None = None


UserId = NewType("UserId", int)


def schema_of(annotation: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    definitions = Definitions()
    return definitions.write(as_json_type(annotation)), definitions.schemas


def convert(value: Any, annotation: Any) -> Any:
    return msgspec.convert(value, as_json_type(annotation), dec_hook=decode_custom)


STRING, DATE = {"type": "string"}, {"type": "string", "format": "date"}


@pytest.mark.parametrize(
    ("annotation", "schema", "value", "converted"),
    [
        (int, {"type": "integer"}, 3, 3),
        (UserId, {"type": "integer"}, 3, 3),
        (Any, {}, [1], [1]),
        (object, {}, [1], [1]),
        (Literal["a", 1], {"enum": [1, "a"]}, "a", "a"),
        (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),  # noqa: UP045 - the old form
        (Annotated[int, msgspec.Meta(ge=1)], {"type": "integer", "minimum": 1}, 1, 1),
        (Annotated[int, "a text"], {"type": "integer"}, 1, 1),
        (Annotated[int, annotated_types.Ge(1)], {"type": "integer", "minimum": 1}, 1, 1),
        (Annotated[str, pydantic.Field(max_length=3)], {"type": "string", "maxLength": 3}, "abc", "abc"),
        (typing.Iterable, {"type": "array"}, [1], [1]),
        (collections.abc.Iterable[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
        (collections.abc.Sequence[int], {"type": "array", "items": {"type": "integer"}}, [1], [1]),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}, [1], (1,)),
        (dict[str, object], {"type": "object"}, {"a": 1}, {"a": 1}),
        (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["a"], {"a"}),
        (Path, {"type": "string"}, "a/b", Path("a/b")),
        (PurePosixPath, {"type": "string"}, "a/b", PurePosixPath("a/b")),
        (os.PathLike, {"type": "string"}, "a", Path("a")),
        (os.PathLike[str] | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}, "a", Path("a")),
        (list[str | Path], {"type": "array", "items": {"anyOf": [STRING, STRING]}}, ["a"], ["a"]),
        (str | datetime.date, {"anyOf": [STRING, DATE]}, "2026-01-01", "2026-01-01"),
        (
            Union[datetime.date, str],  # noqa: UP007 - the old form
            {"anyOf": [DATE, STRING]},
            "2026-01-01",
            datetime.date(2026, 1, 1),
        ),
    ],
)
def test_simple_types(annotation: Any, schema: dict[str, Any], value: Any, converted: Any) -> None:
    assert schema_of(annotation) == (schema, {})
    assert convert(value, annotation) == converted


def test_classes_become_definitions() -> None:
    schema, definitions = schema_of(dict[str, Point | None])
    assert schema["additionalProperties"]["anyOf"][0] == {"$ref": "#/$defs/Point"}
    assert definitions["Point"]["required"] == ["x"]
    assert convert({"a": {"x": 1}}, dict[str, Point | None]) == {"a": Point(1)}
    assert schema_of(Place)[1]["Place"]["properties"] == {"city": {"type": "string"}}
    assert convert({"city": "Kyōto"}, Place) == {"city": "Kyōto"}
    assert schema_of(Colour)[1]["Colour"]["enum"] == ["blue", "red"]
    assert convert("red", Colour) is Colour.RED


class Spot(NamedTuple):
    lat: float
    lon: float = 0.5


@dataclasses.dataclass
class Route:
    start: Spot
    ways: list[Route]


@pytest.mark.parametrize("annotation", [Spot, dict[str, Spot | None], Route])
def test_the_items_of_a_named_tuple_have_its_names(annotation: Any) -> None:
    items = schema_of(annotation)[1]["Spot"]["prefixItems"]
    assert items == [{"type": "number", "title": "lat"}, {"type": "number", "default": 0.5, "title": "lon"}]


def test_unions_that_msgspec_does_not_support_try_their_members_in_order() -> None:
    schema, definitions = schema_of(list[Point | Order | Colour | str])
    members = [{"$ref": "#/$defs/Point"}, {"$ref": "#/$defs/Order"}, {"$ref": "#/$defs/Colour"}, {"type": "string"}]
    assert schema == {"type": "array", "items": {"anyOf": members}}
    assert sorted(definitions) == ["Colour", "Order", "Point"]
    given = [{"x": 1}, {"id": 2}, "red", "green"]
    assert convert(given, list[Point | Order | Colour | str]) == [Point(1), Order(id=2), Colour.RED, "green"]
    with pytest.raises(msgspec.ValidationError, match=r"missing required field `x`; or /id Field required .*\[1\]"):
        convert([{"x": 1}, {}], list[Point | Order])


def test_pydantic_models_anywhere() -> None:
    schema, definitions = schema_of(Order)
    assert schema == {"$ref": "#/$defs/Order"}
    assert definitions["Order"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Order"}
    assert convert({"id": 1, "parts": [{"id": 2}]}, Order) == Order(id=1, parts=[Order(id=2)])
    assert sorted(schema_of(Basket)[1]) == ["Basket", "Order"]
    assert convert({"order": {"id": 1}}, Basket) == Basket(Order(id=1))
    assert convert({"amount": 1}, Checked) == Checked(1)
    with pytest.raises(msgspec.ValidationError, match=r"^/amount Input should be greater than or equal to 1$"):
        convert({"amount": 0}, Checked)
    with pytest.raises(msgspec.ValidationError, match=r"/parts/0/id Field required - at `\$\.order`"):
        convert({"order": {"id": 1, "parts": [{}]}}, Basket)
    assert msgspec.to_builtins(Order(id=1), enc_hook=encode_custom) == {"id": 1, "parts": []}


def test_definitions_of_one_name_are_kept_apart() -> None:
    @dataclasses.dataclass
    class Order:
        number: str

    definitions = Definitions()
    first = definitions.write(as_json_type(Order))
    second = definitions.write(as_json_type(globals()["Order"]))
    assert (first, second) == ({"$ref": "#/$defs/Order"}, {"$ref": "#/$defs/Order-2"})
    assert definitions.schemas["Order-2"]["properties"]["parts"]["items"] == {"$ref": "#/$defs/Order-2"}
    assert definitions.write(as_json_type(Order)) == first
    assert sorted(definitions.schemas) == ["Order", "Order-2"]


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (Vault, "Vault"),
        (Vault | None, "Vault"),
        (list[Vault], "Vault"),
        (Vault | str, "Vault"),
        (complex, "complex"),
        (collections.abc.Callable[[int], int], "collections.abc.Callable[[int], int]"),
    ],
)
def test_types_that_json_cannot_express(annotation: Any, name: str) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        as_json_type(annotation)
    assert describe_type(caught.value.type) == name


def test_a_field_of_a_type_that_json_cannot_express() -> None:
    holder = dataclasses.make_dataclass("Holder", [("database", Vault)])
    with pytest.raises(UnsupportedTypeError, match="'Vault' is no type of JSON values"):
        schema_of(holder)


def test_the_decorator_returns_the_function_itself() -> None:
    def add(a: int) -> int:
        return a

    assert tool(add) is add
    assert tool(read_only=True)(add) is add
    declaration = find_declaration(add)
    assert declaration.describe() == {"read-only": True}


def test_every_keyword_is_a_key_of_the_descriptor() -> None:
    @tool(
        name="sum",
        read_only=True,
        idempotent=True,
        destructive=False,
        permissions=iter(["tools:math"]),
        tags=("math", "fast"),
        category="math",
        version="1.2.0",
        policy={"timeout": 5},
    )
    def add() -> None: ...

    declaration = find_declaration(add)
    assert declaration.name == "sum"
    expected = {
        "read-only": True,
        "idempotent": True,
        "destructive": False,
        "permissions": ("tools:math",),
        "tags": ("math", "fast"),
        "category": "math",
        "version": "1.2.0",
        "policy": {"timeout": 5},
    }
    assert declaration.describe() == declaration.describe() == expected


def test_without_the_decorator_nothing_is_declared() -> None:
    def add() -> None: ...

    assert find_declaration(add) is None
    assert NO_DECLARATION.describe() == {}


def test_methods_and_partial_objects_can_be_declared() -> None:
    class Shop:
        @tool(read_only=True)
        def find(self, name: str) -> str:
            return name

    assert find_declaration(Shop().find) is not None
    partial = tool(name="increment")(functools.partial(pow, 2))
    assert find_declaration(partial) is not None


def test_what_cannot_be_declared_is_refused_with_the_fix() -> None:
    class Shop:
        def find(self) -> None: ...

    with pytest.raises(TypeError, match=r"inside its class if it is a method"):
        tool(Shop().find)
    with pytest.raises(TypeError, match=r"cannot be a tool\. Fix: decorate a function"):
        tool(Shop)
    with pytest.raises(TypeError, match=r"cannot be a tool"):
        tool(3)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"readonly"):
        tool(readonly=True)(test_methods_and_partial_objects_can_be_declared)  # type: ignore[call-overload]


def create(*functions: Any) -> FunctionExecutor:
    executor = FunctionExecutor()
    tools = [FunctionTool(function, lambda type: type is CallContext) for function in functions]
    executor.replace_tools({each.key: each for each in tools})
    return executor


def call(function: object, arguments: dict[str, Any] | None = None, concurrency: int | None = None) -> LocalCall:
    context = CallContext(tool="run", user="alice", call_id="1", attempt=1, deadline=0.0, clock=lambda: 0.0)
    return LocalCall("run", arguments or {}, {"tool": function}, context, concurrency)


@pytest.mark.wall_clock
async def test_all_threads_occupied_by_calls_that_have_ended() -> None:
    both_run, release = threading.Barrier(3), threading.Event()

    def hang() -> bool:
        if not release.is_set():
            both_run.wait(10)
        return release.wait(10)

    try:
        executor = create(hang)
        calls = [call("hang", concurrency=2) for _ in range(3)]
        tasks = [asyncio.create_task(executor.execute(each)) for each in calls]
        await asyncio.to_thread(both_run.wait, 10)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert executor.abandoned_threads == 2
        assert [each.occupied is not None for each in calls] == [True, True, False], "the third had no thread"
        with pytest.raises(RefusedCallError) as caught:
            await executor.execute(call("hang", concurrency=2))
        error = caught.value.error
        assert isinstance(error, ThrottledError)
        assert (error.rejected_by, error.message) == (
            "bulkhead",
            "Tool 'run' was not executed: all 2 threads of its function still run calls whose deadlines have passed. Use "
            "another tool, and make the function return in time.",
        )
    finally:
        release.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*(each.occupied for each in calls if each.occupied is not None))
    assert await executor.execute(call("hang", concurrency=2)) == "true"


if TYPE_CHECKING:
    from decimal import Decimal


def read(function: Any) -> FunctionTool:
    return FunctionTool(function, lambda type: type is Database)


def problems(function: Any, namespace: str = "") -> list[tuple[str, str, str]]:
    report = FunctionTool(function, lambda type: type is Database, namespace).report
    return [(each.key, each.problem, each.fix) for each in report.problems]


@tool(read_only=True, tags=["math"])
def add_numbers(a: int, b: Annotated[int, "Added to a."] = 0, *, mode: Literal["exact", "fast"] = "exact") -> int:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: Not shown: the annotation precedes.
    """
    return a + b


def test_the_descriptor_of_a_function() -> None:
    found = read(add_numbers)
    assert found.report.problems == []
    assert (found.key, found.kind, found.origin) == ("add_numbers", "thread", f"{__name__}.add_numbers")
    assert found.describe("functions") == {
        "type": "tool-service",
        "name": "add_numbers",
        "description": "Add two whole numbers.",
        "service": "functions",
        "tool": "add_numbers",
        "input-schema": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first number."},
                "b": {"type": "integer", "default": 0, "description": "Added to a."},
                "mode": {"enum": ["exact", "fast"], "default": "exact"},
            },
            "required": ["a"],
            "additionalProperties": False,
        },
        "read-only": True,
        "tags": ("math",),
    }


def test_a_function_without_annotations_and_docstring() -> None:
    schema = read(lambda a, b=None: a).arguments.schema
    assert schema["properties"] == {"a": {}, "b": {"default": None}}
    assert schema["required"] == ["a"]


def test_none_as_default_allows_null() -> None:
    def find(limit: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013 - common in programs

    schema = read(find).arguments.schema
    assert schema["properties"]["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}


def test_kinds() -> None:
    async def run() -> None: ...

    async def stream() -> AsyncIterator[str]:
        yield ""

    class Call:
        async def __call__(self) -> None: ...

    kinds = [read(each).kind for each in (run, stream, add_numbers, functools.partial(run))]
    assert kinds == ["async", "stream", "thread", "async"]
    assert read(tool(name="call")(Call())).kind == "async"


def test_methods_partial_objects_and_wrappers() -> None:
    class Shop:
        def find(self, name: str) -> str:
            """Find a product."""
            return name

    found = read(Shop().find)
    assert found.report.problems == []
    assert found.describe("s")["description"] == "Find a product."
    assert list(found.arguments.schema["properties"]) == ["name"]

    @functools.wraps(add_numbers)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return add_numbers(*args, **kwargs)

    assert read(wrapper).describe("s") == read(add_numbers).describe("s")
    partial = read(tool(name="add-one")(functools.partial(add_numbers, 1)))
    assert list(partial.arguments.schema["properties"]) == ["b", "mode"]
    assert partial.describe("s")["description"] == "Add two whole numbers."


@pytest.mark.parametrize(
    "annotation",
    [
        Database,
        Optional[Database],  # noqa: UP045 - the old form
        Database | None,
        Annotated[Database, "the database"],
        Annotated[Database | None, msgspec.Meta(description="x")],
        Union[Vault, Database],  # noqa: UP007 - the old form
        Vault | Annotated[Database, ""] | None,
    ],
)
def test_injected_parameters_are_in_no_schema(annotation: Any) -> None:
    def find(name: str, database: Any, *, other: Any = None) -> None: ...

    find.__annotations__ |= {"database": annotation, "other": annotation}
    found = read(find)
    assert found.report.problems == []
    assert found.injected == {"database": Database, "other": Database}
    assert list(found.arguments.schema["properties"]) == ["name"]


def test_until_providers_are_known_their_types_are_no_errors() -> None:
    def find(name: str, database: Database, cache: Vault | None = None) -> None: ...

    assert FunctionTool(find, None).report.problems == []
    fix = (
        "call dispatch.provide(Vault, …) in its module, or dispatcher.provide(Vault, …) before the dispatcher starts; or "
        "annotate a type such as str or a dataclass"
    )
    assert problems(find) == [("cache", "the type 'Vault' is neither provided nor a type of JSON values", fix)]


def pay(amount: Decimal) -> None: ...


class UnreadPlace(TypedDict):
    position: Position  # type: ignore[name-defined]  # noqa: F821 - the fault


def count() -> Iterator[int]:
    yield 1


UNREADABLE = functools.partial(iter)


@pytest.mark.parametrize(
    ("function", "key", "problem", "fix"),
    [
        (lambda *names: 0, "*names", "a model cannot know the arguments of '*names'", "name each parameter"),
        (lambda **names: 0, "**names", "a model cannot know the arguments of '**names'", "name each parameter"),
        (count, "", "a generator is no tool", "write 'async def' for a stream of texts, or return a list"),
        (lambda self: 0, "self", "the function is a method without its object", "give the method of an object"),
        (UNREADABLE, "", "its parameters cannot be read", "write a function with annotations that calls it"),
        (
            pay,
            "amount",
            "the type 'Decimal' cannot be resolved (NameError: name 'Decimal' is not defined)",
            "outside of 'if TYPE_CHECKING'",
        ),
    ],
)
def test_a_parameter_that_a_tool_cannot_have(function: Any, key: str, problem: str, fix: str) -> None:
    (found,) = problems(tool(name="find")(function))
    assert (found[0], found[1]) == (key, problem)
    assert fix in found[2]


def test_types_without_a_schema() -> None:
    def find(place: UnreadPlace) -> None: ...

    ((key, problem, _),) = problems(find)
    assert (key, problem) == ("place", "the type 'UnreadPlace' has no JSON Schema (name 'Position' is not defined)")


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


@dataclasses.dataclass
class Search:
    words: collections.abc.Iterable[str]


@dataclasses.dataclass
class Log:
    """Where lines are written."""

    path: Path = Path("log.txt")
    limit: Annotated[int, msgspec.Meta(ge=1)] = 10
    parser: Any = object


class Logs(msgspec.Struct, rename="camel"):
    main_log: Log
    others: list[Log | None] = []
    folder: Path = Path("logs")


@dataclasses.dataclass
class Folder:
    path: Path = Path()
    parent: Folder | None = None


EXPRESSIBLE = "use types that JSON can express"


@pytest.mark.parametrize(
    ("annotation", "problem", "fix"),
    [
        (
            Mixed | None,
            "the type 'Mixed' is neither provided nor a type of JSON values (Enums must contain either all str or all int",
            "call dispatch.provide(Mixed, …)",
        ),
        (
            list[Vault],
            f"the type 'list[{Vault.__module__}.Vault]' has 'Vault', which is no type of JSON values",
            EXPRESSIBLE,
        ),
        (Search, "the type 'Search' has 'Iterable', which is no type of JSON values", EXPRESSIBLE),
        (
            Folder,
            "the type 'Folder' has no JSON Schema (Encoding objects of type PosixPath is unsupported)",
            "give the field with a default value of this type a default_factory in its place",
        ),
    ],
)
def test_why_a_type_cannot_be_given_by_a_model(annotation: Any, problem: str, fix: str) -> None:
    def find(it: Any) -> None: ...

    find.__annotations__["it"] = annotation
    ((key, found, how),) = problems(find)
    assert key == "it"
    assert found.startswith(problem)
    assert how.startswith(fix)


def test_default_values_of_fields_that_msgspec_does_not_write() -> None:
    def write(logs: Logs) -> None: ...

    assert problems(write) == []
    arguments = arguments_of(write)
    assert arguments.schema["properties"]["logs"] == {"$ref": "#/$defs/Logs"}
    assert arguments.schema["$defs"]["Log"] == {
        "title": "Log",
        "description": "Where lines are written.",
        "type": "object",
        "properties": {
            "path": {"type": "string", "default": "log.txt"},
            "limit": {"type": "integer", "minimum": 1, "default": 10},
            "parser": {},
        },
        "required": [],
    }
    logs = arguments.schema["$defs"]["Logs"]
    assert (list(logs["properties"]), logs["required"]) == (["folder", "mainLog", "others"], ["mainLog"])
    assert logs["properties"]["folder"] == {"type": "string", "default": "logs"}
    _, named = arguments.convert("write", {"logs": {"mainLog": {"path": "a"}, "others": [{"limit": 2}]}})
    assert named == {"logs": Logs(Log(Path("a")), [Log(limit=2)])}


def test_a_default_value_in_the_style_of_pydantic() -> None:
    def find(limit: int = pydantic.Field(3, ge=1)) -> None: ...

    ((key, _, fix),) = problems(find)
    assert (key, fix) == ("limit", "write limit: Annotated[TYPE, Field(…)], and the default itself behind '='")


@pytest.mark.parametrize("default", [object(), float("nan"), [float("inf")], {"a": Vault()}, print])
def test_a_default_value_of_a_function_tool_that_json_cannot_express(default: Any) -> None:
    def find(name=default) -> None: ...  # type: ignore[no-untyped-def]

    ((key, problem, fix),) = problems(find)
    assert key == "name"
    assert problem.startswith("JSON cannot express the default value ")
    assert fix.startswith("use None as the default")


def test_names_that_models_refuse() -> None:
    def größe(länge: int) -> None: ...

    assert [(key, problem) for key, problem, _ in problems(größe)] == [
        ("", "models refuse the name 'größe'"),
        ("länge", "models refuse the name 'länge'"),
    ]
    assert problems(tool(name="size")(lambda: None)) == []
    assert problems(lambda: None)[0][1] == "models refuse the name '<lambda>'"
    assert problems(tool(name="a" * 64)(lambda: None)) == []
    assert "at most 64" in problems(tool(name="a" * 64)(lambda: None), "crm")[0][2]
    assert problems(tool(name="a b")(lambda: None))[0][1] == "models refuse the name 'a b'"


def test_types_of_the_enclosing_function_are_resolved_if_it_uses_them() -> None:
    class Point(msgspec.Struct):
        x: int

    def move(point: Point) -> int:
        return Point(point.x).x

    assert problems(move) == []


FILES = {
    "__init__.py": "from functions_shop.cart import add_item\n__all__ = ['add_item']\nhidden = 1\n",
    "cart.py": (
        "import os\nfrom os.path import join\n"
        "def add_item(name: str) -> str:\n    '''Add a product to the cart.'''\n    return f'added {name}'\n"
        "def _private(): ...\nclass Cart: ...\nVALUE = 3\n"
    ),
    "orders/__init__.py": "",
    "orders/search.py": (
        "import dispatch\n"
        "@dispatch.tool(name='find-order', read_only=True)\nasync def _find(number: int) -> str:\n"
        "    '''Find an order.'''\n    return f'order {number}'\n"
        "def bad(*names): ...\n"
    ),
    "_internal.py": "raise RuntimeError('not imported')\n",
    "__main__.py": "raise RuntimeError('not imported')\n",
    "broken.py": "import does_not_exist_at_all\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    def write(name: str, text: str) -> None:
        path = tmp_path / "functions_shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    for name, text in FILES.items():
        write(name, text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    for module in [each for each in sys.modules if each.split(".")[0] == "functions_shop"]:
        del sys.modules[module]


@pytest.mark.usefixtures("write")
async def test_the_public_functions_of_a_package_are_tools() -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop")]) as dispatcher:
        assert sorted(dispatcher.catalog.tools) == ["add_item", "find-order"]
        assert await dispatcher.call("add_item", {"name": "tea"}) == "added tea"
        assert await dispatcher.call("find-order", {"number": 7}) == "order 7"


@pytest.mark.usefixtures("write")
async def test_what_cannot_be_a_tool_is_refused_by_name_and_the_others_are_tools() -> None:
    dispatcher = dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop")])
    refused: list[dispatch.ItemRefused] = []
    dispatcher.on_event(lambda event: refused.append(event) if isinstance(event, dispatch.ItemRefused) else None)
    async with dispatcher:
        (status,) = dispatcher.registry.sources()
        assert (status.id, status.state, status.tools, status.refused) == ("package:functions_shop", "ok", 2, 3)
    missing = "ModuleNotFoundError: No module named 'does_not_exist_at_all'"
    assert sorted((each.origin, each.problem) for each in refused) == [
        ("functions_shop.broken", f"the module cannot be imported ({missing})"),
        ("functions_shop.leaves", "the module cannot be imported (SystemExit: 3)"),
        ("functions_shop.orders.search.bad", "a model cannot know the arguments of '*names'"),
    ]


async def test_a_refresh_scans_again(write: Callable[[str, str], None]) -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop")]) as dispatcher:
        write("late.py", "def ping():\n    '''Answer.'''\n    return 'pong'\n")
        write("broken.py", "def repaired():\n    '''Answer.'''\n    return 'works'\n")
        assert (await dispatcher.execute("ping")).error is not None
        await dispatcher.registry.refresh("package:functions_shop")
        assert await dispatcher.call("ping") == "pong"
        assert await dispatcher.call("repaired") == "works"


@pytest.mark.usefixtures("write")
async def test_only_some_functions() -> None:
    package = dispatch.ToolPackage("functions_shop", only=["find-order", "add_itm"], namespace="shop")
    async with dispatch.connect("memory://", catalog=[package]) as dispatcher:
        assert list(dispatcher.catalog.tools) == ["shop-find-order"]
    items = await package.discover()
    problems = [problem for item in items for problem in getattr(item.raw, "problems", ())]
    (only,) = (each for each in problems if each.key == "only")
    assert (only.file, only.fix) == ("functions_shop", "write 'add_item'")


async def test_objects_of_every_kind_in_a_module(write: Callable[[str, str], None]) -> None:
    write(
        "kinds.py",
        """
import functools
import dispatch
from functions_shop.cart import add_item

class Proxy:
    def __getattribute__(self, name):
        raise RuntimeError("outside of a request")

proxy = Proxy()

class Call:
    def __call__(self, word: str) -> str:
        return word

call = dispatch.tool(name="call")(Call())
add_tea = dispatch.tool(name="add-tea")(functools.partial(add_item, "tea"))

@dispatch.tool
@functools.lru_cache
def cached(number: int) -> int:
    return number

undeclared = functools.partial(add_item, "cup")
""",
    )
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop.kinds")]) as dispatcher:
        assert sorted(dispatcher.catalog.tools) == ["add-tea", "cached", "call"]
        assert await dispatcher.call("add-tea") == "added tea"
        assert await dispatcher.call("call", {"word": "x"}) == "x"
        assert await dispatcher.call("cached", {"number": 3}) == "3"


def test_the_main_module_is_a_module() -> None:
    assert dispatch.ToolPackage("__main__").id == "package:__main__"


@pytest.mark.usefixtures("write")
async def test_a_single_module() -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop.cart")]) as dispatcher:
        assert list(dispatcher.catalog.tools) == ["add_item"]


@pytest.mark.parametrize("name", ["no_such_package_at_all", "no_such_package_at_all.tools", ""])
def test_a_package_that_does_not_exist(name: str) -> None:
    with pytest.raises(CatalogError, match=r"the package cannot be imported .*Fix: correct its name"):
        dispatch.ToolPackage(name)


@pytest.mark.usefixtures("write")
async def test_a_package_that_cannot_be_imported() -> None:
    with pytest.raises(CatalogError, match=r"functions_shop\.broken: the package cannot be imported \(ModuleNotFound"):
        await dispatch.ToolPackage("functions_shop.broken").discover()
