"""Parts of descriptors: keys and versions of items, policies, schemas. Each error is reported with its key and fix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from dispatch._internal import excerpt, write_json
from dispatch.catalog.descriptors import VERSION_EXAMPLE
from dispatch.catalog.versions import is_version
from dispatch.documents import FrozenDict, Report, describe_value, join_path
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, parse_policy
from dispatch.schemas import (
    DIALECT,
    GUESSED,
    SCHEMA_KEYWORDS,
    SCHEMA_LIST_KEYWORDS,
    SCHEMA_OBJECT_KEYWORDS,
    Mistake,
    find_dead_references,
    find_dialect,
    find_schema_problems,
    find_value,
    split_pointer,
    translate_schema,
    widen_schema,
)

# Keys of items: ``NAME``, or ``NAME@VERSION`` for one of several versions.


class ItemKey(NamedTuple):
    """The parts of the key under which an item is stored.

    Attributes:
        name: the default of the item's id or name.
        version: the default of its version; None: the key has none.
    """

    name: str
    version: str | None

    @classmethod
    def parse(cls, key: str) -> ItemKey:
        """Split ``key`` at its last ``@``, if a SemVer version follows it; an ``@`` before anything else is part of the
        name, as in TrustGraph."""
        name, separator, version = key.rpartition("@")
        return cls(name, version) if separator and name and is_version(version) else cls(key, None)


MAX_MODEL_NAME_CHARS: Final = 64
"""Characters of a tool's name that the APIs of models accept."""
MODEL_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_MODEL_NAME_CHARS}}}")
"""Names that all models accept."""


def check_version(version: str | None, item_key: ItemKey, report: Report, path: str = "") -> str | None:
    """Return the version of an item, whose key has its default, and excludes another one.

    Args:
        version: None: the item has none.
        path: of the item, with a point.
    """
    if version is None:
        return item_key.version
    if not is_version(version):
        problem = f"'{excerpt(version)}' is not a SemVer version"
        fix = f'write three numbers, for example "version": "{VERSION_EXAMPLE}"'
        report.add_error(f"{path}version", problem, fix)
    elif item_key.version is not None and version != item_key.version:
        problem = f"'{excerpt(version)}' differs from the version '{excerpt(item_key.version)}' in the item's key"
        fix = "remove 'version', or store the item under the key NAME@VERSION of this version"
        report.add_error(f"{path}version", problem, fix)
    return version


def add_namespace(key: str, name: str, namespace: str, limit: int, report: Report) -> str:
    """Return ``name`` with the prefix of its namespace; more than ``limit`` characters are an error."""
    if not namespace or not name.strip():
        return name
    full = f"{namespace}-{name}"
    if len(full) > limit:
        problem = f"'{excerpt(full)}' has {len(full):,} characters with the namespace '{excerpt(namespace)}'"
        report.add_error(key, problem, f"shorten the {key} or the namespace: at most {limit} characters together")
    return full


# Checks the ``policy`` object of a descriptor with the policy's parser, and reports each error in it.


def check_policy(raw: Mapping[str, Any], report: Report, base: Policy = DEFAULT_POLICY) -> None:
    """Report each error in ``raw``, merged over ``base``, under ``policy.…``."""

    def warn(key: str, problem: str, fix: str) -> None:
        report.add_warning(f"policy.{key}", problem, fix)

    try:
        parse_policy(raw, base, warn)
    except PolicyError as error:
        for key, problem, fix in error.mistakes:
            report.add_error(f"policy.{excerpt(key, 62)}", excerpt(problem, 200), fix)


# Reads an ``input-schema`` and an ``output-schema``: JSON Schema 2020-12 without references to addresses. A schema in that
# dialect is used unchanged, and nothing is fetched for it.


MAX_ROUNDS: Final = 20
"""Times that a schema of another system is checked after parts of it were removed; beyond it only its type is used."""


Place = tuple[str | int, ...]
"""Keys of a place in a schema; empty: the whole schema, or a place that is not known."""


def read_input_schema(schema: Mapping[str, Any], report: Report, *, is_foreign: bool = False) -> dict[str, Any]:
    """Return the schema of a tool's arguments. Its root is an object; otherwise as :func:`read_schema`."""
    if schema.get("type") != "object":
        given = f"is {describe_value(schema['type'])}" if "type" in schema else "is missing"
        problem = f"the type of the root {given}, and a tool's arguments are an object"
        if is_foreign:
            schema = FrozenDict({**schema, "type": "object"})
            _report_widened(report, "input-schema.type", problem)
        else:
            fix = 'write "type": "object", with one property for each argument'
            report.add_error("input-schema.type", problem, fix)
    read = read_schema(schema, report, "input-schema", is_foreign=is_foreign)
    return read if read.get("type") == "object" or not is_foreign else FrozenDict({**read, "type": "object"})


def read_schema(schema: Mapping[str, Any], report: Report, path: str, *, is_foreign: bool = False) -> dict[str, Any]:
    """Return the schema at ``path`` of a descriptor in JSON Schema 2020-12: a schema that names an older dialect is
    translated. Report each violation of the metaschema, each pattern that is no regular expression, and each reference to
    an address or to a place that does not exist. Depth and size are those of the descriptor, which is limited.

    Args:
        is_foreign: keywords with a fault are removed and reported as warnings. A schema that names no dialect is translated
            as well where only an older one could be meant.
    """
    dialect = find_dialect(schema)
    translated = translate_schema(schema, dialect or GUESSED) if dialect or is_foreign else schema
    what = "keywords of another dialect than 2020-12, which are translated"
    if is_foreign:
        if translated is not schema:
            report.add_info(f"{path}.$schema", what, "nothing is to be done")
        return _widen(_freeze(translated), report, path)
    if dialect is not None:
        if translated is schema:
            what = "another dialect than 2020-12, by which the schema is checked"
        report.add_warning(f"{path}.$schema", what, f'write "{DIALECT}", and the keywords of that dialect')
        schema = _freeze(translated)
    for place, problem, fix in _find_faults(schema):
        report.add_error(_path_of(place, path), problem, fix)
    return _freeze(schema)


def _widen(schema: Mapping[str, Any], report: Report, path: str) -> dict[str, Any]:
    """Return ``schema`` without what has a fault."""
    for _ in range(MAX_ROUNDS):
        dead = "a reference to a place that does not exist"
        faults = [*((place, dead, "") for place in find_dead_references(schema)), *_find_faults(schema)]
        if not faults:
            return _freeze(schema)
        former = schema
        for place, problem, _ in faults:
            if place:
                widened = widen_schema(schema, place)
                if widened is not schema:
                    schema = _freeze(widened)
                    _report_widened(report, _path_of(place, path), problem)
        if schema is former:
            break
    _report_widened(report, path, faults[0][1])
    return _freeze({key: schema[key] for key in ("type", "title", "description") if isinstance(schema.get(key), str)})


def _report_widened(report: Report, key: str, problem: str) -> None:
    report.add_warning(key, f"{problem}; it is not checked", "correct the schema where the tool is defined")


def _freeze(schema: Mapping[str, Any]) -> FrozenDict[Any]:
    """Return a schema, partly immutable, as an immutable one."""
    if isinstance(schema, FrozenDict):
        return schema
    return FrozenDict({key: _freeze_value(each) for key, each in schema.items()})


def _freeze_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _freeze(value)
    return tuple(map(_freeze_value, value)) if isinstance(value, (list, tuple)) else value


def _path_of(place: Place, path: str) -> str:
    """Return the path in a descriptor of a place in its schema at ``path``."""
    for key in place:
        path = f"{path}[{key}]" if isinstance(key, int) else join_path(path, key)
    return path


def _place_of(pointer: str, schema: object) -> Place:
    """Return the keys of a JSON Pointer."""
    place: list[str | int] = []
    for part in split_pointer(pointer):
        if isinstance(schema, tuple):
            place.append(int(part))
            schema = schema[int(part)]
        else:
            place.append(part)
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return tuple(place)


def _find_faults(schema: Mapping[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the problem and the fix of each fault of a schema."""
    for mistake in find_schema_problems(schema):
        place = _place_of(mistake.path, schema)
        yield place, _describe(mistake), _find_fix(place, find_value(schema, place))


def _describe(mistake: Mistake) -> str:
    """Return the fault of ``mistake`` without its path, which is the key of the problem."""
    return str(msgspec.structs.replace(mistake, path="")).removeprefix("the whole value ")


def _find_fix(place: Place, value: object) -> str:
    """Return how to correct ``value`` at ``place`` of a schema."""
    keyword, above = (place[-1] if place else ""), (place[-2] if len(place) > 1 else "")
    if keyword == "items" and isinstance(value, tuple):
        return "rename 'items' to 'prefixItems', as in JSON Schema 2020-12"
    if keyword in SCHEMA_KEYWORDS or above in SCHEMA_LIST_KEYWORDS or above in SCHEMA_OBJECT_KEYWORDS:
        return 'write {"type": "string"}, or true for any value'
    if keyword in ("$ref", "$dynamicRef"):
        return 'copy the schema into "$defs" of this one, and write "$ref": "#/$defs/NAME"'
    for key in (keyword, above):
        if key in _EXAMPLES:
            return f'write "{key}": {write_json(_EXAMPLES[key])}'
    return "correct it as JSON Schema 2020-12 requires"


_EXAMPLES: Final[Mapping[str | int, Any]] = {
    **{key: [{"type": "string"}] for key in SCHEMA_LIST_KEYWORDS},
    **{key: {"topic": {"type": "string"}} for key in SCHEMA_OBJECT_KEYWORDS},
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "multipleOf"), 1),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), 1),
    "$schema": DIALECT,
    "type": "string",
    "required": ["topic"],
    "dependentRequired": {"unit": ["amount"]},
    "enum": ["a", "b"],
    "uniqueItems": True,
}
"""Values of keywords, for fixes."""
