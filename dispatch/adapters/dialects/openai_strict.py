"""OpenAI's strict mode: whether a schema loses nothing in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_STRICT_KEYWORDS: Final = frozenset(
    {
        "type",
        "title",
        "description",
        "enum",
        "const",
        "anyOf",
        "properties",
        "required",
        "additionalProperties",
        "items",
    }
    | {"pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    | {"minItems", "maxItems"}
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
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
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
