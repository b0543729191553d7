"""Checks an ``input-schema`` and an ``output-schema``: JSON Schema 2020-12 without references to addresses. The schema
itself is used unchanged, and nothing is fetched for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dispatch._internal.suggestions import write_json
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import describe_kind, describe_value, join_path
from dispatch.schemas import Mistake, find_outside_references, find_schema_problems
from dispatch.schemas.engine import has_engine
from dispatch.schemas.mistake import split_pointer
from dispatch.schemas.references import DIALECT, SCHEMA_KEYWORDS, SCHEMA_LIST_KEYWORDS, SCHEMA_OBJECT_KEYWORDS

_TYPES: Final = ("array", "boolean", "integer", "null", "number", "object", "string")


def check_input_schema(schema: Mapping[str, Any], report: Report) -> None:
    """Report each mistake of the schema of a tool's arguments: its root is no object, and those of :func:`check_schema`."""
    if schema.get("type") != "object":
        given = f"is {describe_value(schema['type'])}" if "type" in schema else "is missing"
        report.add_error(
            "input-schema.type",
            f"the type of the root {given}, and a tool's arguments are an object",
            'write "type": "object", with one property for each argument',
        )
    check_schema(schema, report, "input-schema")


def check_schema(schema: Mapping[str, Any], report: Report, path: str) -> None:
    """Report each keyword of ``schema``, at ``path`` of its descriptor, whose value JSON Schema 2020-12 does not allow, and
    each reference to an address.

    With the extra ``schema`` this includes patterns, references to places in the schema, and every rule of the metaschema.
    Depth and size are those of the descriptor, which is limited.
    """
    before = len(report.problems)
    _check_schema(schema, report, path)
    outside = find_outside_references(schema)
    for mistake in outside:
        fix = 'copy the schema into "$defs" of this one, and write "$ref": "#/$defs/NAME"'
        if mistake.path.endswith("/$schema"):
            fix = f'write "{DIALECT}"'
        report.add_error(_key_of(mistake.path, schema, path), mistake.message, fix)
    dialect = schema.get("$schema", DIALECT)
    if isinstance(dialect, str) and dialect.rstrip("#") != DIALECT and not _names_dialect(outside):
        report.add_warning(
            f"{path}.$schema", "another dialect than 2020-12, by which the schema is checked", f'write "{DIALECT}"'
        )
    if has_engine():
        # The checks above have better words for the same mistakes, which the metaschema finds in parts of a value.
        known = tuple(problem.key for problem in report.problems[before:])
        for mistake in find_schema_problems(schema):
            key = _key_of(mistake.path, schema, path)
            if not any(key == each or key.startswith((f"{each}.", f"{each}[")) for each in known):
                report.add_error(key, _describe(mistake), "correct it as JSON Schema 2020-12 requires")


def _names_dialect(outside: Sequence[Mistake]) -> bool:
    return any(mistake.path == "/$schema" for mistake in outside)


def _describe(mistake: Mistake) -> str:
    """Return the fault of ``mistake`` without its path, which is the key of the problem."""
    return str(msgspec.structs.replace(mistake, path="")).removeprefix("the whole value ")


def _key_of(pointer: str, schema: object, path: str) -> str:
    """Return the path in a descriptor of the place ``pointer`` in ``schema``."""
    for part in split_pointer(pointer):
        if isinstance(schema, tuple):
            path = f"{path}[{part}]"
            schema = schema[int(part)]
        else:
            path = join_path(path, part)
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return path


def _check_schema(schema: object, report: Report, path: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        fix = 'write {"type": "string"}, or true for any value'
        if isinstance(schema, tuple) and path.endswith(".items"):
            fix = "rename 'items' to 'prefixItems', as in JSON Schema 2020-12"
        report.add_error(path, f"{describe_kind(schema)} instead of a schema", fix)
        return
    for keyword, value in schema.items():
        at = join_path(path, keyword)
        if keyword in SCHEMA_KEYWORDS:
            _check_schema(value, report, at)
        elif keyword in SCHEMA_LIST_KEYWORDS:
            _check_schema_list(value, report, at)
        elif keyword in SCHEMA_OBJECT_KEYWORDS:
            _check_schema_object(value, report, at)
        elif keyword in _VALUES:
            is_valid, expected, example = _VALUES[keyword]
            if not is_valid(value):
                report.add_error(
                    at, f"{describe_value(value)} instead of {expected}", f'write "{keyword}": {write_json(example)}'
                )


def _check_schema_list(value: object, report: Report, path: str) -> None:
    if not isinstance(value, tuple) or not value:
        problem = (
            "an empty list" if isinstance(value, tuple) else f"{describe_kind(value)} instead of a list of schemas"
        )
        report.add_error(path, problem, 'write [{"type": "string"}], or remove it')
        return
    for index, inner in enumerate(value):
        _check_schema(inner, report, f"{path}[{index}]")


def _check_schema_object(value: object, report: Report, path: str) -> None:
    if not isinstance(value, Mapping):
        report.add_error(
            path, f"{describe_kind(value)} instead of an object of schemas", 'write {"topic": {"type": "string"}}'
        )
        return
    for key, inner in value.items():
        _check_schema(inner, report, join_path(path, key))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_list(value: object) -> bool:
    return isinstance(value, tuple)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_positive_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_count(value: object) -> bool:
    # 2.0 is an integer in JSON Schema.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0 and value == int(value)


def _is_unique_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(v, str) for v in value) and len(set(value)) == len(value)


def _is_type(value: object) -> bool:
    if isinstance(value, tuple):
        return bool(value) and _is_unique_texts(value) and all(one in _TYPES for one in value)
    return value in _TYPES


def _is_texts_by_name(value: object) -> bool:
    return isinstance(value, Mapping) and all(_is_unique_texts(names) for names in value.values())


_Rule = tuple[Callable[[object], bool], str, Any]
_TEXT: Final[_Rule] = (_is_text, "a text", "…")
_FLAG: Final[_Rule] = (_is_flag, "true or false", True)
_COUNT: Final[_Rule] = (_is_count, "a whole number of at least 0", 1)
_NUMBER: Final[_Rule] = (_is_number, "a number", 1)

_VALUES: Final[Mapping[str, _Rule]] = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them", "string"),
    "required": (_is_unique_texts, "a list of different names, in the object that has the properties", ["topic"]),
    "dependentRequired": (_is_texts_by_name, "an object of lists of names", {"unit": ["amount"]}),
    "enum": (_is_list, "a list", ["a", "b"]),
    "examples": (_is_list, "a list", ["a"]),
    "multipleOf": (_is_positive_number, "a number above 0", 1),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _NUMBER),
    **dict.fromkeys(
        (
            "maxLength", "minLength", "maxItems", "minItems", "maxContains", "minContains", "maxProperties",
            "minProperties",
        ),
        _COUNT,
    ),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _FLAG),
    **dict.fromkeys(
        (
            "$schema", "$id", "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$comment", "title", "description",
            "format", "pattern", "contentEncoding", "contentMediaType",
        ),
        _TEXT,
    ),
}  # fmt: skip
