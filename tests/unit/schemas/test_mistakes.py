"""
Each kind of mistake in words for a model. No text repeats the value.

"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dispatch.schemas import (
    MAX_SHOWN,
    InvalidSchemaError,
    Mistake,
    SchemaValidator,
    compile_schema,
    find_outside_references,
    find_schema_problems,
    join_mistakes,
    join_pointer,
    split_pointer,
)


def test_text_of_a_mistake() -> None:
    assert str(Mistake("/a/0", "is required")) == "/a/0 is required"
    assert str(Mistake("", "must be null, not a string")) == "the whole value must be null, not a string"
    assert str(Mistake("/u", "must be one of the allowed values", ('"a"', "1"))) == (
        '/u must be one of the allowed values: "a", 1'
    )


def test_long_lists_are_shortened_with_their_number() -> None:
    text = str(Mistake("/u", "must be one of the allowed values", tuple(map(str, range(1_025)))))
    assert text.endswith("18, 19 and 1,005 more")
    mistakes = [Mistake(f"/{n}", "is required") for n in range(MAX_SHOWN + 3)]
    assert join_mistakes(mistakes).endswith("/19 is required; and 3 more")
    assert join_mistakes(mistakes[:2]) == "/0 is required; /1 is required"


def test_json_pointer() -> None:
    assert join_pointer(()) == ""
    assert join_pointer(["a/b", 0, "~c", ""]) == "/a~1b/0/~0c/"
    assert split_pointer("/a~1b/0/~0c/") == ["a/b", "0", "~c", ""]
    assert split_pointer(join_pointer(["~1"])) == ["~1"]
    assert split_pointer("") == []


CARD = {
    "type": "object",
    "properties": {"kind": {"const": "card"}, "number": {"type": "string"}},
    "required": ["kind", "number"],
}
CASH = {
    "type": "object",
    "properties": {"kind": {"const": "cash"}, "amount": {"type": "number"}},
    "required": ["kind", "amount"],
}


@pytest.mark.parametrize(
    ("schema", "value", "texts"),
    [
        (
            {"type": ["string", "null", "array"]},
            7,
            ["the whole value must be null, a string or an array, not an integer"],
        ),
        ({"type": "integer"}, 1.5, ["the whole value must be an integer, not a number"]),
        ({"type": "integer"}, True, ["the whole value must be an integer, not a boolean"]),
        ({"type": "string"}, None, ["the whole value must be a string, not null"]),
        ({"type": "string"}, {}, ["the whole value must be a string, not an object"]),
        ({"minimum": 1}, 0, ["the whole value must be at least 1"]),
        ({"maximum": 1.5}, 2, ["the whole value must be at most 1.5"]),
        ({"exclusiveMinimum": 1}, 1, ["the whole value must be greater than 1"]),
        ({"exclusiveMaximum": 1}, 1, ["the whole value must be less than 1"]),
        ({"multipleOf": 5}, 7, ["the whole value must be a multiple of 5"]),
        ({"minLength": 2}, "x", ["the whole value must have at least 2 characters"]),
        ({"maxLength": 1}, "xx", ["the whole value must have at most 1 character"]),
        ({"minItems": 1}, [], ["the whole value must have at least 1 item"]),
        ({"maxItems": 1000}, [0] * 1001, ["the whole value must have at most 1,000 items"]),
        ({"minProperties": 1}, {}, ["the whole value must have at least 1 property"]),
        ({"maxProperties": 0}, {"a": 1}, ["the whole value must have at most 0 properties"]),
        ({"pattern": "^a+$"}, "b", ["the whole value must match the pattern ^a+$"]),
        ({"uniqueItems": True}, [1, 1], ["the whole value must not have two equal items"]),
        (
            {"contains": {"const": 1}},
            [2],
            ["the whole value must have as many items of the kind in 'contains' as the schema requires"],
        ),
        ({"not": {"type": "null"}}, None, ["the whole value must not be of the kind in 'not'"]),
        ({"properties": {"a": False}}, {"a": 1}, ["/a is not allowed"]),
        ({"const": "x"}, "y", ['the whole value must be the only allowed value: "x"']),
        ({"enum": ["a", 1, None]}, "y", ['the whole value must be one of the allowed values: "a", 1, null']),
        ({"required": ["a/b", "c"]}, {}, ["/a~1b is required", "/c is required"]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["/b is required"]),
        (
            {"propertyNames": {"maxLength": 1}},
            {"ab": 1},
            ["the whole value has a property whose name must have at most 1 character"],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": False},
            {"b": 1, "c": 2},
            ['/b is not an expected property: "a"', '/c is not an expected property: "a"'],
        ),
        (
            {"$defs": {"p": {"properties": {"x": {}}, "additionalProperties": False}}, "items": {"$ref": "#/$defs/p"}},
            [{"y": 1}],
            ['/0/y is not an expected property: "x"'],
        ),
        (
            {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False},
            {"a": 1, "b": 1},
            ["/b is not an expected property"],
        ),
        ({"prefixItems": [{}], "items": False}, [1, 2], ["/1 is not allowed"]),
        (
            {"prefixItems": [{}], "unevaluatedItems": False},
            [1, "b"],
            ["the whole value must not have items that the schema does not describe"],
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "null"}]},
            3,
            ["the whole value must be a string or null, not an integer"],
        ),
        (
            {"anyOf": [{"enum": ["a", "b"]}, {"const": "c"}]},
            "d",
            ['the whole value must be one of the allowed values: "a", "b", "c"'],
        ),
        (
            {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]},
            "d",
            ['the whole value must be an integer, or one of the allowed values: "a"'],
        ),
        (
            {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 3}]},
            "x",
            ["the whole value must have at least 3 characters"],
        ),
        ({"oneOf": [CARD, CASH]}, {"kind": "cash", "amount": "7"}, ["/amount must be a number, not a string"]),
        (
            {"oneOf": [CARD, CASH]},
            {"number": "7"},
            [
                "the whole value matches none of 2 alternatives: (1) /kind is required; "
                "(2) /kind is required, /amount is required"
            ],
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            ["the whole value matches none of 2 alternatives: (1) /a is required; (2) /b is required"],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
            3,
            ["the whole value matches several of the alternatives, and must match exactly one"],
        ),
        (
            {"if": {"type": "string"}, "then": {"minLength": 3}},
            "a",
            ["the whole value must have at least 3 characters"],
        ),
    ],
)
def test_text(schema: dict[str, Any], value: Any, texts: list[str]) -> None:
    assert [str(each) for each in SchemaValidator(schema).find_mistakes(value)] == texts


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"enum": ["a"]},
        {"const": 1},
        {"maxLength": 1},
        {"pattern": "^a$"},
        {"not": {"type": "string"}},
        {"anyOf": [{"type": "integer"}, {"maxLength": 1}, {"maxLength": 2}]},
        {"oneOf": [{}, {"type": "string"}]},
        False,
    ],
)
def test_no_text_repeats_the_value(schema: Any) -> None:
    validator = SchemaValidator({"items": schema})
    (mistake,) = validator.find_mistakes([SECRET])
    assert SECRET not in str(mistake)
    assert mistake.path == "/0"


ADDRESS = "http://x.example/z"


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$ref": "#"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$id": "http://a.example/c", "$defs": {"x": {"$id": "d"}}, "$ref": "d"},
        {"$id": "http://a.example/c", "$ref": "http://a.example/c#/$defs/x", "$defs": {"x": {}}},
        {"$id": "urn:uuid:deadbeef", "$ref": "urn:uuid:deadbeef#/$defs/x", "$defs": {"x": {}}},
        {
            "default": {"$ref": ADDRESS},
            "const": {"$ref": ADDRESS},
            "enum": [{"$ref": ADDRESS}],
            "x-own": {"$ref": ADDRESS},
        },
        {"properties": {"$ref": {"type": "string"}, "$schema": {"type": "string"}}},
    ],
)
def test_schemas(schema: Any) -> None:
    assert find_schema_problems(schema) == ()
    assert SchemaValidator(schema).find_mistakes(ADDRESS) is not None


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"$ref": ADDRESS}, "/$ref"),
        ({"$dynamicRef": f"{ADDRESS}#a"}, "/$dynamicRef"),
        ({"$schema": ADDRESS}, "/$schema"),
        ({"$ref": "file:///etc/passwd"}, "/$ref"),
        ({"$ref": "other.json"}, "/$ref"),
        ({"$ref": "//["}, "/$ref"),
        ({"$id": "http://a.example/c", "$ref": "d"}, "/$ref"),
        ({"items": {"anyOf": [{"properties": {"a/b": {"$ref": ADDRESS}}}]}}, "/items/anyOf/0/properties/a~1b/$ref"),
        ({"$defs": {"x": {"$schema": ADDRESS}}}, "/$defs/x/$schema"),
    ],
)
def test_a_reference_to_an_address_is_a_problem(schema: dict[str, Any], path: str) -> None:
    (problem,) = find_schema_problems(schema)
    assert (problem,) == find_outside_references(schema)
    assert problem.path == path
    assert problem.message.endswith("nothing is fetched for a schema")
    with pytest.raises(InvalidSchemaError, match="nothing is fetched"):
        SchemaValidator(schema)


@pytest.mark.parametrize(
    ("schema", "texts"),
    [
        (3, ["the whole value must be a boolean or an object, not an integer"]),
        ([], ["the whole value must be a boolean or an object, not an array"]),
        (
            {"minimum": "1", "properties": {"a": {"required": True}}},
            ["/minimum must be a number", "/properties/a/required must be an array"],
        ),
        ({"properties": {"a": {"pattern": "("}}}, ["/properties/a/pattern must be a regular expression"]),
        ({"$anchor": "a b"}, ["/$anchor must match the pattern"]),
        ({"$ref": "#/nowhere"}, ["the whole value has a reference to a place that does not exist (Pointer '/nowhere'"]),
        ({"$ref": "#foo"}, ["the whole value has a reference to a place that does not exist (Anchor 'foo'"]),
        (
            {"type": "str", "items": {"$ref": ADDRESS}},
            ["/type must be an array, or one of", "/items/$ref must refer to"],
        ),
    ],
)
def test_what_is_no_schema(schema: Any, texts: list[str]) -> None:
    problems = list(map(str, find_schema_problems(schema)))
    assert len(problems) == len(texts)
    for text in texts:
        assert [each for each in problems if each.startswith(text)], problems


def test_a_deep_schema_is_a_problem() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    assert [each.path for each in find_schema_problems(schema)] == [""]


@pytest.fixture
def visits() -> Iterator[tuple[str, list[object]]]:
    """The address of a server, and the connections that it has had."""
    seen: list[object] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, peer = server.accept()
                except OSError:
                    return
                seen.append(peer)
                connection.close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/schema", seen
        server.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize("keyword", ["$ref", "$dynamicRef", "$schema", "$id"])
def test_nothing_is_fetched(visits: tuple[str, list[object]], keyword: str) -> None:
    address, seen = visits
    for schema in ({keyword: address}, {"items": {keyword: address}}, {"$id": address, "items": {keyword: "other"}}):
        find_schema_problems(schema)
        with suppress(InvalidSchemaError):
            SchemaValidator(schema).find_mistakes([1])
        with suppress(InvalidSchemaError):  # the engine itself, without the check before it
            compile_schema(schema).is_valid([1])
    assert seen == []


def test_the_server_of_these_tests_sees_requests(visits: tuple[str, list[object]]) -> None:
    address, seen = visits
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        assert connection.recv(1) == b""
    assert len(seen) == 1
