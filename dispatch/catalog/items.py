"""Sources of descriptors, the items that they deliver, and the reading of an item as a descriptor of a service or tool."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from dispatch import schemas
from dispatch._internal import excerpt, find_near_names, join_names, write_json
from dispatch.catalog.descriptors import (
    ANY_STATE,
    DEFAULT_GROUPS,
    RANGE_EXAMPLE,
    REQUEST_EXAMPLE,
    RESPONSE_EXAMPLE,
    VERSION_EXAMPLE,
    Instance,
    ServiceDescriptor,
    ToolDescriptor,
)
from dispatch.catalog.versions import find_service_version, is_version, parse_range, select_service
from dispatch.documents import (
    EMPTY,
    MAX_NAME_CHARS,
    DocumentError,
    FrozenDict,
    Problem,
    Report,
    describe_kind,
    describe_value,
    explain_missing,
    freeze_json,
    join_path,
    parse_json,
    read_struct,
    rules_of,
    warn_of_unknown_keys,
)
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, check_repeats, parse_policy

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
    dialect = schemas.find_dialect(schema)
    translated = schemas.translate_schema(schema, dialect or schemas.GUESSED) if dialect or is_foreign else schema
    what = "keywords of another dialect than 2020-12, which are translated"
    if is_foreign:
        if translated is not schema:
            report.add_info(f"{path}.$schema", what, "nothing is to be done")
        return _widen(_freeze(translated), report, path)
    if dialect is not None:
        if translated is schema:
            what = "another dialect than 2020-12, by which the schema is checked"
        report.add_warning(f"{path}.$schema", what, f'write "{schemas.DIALECT}", and the keywords of that dialect')
        schema = _freeze(translated)
    for place, problem, fix in _find_faults(schema):
        report.add_error(_path_of(place, path), problem, fix)
    return _freeze(schema)


def _widen(schema: Mapping[str, Any], report: Report, path: str) -> dict[str, Any]:
    """Return ``schema`` without what has a fault."""
    for _ in range(MAX_ROUNDS):
        dead = "a reference to a place that does not exist"
        faults = [*((place, dead, "") for place in schemas.find_dead_references(schema)), *_find_faults(schema)]
        if not faults:
            return _freeze(schema)
        former = schema
        for place, problem, _ in faults:
            if place:
                widened = schemas.widen_schema(schema, place)
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
    for part in schemas.split_pointer(pointer):
        if isinstance(schema, tuple):
            place.append(int(part))
            schema = schema[int(part)]
        else:
            place.append(part)
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return tuple(place)


def _find_faults(schema: Mapping[str, Any]) -> Iterator[tuple[Place, str, str]]:
    """Yield the place, the problem and the fix of each fault of a schema."""
    for mistake in schemas.find_schema_problems(schema):
        place = _place_of(mistake.path, schema)
        yield place, _describe(mistake), _find_fix(place, schemas.find_value(schema, place))


def _describe(mistake: schemas.Mistake) -> str:
    """Return the fault of ``mistake`` without its path, which is the key of the problem."""
    return str(msgspec.structs.replace(mistake, path="")).removeprefix("the whole value ")


def _find_fix(place: Place, value: object) -> str:
    """Return how to correct ``value`` at ``place`` of a schema."""
    keyword, above = (place[-1] if place else ""), (place[-2] if len(place) > 1 else "")
    if keyword == "items" and isinstance(value, tuple):
        return "rename 'items' to 'prefixItems', as in JSON Schema 2020-12"
    if (
        keyword in schemas.SCHEMA_KEYWORDS
        or above in schemas.SCHEMA_LIST_KEYWORDS
        or above in schemas.SCHEMA_OBJECT_KEYWORDS
    ):
        return 'write {"type": "string"}, or true for any value'
    if keyword in ("$ref", "$dynamicRef"):
        return 'copy the schema into "$defs" of this one, and write "$ref": "#/$defs/NAME"'
    for key in (keyword, above):
        if key in _EXAMPLES:
            return f'write "{key}": {write_json(_EXAMPLES[key])}'
    return "correct it as JSON Schema 2020-12 requires"


_EXAMPLES: Final[Mapping[str | int, Any]] = {
    **{key: [{"type": "string"}] for key in schemas.SCHEMA_LIST_KEYWORDS},
    **{key: {"topic": {"type": "string"}} for key in schemas.SCHEMA_OBJECT_KEYWORDS},
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "multipleOf"), 1),
    **dict.fromkeys(("maxLength", "minLength", "maxItems", "minItems", "maxProperties", "minProperties"), 1),
    "$schema": schemas.DIALECT,
    "type": "string",
    "required": ["topic"],
    "dependentRequired": {"unit": ["amount"]},
    "enum": ["a", "b"],
    "uniqueItems": True,
}
"""Values of keywords, for fixes."""


SERVICE_KEYS: Final = tuple(rules_of(ServiceDescriptor))
"""Keys of a service's descriptor."""
_NOTES: Final = ("description",)  # a note for people


def _read_service(item: Item, raw: dict[str, Any], report: Report, base: Policy) -> ServiceDescriptor:
    """Return the descriptor in ``raw``, the content of ``item``; ``base``: defaults under its policy. After an error in
    ``report`` only its id may be used."""
    key = ItemKey.parse(item.key)
    known = (*SERVICE_KEYS, "requires")
    service = read_struct(ServiceDescriptor, _name_by_key(raw, "id", key), report, known=known)
    own_id = service.id or _text_of(raw, "id")
    version = check_version(service.version, key, report)
    check_policy(service.policy, report, base)
    service = msgspec.structs.replace(
        service,
        id=add_namespace("id", own_id, item.namespace, MAX_NAME_CHARS, report),
        instances=_check_instances(service, version, report),
        version=version,
    )
    if raw.get("requires") is not None:
        problem = "'requires' belongs to a tool, and a service depends on no other one"
        report.add_error("requires", problem, "move 'requires' to the tools of the service, or remove it")
    _check_queues(service, report)
    if key.name and own_id and own_id != key.name:
        report.add_info(
            "id",
            f"the id '{excerpt(own_id)}' differs from the item's key '{excerpt(key.name)}'; tools refer to the id",
            "name the file after the id",
        )
    warn_of_unknown_keys(raw, known, report, silent=_NOTES)
    return service


def _name_by_key(raw: dict[str, Any], field: str, key: ItemKey) -> dict[str, Any]:
    """Return ``raw`` with the name in the item's key, unless it has one."""
    return {**raw, field: key.name} if key.name and raw.get(field) is None else raw


def _text_of(raw: Mapping[str, Any], key: str) -> str:
    """Return the text at ``key``, also one with a mistake, for reports about other items; ``""``: there is none."""
    value = raw.get(key)
    return value if isinstance(value, str) else ""


def _check_instances(service: ServiceDescriptor, version: str | None, report: Report) -> tuple[Instance, ...]:
    """Return the instances with the service's values where they have none."""
    found: dict[str, Instance] = {}
    queues: dict[str, str] = {}
    for index, instance in enumerate(service.instances):
        if instance is None:
            continue
        path = f"instances[{index}]"
        if instance.request_queue and instance.request_queue in queues:
            report.add_warning(
                f"{path}.request-queue",
                f"the same topic as instance '{excerpt(queues[instance.request_queue])}', so the broker and not "
                "dispatch decides which of the two answers",
                "give each instance a topic of its own",
            )
        queues.setdefault(instance.request_queue, instance.id)
        found[instance.id] = msgspec.structs.replace(
            instance,
            response_queue=instance.response_queue or service.response_queue,
            version=check_version(instance.version, ItemKey("", None), report, f"{path}.") or version,
        )
    return tuple(found.values())


def _check_queues(service: ServiceDescriptor, report: Report) -> None:
    # A service with one topic for both would receive its own replies as requests.
    answers = {service.response_queue, *(instance.response_queue for instance in service.instances)} - {""}
    requests = [("request-queue", service.request_queue)]
    requests += [(f"instances[{i}].request-queue", one.request_queue) for i, one in enumerate(service.instances)]
    for path, queue in requests:
        if queue in answers:
            report.add_error(
                path,
                "requests and replies would use the same topic",
                f"use two topics, for example {REQUEST_EXAMPLE!r} and {RESPONSE_EXAMPLE!r}",
            )


# Reads a raw tool item as a :class:`ToolDescriptor`.


TOOL_KEYS: Final = ("type", *rules_of(ToolDescriptor))
"""Keys of a tool's descriptor, besides the config parameters of its service."""
_TRUSTGRAPH_KEYS: Final = ("type", "name", "description", "service", "arguments", "group", "state", "applicable-states")
_SILENT: Final = ("id",)  # TrustGraph's own agent reads it


def _read_tool(
    item: Item, raw: dict[str, Any], service: ServiceDescriptor | None, report: Report, defaults: Policy
) -> ToolDescriptor:
    """Return the descriptor in ``raw``, the content of ``item``. After an error in ``report`` only its name and service may
    be used.

    Args:
        service: that it refers to; None: unknown, so that its config is not checked.
        defaults: under the policies of the service and the tool.
    """
    params = tuple(param.name for param in service.config_params) if service else ()
    sent = [key for key in raw if key in params and key in TOOL_KEYS and key not in _TRUSTGRAPH_KEYS]
    own = {key: value for key, value in raw.items() if key not in sent} if sent else raw
    for key in sent:
        report.add_warning(
            key,
            f"the service has a config param '{key}', so the value is sent to the service and dispatch ignores it",
            "rename the service's config param if the tool's own key is meant",
        )
    base = defaults.merged(service.policy) if service else defaults
    key_parts = ItemKey.parse(item.key)
    own = _name_by_key(own, "name", key_parts)
    tool = read_struct(ToolDescriptor, own, report, known=("type", *params))
    version = check_version(tool.version, key_parts, report)
    check_policy(tool.policy, report, base)
    _check_range(tool.requires, report)
    _check_rollout(tool.rollout, version, report)
    name = add_namespace("name", tool.name or _text_of(own, "name"), item.namespace, MAX_MODEL_NAME_CHARS, report)
    _warn_about_model(tool, name, own, report)
    tool = msgspec.structs.replace(
        tool,
        name=name,
        service=service.id if service is not None else tool.service or _text_of(own, "service"),
        config=_config(own, raw, service, report),
        version=version,
        groups=DEFAULT_GROUPS if tool.groups == DEFAULT_GROUPS else tool.groups,
        applicable_states=ANY_STATE if tool.applicable_states == ANY_STATE else tool.applicable_states,
        **_schemas(tool, report, item.is_foreign),
    )
    if tool.input_schema is not None and tool.arguments:
        is_wrong = any(each.key.startswith(("arguments", "input-schema")) for each in report.problems)
        if not is_wrong and all(tool.arguments):  # a report of many mistakes does not have those of the last keys
            _check_arguments(tool, report)
        tool = msgspec.structs.replace(tool, arguments=())  # for TrustGraph's agents, which read no schema
    if tool.read_only and tool.destructive:
        report.add_error(
            "destructive",
            "'read-only' and 'destructive' contradict each other",
            "remove the wrong one: a read-only tool may be called again after a failure",
        )
    if service is not None and tool.requires is not None and not report.has_errors:
        _check_requires(tool.requires, service, report)
    if not report.has_errors:
        policy = base.merged(tool.policy)
        try:
            check_repeats(tool, policy, tool.policy)
        except PolicyError as error:
            report.add_error(f"policy.{error.key}", error.problem, error.fix)
    if service is not None:  # without it the config params are not known
        otherwise = "remove it, or declare it in the service's 'config-params' if it is a value for the service"
        warn_of_unknown_keys(own, (*TOOL_KEYS, *params), report, silent=_SILENT, otherwise=otherwise)
    return tool


def _check_range(requires: str | None, report: Report) -> None:
    fix = f'write a range, for example "requires": "{RANGE_EXAMPLE}", or "1.x || >=2.3.1"'
    if requires is not None and not requires.strip():
        report.add_error("requires", "'requires' is empty", fix)
    elif requires is not None:
        try:
            parse_range(requires)
        except ValueError as error:
            report.add_error("requires", str(error), fix)


def _check_requires(requires: str, service: ServiceDescriptor, report: Report) -> None:
    # Not an error: the version may be started later.
    if select_service((service,), requires) is None:
        known = f"has the version {service.version}" if service.version else "declares no version"
        report.add_warning(
            "requires",
            f"no version of the service '{excerpt(service.id)}' satisfies '{excerpt(requires)}' (it {known}), "
            "so each call is rejected",
            "correct the range, or declare such a version of the service or of one of its instances",
        )


def _check_rollout(shares: Mapping[str, float], version: str | None, report: Report) -> None:
    add_error = report.add_error
    total = 0.0
    for target, share in shares.items():
        at = join_path("rollout", target)
        if not is_version(target):
            add_error(at, f"'{excerpt(target)}' is not a SemVer version", 'write "rollout": {"2.0.0": 5}')
        elif target == version:
            add_error(at, "the version of this descriptor itself", "name another version, or remove the share")
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 100:
            problem = f"{describe_value(share)} is no share between 0 and 100 per cent"
            add_error(at, problem, f'write "{excerpt(target)}": 5')
        else:
            total += share
    if total > 100:
        add_error("rollout", f"the shares have a sum of {total:g} per cent", "reduce them to at most 100 in all")


def _schemas(tool: ToolDescriptor, report: Report, is_foreign: bool) -> dict[str, Any]:
    """Return the schemas in the dialect of dispatch."""
    found = {}
    if tool.output_schema is not None:
        found["output_schema"] = read_schema(tool.output_schema, report, "output-schema", is_foreign=is_foreign)
    if tool.input_schema is not None:
        found["input_schema"] = read_input_schema(tool.input_schema, report, is_foreign=is_foreign)
    return found


def _config(
    own: Mapping[str, Any], raw: Mapping[str, Any], service: ServiceDescriptor | None, report: Report
) -> FrozenDict[Any]:
    if service is None:
        return EMPTY
    params = tuple(param.name for param in service.config_params)
    for param in service.config_params:
        if param.required and param.name not in raw:
            problem = (
                f"the service '{excerpt(service.id)}' requires a value for its config param '{excerpt(param.name)}'"
            )
            report.add_error(param.name, problem, explain_missing(own, param.name, "…", (*TOOL_KEYS, *params)))
    values = {param: raw[param] for param in params if param in raw}
    return FrozenDict(values) if values else EMPTY


def _warn_about_model(tool: ToolDescriptor, name: str, raw: Mapping[str, Any], report: Report) -> None:
    if name and not MODEL_NAME.fullmatch(name):
        report.add_warning(
            "name",
            f"many models reject the tool name '{excerpt(name)}'",
            f"use at most {MAX_MODEL_NAME_CHARS} letters, digits, '-' and '_'",
        )
    if isinstance(raw.get("description"), str) and not tool.description.strip():
        report.add_warning(
            "description",
            "the description is empty, and models choose tools by it",
            "say what the tool does, and when to use it",
        )


def _check_arguments(tool: ToolDescriptor, report: Report) -> None:
    """Report ``arguments`` that differ from the input schema."""
    names = {each.name for each in tool.arguments}
    known = {each.name for each in tool.described_arguments}
    for name in sorted(names ^ known):
        here, there = ("arguments", "input-schema") if name in names else ("input-schema", "arguments")
        report.add_error(
            there,
            f"the argument '{excerpt(name)}' is in '{here}' only",
            "describe the same arguments in both, or remove 'arguments', which dispatch does not need beside the schema",
        )


# Items as sources deliver them, and the reading of one item as a descriptor.


_log = logging.getLogger("dispatch.catalog")

KINDS: Final = ("tool-service", "tool")
"""Kinds of items: TrustGraph's config types, and the names of the folders."""


def require_kind(kind: str) -> str:
    """Return ``kind``.

    Raises:
        ValueError: it is not a kind of descriptor.
    """
    if kind not in KINDS:
        raise ValueError(f"'{excerpt(kind)}' is not a kind of descriptor. Use {' or '.join(KINDS)}.")
    return kind


def choose_key(kind: str, raw: Mapping[str, Any], key: str | None) -> str:
    """Return the key of an item that is written.

    Args:
        key: None: the ``name`` of a tool, the ``id`` of a service.

    Raises:
        ValueError: there is none.
    """
    field = "id" if kind == "tool-service" else "name"
    key = raw.get(field) if key is None else key
    if not isinstance(key, str) or not key:
        raise ValueError(f"The descriptor has no '{field}'. Give it one, or give the key of the item.")
    return key


_SCHEMAS: Final = ("input-schema", "output-schema")

Services = Mapping[str, Sequence[ServiceDescriptor]]
"""The versions of each service by id, in any order."""


class Unreadable:
    """Content of an item that its source could not read and has reported, so that tools of a service whose file has a syntax
    error are not reported as tools without a service. With the key ``""`` it stands for any number of items."""


class Refused(msgspec.Struct, frozen=True):
    """Content of a tool that its source refuses.

    Attributes:
        problems: the reasons.
        name: of the tool, with its namespace; empty: not known, or that of the item's key.
    """

    problems: tuple[Problem, ...]
    name: str = ""


# Items and readings form no cycles: gc=False excludes them from garbage collection, whose longest pause grows with the
# number of objects and stops every thread.


class Item(msgspec.Struct, frozen=True, gc=False):
    """A raw descriptor as a source delivers it.

    Attributes:
        origin: path or position for messages, such as ``tools[2]``.
        kind: one of :data:`KINDS`.
        key: the key under which it is stored (a file's stem): ``NAME`` or ``NAME@VERSION``, the defaults of its id or name
            and of its version; ``""``: none.
        raw: the descriptor as JSON values; or an :class:`Unreadable`, or a :class:`Refused`.
        namespace: prefix of its name or id, and of the service that it refers to: ``crm`` makes ``find`` into ``crm-find``.
        is_foreign: its schemas are another system's, whose authors do not read the reports: a schema is translated or
            widened, and no reason to refuse the tool.
    """

    origin: str
    kind: str
    key: str
    raw: object
    namespace: str = ""
    is_foreign: bool = False

    @property
    def key_name(self) -> str:
        """The name in its key, with the prefix of its namespace; ``""``: it has no key."""
        return self.add_namespace(ItemKey.parse(self.key).name)

    def add_namespace(self, name: str) -> str:
        """Return ``name`` with the prefix of the item's namespace."""
        return f"{self.namespace}-{name}" if self.namespace and name else name


class ReadItem(msgspec.Struct, frozen=True, gc=False):
    """What an item holds.

    Attributes:
        item: as it was delivered.
        service, tool: the descriptor; both None: the item is refused, or a tool of another runtime.
        problems: everything that is to be said about the item.
        is_refused: one of them is an error.
        name: the id or name, with its namespace, as far as it could be read.
        version: of the descriptor, as far as it could be read; None: it has none.
        other_type: type of a tool that another runtime executes; empty: dispatch's own.
    """

    item: Item
    service: ServiceDescriptor | None
    tool: ToolDescriptor | None
    problems: tuple[Problem, ...]
    is_refused: bool
    name: str = ""
    other_type: str = ""
    version: str | None = None


class Unavailable(NamedTuple):
    """Names that a tool may refer to by mistake, or that are not in force.

    Attributes:
        refused: ids and keys of services that have errors, ``""`` for unknown ones: a tool that refers to one of them has no
            error of its own.
        ids_by_key: ids of services by the keys of their items.
    """

    refused: frozenset[str] = frozenset()
    ids_by_key: Mapping[str, str] = {}


NONE_UNAVAILABLE: Final = Unavailable()


def read_service_item(item: Item, base: Policy = DEFAULT_POLICY) -> ReadItem:
    """Read a tool service; ``base``: defaults under its policy. The content of an item never raises an exception."""
    report = Report(item.origin)
    raw = _object(item.raw, report)
    if raw is None:
        return ReadItem(item, None, None, tuple(report.problems), True, item.key_name)
    service = _read_service(item, raw, report, base)
    usable = None if report.has_errors else service
    problems = tuple(report.problems)
    return ReadItem(item, usable, None, problems, report.has_errors, service.id, version=service.version)


def read_tool_item(
    item: Item, services: Services, unavailable: Unavailable = NONE_UNAVAILABLE, base: Policy = DEFAULT_POLICY
) -> ReadItem:
    """Read a tool. The content of an item never raises an exception.

    Args:
        services: in force.
        unavailable: other names of services, for the report.
        base: defaults under the policies of the service and the tool.
    """
    if isinstance(item.raw, Refused):
        return ReadItem(item, None, None, item.raw.problems, True, item.key_name)
    report = Report(item.origin)
    raw = _object(item.raw, report)
    if raw is None:
        return ReadItem(item, None, None, tuple(report.problems), True, item.key_name)
    if not _is_tool_service(raw, report):
        other, given = raw.get("type"), raw.get("name")
        name = item.add_namespace(given) if isinstance(given, str) else item.key_name
        problems = tuple(report.problems)
        return ReadItem(item, None, None, problems, report.has_errors, name, other if isinstance(other, str) else "")
    service = find_service(item, services)
    tool = _read_tool(item, raw, service, report, base)
    meant = {tool.service, item.add_namespace(tool.service), ""}
    if service is None and tool.service.strip() and unavailable.refused.isdisjoint(meant):
        _report_unknown_service(item, tool.service, services, unavailable, report)
    problems = tuple(report.problems)
    if item.is_foreign and not report.has_errors:
        _log_widened(item, problems)
    usable = None if report.has_errors or service is None else tool
    return ReadItem(item, None, usable, problems, report.has_errors, tool.name, version=tool.version)


def _log_widened(item: Item, problems: Sequence[Problem]) -> None:
    widened = [each for each in problems if each.severity == "warning" and each.key.startswith(_SCHEMAS)]
    if widened:
        first = widened[0]
        more = f" ({len(widened) - 1:,} more)" if len(widened) > 1 else ""
        _log.warning("%s is used with a part of its schema: %s: %s%s", item.origin, first.key, first.problem, more)


def find_service(item: Item, services: Services) -> ServiceDescriptor | None:
    """Return the service in force that a tool refers to, in the version that it requires; None: there is none.

    The service in the tool's namespace precedes the one without a prefix.
    """
    raw = item.raw
    if not isinstance(raw, (dict, Mapping)):  # perf: dict first, a check of Mapping costs ten times as much
        return None
    id = raw.get("service")
    if not isinstance(id, str):
        return None
    versions = services.get(item.add_namespace(id)) or services.get(id)
    if not versions:
        return None
    requires = raw.get("requires")
    return find_service_version(versions, requires if isinstance(requires, str) else None)


def _is_tool_service(raw: dict[str, Any], report: Report) -> bool:
    tool_type = raw.get("type")
    if tool_type == "tool-service":
        return True
    fix = 'write "type": "tool-service" if a tool service does its work'
    if tool_type is None:
        report.add_error("type", "the required key 'type' is missing", 'add "type": "tool-service"')
        return True  # so that its other problems are reported in the same run
    if isinstance(tool_type, str):
        # Tools of other runtimes are in the same folder: only a probable misspelling deserves a warning.
        add = report.add_warning if find_near_names(tool_type, ("tool-service",), 1) else report.add_info
        add("type", f"a tool of the type '{excerpt(tool_type)}' is not dispatch's: it is ignored", fix)
        return False
    report.add_error("type", f"'type' is {describe_kind(tool_type)}, not a text", 'write "type": "tool-service"')
    return True


def _report_unknown_service(
    item: Item, service_id: str, services: Services, unavailable: Unavailable, report: Report
) -> None:
    by_key = unavailable.ids_by_key.get(item.add_namespace(service_id)) or unavailable.ids_by_key.get(service_id)
    if by_key is not None and item.namespace:
        by_key = by_key.removeprefix(f"{item.namespace}-")
    near = find_near_names(service_id, [*services, *unavailable.refused], 1)
    if by_key is not None:
        fix = f'write "service": "{excerpt(by_key)}": that is the id in the item \'{excerpt(service_id)}\''
    elif near:
        fix = f'write "service": "{excerpt(near[0])}"'
    else:
        fix = f"add a tool service with the id '{excerpt(service_id)}'"
    if services and by_key is None:
        fix += f"; known services: {join_names(tuple(services))}"
    report.add_error("service", f"there is no tool service '{excerpt(service_id)}'", fix)


def _object(raw: object, report: Report) -> dict[str, Any] | None:
    value = freeze_json(raw, report)
    if isinstance(value, dict):
        return value
    fix = 'write one object: {"id": …} for a service, {"type": "tool-service", "name": …} for a tool'
    if isinstance(value, str) and value.lstrip().startswith("{"):
        fix = "remove the quotes: this is JSON inside a JSON text"
        try:
            parse_json(value)
        except DocumentError as error:  # a text that its source could not parse
            for key, problem, correction in error.mistakes:
                report.add_error(key, problem, correction)
    if not report.has_errors:
        report.add_error("", f"the descriptor is {describe_kind(value)}, not an object", fix)
    return None


# The interface of a source of descriptors, and what the registry reports about each source.


SourceState = Literal["ok", "stale", "failed"]
OnChange = Literal["apply", "hold"]


class Source(Protocol):
    """A source of descriptors. A source may also have these attributes; each has a default:

    - ``is_atomic`` (False): its items are accepted as a whole or not at all. Otherwise an invalid item alone is refused.
    - ``namespace`` (""): prefix of its names and service ids: ``crm`` makes ``find`` into ``crm-find``.
    - ``on_change`` ("apply"): ``hold``: a changed definition waits for its approval, and the former one stays in force.
    - ``connect(broker)``: called once before the first :meth:`discover` of a source that needs the broker, with a
      :class:`~dispatch.catalog.items.Broker`.
    - ``request_queue`` and ``instances``: of its service in this process
      (:func:`~dispatch.messaging.wire.local_queue`, :class:`~dispatch.calls.local.LocalInstance`).
    - ``use_providers(providers)``: called before :meth:`discover`, with what the dispatcher provides to functions.
    - ``async close()``: called once when the source is removed or the dispatcher is closed; of a source with
      ``use_providers`` only after that was called and raised nothing.
    - ``abandon()``: called instead when the dispatcher is closed after its event loop has ended.
    """

    @property
    def id(self) -> str:
        """Unique in a dispatcher; the label ``source`` of its metrics."""

    async def discover(self) -> Sequence[Item]:
        """Return all items. An item that did not change should be the same object as before: it is not read again.

        Raises:
            CatalogError: the items cannot be used; it lists the problems. The former items stay in force.
            Exception: the source is out of reach. The former items stay in force, and the registry tries again.
        """

    def changes(self) -> AsyncIterator[object]:
        """Return an iterator whose every element means: call :meth:`discover` again. The registry begins to iterate before
        it calls :meth:`discover`, so that no change is missed. It ends, or raises, when the source is out of reach."""


class SourceGroup(Protocol):
    """Several sources that are given as one, such as the servers in one file."""

    @property
    def sources(self) -> Sequence[Source]:
        """The sources, the highest precedence first."""


class SourceStatus(msgspec.Struct, frozen=True):
    """The state of one source.

    Attributes:
        id: of the source.
        state: ``ok``; ``stale``: out of reach or invalid, its last valid items are in force; ``failed``: it has none.
        since: when that state began, in seconds since the epoch.
        items: number of its items in force: services and tools.
        tools: number of its tools in force.
        problem: the last problem, in one line; empty: none.
        refused: number of items that are not in force, or in a former version, because they are invalid.
        held: number of changed definitions that wait for approval.
    """

    id: str
    state: SourceState
    since: float
    items: int
    tools: int
    problem: str = ""
    refused: int = 0
    held: int = 0


# The broker as sources see it: requests with their responses, and notifications. Sources import no transport.


OnMessage = Callable[[bytes], object]
"""Receives the payload of a notification, on the event loop."""


class BrokerSubscription(Protocol):
    """A subscription to notifications."""

    async def close(self) -> None:
        """End the subscription. Idempotent."""


class Broker(Protocol):
    """The broker of a dispatcher, as sources see it. Topic names are complete."""

    @property
    def is_connected(self) -> bool:
        """Whether the broker is in reach, as far as is known."""

    def was_disconnected_since(self, instant: float) -> bool:
        """Return whether the broker was known to be out of reach at some time since ``instant`` (on the loop's clock):
        notifications of that time are lost."""

    async def request(
        self, topic: str, response_topic: str, payload: bytes, *, timeout: float, resend_after: float | None = None
    ) -> bytes:
        """Publish a request and return the payload of the first response with its property ``id``. Later responses with
        the same id are ignored.

        Args:
            topic: of the requests.
            response_topic: on which the responses arrive, among those to other clients.
            payload: of the request.
            timeout: seconds until the response must be there.
            resend_after: seconds without a response after which the same request is sent again; the interval doubles
                each time. Only for a request that may be executed twice; None: it is sent once.

        Raises:
            TimeoutError: no response within ``timeout``; the request may have been executed.
            TransportError: the broker is out of reach or refuses a topic.
        """

    async def ask_instance(
        self, request_queue: str, response_queue: str, payload: bytes, *, timeout: float, resend_after: float
    ) -> bytes:
        """Send a question to the instances of a service and return the payload of the first answer. Its sender consumes the
        namespace of ``request_queue``: only there the id of the question can be read.

        Raises:
            TimeoutError: no answer within ``timeout``.
            TransportError: as :meth:`request`.
        """

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message, best effort: it may be lost.

        Raises:
            TransportError: the broker is out of reach or refuses the topic.
        """

    async def subscribe(self, topic: str, on_message: OnMessage, *, is_polled: bool = False) -> BrokerSubscription:
        """Call ``on_message`` with each message that is published to ``topic`` from now on; ``is_polled``: it may wait for
        0.1 s, so that many are handled together.

        Raises:
            TransportError: the broker is out of reach or refuses the topic.
        """
