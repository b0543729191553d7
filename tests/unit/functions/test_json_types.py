"""Types of parameters as JSON Schema, and JSON values in these types."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import typing
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, Union

import annotated_types
import msgspec
import pydantic
import pydantic.dataclasses
import pytest

from dispatch.functions.schema import (
    Definitions,
    UnsupportedTypeError,
    as_json_type,
    decode_custom,
    describe_type,
    encode_custom,
)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Place(TypedDict, total=False):
    city: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Order(pydantic.BaseModel):
    id: int
    parts: list[Order] = []


@pydantic.dataclasses.dataclass
class Checked:
    amount: Annotated[int, pydantic.Field(ge=1)]


@dataclasses.dataclass
class Basket:
    order: Order | None = None


class Database: ...


UserId = NewType("UserId", int)


def schema_of(annotation: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    definitions = Definitions()
    return definitions.write(as_json_type(annotation)), definitions.schemas


def convert(value: Any, annotation: Any) -> Any:
    return msgspec.convert(value, as_json_type(annotation), dec_hook=decode_custom)


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
        (
            str | datetime.date,
            {"anyOf": [{"type": "string"}, {"type": "string", "format": "date"}]},
            "2026-01-01",
            "2026-01-01",
        ),
        (
            Union[datetime.date, str],  # noqa: UP007 - the old form
            {"anyOf": [{"type": "string", "format": "date"}, {"type": "string"}]},
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
        (Database, "Database"),
        (Database | None, "Database"),
        (list[Database], "Database"),
        (Database | str, "Database"),
        (complex, "complex"),
        (collections.abc.Callable[[int], int], "collections.abc.Callable[[int], int]"),
    ],
)
def test_types_that_json_cannot_express(annotation: Any, name: str) -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        as_json_type(annotation)
    assert describe_type(caught.value.type) == name


def test_a_field_of_a_type_that_json_cannot_express() -> None:
    holder = dataclasses.make_dataclass("Holder", [("database", Database)])
    with pytest.raises(UnsupportedTypeError, match="'Database' is no type of JSON values"):
        schema_of(holder)


def test_a_default_value_that_json_cannot_express() -> None:
    with pytest.raises(TypeError, match="JSON cannot express a Database"):
        msgspec.to_builtins([Database()], enc_hook=encode_custom)
