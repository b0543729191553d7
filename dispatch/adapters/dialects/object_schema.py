"""The root of a schema as an object: OpenAI and Anthropic refuse a combination of schemas there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from dispatch.adapters.dialects.local_references import resolve_reference

_COMBINATIONS: Final = ("allOf", "anyOf", "oneOf")
_CONDITIONS: Final = ("not", "if", "then", "else", "enum", "const", "dependentSchemas", "dependentRequired")
_MERGED: Final = frozenset(
    {*_COMBINATIONS, *_CONDITIONS, "type", "properties", "required", "additionalProperties"}
    | {"title", "description", "default", "examples", "$defs", "$ref", "$id", "$schema", "$comment"}
)
"""Keywords of a combined schema that are merged, reported as conditions, or only describe."""
_MAX_LEVELS: Final = 16
"""Levels of combinations in each other, and of references to references."""


def fit_object(schema: Mapping[str, Any], widened: list[str], *, may_combine: bool) -> dict[str, Any]:
    """Return ``schema`` with ``"type": "object"`` at its root.

    Args:
        widened: receives what the result does not express.
        may_combine: the dialect accepts combinations at the root.
    """
    fitted = {key: value for key, value in schema.items() if key != "$schema"}
    if may_combine:
        return {"type": "object", **{key: value for key, value in fitted.items() if key != "type"}}
    return _merge(fitted, schema, widened, 0)


def _merge(schema: Mapping[str, Any], root: Mapping[str, Any], widened: list[str], level: int) -> dict[str, Any]:
    """Return one object for a schema with its reference and its combinations."""
    merged: dict[str, Any] = {"type": "object"}
    merged |= {key: value for key, value in schema.items() if key not in (*_COMBINATIONS, *_CONDITIONS, "type", "$ref")}
    merged["properties"] = dict(schema.get("properties") or {})
    dropped = [key for key in _CONDITIONS if key in schema and not (level and key in ("then", "else"))]
    if dropped:
        widened.append(f"/: {', '.join(dropped)} at the root")
    if level and (lost := schema.keys() - _MERGED):
        widened.append(f"/: {', '.join(sorted(lost))} of a combined schema")
    if level >= _MAX_LEVELS:
        widened.append("/: combinations deeper than 16 levels")
        return merged
    if "$ref" in schema:
        target = resolve_reference(root, schema["$ref"])
        if isinstance(target, Mapping):
            _add(merged, [_merge(target, root, widened, level + 1)], is_union=False)
        else:
            widened.append(f"/: the reference {schema['$ref']!r:.80}")
    for key in _COMBINATIONS:
        if key not in schema:
            continue
        parts = [_merge(each, root, widened, level + 1) for each in schema[key] if isinstance(each, Mapping)]
        if key != "allOf":
            widened.append(f"/: {key} at the root; the properties of all its schemas are offered together")
        _add(merged, parts, is_union=key != "allOf")
    return merged


def _add(merged: dict[str, Any], parts: Iterable[dict[str, Any]], *, is_union: bool) -> None:
    """Add the properties of ``parts``; what each of them requires, or with ``is_union`` what all of them require."""
    parts = list(parts)
    offered: dict[str, list[Any]] = {name: [value] for name, value in merged["properties"].items()}
    own = set(offered)
    for part in parts:
        for name, value in part["properties"].items():
            if value not in offered.setdefault(name, []):
                offered[name].append(value)
    word = "anyOf" if is_union else "allOf"
    for name, values in offered.items():
        if len(values) > 1:
            # An own schema applies together with each of the union, so the union may be widened to it.
            merged["properties"][name] = values[0] if is_union and name in own else {word: values}
        else:
            merged["properties"][name] = values[0]
    required = [part.get("required") or [] for part in parts]
    if is_union:
        common = set(required[0]).intersection(*required[1:]) if required else set()
        required = [[name for name in required[0] if name in common]] if required else []
    names = dict.fromkeys([*(merged.get("required") or []), *(name for each in required for name in each)])
    if names:
        merged["required"] = list(names)
    for part in parts:
        if "$defs" in part:
            merged["$defs"] = {**part["$defs"], **merged.get("$defs", {})}
        if not is_union and "description" in part:
            merged.setdefault("description", part["description"])
    if offered.keys() - own:
        # It names the properties of its own schema only, and would forbid those of the others.
        merged.pop("additionalProperties", None)
        merged.pop("unevaluatedProperties", None)
