"""Two schemas that apply together, as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_NOTES: Final = ("title", "description", "default", "examples", "$id", "$comment", "$schema", "deprecated")


def join_schemas(target: dict[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Add the keywords of ``other`` to ``target``; yield each one that cannot be expressed, and is dropped. ``allOf`` and
    ``$ref`` of both are collected in ``allOf``."""
    for key, value in other.items():
        if key == "allOf":
            target["allOf"] = [*target.get("allOf", ()), *value]
        elif key == "$ref" and "$ref" in target:
            target["allOf"] = [*target.get("allOf", ()), {"$ref": value}]
        elif key not in target:
            target[key] = value
        elif key in _NOTES or target[key] == value or key == "$defs":
            continue
        elif key == "properties":
            target[key] = dict(target[key])
            for name, schema in value.items():
                own = target[key].get(name)
                target[key][name] = schema if own is None or own == schema else {"allOf": [own, schema]}
        elif key == "required":
            target[key] = list(dict.fromkeys([*target[key], *value]))
        elif key in _UPPER:
            target[key] = min(target[key], value)
        elif key in _LOWER:
            target[key] = max(target[key], value)
        elif key == "enum":
            target[key] = [each for each in target[key] if each in value]
        elif key == "type":
            kinds = _list_kinds(target[key])
            others = _list_kinds(value)
            both = [kind for kind in kinds if kind in others or (kind == "integer" and "number" in others)]
            both += [kind for kind in others if kind == "integer" and "number" in kinds and kind not in both]
            target[key] = both or kinds
            if not both:
                yield "two types that exclude each other"
        elif key == "items":
            target[key] = {"allOf": [target[key], value]}
        else:
            yield f"{key} twice"


def _list_kinds(value: Any) -> list[str]:
    return list(value) if isinstance(value, list) else [value]
