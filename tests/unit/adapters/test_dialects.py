"""Schemas in the dialects of model APIs: what the dialect accepts, and no value that the original accepts is lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dispatch.adapters.dialects import Style, fit_schema
from dispatch.schemas import SchemaValidator

OPENAI = (Style.OPENAI_CHAT, Style.OPENAI_RESPONSES)
GEMINI_KEYWORDS = {
    *("type", "format", "title", "description", "nullable", "enum", "maxItems", "minItems", "properties", "required"),
    *("minProperties", "maxProperties", "minLength", "maxLength", "pattern", "anyOf", "items", "minimum", "maximum"),
}


def schemas_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping):
        return
    yield schema
    for each in (*schema.get("properties", {}).values(), *schema.get("anyOf", ()), schema.get("items")):
        yield from schemas_in(each)


def check_gemini(schema: Mapping[str, Any]) -> None:
    for each in schemas_in(schema):
        assert each.keys() <= GEMINI_KEYWORDS
        if "anyOf" in each:
            assert each.keys() == {"anyOf"}
            continue
        assert each["type"] in ("string", "integer", "number", "boolean", "object", "array")
        assert each["type"] == "object" or not {"properties", "required"} & each.keys()
        assert set(each.get("required", ())) <= set(each.get("properties", ()))
        assert each.get("properties") != {}
        assert ("items" in each) == (each["type"] == "array")
        assert all(isinstance(value, str) for value in each.get("enum", ()))
        assert "enum" not in each or each["type"] == "string"


def as_json_schema(schema: Any) -> Any:
    """A schema of Gemini as JSON Schema."""
    if not isinstance(schema, Mapping):
        return schema
    plain = {key: value for key, value in schema.items() if key not in ("nullable", "properties", "anyOf", "items")}
    for key in ("properties",):
        if key in schema:
            plain[key] = {name: as_json_schema(each) for name, each in schema[key].items()}
    if "anyOf" in schema:
        plain["anyOf"] = [as_json_schema(each) for each in schema["anyOf"]]
    if "items" in schema:
        plain["items"] = as_json_schema(schema["items"])
    return {"anyOf": [plain, {"type": "null"}]} if schema.get("nullable") else plain


names = st.sampled_from("ab")
scalars: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-2, 4) | st.sampled_from(["", "x", "long"])
values = st.recursive(
    scalars, lambda inner: st.dictionaries(names, inner, max_size=2) | st.lists(scalars, max_size=2), max_leaves=4
)


def objects_of(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, min_size=1, max_size=2)},
        optional={
            "required": st.lists(names, unique=True, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "description": st.just("An object."),
        },
    )


numbers = st.builds(
    lambda kind, key, limit: {"type": kind, key: limit},
    st.sampled_from(["integer", "number", ["integer", "null"]]),
    st.sampled_from(["minimum", "exclusiveMinimum", "multipleOf"]),
    st.integers(1, 3),
)
texts = st.sampled_from(
    [{"type": "string", "maxLength": 1}, {"enum": ["x", "y", None]}, {"const": 2}, {"enum": [1, 2]}]
)
references = st.sampled_from([{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}, {"$ref": "#"}])
kinds = st.builds(lambda kind: {"type": kind}, st.sampled_from(["string", "boolean", "null", "array"]))
others = st.sampled_from([True, False, {}, {"type": ["string", "array"], "items": {"type": "integer"}, "default": "x"}])
leaves = st.one_of(numbers, texts, references, kinds, others)
COMBINATIONS = st.sampled_from(["anyOf", "oneOf", "allOf"])
schemas = st.recursive(
    leaves,
    lambda inner: (
        objects_of(inner)
        | st.builds(lambda key, parts: {key: parts}, COMBINATIONS, st.lists(inner, min_size=1, max_size=2))
        | st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda a, b: {"type": "array", "prefixItems": [a], "items": b}, inner, inner)
        | st.builds(lambda own, part: {**own, "allOf": [part]}, objects_of(inner), inner)
        | st.builds(lambda own, part: {**own, "anyOf": [part]}, objects_of(inner), inner)
    ),
    max_leaves=5,
)  # fmt: skip
objects = objects_of(schemas)
roots = st.builds(
    lambda root, one, two: {**root, "$defs": {"one": one, "two": two}},
    objects | st.builds(lambda own, part: {**own, "allOf": [part]}, objects, objects),
    schemas,
    schemas,
)


def has_endless_reference(schema: Any) -> bool:
    """Return whether a reference leads to itself without a value between: engines have no answer for it."""
    seen: set[str] = set()

    def walk(part: Any, above: tuple[str, ...]) -> bool:
        if not isinstance(part, Mapping):
            return False
        if (reference := part.get("$ref")) is not None:
            if reference in above:
                return True
            target = schema if reference == "#" else schema["$defs"][reference.rpartition("/")[2]]
            if walk(target, (*above, reference)):
                return True
        return any(walk(each, above) for key in ("anyOf", "oneOf", "allOf") for each in part.get(key, ()))

    def every(part: Any) -> bool:
        if not isinstance(part, Mapping) or repr(part) in seen:
            return False
        seen.add(repr(part))
        inner = [*part.get("properties", {}).values(), part.get("items"), part.get("additionalProperties")]
        inner += [each for key in ("anyOf", "oneOf", "allOf", "prefixItems") for each in part.get(key, ())]
        return walk(part, ()) or any(every(each) for each in inner)

    return every(schema) or any(every(each) for each in schema["$defs"].values())


@st.composite
def values_for(draw: st.DrawFn, schema: Any, root: Mapping[str, Any], level: int = 0) -> Any:
    """A value that the schema accepts, in most cases; another one in the others."""
    if not isinstance(schema, Mapping) or level > 5 or draw(st.integers(0, 15)) == 0:
        return draw(values)
    if "$ref" in schema:
        reference = schema["$ref"]
        target = root if reference == "#" else root["$defs"][reference.rpartition("/")[2]]
        return draw(values_for(target, root, level + 1))
    parts = [each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ())]
    if parts and draw(st.booleans()):
        return draw(values_for(draw(st.sampled_from(parts)), root, level + 1))
    if "const" in schema or "enum" in schema:
        return draw(st.sampled_from(schema.get("enum", [schema.get("const")])))
    kinds = schema.get("type")
    kind = draw(st.sampled_from(kinds)) if isinstance(kinds, list) else kinds
    if kind in ("integer", "number"):
        limit = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        return draw(st.integers(limit - 1, limit + 2) | st.just(limit + 0.5))
    if kind == "array":
        items = schema.get("items", True)
        firsts = [draw(values_for(each, root, level + 1)) for each in schema.get("prefixItems", ())]
        return [*firsts, *([] if draw(st.booleans()) else [draw(values_for(items, root, level + 1))])]
    if kind == "object":
        properties = schema.get("properties", {})
        chosen = {name: draw(values_for(properties.get(name), root, level + 1)) for name in schema.get("required", ())}
        for name in properties.keys() - chosen.keys():
            if draw(st.booleans()):
                chosen[name] = draw(values_for(properties[name], root, level + 1))
        return chosen
    if kind == "string":
        return draw(st.sampled_from(["x", "long"]))
    return {"null": None, "boolean": True}.get(kind) if kind else draw(values)


@pytest.mark.costly
@pytest.mark.parametrize("style", Style)
@given(roots, st.data())
def test_no_value_is_lost(style: Style, schema: dict[str, Any], data: st.DataObject) -> None:
    assume(not has_endless_reference(schema))
    fitted = fit_schema(schema, style)
    if style is Style.GEMINI:
        check_gemini(fitted.schema)
    assert fitted.schema["type"] == "object"
    value = data.draw(values_for(schema, schema))
    if not isinstance(value, dict) or SchemaValidator(schema).find_mistakes(value):
        return
    if style is Style.GEMINI and has_array_in_array(value):
        return  # Gemini has no name for any value: arrays have to state their items, which end somewhere
    undeclared = value.keys() - schema["properties"].keys()
    if fitted.is_strict and undeclared:
        return  # their names are not known to a model
    offered = as_json_schema(fitted.schema) if style is Style.GEMINI else fitted.schema
    assert SchemaValidator(offered).find_mistakes(value) == (), fitted


def has_array_in_array(value: Any, above: bool = False) -> bool:
    if isinstance(value, dict):
        return any(has_array_in_array(each) for each in value.values())
    return isinstance(value, list) and (above or any(has_array_in_array(each, True) for each in value))


def close_objects(schema: Any) -> Any:
    """Return the schema with all properties required, as strict mode needs it."""
    if isinstance(schema, list):
        return [close_objects(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: close_objects(each) for key, each in schema.items()}
    if closed.get("type") == "object":
        closed.pop("additionalProperties", None)
        closed["required"] = list(closed["properties"])
    return closed


strict_leaves = st.one_of(
    numbers,
    st.sampled_from([{"$ref": "#/$defs/one"}, {"type": "string", "enum": ["x"]}, {"type": ["boolean", "null"]}]),
    st.just({"anyOf": [{"type": "string"}, {"type": "integer", "maximum": 0}]}),
)
strict_schemas = st.recursive(strict_leaves, lambda inner: objects_of(inner) | others, max_leaves=3)
strict_roots = st.builds(
    lambda root, one: close_objects({**root, "$defs": {"one": one}}), objects_of(strict_schemas), numbers
)


@given(strict_roots, st.data())
def test_strict_mode_accepts_nothing_that_the_original_refuses(schema: dict[str, Any], data: st.DataObject) -> None:
    assume(not has_endless_reference(schema))
    fitted = fit_schema(schema, Style.OPENAI_CHAT)
    if not fitted.is_strict:
        return
    value = data.draw(values_for(fitted.schema, fitted.schema))
    if not SchemaValidator(fitted.schema).find_mistakes(value):
        assert SchemaValidator(schema).find_mistakes(value) == ()


@given(roots, st.data())
def test_what_gemini_accepts_beyond_the_original_is_reported(schema: dict[str, Any], data: st.DataObject) -> None:
    assume(not has_endless_reference(schema))
    fitted = fit_schema(schema, Style.GEMINI)
    offered = as_json_schema(fitted.schema)
    if fitted.widened:
        return
    value = data.draw(values_for(offered, offered))
    if not SchemaValidator(offered).find_mistakes(value):
        assert SchemaValidator(without_closed_objects(schema)).find_mistakes(value) == (), fitted


def without_closed_objects(schema: Any) -> Any:
    """Return the schema without ``additionalProperties: false``: a model does not know names that are not declared, so
    that offering them needs no report."""
    if isinstance(schema, list):
        return [without_closed_objects(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: each for key, each in schema.items() if (key, each) != ("additionalProperties", False)}
    return {key: without_closed_objects(each) for key, each in kept.items()}


TEXTS = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


@pytest.mark.parametrize(
    ("schema", "is_strict"),
    [
        (TEXTS, True),
        ({"type": "object", "properties": {}}, True),
        ({"type": "object"}, False),
        ({**TEXTS, "required": []}, False),
        ({**TEXTS, "additionalProperties": True}, False),
        ({**TEXTS, "properties": {"q": {"type": "string", "default": "x"}}}, False),
        ({**TEXTS, "properties": {"q": {"type": "string", "minLength": 1}}}, False),
        ({**TEXTS, "properties": {"q": {"type": "string", "format": "email"}}}, True),
        ({**TEXTS, "properties": {"q": {"type": "string", "format": "uri"}}}, False),
        ({**TEXTS, "properties": {"q": {"type": "array"}}}, False),
        ({**TEXTS, "properties": {"q": {"type": "array", "items": {"type": "integer"}}}}, True),
        ({**TEXTS, "properties": {"q": {"type": "object"}}}, False),
        ({**TEXTS, "properties": {"q": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, True),
        ({**TEXTS, "properties": {"q": {"oneOf": [{"type": "string"}, {"type": "null"}]}}}, False),
        ({**TEXTS, "properties": {"q": {"$ref": "#/$defs/T"}}, "$defs": {"T": {"type": "string"}}}, True),
        (
            {**TEXTS, "properties": {"q": {"$ref": "#/$defs/T", "title": "t"}}, "$defs": {"T": {"type": "string"}}},
            False,
        ),
        ({**TEXTS, "properties": {"q": {"$ref": "#/$defs/U"}}, "$defs": {"T": {"type": "string"}}}, False),
        ({**TEXTS, "properties": {"q": {"enum": [1, 2]}}}, False),
        ({**TEXTS, "properties": {"q": {"type": "string", "enum": ["v"] * 1_001}}}, False),
        ({**TEXTS, "anyOf": [TEXTS, {"type": "object", "properties": {"r": {"type": "string"}}}]}, False),
    ],
)
def test_strict_mode_only_where_it_loses_nothing(schema: dict[str, Any], is_strict: bool) -> None:
    for style in OPENAI:
        fitted = fit_schema(schema, style)
        assert fitted.is_strict is is_strict
        if is_strict:
            for each in schemas_in(fitted.schema):
                assert each.get("type") != "object" or each["additionalProperties"] is False
                assert each.get("type") != "object" or each["required"] == list(each["properties"])


def test_levels_of_strict_mode_are_limited() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for level in range(1, 12):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
        assert fit_schema(schema, Style.OPENAI_CHAT).is_strict is (level < 10)


def test_a_combination_at_the_root_becomes_one_object_and_is_reported() -> None:
    schema = {
        "anyOf": [TEXTS, {"$ref": "#/$defs/B"}],
        "$defs": {"B": {"type": "object", "properties": {"q": {"type": "integer"}, "n": {"type": "array"}}}},
    }
    for style in (Style.OPENAI_CHAT, Style.ANTHROPIC):
        fitted = fit_schema(schema, style)
        assert fitted.schema["properties"]["q"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
        assert not {"anyOf", "$ref", "required"} & fitted.schema.keys()
        assert fitted.widened == ("/: anyOf at the root; the properties of all its schemas are offered together",)
    assert fit_schema(schema, Style.OPENAI_CHAT).schema["properties"]["n"] == {"type": "array", "items": {}}
    assert fit_schema(schema, Style.MCP).schema == {"type": "object", **schema}


def test_gemini() -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": ["string", "null"], "description": "City.", "default": "Graz", "format": "city"},
            "node": {"$ref": "#/$defs/Node", "description": "Root."},
            "size": {"enum": [1, 2]},
            "kind": {"const": "fast"},
            "more": {"type": "object", "additionalProperties": {"type": "integer"}},
            "above": {"type": "integer", "exclusiveMinimum": 3},
        },
        "required": ["city", "unknown"],
        "additionalProperties": False,
        "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
    }
    fitted = fit_schema(schema, Style.GEMINI)
    check_gemini(fitted.schema)
    assert fitted.schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "nullable": True, "description": 'City. Default: "Graz"'},
            "node": {"type": "object", "properties": {"next": {"type": "object"}}, "description": "Root."},
            "size": {"type": "integer", "description": "One of: 1, 2."},
            "kind": {"type": "string", "enum": ["fast"]},
            "more": {"type": "object"},
            "above": {"type": "integer", "minimum": 4},
        },
        "required": ["city"],
    }
    assert fitted.widened == (
        "/node/next: the schema contains itself",
        "/size: enum of values that are not texts; One of: 1, 2.",
        "/more: additionalProperties",
        "/: required without a property of the name",
    )
    assert fit_schema({"type": "object", "properties": {}}, Style.GEMINI).schema == {"type": "object"}


def test_references_that_multiply_end() -> None:
    definitions = {
        f"d{at}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/d{at + 1}"} for name in "abcd"}}
        for at in range(12)
    }
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**definitions, "d12": True}}
    fitted = fit_schema(schema, Style.GEMINI)
    check_gemini(fitted.schema)
    assert any(each.endswith("the schema is too large") for each in fitted.widened)
    assert sum(1 for _ in schemas_in(fitted.schema)) < 20_000


def test_any_value_for_gemini_may_be_a_table_and_says_where_it_ends() -> None:
    schema = {"type": "object", "properties": {"rows": {}, "name": {"type": "string"}}}
    fitted = fit_schema(schema, Style.GEMINI)
    check_gemini(fitted.schema)
    kinds = fitted.schema["properties"]["rows"]["anyOf"]
    for _ in range(2):
        (array,) = [each for each in kinds if each["type"] == "array"]
        kinds = array["items"]["anyOf"]
    assert "array" not in [each["type"] for each in kinds]
    assert fitted.widened == ("/rows: any value, offered without arrays deeper than 2 levels",)


def test_an_unknown_style_lists_the_known_ones() -> None:
    problem = r"there is no style 'openai'\. Fix: use one of openai-chat, openai-responses, "
    with pytest.raises(ValueError, match=problem):
        Style("openai")
