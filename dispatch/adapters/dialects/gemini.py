"""Gemini's dialect: OpenAPI's subset of JSON Schema, without references and combinations other than ``anyOf``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from dispatch.adapters.dialects.local_references import resolve_reference
from dispatch.adapters.dialects.schema_conjunction import join_schemas

_KINDS: Final = ("string", "integer", "number", "boolean", "object", "array")
_GEMINI_FORMATS: Final = {
    "string": frozenset({"date-time", "enum"}),
    "integer": frozenset({"int32", "int64"}),
    "number": frozenset({"float", "double"}),
}
_GEMINI_KEYWORDS: Final = {
    "string": ("minLength", "maxLength", "pattern"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "boolean": (),
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems"),
}
_WIDENING: Final = (
    *("not", "if", "dependentRequired", "dependentSchemas", "patternProperties", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems", "contains", "uniqueItems", "multipleOf"),
)
"""Keywords that Gemini does not have, and that are dropped."""
_MAX_SCHEMAS: Final = 2_000
"""Schemas in the result: references to references would multiply without end."""
_MAX_GEMINI_LEVELS: Final = 24
"""Levels of schemas in each other."""
ANY_LEVELS: Final = 2
"""Levels of arrays in the place of any value: a table is an array of arrays. Each level adds five schemas."""


def fit_gemini(schema: Mapping[str, Any], widened: list[str]) -> dict[str, Any]:
    """Return ``schema`` for a function declaration: an object, without ``properties`` if there are none.

    Args:
        widened: receives ``path: reason`` for each place that accepts more than the original, or offers less.
    """
    fitted = _GeminiFitter(schema, widened).fit(schema, "/", ())
    if fitted.get("type") == "object":
        fitted.pop("nullable", None)
        return fitted
    if "anyOf" in fitted:
        widened.append("/: anyOf at the root; the properties of all its schemas are offered together")
        objects = [each for each in fitted["anyOf"] if each.get("type") == "object"]
        properties = {name: value for each in objects for name, value in each.get("properties", {}).items()}
        return {"type": "object", **({"properties": properties} if properties else {})}
    return {"type": "object"}


class _GeminiFitter:
    def __init__(self, root: Mapping[str, Any], widened: list[str]) -> None:
        self._root = root
        self._widened = widened
        self._count = 0

    def fit(self, schema: object, path: str, references: tuple[str, ...]) -> dict[str, Any]:
        """Return one schema.

        Args:
            path: of the value, for reports.
            references: that led to this schema: one of them again is a recursion.
        """
        self._count += 1
        if self._count > _MAX_SCHEMAS or path.count("/") > _MAX_GEMINI_LEVELS:
            self._report(path, "the schema is too large")
            return _any_value(levels=0)
        if not isinstance(schema, Mapping):
            if schema is False:
                self._report(path, "no value is accepted")
            return self._fit_any(path)
        joined, references = self._join(schema, path, references)
        if joined is None:
            return self._fit_any(path)
        for key in _WIDENING:
            if key in joined:
                self._report(path, key)
        fitted = self._fit_joined(joined, path, references)
        return _describe(fitted, joined)

    def _join(
        self, schema: Mapping[str, Any], path: str, references: tuple[str, ...]
    ) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
        """Return a schema without ``$ref`` and ``allOf``; None: it is recursive."""
        joined = dict(schema)
        for _ in range(_MAX_GEMINI_LEVELS):
            parts: list[object] = list(joined.pop("allOf", ()))
            if (reference := joined.pop("$ref", None)) is not None:
                if reference in references:
                    self._report(path, "the schema contains itself")
                    target = resolve_reference(self._root, reference)
                    is_object = isinstance(target, Mapping) and (target.get("type") == "object")
                    return ({"type": "object"} if is_object else None), references
                target = resolve_reference(self._root, reference)
                if target is None:
                    self._report(path, f"the reference {reference!r:.80}")
                references = (*references, str(reference))
                parts.append(target)
            if not parts:
                return joined, references
            for part in parts:
                if isinstance(part, Mapping):
                    for lost in join_schemas(joined, part):
                        self._report(path, lost)
                elif part is False:
                    self._report(path, "no value is accepted")
        self._report(path, "combinations deeper than 24 levels")
        return {key: value for key, value in joined.items() if key not in ("allOf", "$ref")}, references

    def _fit_joined(self, schema: dict[str, Any], path: str, references: tuple[str, ...]) -> dict[str, Any]:
        is_nullable = schema.get("nullable") is True
        kinds = self._read_kinds(schema)
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
        if "enum" in schema and kinds is None:
            kinds = list(dict.fromkeys(_kind_of(value) for value in schema["enum"]))
        variants = [key for key in ("anyOf", "oneOf") if key in schema]
        if variants and self._can_replace(schema, kinds, schema[variants[0]]):
            for key in variants[1:]:
                self._report(path, f"{key} together with {variants[0]}")
            if variants[0] == "oneOf":
                self._report(path, "oneOf, offered as anyOf")
            is_nullable = is_nullable or (kinds is not None and "null" in kinds)
            return self._fit_variants(schema[variants[0]], is_nullable, path, references)
        for key in variants:
            self._report(path, f"{key} together with other keywords")
        if kinds is None:
            kinds = ["object"] if "properties" in schema else ["array"] if "items" in schema else []
        if "null" in kinds:
            is_nullable = True
            kinds = [kind for kind in kinds if kind != "null"] or ["string"]
        if not kinds:
            return self._fit_any(path)
        fitted = [self._fit_kind(kind, schema, path, references) for kind in kinds]
        return _combine(fitted, is_nullable)

    def _fit_any(self, path: str) -> dict[str, Any]:
        self._count += ANY_LEVELS
        self._report(path, f"any value, offered without arrays deeper than {ANY_LEVELS} levels")
        return _any_value()

    @staticmethod
    def _can_replace(schema: Mapping[str, Any], kinds: list[str] | None, variants: Iterable[object]) -> bool:
        """Return whether the variants describe the value without the keywords beside them: Gemini accepts nothing beside
        ``anyOf``."""
        if "properties" in schema or "items" in schema or "enum" in schema:
            return False
        return kinds is None or all(
            isinstance(each, Mapping) and {"properties", "$ref"} & each.keys() for each in variants
        )

    def _fit_variants(
        self, values: Iterable[object], is_nullable: bool, path: str, references: tuple[str, ...]
    ) -> dict[str, Any]:
        fitted = []
        for each in values:
            if isinstance(each, Mapping) and (each.get("type") == "null" or each.get("enum") == [None]):
                is_nullable = True
            else:
                fitted.append(self.fit(each, path, references))
        return _combine(fitted, is_nullable) if fitted else {"type": "string", "nullable": True}

    @staticmethod
    def _read_kinds(schema: Mapping[str, Any]) -> list[str] | None:
        kinds = schema.get("type")
        if kinds is None:
            return None
        return list(kinds) if isinstance(kinds, list) else [kinds]

    def _fit_kind(self, kind: str, schema: Mapping[str, Any], path: str, references: tuple[str, ...]) -> dict[str, Any]:
        fitted: dict[str, Any] = {"type": kind}
        for key in _GEMINI_KEYWORDS.get(kind, ()):
            if key in schema:
                fitted[key] = schema[key]
        if schema.get("format") in _GEMINI_FORMATS.get(kind, ()):
            fitted["format"] = schema["format"]
        if kind in ("integer", "number"):
            self._fit_limits(fitted, schema, path)
        elif kind == "object":
            self._fit_properties(fitted, schema, path, references)
        elif kind == "array":
            self._fit_items(fitted, schema, path, references)
        if "enum" in schema:
            values = [value for value in schema["enum"] if value is not None]
            if kind == "string" and all(isinstance(value, str) for value in values):
                fitted["enum"] = values
            elif kind != "boolean" or len(values) < 2:
                self._report(path, f"enum of values that are not texts; {_list_values(values)}")
                fitted["description"] = _list_values(values)
        if schema.get("enum") is not None and None in schema["enum"]:
            fitted["nullable"] = True
        return fitted

    def _fit_limits(self, fitted: dict[str, Any], schema: Mapping[str, Any], path: str) -> None:
        for key, limit, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
            value = schema.get(key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if fitted["type"] == "integer" and float(value).is_integer():
                value = int(value) + step
            else:
                self._report(path, f"{key}, offered as {limit}")
            stricter = max if step > 0 else min
            fitted[limit] = stricter(fitted[limit], value) if limit in fitted else value

    def _fit_properties(
        self, fitted: dict[str, Any], schema: Mapping[str, Any], path: str, references: tuple[str, ...]
    ) -> None:
        properties = schema.get("properties")
        above = path.rstrip("/")
        if isinstance(properties, Mapping) and self._count + len(properties) > _MAX_SCHEMAS:
            self._report(path, "the schema is too large")
        elif isinstance(properties, Mapping) and properties:
            fitted["properties"] = {
                name: self.fit(each, f"{above}/{name}", references) for name, each in properties.items()
            }
        names = [name for name in schema.get("required") or () if name in fitted.get("properties", ())]
        if names:
            fitted["required"] = names
        if len(names) < len(schema.get("required") or ()):
            self._report(path, "required without a property of the name")
        if schema.get("additionalProperties", False) is not False and schema["additionalProperties"] not in (True, {}):
            self._report(path, "additionalProperties")

    def _fit_items(
        self, fitted: dict[str, Any], schema: Mapping[str, Any], path: str, references: tuple[str, ...]
    ) -> None:
        below = f"{path.rstrip('/')}/*"
        if schema.get("prefixItems"):
            self._report(path, "prefixItems, offered as items of any of the kinds")
            parts = [*schema["prefixItems"], schema.get("items", True)]
            fitted["items"] = self._fit_variants(
                [each for each in parts if each is not False], False, below, references
            )
        else:
            fitted["items"] = self.fit(schema.get("items", True), below, references)

    def _report(self, path: str, what: str) -> None:
        line = f"{path}: {what}"
        if line not in self._widened:
            self._widened.append(line)


def _combine(fitted: list[dict[str, Any]], is_nullable: bool) -> dict[str, Any]:
    """Return one schema for several: Gemini accepts nothing beside ``anyOf``."""
    flat: list[dict[str, Any]] = []
    for each in fitted:
        for part in each.get("anyOf", (each,)):
            if part not in flat:
                flat.append(part)
    combined = flat[0] if len(flat) == 1 else {"anyOf": flat}
    if is_nullable:
        for part in flat:
            part["nullable"] = True
    return combined


def _any_value(levels: int = ANY_LEVELS) -> dict[str, Any]:
    """Return the schema of any value. Gemini requires a type, and arrays have to state their items: arrays in each other end
    after ``levels``."""
    kinds: list[dict[str, Any]] = [
        {"type": kind, "nullable": True} for kind in ("string", "number", "boolean", "object")
    ]
    if levels:
        kinds.append({"type": "array", "items": _any_value(levels - 1), "nullable": True})
    return {"anyOf": kinds}


def _describe(fitted: dict[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Add title, description and default value; with ``anyOf`` to its first schema."""
    target = fitted["anyOf"][0] if "anyOf" in fitted else fitted
    texts = [schema.get("description"), target.get("description") if "anyOf" not in fitted else None]
    if schema.get("default") is not None:
        texts.append(f"Default: {json.dumps(schema['default'], ensure_ascii=False)}")
    text = " ".join(each for each in texts if isinstance(each, str) and each)
    if text:
        target["description"] = text
    return fitted


def _kind_of(value: object) -> str:
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def _list_values(values: Iterable[object]) -> str:
    return "One of: " + ", ".join(str(value) for value in values) + "."
