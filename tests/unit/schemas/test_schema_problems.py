from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from dispatch.schemas import (
    InvalidSchemaError,
    SchemaValidator,
    compile_schema,
    find_outside_references,
    find_schema_problems,
)

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
