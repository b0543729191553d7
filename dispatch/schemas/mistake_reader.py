"""Errors of jsonschema-rs as mistakes, in words for a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatch._internal.suggestions import excerpt
from dispatch.schemas.mistake import IS_REQUIRED, Mistake, join_pointer

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError

_NAMES_OF_TYPES: Final = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_MAX_ALTERNATIVES: Final = 5
"""Alternatives of ``anyOf`` and ``oneOf`` whose mistakes are described, and mistakes of each."""

_MESSAGES: Final[Mapping[str, Callable[[Any], str]]] = {
    "minimum": lambda kind: f"must be at least {_write(kind.limit)}",
    "maximum": lambda kind: f"must be at most {_write(kind.limit)}",
    "exclusiveMinimum": lambda kind: f"must be greater than {_write(kind.limit)}",
    "exclusiveMaximum": lambda kind: f"must be less than {_write(kind.limit)}",
    "multipleOf": lambda kind: f"must be a multiple of {kind.multiple_of}",
    "minLength": lambda kind: f"must have at least {_count(kind.limit, 'character')}",
    "maxLength": lambda kind: f"must have at most {_count(kind.limit, 'character')}",
    "minItems": lambda kind: f"must have at least {_count(kind.limit, 'item')}",
    "maxItems": lambda kind: f"must have at most {_count(kind.limit, 'item')}",
    "minProperties": lambda kind: f"must have at least {_count(kind.limit, 'property', 'properties')}",
    "maxProperties": lambda kind: f"must have at most {_count(kind.limit, 'property', 'properties')}",
    "pattern": lambda kind: f"must match the pattern {excerpt(kind.pattern, 200)}",
    "uniqueItems": lambda _kind: "must not have two equal items",
    "contains": lambda _kind: "must have as many items of the kind in 'contains' as the schema requires",
    "unevaluatedItems": lambda _kind: "must not have items that the schema does not describe",
    "not": lambda _kind: "must not be of the kind in 'not'",
    "falseSchema": lambda _kind: "is not allowed",
    "format": lambda kind: (
        "must be a regular expression" if kind.format == "regex" else f"must have the format {kind.format}"
    ),
    "oneOf": lambda _kind: "matches several of the alternatives, and must match exactly one",
}
"""Messages of the kinds that concern one place, by the keyword of the schema."""


class MistakeReader:
    """Reads the engine's errors about values of one schema.

    Args:
        schema: names the properties that are expected where another one was found.
    """

    __slots__ = ("_schema",)

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        self._schema = schema

    def read(self, error: ValidationError, value: object) -> Iterator[Mistake]:
        """Yield the mistakes that ``error`` is about; several for unexpected properties.

        Args:
            value: that was validated.
        """
        kind: Any = error.kind
        place = _restore_names(error.instance_path, value)
        path = join_pointer(place)
        match type(kind).__name__:
            case "Type":
                yield Mistake(path, _describe_types(kind.types, _find_value(value, place)))
            case "Required":
                yield Mistake(path + join_pointer([kind.property]), IS_REQUIRED)
            case "Enum":
                yield _read_options(path, kind.options)
            case "Constant":
                yield _read_options(path, [kind.expected_value])
            case "AdditionalProperties" | "UnevaluatedProperties" as name:
                # Properties that allOf and its like evaluate are not in `properties` beside the keyword.
                allowed = self._find_names(error.schema_path) if name == "AdditionalProperties" else ()
                for each in kind.unexpected:
                    yield Mistake(path + join_pointer([each]), "is not an expected property", allowed)
            case "PropertyNames":
                for mistake in self.read(kind.error, value):
                    yield Mistake(path, f"has a property whose name {mistake.message}", mistake.allowed)
            case "AnyOf" | "OneOfNotValid":
                yield from self._read_alternatives(error, kind.context, value)
            case "BacktrackLimitExceeded" | "RegexEngineFailure":
                yield Mistake(path, "could not be compared with the pattern of the schema, which needs too many steps")
            case "Referencing":
                yield Mistake(path, f"has a reference to a place that does not exist ({excerpt(error.message, 200)})")
            case _:
                write = _MESSAGES.get(kind.name)
                yield Mistake(path, write(kind) if write else f"does not match '{kind.name}' of the schema")

    def _read_alternatives(
        self, error: ValidationError, alternatives: Sequence[Sequence[ValidationError]], value: object
    ) -> Iterator[Mistake]:
        here = error.instance_path
        place = _restore_names(here, value)
        path = join_pointer(place)
        simple = [each[0] for each in alternatives if len(each) == 1 and _is_kind_of_value(each[0], here)]
        if len(simple) == len(alternatives):
            yield _merge_simple(path, simple, _find_value(value, place))
            return
        # An alternative for values of another type, or with another discriminator, is not the one that was meant.
        meant = [each for each in alternatives if not any(_is_kind_of_value(one, here) for one in each)] or alternatives
        meant = [each for each in meant if not any(_is_choice(one) for one in each)] or meant
        if len(meant) == 1:
            for inner in meant[0]:
                yield from self.read(inner, value)
            return
        described = []
        for number, each in enumerate(meant[:_MAX_ALTERNATIVES], 1):
            faults = dict.fromkeys(str(mistake) for inner in each for mistake in self.read(inner, value))
            described.append(f"({number}) {', '.join(islice(faults, _MAX_ALTERNATIVES))}")
        yield Mistake(path, f"matches none of {len(alternatives)} alternatives: {'; '.join(described)}")

    def _find_names(self, schema_path: Sequence[str | int]) -> tuple[str, ...]:
        owner = _find_value(self._schema, schema_path[:-1])
        properties = owner.get("properties") if isinstance(owner, Mapping) else None
        return tuple(map(_write, properties)) if isinstance(properties, Mapping) else ()


def _is_kind_of_value(error: ValidationError, here: Sequence[str | int]) -> bool:
    """Return whether the error is about the type, or the choice, of the value at ``here`` itself."""
    return error.instance_path == here and type(error.kind).__name__ in ("Type", "Enum", "Constant")


def _is_choice(error: ValidationError) -> bool:
    return type(error.kind).__name__ in ("Enum", "Constant")


def _merge_simple(path: str, errors: Sequence[ValidationError], value: object) -> Mistake:
    """Return one mistake for alternatives that differ in the type or the choice of a value alone."""
    types: list[str] = []
    options: list[Any] = []
    for error in errors:
        kind: Any = error.kind
        match type(kind).__name__:
            case "Type":
                types += [each for each in kind.types if each not in types]
            case "Enum":
                options += kind.options
            case _:
                options.append(kind.expected_value)
    if not options:
        return Mistake(path, _describe_types(types, value))
    if not types:
        return _read_options(path, options)
    mistake = _read_options(path, options)
    return Mistake(path, f"must be {_join_types(types)}, or one of the allowed values", mistake.allowed)


def _read_options(path: str, options: Sequence[Any]) -> Mistake:
    message = "must be the only allowed value" if len(options) == 1 else "must be one of the allowed values"
    return Mistake(path, message, tuple(dict.fromkeys(map(_write, options))))


def _describe_types(types: Sequence[str], value: object) -> str:
    return f"must be {_join_types(types)}, not {_describe_type(value)}"


def _join_types(types: Sequence[str]) -> str:
    names = [_NAMES_OF_TYPES.get(each, each) for each in types]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _describe_type(value: object) -> str:
    """Return the JSON type of ``value`` with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number"
        case str():
            return "a string"
        case Mapping():
            return "an object"
    return "an array"


def _restore_names(path: Sequence[str | int], value: Any) -> list[str | int]:
    """Return ``path`` with the names of properties: the engine makes a number of each name that reads as one, 7 of "07"."""
    place: list[str | int] = []
    for key in path:
        if isinstance(key, int) and isinstance(value, Mapping):
            place.append(
                next((name for name in (str(key), *value) if name in value and _reads_as(name, key)), str(key))
            )
        else:
            place.append(key)
        value = _find_value(value, place[-1:])
    return place


def _reads_as(name: str, number: int) -> bool:
    digits = name.removeprefix("+")
    return digits.isdigit() and (digits.lstrip("0") or "0") == str(number)


def _find_value(value: Any, keys: Sequence[str | int]) -> Any:
    """Return the value at ``keys``; None where there is none."""
    for key in keys:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _write(value: object) -> str:
    """Return ``value`` as compact JSON, shortened."""
    return excerpt(msgspec.json.encode(value).decode(), 200)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
