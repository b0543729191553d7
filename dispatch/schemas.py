"""JSON Schema 2020-12: validates values and schemas, and fetches nothing. The engine is jsonschema-rs, which is
imported at its first use."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeGuard, TypeVar
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from dispatch._internal import excerpt, is_deeper, join_names, quote_excerpt, remember

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator


# One fault of a value that does not match its JSON Schema.


MAX_SHOWN: Final = 20
"""Mistakes, and allowed values of each, that one text has: a model corrects a few at a time, and its context is limited."""
IS_REQUIRED: Final = "is required"
"""Message of a property that is missing."""


class Mistake(msgspec.Struct, frozen=True):
    """A fault at one place of a value. ``str()`` has path, fault and allowed values, and never the value itself: it may be
    confidential, and texts of errors are logged.

    Attributes:
        path: JSON Pointer (RFC 6901) of the place, such as ``/items/0/unit``; ``""``: the whole value. For a property that
            is missing, the path that it would have.
        message: the fault, as the rest of a sentence that begins with the path: ``must be an integer, not a string``.
        allowed: the values that the schema allows there, as JSON, where it lists them; for a property that is not expected,
            the names of those that are. Empty when it lists none.
    """

    path: str
    message: str
    allowed: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{excerpt(self.path, 200) or 'the whole value'} {self.message}"
        return f"{text}: {join_names(self.allowed, MAX_SHOWN)}" if self.allowed else text


def join_mistakes(mistakes: Sequence[Mistake]) -> str:
    """Return the first :data:`MAX_SHOWN` of ``mistakes`` as one text, and the number of the others."""
    shown = "; ".join(map(str, mistakes[:MAX_SHOWN]))
    return f"{shown}; and {len(mistakes) - MAX_SHOWN:,} more" if len(mistakes) > MAX_SHOWN else shown


def join_pointer(keys: Iterable[str | int]) -> str:
    """Return the JSON Pointer of the value at ``keys``."""
    return "".join(f"/{str(key).replace('~', '~0').replace('/', '~1')}" for key in keys)


def split_pointer(pointer: str) -> list[str]:
    """Return the keys of a JSON Pointer, as texts."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


# Errors of jsonschema-rs as mistakes, in words for a model.


_NAMES_OF_TYPES: Final = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}
_TYPES: Final = (
    *((NoneType, "null"), (bool, "boolean"), (int, "integer"), (float, "number")),
    *((str, "string"), (Mapping, "object")),
)
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
                yield Mistake(path, _describe_types(kind.types, find_value(value, place)))
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
            yield _merge_simple(path, simple, find_value(value, place))
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
        owner = find_value(self._schema, schema_path[:-1])
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
    return f"must be {_join_types(types)}, not {_NAMES_OF_TYPES[type_of(value)]}"


def _join_types(types: Sequence[str]) -> str:
    names = [_NAMES_OF_TYPES.get(each, each) for each in types]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def type_of(value: object) -> str:
    """Return the type of a JSON value, as a schema names it."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "array")


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
        value = find_value(value, place[-1:])
    return place


def _reads_as(name: str, number: int) -> bool:
    digits = name.removeprefix("+")
    return digits.isdigit() and (digits.lstrip("0") or "0") == str(number)


def find_value(value: Any, keys: Sequence[str | int], missing: Any = None) -> Any:
    """Return the value at ``keys``, in which an index may be a text; ``missing`` where there is none."""
    for key in keys:
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, (list, tuple)) and str(key).isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            return missing
    return value


def _write(value: object) -> str:
    """Return ``value`` as compact JSON, shortened."""
    return excerpt(msgspec.json.encode(value).decode(), 200)


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


# References of a JSON Schema to addresses outside of it.


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


def map_subschemas(schema: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return ``schema`` with each of the schemas directly in it converted."""
    result = dict(schema)
    for keyword, value in schema.items():
        if keyword in SCHEMA_KEYWORDS:
            result[keyword] = convert(value)
        elif keyword in SCHEMA_LIST_KEYWORDS and isinstance(value, (list, tuple)):
            result[keyword] = type(value)(map(convert, value))
        elif keyword in SCHEMA_OBJECT_KEYWORDS and isinstance(value, Mapping):
            result[keyword] = {name: convert(each) for name, each in value.items()}
    return result


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
    return isinstance(find_value(schema, split_pointer(unquote(pointer))), (Mapping, bool))


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


# Compiles schemas with jsonschema-rs, which is never allowed to fetch anything.


BACKTRACK_LIMIT: Final = 100_000
"""Steps of a pattern with look-around or back-references (a few milliseconds); other patterns run in linear time."""


class InvalidSchemaError(ValueError):
    """No schema of JSON Schema 2020-12, or one that refers to an address.

    Attributes:
        mistakes: all faults of the schema; their paths are places in the schema.
    """

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        super().__init__(f"The schema is not valid: {join_mistakes(mistakes)}. Correct the schema.")
        self.mistakes = mistakes

    def __reduce__(self) -> tuple[type[InvalidSchemaError], tuple[tuple[Mistake, ...]]]:
        return type(self), (self.mistakes,)


def compile_schema(schema: Mapping[str, Any] | bool) -> Validator:
    """Return the compiled validator of ``schema``, which may consist of immutable JSON values.

    Raises:
        InvalidSchemaError: no schema of JSON Schema 2020-12, or a reference to a place that is not in it.
    """
    import jsonschema_rs  # here, because `import dispatch` does not need it

    # The schema is passed as text: the engine does not know the immutable values of a catalogue. Without `offline` it
    # requests addresses; `jsonschema_rs.meta` has no such switch, and requests the address in "$schema" (0.60.3).
    try:
        return jsonschema_rs.Draft202012Validator(
            msgspec.json.encode(schema).decode(),
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACK_LIMIT),
        )
    except jsonschema_rs.ValidationError as error:
        raise InvalidSchemaError(tuple(MistakeReader({}).read(error, schema))) from None


# How many subschemas are evaluated at the places of a value: with nested alternatives they multiply.


_CAP: Final = 10**9
"""Larger counts are not distinguished."""
_SAME_PLACE: Final = frozenset({"not", "if", "then", "else"})
_SAME_PLACE_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf"})
_REFERENCES: Final = frozenset({"$ref", "$dynamicRef"})

_Schema = Mapping[str, Any]


class EvaluationCount(NamedTuple):
    """Evaluations of subschemas while one value is validated without an early end.

    Attributes:
        total: over all places of the value, or a number above the given limit.
        most: at one place.
    """

    total: int
    most: int


class EvaluationCounter:
    """Counts evaluations of one schema. The cost of a count grows with the places of the value and the schemas there, and
    not with the result.

    Args:
        schema: JSON values; references that are neither a JSON Pointer nor an anchor count as the whole schema.
    """

    def __init__(self, schema: _Schema | bool) -> None:
        self._root = schema
        self._anchors: dict[str, _Schema] | None = None
        self._nodes: dict[int, _Schema] = {}
        self._applied: dict[int, Counter[int]] = {}

    def check_expansion(self) -> None:
        """Refuse a schema whose references combine too many subschemas, or too many inside each other, at one place.

        Raises:
            InvalidSchemaError: it is beyond :data:`MAX_EXPANSION` or :data:`MAX_DEPTH`.
        """
        sizes: dict[int, tuple[int, int]] = {}
        for node in _iterate_objects(self._root):
            if "$ref" in node or "$dynamicRef" in node:
                self._measure(node, 1, sizes)

    def _measure(self, node: _Schema, level: int, sizes: dict[int, tuple[int, int]]) -> tuple[int, int]:
        """Return how many subschemas are evaluated at the place of ``node``, and how many inside each other."""
        known = sizes.get(id(node))
        if known is not None:
            return known
        sizes[id(node)] = 0, 0  # a cycle at one place ends here, as in the engine
        count = depth = 0
        if level <= MAX_DEPTH:
            for inner in self._same_place(node):
                below = self._measure(inner, level + 1, sizes)
                count, depth = count + below[0], max(depth, below[1])
        if level + depth > MAX_DEPTH:
            raise InvalidSchemaError((Mistake("", f"must nest at most {MAX_DEPTH} subschemas by references"),))
        if count >= MAX_EXPANSION:
            raise InvalidSchemaError((Mistake("", f"must combine at most {MAX_EXPANSION:,} subschemas by references"),))
        sizes[id(node)] = count + 1, depth + 1
        return count + 1, depth + 1

    def count(self, value: object, limit: int) -> EvaluationCount:
        """Count the evaluations for ``value``; stop when there are more than ``limit``."""
        total = most = 0
        places: list[tuple[object, Counter[int]]] = [(value, self._enter(self._root, 1))]
        while places and total <= limit:
            here, entered = places.pop()
            applied: Counter[int] = Counter()
            for node, times in entered.items():
                for inner, each in self._apply(self._nodes[node]).items():
                    applied[inner] = min(applied[inner] + times * each, _CAP)
            at_place = _sum(applied)
            total += max(at_place, 1)
            most = max(most, at_place)
            places += islice(self._enter_below(here, applied), limit)
        return EvaluationCount(total, most)

    def _enter(self, schema: object, times: int) -> Counter[int]:
        if not isinstance(schema, Mapping):
            return Counter()
        self._nodes[id(schema)] = schema
        return Counter({id(schema): times})

    def _apply(self, node: _Schema) -> Counter[int]:
        """Return the schemas that are evaluated at the place of ``node``, with their numbers."""
        key = id(node)
        known = self._applied.get(key)
        if known is not None:
            return known
        self._nodes[key] = node
        self._applied[key] = Counter()  # a cycle at one place ends here, as in the engine
        applied = Counter({key: 1})
        for inner in self._same_place(node):
            for each, times in self._apply(inner).items():
                applied[each] = min(applied[each] + times, _CAP)
        self._applied[key] = applied
        return applied

    def _same_place(self, node: _Schema) -> Iterator[_Schema]:
        for keyword, value in node.items():
            inner: tuple[object, ...] = ()
            if keyword in _SAME_PLACE:
                inner = (value,)
            elif keyword in _SAME_PLACE_LISTS and isinstance(value, (list, tuple)):
                inner = tuple(value)
            elif keyword == "dependentSchemas" and isinstance(value, Mapping):
                inner = tuple(value.values())
            elif keyword in _REFERENCES and isinstance(value, str):
                inner = (self._resolve(value),)
            yield from (each for each in inner if isinstance(each, Mapping))

    def _enter_below(self, value: object, applied: Counter[int]) -> Iterator[tuple[object, Counter[int]]]:
        """Yield each child of ``value`` with the schemas that it is validated by, if there are any."""
        if isinstance(value, Mapping):
            for name, child in value.items():
                if (entered := self._enter_child(applied, name)) is not None:
                    yield child, entered
        elif isinstance(value, (list, tuple)):
            prefix = max((len(self._nodes[node].get("prefixItems", ())) for node in applied), default=0)
            for index, child in enumerate(value[:prefix]):
                if (entered := self._enter_child(applied, index)) is not None:
                    yield child, entered
            # All further items have the same schemas.
            if (entered := self._enter_child(applied, prefix)) is not None:
                yield from ((child, entered) for child in value[prefix:])

    def _enter_child(self, applied: Counter[int], key: str | int) -> Counter[int] | None:
        entered: Counter[int] = Counter()
        is_forbidden = False
        for node, times in applied.items():
            for schema in _schemas_of_child(self._nodes[node], key):
                entered.update(self._enter(schema, times))
                is_forbidden = is_forbidden or schema is False  # a mistake of its own
        return entered if entered or is_forbidden else None

    def _resolve(self, reference: str) -> object:
        _, _, fragment = reference.partition("#")
        if not fragment.startswith("/"):
            if self._anchors is None:
                self._anchors = {}
                for node in _iterate_objects(self._root):
                    for keyword in ("$anchor", "$dynamicAnchor"):
                        self._anchors.setdefault(str(node.get(keyword)), node)
            return self._anchors.get(fragment, self._root)
        # The root stands for a place that is relative to another "$id", or percent-encoded.
        return find_value(self._root, split_pointer(fragment), self._root)


def _schemas_of_child(node: _Schema, key: str | int) -> Iterator[object]:
    if isinstance(key, int):
        first = node.get("prefixItems")
        if isinstance(first, (list, tuple)) and key < len(first):
            yield first[key]
        else:
            yield node.get("items")
        yield node.get("contains")
        yield node.get("unevaluatedItems")
        return
    properties = node.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        yield properties[key]
    else:
        yield node.get("additionalProperties")
    patterns = node.get("patternProperties")
    if isinstance(patterns, Mapping):
        yield from patterns.values()
    yield node.get("unevaluatedProperties")


def _iterate_objects(value: object) -> Iterator[_Schema]:
    """Yield every object in ``value``, schemas or not."""
    remaining = [value]
    while remaining:
        each = remaining.pop()
        if isinstance(each, Mapping):
            yield each
            remaining += each.values()
        elif isinstance(each, (list, tuple)):
            remaining += each


def _sum(counts: Counter[int]) -> int:
    return min(sum(counts.values()), _CAP)


MAX_DEPTH: Final = 100
"""Nested objects and lists that are validated. jsonschema-rs 0.60.3 recurses on the stack without a check of its own: with
nested ``anyOf`` the process died at 256 levels on a stack of 512 KiB, as threads of some systems have."""


# Validates values against one JSON Schema, and names all mistakes at once.


MAX_MISTAKES: Final = 100
"""Mistakes of one value that are described."""

MAX_EVALUATIONS: Final = 10_000
"""Evaluations of subschemas for which all mistakes of a value are described; beyond it one of them is. The engine describes
every alternative before it returns the first mistake (10 µs for each evaluation), and this runs on the event loop."""

MAX_EVALUATIONS_AT_ONE_PLACE: Final = 2_000
"""Evaluations at one place for which a mistake is described at all. A recursive schema with three alternatives evaluates
3**n subschemas at a depth of n: 2 s at a depth of 8."""

MAX_EXPANSION: Final = 10_000
"""Subschemas that references may combine at one place of a value. Twenty definitions, each with two references to the next
one, are a million; real schemas have some ten."""


class SchemaValidator:
    """A compiled JSON Schema 2020-12. ``format`` is an annotation, as the standard has it by default; nothing is fetched.

    Args:
        schema: of JSON values, mutable or not.

    Raises:
        InvalidSchemaError: no JSON Schema 2020-12, or a reference to an address outside of it.
    """

    __slots__ = ("_counter", "_reader", "_validator")

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        if is_deeper(schema, MAX_DEPTH):
            raise InvalidSchemaError((Mistake("", f"must have at most {MAX_DEPTH} nested objects and lists"),))
        if outside := find_outside_references(schema):
            raise InvalidSchemaError(outside)
        self._reader = MistakeReader(schema)
        self._counter = EvaluationCounter(schema)
        self._counter.check_expansion()
        self._validator = compile_schema(schema)

    def find_mistakes(self, value: object) -> tuple[Mistake, ...]:
        """Return the mistakes of ``value``, at most :data:`MAX_MISTAKES`; empty when it is valid. Of a value that needs more
        than :data:`MAX_EVALUATIONS` only one mistake is returned."""
        if is_deeper(value, MAX_DEPTH):
            return (Mistake("", f"must have at most {MAX_DEPTH} nested objects and lists"),)
        try:
            if self._validator.is_valid(value):
                return ()
            count = self._counter.count(value, MAX_EVALUATIONS)
            if count.most > MAX_EVALUATIONS_AT_ONE_PLACE:
                return (
                    Mistake("", "matches none of the nested alternatives of the schema; they are too many to describe"),
                )
            if count.total > MAX_EVALUATIONS:
                return self._find_first_mistake(value)
            found = (
                mistake for error in self._validator.iter_errors(value) for mistake in self._reader.read(error, value)
            )
            return tuple(islice(dict.fromkeys(found), MAX_MISTAKES))
        except (ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
            return (Mistake("", f"must be a JSON value ({error})"),)

    def _find_first_mistake(self, value: object) -> tuple[Mistake, ...]:
        import jsonschema_rs

        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return tuple(self._reader.read(error, value))[:1]
        return ()


# Compiled validators of the schemas in use.


MAX_VALIDATORS: Final = 1_024
"""Compiled schemas that are retained; one has some ten kilobytes. Beyond it the least recently used one is dropped."""


T = TypeVar("T")


class ValidatorCache(Generic[T]):
    """The compiled validator of the schema of each object: a descriptor, or a schema itself. An object is recognized by its
    identity, and must not be changed: descriptors are immutable. Compiling costs 25 to 80 µs.

    Args:
        schema_of: returns the schema of an object.
        limit: validators that are retained.
    """

    def __init__(self, schema_of: Callable[[T], Mapping[str, Any] | bool], limit: int = MAX_VALIDATORS) -> None:
        self._schema_of = schema_of
        self._limit = limit
        # Each object beside its validator: while it is referenced, its id belongs to no other one.
        self._entries: OrderedDict[int, tuple[T, SchemaValidator]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, owner: T) -> SchemaValidator:
        """Return the validator of the schema of ``owner``.

        Raises:
            InvalidSchemaError: as :class:`SchemaValidator`.
        """
        key = id(owner)
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
            return entry[1]
        validator = SchemaValidator(self._schema_of(owner))
        remember(self._entries, key, (owner, validator), self._limit)
        return validator


# Whether a value is a schema of JSON Schema 2020-12 that refers to nothing outside of itself.


_COMPILED: Final = re.compile(rb'"\$|attern')
"""References and patterns: only a compilation finds faults in them. perf: it costs half of the check of a descriptor."""


def find_schema_problems(schema: Mapping[str, Any] | bool) -> tuple[Mistake, ...]:
    """Return the mistakes of ``schema``, by their place in it: keywords that the metaschema refuses, patterns that are no
    regular expression, and references to addresses or to places that do not exist. Nothing is fetched.
    """
    mistakes = _metaschema().find_mistakes(schema)
    if not is_deeper(schema, MAX_DEPTH):
        mistakes += find_outside_references(schema)
    if mistakes or not _COMPILED.search(msgspec.json.encode(schema)):
        return mistakes
    try:
        SchemaValidator(schema)
    except InvalidSchemaError as error:
        return error.mistakes
    return ()


@cache
def _metaschema() -> SchemaValidator:
    return SchemaValidator({"$ref": DIALECT})


# Schemas in older dialects of JSON Schema (draft-03 to 2019-09) as schemas of 2020-12, which everything else reads.


_NAME: Final = re.compile(r"https?://json-schema\.org/(?:draft-0([3467])|draft/(2019-09))/schema#?")
_ANCHOR: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_BESIDE_REFERENCE: Final = frozenset(
    {
        "$comment", "$defs", "$ref", "$schema", "default", "definitions", "deprecated", "description", "examples",
        "readOnly", "title", "writeOnly",
    }
)  # fmt: skip
"""Keywords that count beside ``$ref`` up to draft-07: they describe, or are referred to. All others are ignored there."""


Dialect = int
"""A dialect before 2020-12: the number of its draft, 3 to 7; 8: 2019-09."""
GUESSED: Final[Dialect] = 0
"""The dialect of a schema of another system that names none: only what cannot mean anything else is translated. Many
generators write draft-07 without its name."""


def find_dialect(schema: Mapping[str, Any]) -> Dialect | None:
    """Return the older dialect that ``$schema`` names; None: 2020-12, another one, or none."""
    name = schema.get("$schema")
    found = _NAME.fullmatch(name.strip()) if isinstance(name, str) else None
    return None if found is None else int(found[1] or 8)


def translate_schema(schema: Mapping[str, Any], dialect: Dialect) -> Mapping[str, Any]:
    """Return ``schema`` in JSON Schema 2020-12; the same object if both dialects read it alike.

    - lists in ``items``, and ``additionalItems``;
    - ``exclusiveMinimum`` and ``exclusiveMaximum`` as flags, ``required`` as a flag of a property, ``divisibleBy``;
    - ``id``, and ``$id`` as the name of a place (``#part``);
    - ``dependencies``, ``$recursiveRef``, the type ``any``;
    - keywords beside ``$ref``, which draft-07 and its predecessors ignore;
    - OpenAPI's ``nullable`` beside a type, where no dialect is named.

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
    result = dict(schema)
    own = None if is_root else find_dialect(schema)
    if own is not None:
        dialect = own
        del result["$schema"]
    if dialect != GUESSED:
        _translate_named(result, dialect, is_root=is_root)
    elif result.get("nullable") is True and not is_root:
        _translate_nullable(result)
    _translate_items(result)
    _translate_bounds(result)
    _translate_place(result)
    _translate_flags(result)
    return map_subschemas(result, lambda each: _translate(each, dialect))


def _translate_named(result: dict[str, Any], dialect: Dialect, *, is_root: bool) -> None:
    """Translate what another dialect could mean otherwise."""
    if dialect <= 7 and isinstance(result.get("$ref"), str):
        for keyword in result.keys() - _BESIDE_REFERENCE:
            if not (is_root and keyword in ("type", "id", "$id")):
                del result[keyword]
    if dialect <= 4 and isinstance(result.get("id"), str):
        result["$id"] = result.pop("id")
    if dialect == 3:
        if "divisibleBy" in result:
            result["multipleOf"] = result.pop("divisibleBy")
        kind = result.get("type")
        if kind == "any" or (_is_list(kind) and not all(isinstance(each, str) and each != "any" for each in kind)):
            del result["type"]
    if dialect <= 7 and isinstance(result.get("dependencies"), Mapping):
        _translate_dependencies(result)
    if dialect == 8:
        result.pop("$recursiveAnchor", None)
        if "$recursiveRef" in result:
            result.setdefault("$ref", result.pop("$recursiveRef"))


def _translate_nullable(result: dict[str, Any]) -> None:
    kind, options = result.get("type"), result.get("enum")
    kinds = [kind] if isinstance(kind, str) else kind
    if not _is_list(kinds):
        return
    del result["nullable"]
    if "null" not in kinds:
        result["type"] = [*kinds, "null"]
    if _is_list(options) and None not in options:
        result["enum"] = [*options, None]


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


# Schemas without the parts that cannot be used: every value that the whole schema would allow stays allowed.


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


__all__ = ["InvalidSchemaError", "Mistake", "SchemaValidator", "find_outside_references", "find_schema_problems"]
