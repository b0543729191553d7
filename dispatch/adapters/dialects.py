"""The dialects of JSON Schema that model APIs accept for the arguments of a tool. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

from dispatch.schemas import find_value, map_subschemas, split_pointer, type_of

# A schema with what applies together with it, as one: without references and ``allOf``.


_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_NOTES: Final = ("title", "description", "default", "examples", "$id", "$comment", "$schema", "deprecated")
_MAX_LEVELS: Final = 24
"""Levels of schemas in each other, and of references to references."""

Report = Callable[[str], object]
"""Notes what the result does not express."""


def flatten_schema(
    schema: Mapping[str, Any], root: Mapping[str, Any], references: tuple[str, ...], report: Report
) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """Return a schema without ``$ref`` and ``allOf``, and the references that led to it; None: it is recursive. Nothing is
    fetched.

    Args:
        root: has the targets of references.
        references: that led to ``schema``: one of them again is a recursion.
    """
    joined = dict(schema)
    for _ in range(_MAX_LEVELS):
        parts: list[object] = list(joined.pop("allOf", ()))
        if (reference := joined.pop("$ref", None)) is not None:
            target = resolve_reference(root, reference)
            if reference in references:
                report("the schema contains itself")
                is_object = isinstance(target, Mapping) and target.get("type") == "object"
                return ({"type": "object"} if is_object else None), references
            if target is None:
                report(f"the reference {reference!r:.80}")
            references = (*references, str(reference))
            parts.append(target)
        if not parts:
            return joined, references
        for part in parts:
            if isinstance(part, Mapping):
                for lost in join_schemas(joined, part):
                    report(lost)
            elif part is False:
                report("no value is accepted")
    report(f"combinations deeper than {_MAX_LEVELS} levels")
    return {key: value for key, value in joined.items() if key not in ("allOf", "$ref")}, references


def resolve_reference(root: Mapping[str, Any], reference: object) -> Any:
    """Return the schema at ``#`` or ``#/path``; None: there is none."""
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        return find_value(root, split_pointer(reference))
    return None


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


# The root of a schema as an object: OpenAI and Anthropic refuse a combination of schemas there.


_CONDITIONS: Final = ("not", "if", "then", "else", "enum", "const", "dependentSchemas", "dependentRequired")
_OFFERED: Final = frozenset({*_NOTES, "type", "properties", "required", "additionalProperties", "$defs"})
"""Keywords of one of several schemas that are offered together, or only describe."""


def fit_object(schema: Mapping[str, Any], widened: list[str], *, may_combine: bool) -> dict[str, Any]:
    """Return ``schema`` with ``"type": "object"`` at its root.

    Args:
        widened: receives what the result does not express.
        may_combine: the dialect accepts combinations at the root.
    """
    fitted = {key: value for key, value in schema.items() if key != "$schema"}
    if may_combine:
        return {"type": "object", **{key: value for key, value in fitted.items() if key != "type"}}
    return _merge(fitted, schema, (), lambda what: widened.append(f"/: {what}"))


def _merge(
    schema: Mapping[str, Any], root: Mapping[str, Any], references: tuple[str, ...], report: Report
) -> dict[str, Any]:
    """Return one object for a schema with its references and its combinations."""
    joined, references = flatten_schema(schema, root, references, report)
    merged: dict[str, Any] = {"type": "object", **(joined or {})} | {"type": "object"}
    merged["properties"] = dict(merged.get("properties") or {})
    dropped = [key for key in _CONDITIONS if merged.pop(key, None) is not None]
    if dropped:
        report(f"{', '.join(dropped)} at the root")
    for key in ("anyOf", "oneOf"):
        if key in merged:
            parts = [_merge(each, root, references, report) for each in merged.pop(key) if isinstance(each, Mapping)]
            report(f"{key} at the root; the properties of all its schemas are offered together")
            _offer_together(merged, parts, report)
    return merged


def _offer_together(merged: dict[str, Any], parts: Sequence[dict[str, Any]], report: Report) -> None:
    """Add the properties of alternatives to an object, and what all of them require."""
    offered: dict[str, list[Any]] = {}
    for part in parts:
        if lost := part.keys() - _OFFERED:
            report(f"{', '.join(sorted(lost))} of a combined schema")
        for name, value in part["properties"].items():
            if value not in offered.setdefault(name, []):
                offered[name].append(value)
        if "$defs" in part:
            merged["$defs"] = {**part["$defs"], **merged.get("$defs", {})}
    if offered.keys() - merged["properties"].keys():
        # It names the properties of its own schema only, and would forbid those of the others.
        merged.pop("additionalProperties", None)
        merged.pop("unevaluatedProperties", None)
    for name, values in offered.items():  # a schema of the object itself applies together with each alternative
        merged["properties"].setdefault(name, values[0] if len(values) == 1 else {"anyOf": values})
    required = [part.get("required") or [] for part in parts]
    common = [name for name in required[0] if all(name in each for each in required)] if required else []
    if names := dict.fromkeys([*(merged.get("required") or []), *common]):
        merged["required"] = list(names)


# OpenAI's strict mode: whether a schema loses nothing in it.


_STRICT_KEYWORDS: Final = frozenset(
    {"type", "title", "description", "enum", "const", "anyOf", "properties", "required", "additionalProperties"}
    | {"items", "minItems", "maxItems", "pattern", "format"}
    | {"multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
)
_STRICT_FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}  # OpenAI's documentation
)
_MAX_STRICT_LEVELS: Final = 10
_MAX_PROPERTIES: Final = 5_000
_MAX_ENUM_VALUES: Final = 1_000
_MAX_CHARS: Final = 120_000
"""OpenAI's limits of levels, properties, values of enumerations, and characters of names and values."""


def build_strict(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema for strict mode; None: strict mode would lose something or refuse the schema.

    Undeclared properties are forbidden where the schema does not mention them: a model does not know their names.
    """
    builder = _StrictBuilder()
    definitions = schema.get("$defs", {})
    root = {key: value for key, value in schema.items() if key not in ("$defs", "$id", "$comment")}
    try:
        if not isinstance(definitions, Mapping) or "anyOf" in root:
            return None
        built = builder.build(root, 1)
        if definitions:
            built["$defs"] = {name: builder.build(each, 1) for name, each in definitions.items()}
    except _NotStrictError:
        return None
    if not builder.references <= {"#", *(f"#/$defs/{name}" for name in definitions)}:
        return None
    return built


class _NotStrictError(Exception):
    pass


class _StrictBuilder:
    def __init__(self) -> None:
        self.references: set[str] = set()
        self._properties = self._values = self._chars = 0

    def build(self, schema: object, level: int) -> dict[str, Any]:
        if not isinstance(schema, Mapping) or level > _MAX_STRICT_LEVELS:
            raise _NotStrictError
        if "$ref" in schema:
            if len(schema) > 1:  # refused beside other keywords
                raise _NotStrictError
            self.references.add(schema["$ref"])
            return dict(schema)
        if schema.keys() - _STRICT_KEYWORDS or not ("type" in schema) ^ ("anyOf" in schema):
            raise _NotStrictError
        built = dict(schema)
        if "anyOf" in schema:
            built["anyOf"] = [self.build(each, level) for each in schema["anyOf"]]
            return built
        if schema.get("format", "date") not in _STRICT_FORMATS:
            raise _NotStrictError
        kinds = _list_kinds(schema["type"])
        if "object" in kinds:
            self._build_object(built, level)
        elif "properties" in schema or "required" in schema or "additionalProperties" in schema:
            raise _NotStrictError
        if "array" in kinds:
            built["items"] = self.build(schema.get("items"), level + 1)
        elif "items" in schema:
            raise _NotStrictError
        values = schema.get("enum", ())
        self._count(values=len(values), chars=sum(len(each) for each in values if isinstance(each, str)))
        return built

    def _build_object(self, built: dict[str, Any], level: int) -> None:
        properties = built.get("properties")
        if not isinstance(properties, Mapping) or built.get("additionalProperties", False) is not False:
            raise _NotStrictError
        if set(built.get("required") or ()) != set(properties):
            raise _NotStrictError  # strict mode has no optional properties
        if not properties and level > 1 and "additionalProperties" not in built:
            raise _NotStrictError  # an object of any properties
        self._count(properties=len(properties), chars=sum(map(len, properties)))
        built["properties"] = {name: self.build(each, level + 1) for name, each in properties.items()}
        built["required"] = list(properties)
        built["additionalProperties"] = False

    def _count(self, *, properties: int = 0, values: int = 0, chars: int = 0) -> None:
        self._properties += properties
        self._values += values
        self._chars += chars
        if self._properties > _MAX_PROPERTIES or self._values > _MAX_ENUM_VALUES or self._chars > _MAX_CHARS:
            raise _NotStrictError


# Gemini's dialect: OpenAPI's subset of JSON Schema, without references and combinations other than ``anyOf``.


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
ANY_LEVELS: Final = 2
"""Levels of arrays in the place of any value: a table is an array of arrays. Each level adds five schemas."""


def fit_gemini(fitted: Mapping[str, Any], schema: Mapping[str, Any], widened: list[str]) -> dict[str, Any]:
    """Return a schema for a function declaration: an object, without ``properties`` if there are none.

    Args:
        fitted: an object without combinations at its root, from :func:`fit_object`.
        schema: has the targets of references.
        widened: receives ``path: reason`` for each place that accepts more than the original, or offers less.
    """
    declared = _GeminiFitter(schema, widened).fit(fitted, "/", ())
    declared.pop("nullable", None)
    return declared


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
        if self._count > _MAX_SCHEMAS or path.count("/") > _MAX_LEVELS:
            self._report(path, "the schema is too large")
            return _any_value(levels=0)
        if not isinstance(schema, Mapping):
            if schema is False:
                self._report(path, "no value is accepted")
            return self._fit_any(path)
        joined, references = flatten_schema(schema, self._root, references, partial(self._report, path))
        if joined is None:
            return self._fit_any(path)
        for key in _WIDENING:
            if key in joined:
                self._report(path, key)
        fitted = self._fit_joined(joined, path, references)
        return _describe(fitted, joined)

    def _fit_joined(self, schema: dict[str, Any], path: str, references: tuple[str, ...]) -> dict[str, Any]:
        is_nullable = schema.get("nullable") is True
        kinds = None if schema.get("type") is None else _list_kinds(schema["type"])
        if "const" in schema:
            schema = {**schema, "enum": [schema["const"]]}
        if "enum" in schema and kinds is None:
            kinds = list(dict.fromkeys(map(type_of, schema["enum"])))
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


def _list_values(values: Iterable[object]) -> str:
    return "One of: " + ", ".join(str(value) for value in values) + "."


# Fit the schema of a tool's arguments to a dialect.


class Style(StrEnum):
    """The API for which tools are described."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"
    MCP = "mcp"

    @classmethod
    def _missing_(cls, value: object) -> None:
        raise ValueError(f"there is no style {value!r}. Fix: use one of {', '.join(cls)}.")


class FittedSchema(NamedTuple):
    """A schema in a dialect.

    Attributes:
        schema: of the arguments, an object.
        is_strict: OpenAI's strict mode: the model's arguments always match.
        widened: ``path: what the dialect cannot express``, for each place where the schema accepts more than the original,
            or offers less.
    """

    schema: dict[str, Any]
    is_strict: bool = False
    widened: tuple[str, ...] = ()


def fit_schema(schema: Mapping[str, Any], style: Style) -> FittedSchema:
    """Return ``schema`` as ``style`` accepts it.

    OpenAI's strict mode is used where it loses nothing: with optional arguments, free-form objects or keywords that it does
    not have, the schema is sent without it.
    """
    widened: list[str] = []
    fitted = fit_object(schema, widened, may_combine=style is Style.MCP)
    if style is Style.GEMINI:
        fitted = fit_gemini(fitted, schema, widened)
    if style in (Style.OPENAI_CHAT, Style.OPENAI_RESPONSES):
        # An object without "properties" has any.
        strict = build_strict(fitted) if "properties" in schema and not widened else None
        if strict is not None:
            return FittedSchema(strict, True)
        fitted = add_items(fitted)
    return FittedSchema(fitted, False, tuple(widened))


def add_items(schema: Any) -> Any:
    """Return a schema whose arrays all have ``items``: OpenAI refuses one without."""
    if not isinstance(schema, Mapping):
        return schema
    added = map_subschemas(schema, add_items)
    if "array" in _list_kinds(schema.get("type")):
        added.setdefault("items", {})
    return added
