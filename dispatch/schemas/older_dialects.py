"""Schemas in older dialects of JSON Schema (draft-03 to 2019-09) as schemas of 2020-12, which everything else reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from dispatch.schemas.references import DIALECT, SCHEMA_KEYWORDS, SCHEMA_LIST_KEYWORDS, SCHEMA_OBJECT_KEYWORDS

_NAME: Final = re.compile(r"https?://json-schema\.org/(?:draft-0([3467])|draft/(2019-09))/schema#?")
_ANCHOR: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_BESIDE_REFERENCE: Final = frozenset(
    {
        "$comment", "$defs", "$ref", "$schema", "default", "definitions", "deprecated", "description", "examples",
        "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
"""Keywords that count beside ``$ref`` up to draft-07: they describe, or are referred to. All others are ignored there."""


class Dialect:
    """A dialect before 2020-12.

    Args:
        number: of the draft, 3 to 7; 8: 2019-09.
        is_guessed: the schema does not name it; only what cannot mean anything else is translated.
    """

    def __init__(self, number: int, *, is_guessed: bool = False) -> None:
        self.number = number
        self.is_guessed = is_guessed


GUESSED: Final = Dialect(7, is_guessed=True)
"""The dialect of a schema of another system that names none. Many generators write draft-07 without its name."""


def find_dialect(schema: Mapping[str, Any]) -> Dialect | None:
    """Return the older dialect that ``$schema`` names; None: 2020-12, another one, or none."""
    name = schema.get("$schema")
    found = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
    if found is None:
        return None
    return Dialect(int(found[1]) if found[1] else 8)


def translate_schema(schema: Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any]:
    """Return ``schema`` in JSON Schema 2020-12; the same object if both dialects read it alike.

    - lists in ``items``, and ``additionalItems``;
    - ``exclusiveMinimum`` and ``exclusiveMaximum`` as flags, ``required`` as a flag of a property, ``divisibleBy``;
    - ``id``, and ``$id`` as the name of a place (``#part``);
    - ``dependencies``, ``$recursiveRef``, the type ``any``;
    - keywords beside ``$ref``, which draft-07 and its predecessors ignore.

    What has a type that no dialect knows is unchanged.
    """
    translated: dict[str, Any] = _translate(schema, dialect, is_root=True)
    if translated == schema:
        return schema
    if "$schema" in translated:
        translated["$schema"] = DIALECT
    return translated


def _translate(schema: Any, dialect: Dialect, *, is_root: bool = False) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if not is_root and "$schema" in schema:
        dialect = find_dialect(schema) or dialect
    result = dict(schema)
    if not is_root and find_dialect(schema):
        del result["$schema"]
    if not dialect.is_guessed:
        _translate_named(result, dialect, is_root=is_root)
    _translate_items(result)
    _translate_bounds(result)
    _translate_place(result)
    _translate_flags(result)
    for keyword, value in result.items():
        if keyword in SCHEMA_KEYWORDS:
            result[keyword] = _translate(value, dialect)
        elif keyword in SCHEMA_LIST_KEYWORDS and _is_list(value):
            result[keyword] = type(value)(_translate(each, dialect) for each in value)
        elif keyword in SCHEMA_OBJECT_KEYWORDS and isinstance(value, Mapping):
            result[keyword] = {name: _translate(each, dialect) for name, each in value.items()}
    return result


def _translate_named(result: dict[str, Any], dialect: Dialect, *, is_root: bool) -> None:
    """Translate what another dialect could mean otherwise."""
    if dialect.number <= 7 and isinstance(result.get("$ref"), str):
        for keyword in result.keys() - _BESIDE_REFERENCE:
            if not (is_root and keyword in ("type", "id", "$id")):
                del result[keyword]
    if dialect.number <= 4 and isinstance(result.get("id"), str):
        result["$id"] = result.pop("id")
    if dialect.number == 3:
        if "divisibleBy" in result:
            result["multipleOf"] = result.pop("divisibleBy")
        kind = result.get("type")
        if kind == "any" or (_is_list(kind) and not all(isinstance(each, str) and each != "any" for each in kind)):
            del result["type"]
    if dialect.number <= 7 and isinstance(result.get("dependencies"), Mapping):
        _translate_dependencies(result)
    if dialect.number == 8:
        result.pop("$recursiveAnchor", None)
        if "$recursiveRef" in result:
            result.setdefault("$ref", result.pop("$recursiveRef"))


def _translate_dependencies(result: dict[str, Any]) -> None:
    names: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for name, value in result.pop("dependencies").items():
        if isinstance(value, str):
            names[name] = [value]
        elif _is_list(value):
            names[name] = value
        else:
            schemas[name] = value
    if names:
        result["dependentRequired"] = {**names, **result.get("dependentRequired", {})}
    if schemas:
        result["dependentSchemas"] = {**schemas, **result.get("dependentSchemas", {})}


def _translate_items(result: dict[str, Any]) -> None:
    items = result.get("items")
    if not _is_list(items):
        return
    del result["items"]
    if items:
        result["prefixItems"] = items
    if "additionalItems" in result:
        result["items"] = result.pop("additionalItems")


def _translate_bounds(result: dict[str, Any]) -> None:
    for exclusive, inclusive in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        flag = result.get(exclusive)
        if isinstance(flag, bool):
            del result[exclusive]
            if flag and inclusive in result:
                result[exclusive] = result.pop(inclusive)


def _translate_place(result: dict[str, Any]) -> None:
    address = result.get("$id")
    if not isinstance(address, str):
        return
    base, separator, place = address.partition("#")
    if not separator or not place:
        return
    del result["$id"]
    if base:
        result["$id"] = base
    if _ANCHOR.fullmatch(place):
        result.setdefault("$anchor", place)


def _translate_flags(result: dict[str, Any]) -> None:
    """Move ``required`` of a property to its object."""
    properties = result.get("properties")
    if not isinstance(properties, Mapping):
        return
    flags = {
        name: each["required"]
        for name, each in properties.items()
        if isinstance(each, Mapping) and isinstance(each.get("required"), bool)
    }
    if not flags:
        return
    result["properties"] = {
        name: {key: value for key, value in each.items() if key != "required"} if name in flags else each
        for name, each in properties.items()
    }
    names = result.get("required", ())
    if _is_list(names) or isinstance(names, bool):
        known = names if _is_list(names) else ()
        result["required"] = [*known, *(name for name, flag in flags.items() if flag and name not in known)]


def _is_list(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    return isinstance(value, (list, tuple))
