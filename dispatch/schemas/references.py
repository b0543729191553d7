"""References of a JSON Schema to addresses outside of it. No engine is needed to find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urldefrag, urljoin

from dispatch._internal.suggestions import quote_excerpt
from dispatch.schemas.mistake import Mistake, join_pointer, split_pointer

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_BUILT_IN: Final = "https://json-schema.org/draft/2020-12/"
"""The metaschema and its vocabularies, which the engine contains."""
_DIALECTS: Final = frozenset(
    {
        DIALECT,
        "https://json-schema.org/draft/2019-09/schema",
        *(f"http://json-schema.org/draft-0{number}/schema" for number in (3, 4, 6, 7)),
        "http://json-schema.org/schema",
    }
)
"""Names of dialects: they are read as 2020-12, and nothing is requested from their addresses."""

SCHEMA_KEYWORDS: Final = frozenset(
    {
        "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
        "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords whose value is a schema."""
SCHEMA_LIST_KEYWORDS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
"""Keywords whose value is a list of schemas."""
SCHEMA_OBJECT_KEYWORDS: Final = frozenset(
    {"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"}
)
"""Keywords whose value is an object of schemas."""

_Keys = tuple[str | int, ...]


def find_outside_references(schema: object) -> tuple[Mistake, ...]:
    """Return the places of ``$ref``, ``$dynamicRef`` and ``$schema`` whose address is neither in ``schema`` nor part of
    JSON Schema 2020-12. Values of keywords that are no schemas (``default``, ``const``, ``enum``, …) are not searched."""
    subschemas = list(_iterate_subschemas(schema, (), ""))
    resources = {base for _, base, _ in subschemas}
    found = []
    for keys, base, subschema in subschemas:
        for keyword in ("$ref", "$dynamicRef"):
            reference = subschema.get(keyword)
            if isinstance(reference, str) and not _is_inside(_resolve(base, reference), resources):
                found.append(_refuse((*keys, keyword), reference, "must refer to a place in the schema itself, not to"))
        dialect = subschema.get("$schema")
        if isinstance(dialect, str) and dialect.rstrip("#") not in _DIALECTS:
            found.append(_refuse((*keys, "$schema"), dialect, f'must be "{DIALECT}", not'))
    return tuple(found)


def find_dead_references(schema: object) -> tuple[_Keys, ...]:
    """Return the places of ``$ref`` and ``$dynamicRef`` to places that are not in ``schema``. References of a schema with
    several resources (``$id`` inside) are not followed."""
    subschemas = [(keys, each) for keys, _, each in _iterate_subschemas(schema, (), "")]
    if any("$id" in each for keys, each in subschemas if keys):
        return ()
    anchors = {each.get(keyword) for _, each in subschemas for keyword in ("$anchor", "$dynamicAnchor")}
    return tuple(
        (*keys, keyword)
        for keys, each in subschemas
        for keyword in ("$ref", "$dynamicRef")
        if isinstance(reference := each.get(keyword), str)
        and reference.startswith("#")
        and not (_has_place(schema, reference[1:]) if reference[1:2] in ("", "/") else reference[1:] in anchors)
    )


def _has_place(schema: object, pointer: str) -> bool:
    for key in split_pointer(unquote(pointer)):
        if isinstance(schema, Mapping) and key in schema:
            schema = schema[key]
        elif isinstance(schema, (list, tuple)) and key.isdecimal() and int(key) < len(schema):
            schema = schema[int(key)]
        else:
            return False
    return isinstance(schema, (Mapping, bool))


def _iterate_subschemas(schema: object, keys: _Keys, base: str) -> Iterator[tuple[_Keys, str, Mapping[str, Any]]]:
    """Yield each schema object in ``schema`` with its place and the address of its resource."""
    if not isinstance(schema, Mapping):
        return
    own = schema.get("$id")
    if isinstance(own, str):
        base = _resolve(base, own)
    yield keys, base, schema
    for keyword, value in schema.items():
        below = (*keys, keyword)
        if keyword in SCHEMA_KEYWORDS:
            yield from _iterate_subschemas(value, below, base)
        elif keyword in SCHEMA_LIST_KEYWORDS and isinstance(value, (list, tuple)):
            for index, inner in enumerate(value):
                yield from _iterate_subschemas(inner, (*below, index), base)
        elif keyword in SCHEMA_OBJECT_KEYWORDS and isinstance(value, Mapping):
            for name, inner in value.items():
                yield from _iterate_subschemas(inner, (*below, str(name)), base)


def _resolve(base: str, reference: str) -> str:
    """Return the address of the resource that ``reference`` names, without its fragment."""
    try:
        address = urldefrag(reference)[0]
        return urljoin(base, address) if address else base
    except ValueError:  # "//[": no address at all
        return reference


def _is_inside(address: str, resources: set[str]) -> bool:
    return address in resources or address.startswith(_BUILT_IN)


def _refuse(keys: _Keys, address: str, rule: str) -> Mistake:
    return Mistake(join_pointer(keys), f"{rule} {quote_excerpt(address)}: nothing is fetched for a schema")
