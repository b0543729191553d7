"""Functions as tools: descriptors, injected parameters, and every error of a registration."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, TypedDict, Union

import msgspec
import pytest

from dispatch.functions.schema import tool
from dispatch.functions.sources import FunctionTool

if TYPE_CHECKING:
    from decimal import Decimal


class Database: ...


class Cache: ...


def is_database(type: Any) -> bool:
    return type is Database


def read(function: Any) -> FunctionTool:
    return FunctionTool(function, is_database)


def problems(function: Any, namespace: str = "") -> list[tuple[str, str, str]]:
    report = FunctionTool(function, is_database, namespace).report
    return [(each.key, each.problem, each.fix) for each in report.problems]


@tool(read_only=True, tags=["math"])
def add(a: int, b: Annotated[int, "Added to a."] = 0, *, mode: Literal["exact", "fast"] = "exact") -> int:
    """Add two whole numbers.

    Args:
        a: The first number.
        b: Not shown: the annotation precedes.
    """
    return a + b


def test_the_descriptor_of_a_function() -> None:
    found = read(add)
    assert found.report.problems == []
    assert (found.key, found.kind, found.origin) == ("add", "thread", f"{__name__}.add")
    assert found.describe("functions") == {
        "type": "tool-service",
        "name": "add",
        "description": "Add two whole numbers.",
        "service": "functions",
        "tool": "add",
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

    assert [read(each).kind for each in (run, stream, add, functools.partial(run))] == [
        "async",
        "stream",
        "thread",
        "async",
    ]
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

    @functools.wraps(add)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return add(*args, **kwargs)

    assert read(wrapper).describe("s") == read(add).describe("s")
    partial = read(tool(name="add-one")(functools.partial(add, 1)))
    assert list(partial.arguments.schema["properties"]) == ["b", "mode"]
    assert partial.describe("s")["description"] == "Add two whole numbers."


def test_a_version_is_part_of_the_key() -> None:
    assert read(tool(version="2.0.0")(lambda: None)).key == "<lambda>@2.0.0"


@pytest.mark.parametrize(
    "annotation",
    [
        Database,
        Optional[Database],  # noqa: UP045 - the old form
        Database | None,
        Annotated[Database, "the database"],
        Annotated[Database | None, msgspec.Meta(description="x")],
        Union[Cache, Database],  # noqa: UP007 - the old form
        Cache | Annotated[Database, ""] | None,
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
    def find(name: str, database: Database, cache: Cache | None = None) -> None: ...

    assert FunctionTool(find, None).report.problems == []
    fix = (
        "call dispatch.provide(Cache, …) in its module, or dispatcher.provide(Cache, …) before the dispatcher starts; or "
        "annotate a type such as str or a dataclass"
    )
    assert problems(find) == [("cache", "the type 'Cache' is neither provided nor a type of JSON values", fix)]


def test_variadic_parameters() -> None:
    def find(*names: str, **options: str) -> None: ...

    assert [each[:2] for each in problems(find)] == [
        ("*names", "a model cannot know the arguments of '*names'"),
        ("**options", "a model cannot know the arguments of '**options'"),
    ]


@pytest.mark.parametrize("default", [object(), float("nan"), [float("inf")], {"a": Database()}, print])
def test_a_default_value_that_json_cannot_express(default: Any) -> None:
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


def test_generators_are_refused_with_the_fix() -> None:
    def count() -> Iterator[int]:
        yield 1

    assert problems(count) == [
        ("", "a generator is no tool", "write 'async def' for a stream of texts, or return a list")
    ]


def test_types_that_cannot_be_resolved() -> None:
    def pay(amount: Decimal) -> None: ...

    ((key, problem, fix),) = problems(pay)
    assert (key, problem) == (
        "amount",
        "the type 'Decimal' cannot be resolved (NameError: name 'Decimal' is not defined)",
    )
    assert "outside of 'if TYPE_CHECKING'" in fix


def test_types_of_the_enclosing_function_are_resolved_if_it_uses_them() -> None:
    class Point(msgspec.Struct):
        x: int

    def move(point: Point) -> int:
        return Point(point.x).x

    assert problems(move) == []


def test_types_without_a_schema() -> None:
    class Place(TypedDict):
        position: Position  # type: ignore[name-defined]  # noqa: F821 - the fault

    def find(place: Place) -> type:
        return Place

    ((key, problem, _),) = problems(find)
    assert (key, problem) == (
        "place",
        "the type 'test_types_without_a_schema.<locals>.Place' has no JSON Schema (name 'Position' is not defined)",
    )


def test_a_method_without_its_object() -> None:
    class Shop:
        def find(self, name: str) -> None: ...

    assert problems(Shop.find) == [
        ("self", "the function is a method without its object", "give the method of an object")
    ]


def test_a_function_without_a_signature() -> None:
    assert problems(tool(name="step")(functools.partial(iter))) == [
        ("", "its parameters cannot be read", "write a function with annotations that calls it")
    ]
