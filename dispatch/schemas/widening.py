"""Schemas without the parts that cannot be used: every value that the whole schema would allow stays allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatch.schemas.references import SCHEMA_KEYWORDS, SCHEMA_LIST_KEYWORDS, SCHEMA_OBJECT_KEYWORDS

_REMOVED: Final = object()
_UNEVALUATED: Final = ("unevaluatedItems", "unevaluatedProperties")
_DEPENDENT: Final = {
    "properties": ("additionalProperties",),
    "patternProperties": ("additionalProperties",),
    "prefixItems": ("items",),
    "if": ("then", "else"),
    "contains": ("minContains", "maxContains"),
}
"""Keywords that apply to what another one leaves, and would forbid more without it."""


def widen_schema(schema: Any, place: Sequence[str | int]) -> Any:
    """Return ``schema`` without the keyword at ``place``, or with any value allowed where ``place`` is a schema in a list or
    an object. Keywords around it that would forbid more without it are removed, too: ``not`` and ``if``, ``oneOf`` (which
    becomes ``anyOf``), and keywords about what others do not describe.

    Args:
        schema: an object, mutable or not; it is not changed.
        place: the keys of the place, which may be inside of the value of a keyword.

    Returns:
        The schema; ``{}`` for the whole schema, and the same object if there is no such place.
    """
    if not place:
        return {}
    if not isinstance(schema, Mapping) or place[0] not in schema:
        return schema
    keyword, *rest = place
    value = schema[keyword]
    inner = _widen_value(str(keyword), value, rest)
    if inner is value:
        return schema
    result = {key: inner if key == keyword else each for key, each in schema.items() if key not in _UNEVALUATED}
    if inner is _REMOVED or keyword in ("not", "if"):
        result.pop(str(keyword), None)
    if inner is _REMOVED or keyword in ("if", "contains") or (keyword == "patternProperties" and len(rest) == 1):
        for dependent in _DEPENDENT.get(str(keyword), ()):
            result.pop(dependent, None)
    if keyword == "oneOf" and inner is not _REMOVED:
        del result["oneOf"]
        if "anyOf" in result:
            result["allOf"] = [*result.get("allOf", ()), {"anyOf": inner}]
        else:
            result["anyOf"] = inner
    return result


def _widen_value(keyword: str, value: Any, place: Sequence[str | int]) -> Any:
    """Return the value of a keyword with less in it; :data:`_REMOVED`: nothing of it can be used."""
    if not place:
        # PHP writes an empty object as an empty list.
        is_empty = keyword in SCHEMA_OBJECT_KEYWORDS and isinstance(value, (list, tuple)) and not value
        return {} if is_empty else _REMOVED
    if keyword in SCHEMA_KEYWORDS:
        return widen_schema(value, place)
    name, *rest = place
    if keyword in SCHEMA_LIST_KEYWORDS and isinstance(value, (list, tuple)) and isinstance(name, int):
        if name >= len(value):
            return value
        inner = widen_schema(value[name], rest)
        return value if inner is value[name] else [*value[:name], inner, *value[name + 1 :]]
    if keyword in SCHEMA_OBJECT_KEYWORDS and isinstance(value, Mapping):
        if name not in value:
            return value
        if keyword == "patternProperties" and not rest:  # the fault may be in the pattern
            return {key: each for key, each in value.items() if key != name}
        inner = widen_schema(value[name], rest)
        return value if inner is value[name] else {**value, name: inner}
    return _REMOVED
