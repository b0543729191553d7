"""Schemas and values whose mistakes would take minutes to describe."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dispatch.schemas import (
    MAX_EVALUATIONS,
    EvaluationCounter,
    InvalidSchemaError,
    SchemaValidator,
    find_schema_problems,
)

LIMIT_S = 2.0
"""Hundred times the usual duration; without the limits each of these takes minutes."""

EXPRESSION: dict[str, Any] = {
    "$ref": "#/$defs/expression",
    "$defs": {
        "expression": {
            "anyOf": [
                {"type": "integer"},
                *(
                    {
                        "type": "object",
                        "properties": {
                            "operation": {"const": operation},
                            "left": {"$ref": "#/$defs/expression"},
                            "right": {"$ref": "#/$defs/expression"},
                        },
                        "required": ["operation", "left", "right"],
                    }
                    for operation in ("add", "subtract", "multiply")
                ),
            ]
        }
    },
}


def express(depth: int, leaf: object) -> object:
    for _ in range(depth):
        leaf = {"operation": "multiply", "left": leaf, "right": 1}
    return leaf


def combine(count: int, keyword: str) -> dict[str, Any]:
    """Return ``count`` definitions, each with two references to the next one."""
    definitions: dict[str, Any] = {"0": {"type": "integer"}}
    for number in range(1, count):
        reference = {"$ref": f"#/$defs/{number - 1}"}
        definitions[str(number)] = {keyword: [reference, reference]}
    return {"$ref": f"#/$defs/{count - 1}", "$defs": definitions}


@pytest.mark.parametrize(("depth", "message"), [(4, "must be an integer or an object"), (8, "nested alternatives")])
def test_nested_alternatives_are_described_while_they_are_few(depth: int, message: str) -> None:
    validator = SchemaValidator(EXPRESSION)
    assert validator.find_mistakes(express(90, 1)) == ()
    (mistake,) = validator.find_mistakes(express(depth, "x"))
    assert message in mistake.message


@pytest.mark.parametrize("depth", [12, 30, 90])
def test_a_wrong_value_of_a_recursive_schema_ends_early(depth: int) -> None:
    validator = SchemaValidator(EXPRESSION)
    started = time.process_time()
    assert len(validator.find_mistakes(express(depth, "x"))) == 1
    assert time.process_time() - started < LIMIT_S


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_are_refused(keyword: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidSchemaError, match="at most 10,000 subschemas by references"):
        SchemaValidator(combine(60, keyword))
    (problem,) = find_schema_problems(combine(60, keyword))
    assert "by references" in problem.message
    assert time.process_time() - started < LIMIT_S
    assert SchemaValidator(combine(8, keyword)).find_mistakes("x") != ()


@pytest.mark.parametrize(
    ("schema", "value", "total", "most"),
    [
        ({"type": "string"}, "x", 1, 1),
        ({"items": {"type": "string"}}, ["a", "b"], 3, 1),
        ({"prefixItems": [{"type": "null"}], "items": {"anyOf": [{}, {}]}}, [None, 1], 5, 3),
        ({"properties": {"a": {"not": {}}}, "additionalProperties": {"if": {}, "then": {}}}, {"a": 1, "b": 2}, 6, 3),
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"a": {}}}]}, {"a": 1}, 5, 3),
        ({"$ref": "#x", "$defs": {"d": {"$anchor": "x", "allOf": [{}, {}]}}}, 1, 4, 4),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}}, 1, 2, 2),
        ({"items": {"$ref": "#"}}, [[1]], 5, 2),
        ({"patternProperties": {"^a": {}}, "dependentSchemas": {"a": {}}}, {"a": 1}, 3, 2),
        ({"items": False}, [1, 2], 3, 1),
        (True, [1, 2], 1, 0),
    ],
)
def test_counts(schema: Any, value: Any, total: int, most: int) -> None:
    assert EvaluationCounter(schema).count(value, 100) == (total, most)


def test_the_count_stops_at_its_limit() -> None:
    counter = EvaluationCounter({"items": {}})
    assert counter.count([1] * 1_000_000, MAX_EVALUATIONS).total == MAX_EVALUATIONS + 1


def test_a_schema_that_refers_to_itself_at_one_place_is_counted() -> None:
    assert EvaluationCounter({"$ref": "#"}).count(1, 10) == (1, 1)
    assert SchemaValidator({"$ref": "#"}).find_mistakes(1) == ()
