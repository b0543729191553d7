"""The required cases of JSON-Schema-Test-Suite for draft 2020-12 (tests/data/json-schema-test-suite).
Schemas and values whose mistakes would take minutes to describe.
Schemas in older dialects.
Schemas without the parts that cannot be used.
Each kind of mistake in words for a model. No text repeats the value.
"""

from __future__ import annotations

import json
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.documents import Report, freeze_json
from dispatch.schemas import (
    DIALECT,
    GUESSED,
    MAX_DEPTH,
    MAX_EVALUATIONS,
    MAX_MISTAKES,
    MAX_SHOWN,
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_OBJECT_KEYWORDS,
    EvaluationCounter,
    InvalidSchemaError,
    Mistake,
    SchemaValidator,
    ValidatorCache,
    compile_schema,
    find_dialect,
    find_outside_references,
    find_schema_problems,
    join_mistakes,
    join_pointer,
    split_pointer,
    translate_schema,
    widen_schema,
)

UNIT, PLACE = {"enum": ["celsius", "fahrenheit"]}, {"type": "string", "minLength": 1}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"place": PLACE, "days": {"type": "integer", "maximum": 14}, "unit": UNIT},
    "required": ["place"],
    "additionalProperties": False,
}


def describe(schema: Any, value: Any) -> list[str]:
    return [str(each) for each in SchemaValidator(schema).find_mistakes(value)]


def test_a_valid_value_has_no_mistakes() -> None:
    assert SchemaValidator(WEATHER).find_mistakes({"place": "Oslo", "days": 3, "unit": "celsius"}) == ()


def test_all_mistakes_are_found_at_once() -> None:
    mistakes = SchemaValidator(WEATHER).find_mistakes({"days": "3", "unit": "kelvin", "plce": "Oslo"})
    assert set(mistakes) == {
        Mistake("/place", "is required"),
        Mistake("/days", "must be an integer, not a string"),
        Mistake("/unit", "must be one of the allowed values", ('"celsius"', '"fahrenheit"')),
        Mistake("/plce", "is not an expected property", ('"place"', '"days"', '"unit"')),
    }


def test_a_schema_of_the_catalogue_and_immutable_values_are_accepted() -> None:
    report = Report("weather.json")
    schema = freeze_json(WEATHER | {"allOf": [{"minProperties": 2}]}, report)
    value = freeze_json({"place": "Oslo", "days": [1]}, report)
    assert describe(schema, value) == ["/days must be an integer, not an array"]


@pytest.mark.parametrize(("schema", "count"), [(True, 0), (False, 1)])
def test_a_boolean_is_a_schema(schema: bool, count: int) -> None:
    assert len(SchemaValidator(schema).find_mistakes({"a": 1})) == count


@pytest.mark.parametrize("value", [{1, 2}, b"x", "\ud800", {3: 1}, object()])
def test_a_value_that_is_no_json_is_a_mistake(value: object) -> None:
    (mistake,) = SchemaValidator({"type": "number"}).find_mistakes(value)
    assert mistake.path == ""
    assert mistake.message.startswith("must be ")


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_a_deep_value_is_refused_before_the_engine_exhausts_the_stack(depth: int) -> None:
    tree = SchemaValidator({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})
    assert tree.find_mistakes(nest(MAX_DEPTH)) == ()
    (mistake,) = tree.find_mistakes(nest(depth))
    assert str(mistake) == "the whole value must have at most 100 nested objects and lists"


def test_a_cyclic_value_is_refused() -> None:
    value: list[Any] = []
    value += [value, value]
    assert SchemaValidator(True).find_mistakes(value)


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        schema = {"not": schema}
    with pytest.raises(InvalidSchemaError, match="at most 100 nested"):
        SchemaValidator(schema)


def test_many_mistakes_are_bounded() -> None:
    numbers = SchemaValidator({"items": {"type": "integer"}})
    assert len(numbers.find_mistakes(["x"] * 5_000)) == MAX_MISTAKES
    assert numbers.find_mistakes([1] + ["x"] * MAX_EVALUATIONS) == (Mistake("/1", "must be an integer, not a string"),)
    assert numbers.find_mistakes([1] * MAX_EVALUATIONS) == ()


def test_an_invalid_schema_is_an_error_with_all_its_mistakes() -> None:
    with pytest.raises(InvalidSchemaError, match="/type must be") as raised:
        SchemaValidator({"type": "text"})
    assert [each.path for each in raised.value.mistakes] == ["/type"]
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.mistakes, str(copy)) == (raised.value.mistakes, str(raised.value))


def test_a_slow_pattern_ends_early() -> None:
    validator = SchemaValidator({"pattern": r"^(?=x)(x+x+)+y\1$"})
    (mistake,) = validator.find_mistakes("x" * 2_000)
    assert "pattern" in mistake.message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", ["0", "07", "+1", "18446744073709551615", "18446744073709551616", "1_0", "-0"])
def test_a_property_whose_name_reads_as_a_number_has_its_name_in_the_path(name: str) -> None:
    validator = SchemaValidator({"type": "object", "additionalProperties": {"type": "string"}})
    value = {"9" * 5_000: "", name: True}
    assert validator.find_mistakes(value) == (Mistake(f"/{name}", "must be a string, not a boolean"),)


@given(JSON)
def test_each_mistake_is_at_a_place_of_the_value(value: Any) -> None:
    schema = {
        "type": ["object", "array"],
        "items": {"$ref": "#"},
        "additionalProperties": {"type": ["string", "array"]},
    }
    for mistake in SchemaValidator(schema).find_mistakes(value):
        place = value
        for key in split_pointer(mistake.path):
            place = place[int(key) if isinstance(place, list) else key]
        assert str(mistake)


def create_cache(limit: int = 10) -> ValidatorCache[Any]:
    return ValidatorCache(lambda schema: schema, limit)


def test_a_schema_is_compiled_once() -> None:
    cache = create_cache()
    schema = {"type": "string"}
    assert cache.get(schema) is cache.get(schema)
    assert cache.get({"type": "string"}) is not cache.get(schema)


def test_it_is_bounded_and_drops_the_least_recently_used() -> None:
    cache = create_cache(2)
    first, second, third = {"type": "string"}, {"type": "integer"}, {"type": "null"}
    of_first = cache.get(first)
    of_second = cache.get(second)
    assert cache.get(first) is of_first
    cache.get(third)
    assert len(cache) == 2
    assert cache.get(first) is of_first
    assert cache.get(second) is not of_second


def test_a_schema_in_the_cache_keeps_its_identity() -> None:
    cache = create_cache(5)
    for number in range(100):  # each schema would be freed, and its id used again
        assert cache.get({"const": number}).find_mistakes(number) == ()


def test_an_invalid_schema_is_not_stored() -> None:
    cache = create_cache()
    with pytest.raises(InvalidSchemaError):
        cache.get({"type": 3})
    assert len(cache) == 0


CASES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[1] / "data" / "json-schema-test-suite" / "draft2020-12.json").read_text("utf-8")
)
GROUPS = [(file, group) for file, groups in CASES.items() for group in groups]
REMOTE = [(file, group) for file, group in GROUPS if find_outside_references(group["schema"])]
"""Groups whose schema refers to another document: they are refused, because nothing is fetched for a schema."""
LOCAL = [each for each in GROUPS if each not in REMOTE]


def test_the_suite_is_complete() -> None:
    assert (len(CASES), len(GROUPS)) == (46, 383)
    assert sum(len(group["tests"]) for _, group in GROUPS) == 1299


@pytest.mark.parametrize("file", CASES)
def test_required_cases(file: str) -> None:
    wrong = []
    for of, group in LOCAL:
        if of == file:
            validator = SchemaValidator(group["schema"])
            wrong += [
                (group["description"], test["description"])
                for test in group["tests"]
                if (validator.find_mistakes(test["data"]) == ()) != test["valid"]
            ]
    assert wrong == []


def test_every_schema_of_the_suite_is_a_schema() -> None:
    assert [group["description"] for _, group in LOCAL if find_schema_problems(group["schema"])] == []


def test_references_to_other_documents_are_refused() -> None:
    for _, group in REMOTE:
        assert "localhost:1234" in json.dumps(group["schema"])
        assert find_schema_problems(group["schema"])
        with pytest.raises(InvalidSchemaError, match="nothing is fetched"):
            SchemaValidator(group["schema"])
    by_file = {file: sum(of == file for of, _ in REMOTE) for file, _ in REMOTE}
    assert by_file == {"dynamicRef": 5, "refRemote": 15, "vocabulary": 2}


def test_values_of_invalid_cases_have_mistakes_with_places_in_them() -> None:
    for _, group in LOCAL:
        validator = SchemaValidator(group["schema"])
        for test in group["tests"]:
            for mistake in validator.find_mistakes(test["data"]):
                assert mistake.path == "" or mistake.path.startswith("/")
                assert mistake.message
                assert str(mistake)


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
        SchemaValidator(combine(40, keyword))
    (problem,) = find_schema_problems(combine(40, keyword))
    assert "by references" in problem.message
    assert time.process_time() - started < LIMIT_S
    assert SchemaValidator(combine(8, keyword)).find_mistakes("x") != ()


@pytest.mark.costly
@pytest.mark.parametrize("keyword", [None, "allOf", "anyOf", "not"])
def test_a_long_chain_of_references_is_refused(keyword: str | None) -> None:
    # In the engine it would be a recursion on the stack: of some hundred kilobytes in a thread.
    def chain(count: int) -> dict[str, Any]:
        links: dict[str, Any] = {"0": {"type": "string"}}
        for number in range(1, count):
            link: Any = {"$ref": f"#/$defs/{number - 1}"}
            links[str(number)] = link if keyword is None else {keyword: link if keyword == "not" else [link]}
        return {"$ref": f"#/$defs/{count - 1}", "$defs": links}

    for count in (200, 20_000):
        with pytest.raises(InvalidSchemaError, match="nest at most 100 subschemas by references"):
            SchemaValidator(chain(count))
        (problem,) = find_schema_problems(chain(count))
        assert "by references" in problem.message
    assert SchemaValidator(chain(40)).find_mistakes("x" if keyword == "not" else 1) != ()


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


D3, D4, D6, D7 = (f"http://json-schema.org/draft-0{number}/schema#" for number in (3, 4, 6, 7))
D8 = "https://json-schema.org/draft/2019-09/schema"


def translate(schema: dict[str, Any], name: str | None) -> dict[str, Any]:
    """The translation without ``$schema``."""
    named = schema if name is None else {"$schema": name, **schema}
    dialect = find_dialect(named) or GUESSED
    translated = dict(translate_schema(named, dialect))
    assert translated.pop("$schema", None) in (None, name, DIALECT)
    return translated


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (D3, 3),
        (D4.rstrip("#"), 4),
        (D6.replace("http", "https"), 6),
        (f" {D7}", 7),
        (D8, 8),
        (DIALECT, None),
        ("https://x.example/schema", None),
        ("http://json-schema.org/schema#", None),
        (None, None),
        (7, None),
    ],
)
def test_names(name: object, number: int | None) -> None:
    assert find_dialect({"$schema": name}) == number


REQUIRED, OPTIONAL = {"required": True}, {"required": False}


@pytest.mark.parametrize("name", [D4, D6, D7, D8, None])
@pytest.mark.parametrize(
    ("schema", "translated"),
    [
        ({"items": [{"type": "string"}, True]}, {"prefixItems": [{"type": "string"}, True]}),
        ({"items": [{}], "additionalItems": False}, {"prefixItems": [{}], "items": False}),
        ({"items": [], "additionalItems": {"type": "null"}}, {"items": {"type": "null"}}),
        ({"items": [{"items": [{}]}]}, {"prefixItems": [{"prefixItems": [{}]}]}),
        ({"not": {"anyOf": [{"items": [{}]}]}}, {"not": {"anyOf": [{"prefixItems": [{}]}]}}),
        ({"minimum": 3, "exclusiveMinimum": True}, {"exclusiveMinimum": 3}),
        ({"maximum": 3, "exclusiveMaximum": False}, {"maximum": 3}),
        ({"exclusiveMaximum": True}, {}),
        ({"definitions": {"a": {"$id": "#P"}}}, {"definitions": {"a": {"$anchor": "P"}}}),
        ({"$defs": {"a": {"$id": "x.json#P"}}}, {"$defs": {"a": {"$id": "x.json", "$anchor": "P"}}}),
        ({"$id": "#/a b"}, {}),
        ({"properties": {"a": REQUIRED, "b": OPTIONAL}}, {"properties": {"a": {}, "b": {}}, "required": ["a"]}),
        ({"properties": {"a": REQUIRED}, "required": ["b"]}, {"properties": {"a": {}}, "required": ["b", "a"]}),
    ],
)
def test_what_can_mean_one_thing_only(name: str | None, schema: dict[str, Any], translated: dict[str, Any]) -> None:
    assert translate(schema, name) == translated


@pytest.mark.parametrize(
    ("schema", "translated"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": ["string", "null"], "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"enum": ["a"], "nullable": True}, {"enum": ["a"], "nullable": True}),
        ({"type": "string", "nullable": False}, {"type": "string", "nullable": False}),
    ],
)
def test_nullable_is_a_type_where_no_dialect_is_named(schema: dict[str, Any], translated: dict[str, Any]) -> None:
    assert translate({"properties": {"a": schema}}, None) == {"properties": {"a": translated}}
    assert translate({"properties": {"a": schema}}, D7) == {"properties": {"a": schema}}
    assert translate(schema, None) == schema


@pytest.mark.parametrize(
    ("names", "schema", "translated"),
    [
        ((D3, D4), {"id": "http://x/s"}, {"$id": "http://x/s"}),
        ((D4,), {"definitions": {"a": {"id": "#P"}}}, {"definitions": {"a": {"$anchor": "P"}}}),
        ((D4,), {"properties": {"id": {"type": "string"}}}, {"properties": {"id": {"type": "string"}}}),
        ((D4, D6, D7), {"not": {"$ref": "#", "minLength": 3, "title": "A"}}, {"not": {"$ref": "#", "title": "A"}}),
        (
            (D7,),
            {"type": "object", "$ref": "#/definitions/a", "minProperties": 1},
            {"type": "object", "$ref": "#/definitions/a"},
        ),
        (
            (D3, D4, D6, D7),
            {"dependencies": {"a": ["b"], "c": {"items": [{}]}}},
            {"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"prefixItems": [{}]}}},
        ),
        ((D3,), {"dependencies": {"a": "b"}}, {"dependentRequired": {"a": ["b"]}}),
        ((D3,), {"divisibleBy": 2, "type": "any"}, {"multipleOf": 2}),
        ((D3,), {"type": ["string", {"type": "object"}]}, {}),
        ((D8,), {"$recursiveAnchor": True, "items": {"$recursiveRef": "#"}}, {"items": {"$ref": "#"}}),
    ],
)
def test_what_only_the_named_dialect_means(
    names: tuple[str, ...], schema: dict[str, Any], translated: dict[str, Any]
) -> None:
    for name in names:
        assert translate(schema, name) == translated
    assert translate(schema, None) == schema


def test_a_subschema_may_name_its_dialect() -> None:
    schema = {"items": {"$schema": D7, "$ref": "#", "minItems": 1}, "not": {"$ref": "#", "minItems": 1}}
    assert translate(schema, None) == {"items": {"$ref": "#"}, "not": {"$ref": "#", "minItems": 1}}


@pytest.mark.parametrize("name", [D4, D7, D8, DIALECT])
def test_a_schema_that_both_dialects_read_alike_is_unchanged(name: str) -> None:
    raw = {
        "$schema": name,
        "type": "object",
        "properties": {"a": {"anyOf": [{"type": "string"}, {"enum": [1, None]}]}, "items": {"const": {"items": [1]}}},
        "required": ["a"],
        "additionalProperties": False,
    }
    schema = freeze_json(raw, Report("test"))
    assert translate_schema(schema, find_dialect(schema) or GUESSED) is schema


@pytest.mark.parametrize(
    "schema", [{"items": 3}, {"properties": [], "required": None}, {"$id": 3, "minimum": "x"}, {"anyOf": {}}]
)
def test_what_no_dialect_knows_is_unchanged(schema: dict[str, Any]) -> None:
    assert translate(schema, D4) == schema


TYPES = [{"type": "string"}, {"type": "integer"}]
LEAVES = st.sampled_from([{}, *TYPES, {"minimum": 2}, {"minLength": 2}, {"const": 1}, {"required": ["a"]}, False])


def combine_widening(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    listed = st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), listed),
            **dict.fromkeys(("not", "if", "then", "else", "items", "contains", "additionalProperties"), inner),
            **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems", "propertyNames"), inner),
            **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), named),
            "maxContains": st.just(1),
            "minimum": st.just(1),
        },
    )


SCHEMAS = st.recursive(LEAVES, combine_widening, max_leaves=6).filter(lambda schema: isinstance(schema, dict))
VALUES = st.recursive(
    st.sampled_from([None, 0, 1, 3, "", "a", "abc"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)


def places(schema: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place of a schema at which a fault may be."""
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        at = (*place, keyword)
        yield at
        if keyword in SCHEMA_KEYWORDS:
            yield from places(value, at)
        elif keyword in SCHEMA_LIST_KEYWORDS:
            for index, each in enumerate(value):
                yield (*at, index)
                yield from places(each, (*at, index))
        elif keyword in SCHEMA_OBJECT_KEYWORDS:
            for name, each in value.items():
                yield (*at, name)
                yield from places(each, (*at, name))


@given(SCHEMAS, st.lists(VALUES, min_size=1, max_size=5), st.data())
def test_every_value_that_was_allowed_is_allowed(
    schema: dict[str, Any], values: list[Any], data: st.DataObject
) -> None:
    known = list(places(schema))
    place = data.draw(st.sampled_from(known)) if known else ("none",)
    former, widened = SchemaValidator(schema), SchemaValidator(widen_schema(schema, place))
    for value in values:
        if not former.find_mistakes(value):
            assert not widened.find_mistakes(value)


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "place", "widened"),
    [
        ({"type": "string", "pattern": "("}, ("pattern",), {"type": "string"}),
        ({"required": [1]}, ("required", 0), {}),
        ({"properties": {"a": "x"}, **CLOSED}, ("properties", "a"), ...),
        ({"properties": [], **CLOSED}, ("properties",), {"properties": {}, **CLOSED}),
        ({"properties": 3, **CLOSED}, ("properties",), {}),
        ({"patternProperties": {"(": {}, "a": {}}, **CLOSED}, ("patternProperties", "("), ...),
        ({"not": {"pattern": "("}, "type": "string"}, ("not", "pattern"), {"type": "string"}),
        ({"oneOf": [{"pattern": "("}, {}], "anyOf": [{}]}, ("oneOf", 0, "pattern"), ...),
        ({"type": "string"}, ("pattern",), {"type": "string"}),
        ({"allOf": [{}]}, ("allOf", 3), {"allOf": [{}]}),
    ],
)
def test_places(schema: dict[str, Any], place: tuple[str | int, ...], widened: Any) -> None:
    expected = {
        ("properties", "a"): {"properties": {"a": {}}, "additionalProperties": False},
        ("patternProperties", "("): {"patternProperties": {"a": {}}},
        ("oneOf", 0, "pattern"): {"anyOf": [{}], "allOf": [{"anyOf": [{}, {}]}]},
    }
    assert widen_schema(schema, place) == (expected[place] if widened is ... else widened)


ONE_OF = "must be one of the allowed values"


def test_text_of_a_mistake() -> None:
    assert str(Mistake("/a/0", "is required")) == "/a/0 is required"
    assert str(Mistake("", "must be null, not a string")) == "the whole value must be null, not a string"
    assert str(Mistake("/u", ONE_OF, ('"a"', "1"))) == f'/u {ONE_OF}: "a", 1'


def test_long_lists_are_shortened_with_their_number() -> None:
    text = str(Mistake("/u", ONE_OF, tuple(map(str, range(1_025)))))
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


def pay_by(kind: str, field: str, type: str) -> dict[str, Any]:
    properties = {"kind": {"const": kind}, field: {"type": type}}
    return {"type": "object", "properties": properties, "required": ["kind", field]}


CARD, CASH = pay_by("card", "number", "string"), pay_by("cash", "amount", "number")


@pytest.mark.parametrize(
    ("schema", "value", "texts"),
    [
        ({"type": ["string", "null", "array"]}, 7, ["must be null, a string or an array, not an integer"]),
        ({"type": "integer"}, 1.5, ["must be an integer, not a number"]),
        ({"type": "integer"}, True, ["must be an integer, not a boolean"]),
        ({"type": "string"}, None, ["must be a string, not null"]),
        ({"type": "string"}, {}, ["must be a string, not an object"]),
        ({"minimum": 1}, 0, ["must be at least 1"]),
        ({"maximum": 1.5}, 2, ["must be at most 1.5"]),
        ({"exclusiveMinimum": 1}, 1, ["must be greater than 1"]),
        ({"exclusiveMaximum": 1}, 1, ["must be less than 1"]),
        ({"multipleOf": 5}, 7, ["must be a multiple of 5"]),
        ({"minLength": 2}, "x", ["must have at least 2 characters"]),
        ({"maxLength": 1}, "xx", ["must have at most 1 character"]),
        ({"minItems": 1}, [], ["must have at least 1 item"]),
        ({"maxItems": 1000}, [0] * 1001, ["must have at most 1,000 items"]),
        ({"minProperties": 1}, {}, ["must have at least 1 property"]),
        ({"maxProperties": 0}, {"a": 1}, ["must have at most 0 properties"]),
        ({"pattern": "^a+$"}, "b", ["must match the pattern ^a+$"]),
        ({"uniqueItems": True}, [1, 1], ["must not have two equal items"]),
        ({"contains": {"const": 1}}, [2], ["must have as many items of the kind in 'contains' as the schema requires"]),
        ({"not": {"type": "null"}}, None, ["must not be of the kind in 'not'"]),
        ({"properties": {"a": False}}, {"a": 1}, ["/a is not allowed"]),
        ({"const": "x"}, "y", ['must be the only allowed value: "x"']),
        ({"enum": ["a", 1, None]}, "y", ['must be one of the allowed values: "a", 1, null']),
        ({"required": ["a/b", "c"]}, {}, ["/a~1b is required", "/c is required"]),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, ["/b is required"]),
        ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, ["has a property whose name must have at most 1 character"]),
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
            ["must not have items that the schema does not describe"],
        ),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, ["must be a string or null, not an integer"]),
        ({"anyOf": [{"enum": ["a", "b"]}, {"const": "c"}]}, "d", ['must be one of the allowed values: "a", "b", "c"']),
        (
            {"anyOf": [{"enum": ["a"]}, {"type": "integer"}]},
            "d",
            ['must be an integer, or one of the allowed values: "a"'],
        ),
        ({"anyOf": [{"type": "null"}, {"type": "string", "minLength": 3}]}, "x", ["must have at least 3 characters"]),
        ({"oneOf": [CARD, CASH]}, {"kind": "cash", "amount": "7"}, ["/amount must be a number, not a string"]),
        (
            {"oneOf": [CARD, CASH]},
            {"number": "7"},
            ["matches none of 2 alternatives: (1) /kind is required; (2) /kind is required, /amount is required"],
        ),
        (
            {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {},
            ["matches none of 2 alternatives: (1) /a is required; (2) /b is required"],
        ),
        (
            {"oneOf": [{"type": "integer"}, {"minimum": 2}]},
            3,
            ["matches several of the alternatives, and must match exactly one"],
        ),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "a", ["must have at least 3 characters"]),
    ],
)
def test_text(schema: dict[str, Any], value: Any, texts: list[str]) -> None:
    """A text without a path is about the whole value."""
    assert describe(schema, value) == [text if text[0] == "/" else f"the whole value {text}" for text in texts]


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
AWAY = {"$ref": ADDRESS}


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
        {"default": AWAY, "const": AWAY, "enum": [AWAY], "x-own": AWAY},
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
        ({"type": "str", "items": AWAY}, ["/type must be an array, or one of", "/items/$ref must refer to"]),
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
