"""Reads a raw tool-service item as a :class:`ServiceDescriptor`."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from dispatch._internal import excerpt, find_near_names, join_names
from dispatch.catalog.descriptors import (
    ANY_STATE,
    ARGUMENT_TYPES,
    DEFAULT_GROUPS,
    EMPTY,
    Argument,
    ConfigParam,
    FrozenDict,
    Instance,
    Problem,
    Report,
    ServiceDescriptor,
    ToolDescriptor,
    describe_kind,
    describe_value,
    freeze_json,
    join_path,
)
from dispatch.catalog.fields import (
    MAX_MODEL_NAME_CHARS,
    MAX_NAME_CHARS,
    DocumentError,
    ItemKey,
    ObjectReader,
    check_policy,
    parse_json,
    read_input_schema,
    read_schema,
)
from dispatch.catalog.versions import RANGE_EXAMPLE, find_service_version, is_version, parse_range, select_service
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, check_repeats

SERVICE_KEYS: Final = (
    "id",
    "request-queue",
    "response-queue",
    "config-params",
    "instances",
    "version",
    "policy",
    "permissions",
)
"""Keys of a service's descriptor."""
_NOTES: Final = ("description",)  # a note for people
_PARAM_KEYS: Final = ("name", "required")
_INSTANCE_KEYS: Final = ("id", "request-queue", "response-queue", "weight", "version")

_REQUEST: Final = "non-persistent://tg/request/joke"
_RESPONSE: Final = "non-persistent://tg/response/joke"


def read_service(
    raw: dict[str, Any], item_key: str, report: Report, namespace: str = "", base: Policy = DEFAULT_POLICY
) -> ServiceDescriptor:
    """Return the descriptor in ``raw``; ``item_key`` has the defaults of its id and version, ``namespace`` is the prefix of
    its id, ``base`` the defaults under its policy. After an error in ``report`` only its id may be used."""
    key = ItemKey.parse(item_key)
    reader = ObjectReader(raw, report, (*SERVICE_KEYS, "requires"))
    own_id = reader.read_name("id", "joke-service", default=key.name)
    request_queue = reader.read_topic("request-queue", _REQUEST)
    response_queue = reader.read_topic("response-queue", _RESPONSE)
    service = ServiceDescriptor(
        id=reader.add_namespace("id", own_id, namespace, MAX_NAME_CHARS),
        request_queue=request_queue,
        response_queue=response_queue,
        config_params=_config_params(reader),
        instances=_instances(reader, response_queue),
        version=reader.read_version(key),
        policy=check_policy(reader.read_object("policy", {"timeout": 10}), report, base),
        permissions=reader.read_permissions(),
    )
    if service.version is not None and service.instances:
        instances = tuple(
            msgspec.structs.replace(each, version=each.version or service.version) for each in service.instances
        )
        service = msgspec.structs.replace(service, instances=instances)
    _refuse_requires(reader)
    _check_queues(reader, service)
    if key.name and own_id and own_id != key.name:
        report.add_info(
            "id",
            f"the id '{excerpt(own_id)}' differs from the item's key '{excerpt(key.name)}'; tools refer to the id",
            "name the file after the id",
        )
    reader.warn_of_unknown_keys(_NOTES)
    return service


def _refuse_requires(reader: ObjectReader) -> None:
    if reader.raw.get("requires") is not None:
        reader.add_error(
            "requires",
            "'requires' belongs to a tool, and a service depends on no other one",
            "move 'requires' to the tools of the service, or remove it",
        )


def _config_params(reader: ObjectReader) -> tuple[ConfigParam, ...]:
    params: dict[str, ConfigParam] = {}
    for param in reader.read_objects("config-params", _PARAM_KEYS, {"name": "style", "required": False}):
        name = param.read_name("name", "style")
        if name and name in params:
            param.add_error("name", f"the config param '{excerpt(name)}' is declared twice", "remove one of them")
        params[name] = ConfigParam(name, bool(param.read_flag("required")))
        param.warn_of_unknown_keys()
    return tuple(params.values())


def _instances(reader: ObjectReader, response_queue: str) -> tuple[Instance, ...]:
    instances: dict[str, Instance] = {}
    queues: dict[str, str] = {}
    example = {"id": "joke-1", "request-queue": f"{_REQUEST}-1", "response-queue": f"{_RESPONSE}-1"}
    for entry in reader.read_objects("instances", _INSTANCE_KEYS, example):
        instance = Instance(
            id=entry.read_name("id", "joke-1"),
            request_queue=entry.read_topic("request-queue", f"{_REQUEST}-1"),
            response_queue=entry.read_topic("response-queue", f"{_RESPONSE}-1", default=response_queue),
            weight=entry.read_positive_number("weight", 1),
            version=entry.read_version(ItemKey("", None)),
        )
        if instance.id and instance.id in instances:
            entry.add_error(
                "id", f"the instance id '{excerpt(instance.id)}' is not unique", "give each instance its own id"
            )
        if instance.request_queue and instance.request_queue in queues:
            entry.report.add_warning(
                entry.path_of("request-queue"),
                f"the same topic as instance '{excerpt(queues[instance.request_queue])}', so the broker and not "
                "dispatch decides which of the two answers",
                "give each instance a topic of its own",
            )
        queues.setdefault(instance.request_queue, instance.id)
        instances[instance.id] = instance
        entry.warn_of_unknown_keys()
    return tuple(instances.values())


def _check_queues(reader: ObjectReader, service: ServiceDescriptor) -> None:
    # A service with one topic for both would receive its own replies as requests.
    answers = {service.response_queue, *(instance.response_queue for instance in service.instances)} - {""}
    requests = [("request-queue", service.request_queue)]
    requests += [(f"instances[{i}].request-queue", one.request_queue) for i, one in enumerate(service.instances)]
    for path, queue in requests:
        if queue in answers:
            reader.report.add_error(
                path,
                "requests and replies would use the same topic",
                f"use two topics, for example {_REQUEST!r} and {_RESPONSE!r}",
            )


# Reads a raw tool item as a :class:`ToolDescriptor`.


TRUSTGRAPH_KEYS: Final = ("type", "name", "description", "service", "arguments", "group", "state", "applicable-states")
DISPATCH_KEYS: Final = (
    "policy",
    "version",
    "requires",
    "rollout",
    "permissions",
    "input-schema",
    "category",
    "tags",
    "author",
    "output-schema",
    "read-only",
    "idempotent",
    "destructive",
)
TOOL_KEYS: Final = (*TRUSTGRAPH_KEYS, *DISPATCH_KEYS)
"""Keys of a tool's descriptor, besides the config parameters of its service."""
_SILENT: Final = ("id",)  # TrustGraph's own agent reads it
_ARGUMENT_KEYS: Final = ("name", "type", "description", "required")

OTHER_NAMES_OF_TYPES: Final = {
    "str": "string",
    "text": "string",
    "int": "integer",
    "long": "integer",
    "float": "number",
    "double": "number",
    "bool": "boolean",
    "dict": "object",
    "map": "object",
    "list": "array",
}
"""Names of types in other languages, and the type of JSON Schema that they mean."""

_MODEL_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_MODEL_NAME_CHARS}}}")


def read_tool(
    raw: dict[str, Any],
    item_key: str,
    service: ServiceDescriptor | None,
    report: Report,
    namespace: str = "",
    defaults: Policy = DEFAULT_POLICY,
    *,
    is_foreign: bool = False,
) -> ToolDescriptor:
    """Return the descriptor in ``raw``. After an error in ``report`` only its name and service may be used.

    Args:
        item_key: has the defaults of its name and version.
        service: that it refers to; None: unknown, so that its config is not checked.
        namespace: prefix of its name.
        defaults: under the policies of the service and the tool.
        is_foreign: its schemas are widened instead of refused.
    """
    params = {param.name: param for param in service.config_params} if service else {}
    own = {key: value for key, value in raw.items() if key not in params or key not in DISPATCH_KEYS}
    reader = ObjectReader(own, report, (*TOOL_KEYS, *params))
    for key in raw:
        if key not in own:
            report.add_warning(
                key,
                f"the service has a config param '{key}', so the value is sent to the service and dispatch ignores it",
                "rename the service's config param if the tool's own key is meant",
            )
    base = defaults.merged(service.policy) if service else defaults
    key_parts = ItemKey.parse(item_key)
    version = reader.read_version(key_parts)
    tool = ToolDescriptor(
        name=_name(reader, key_parts.name, namespace),
        description=_description(reader),
        service=_service(reader, service),
        arguments=_arguments(reader),
        config=_config(reader, raw, service),
        policy=check_policy(reader.read_object("policy", {"timeout": 10}), report, base),
        category=reader.read_text("category", "entertainment"),
        tags=reader.read_texts("tags", "fun"),
        author=reader.read_text("author", "the jokes team"),
        output_schema=_output_schema(reader, is_foreign),
        read_only=bool(reader.read_flag("read-only")),
        idempotent=bool(reader.read_flag("idempotent")),
        destructive=reader.read_flag("destructive"),
        version=version,
        requires=_requires(reader),
        rollout=_rollout(reader, version),
        permissions=reader.read_permissions(),
        groups=_texts_or(reader, "group", DEFAULT_GROUPS),
        state=reader.read_text("state", "running") or None,
        applicable_states=_texts_or(reader, "applicable-states", ANY_STATE),
        input_schema=_input_schema(reader, is_foreign),
    )
    if tool.input_schema is not None and tool.arguments:
        _check_arguments(reader, tool)
        tool = msgspec.structs.replace(tool, arguments=())  # for TrustGraph's agents, which read no schema
    if tool.read_only and tool.destructive:
        reader.add_error(
            "destructive",
            "'read-only' and 'destructive' contradict each other",
            "remove the wrong one: a read-only tool may be called again after a failure",
        )
    if service is not None and tool.requires is not None and not report.has_errors:
        _check_requires(reader, tool.requires, service)
    if not report.has_errors:
        policy = base.merged(tool.policy)
        try:
            check_repeats(tool, policy, tool.policy)
        except PolicyError as error:
            report.add_error(f"policy.{error.key}", error.problem, error.fix)
    if service is not None:  # without it the config params are not known
        reader.warn_of_unknown_keys(_SILENT)
    return tool


def _service(reader: ObjectReader, service: ServiceDescriptor | None) -> str:
    own = reader.read_name("service", "joke-service")
    return own if service is None else service.id


def _texts_or(reader: ObjectReader, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    """Read a list as TrustGraph reads it: an empty one is no missing one, and a text in it may be blank."""
    if reader.raw.get(key) is None:
        return default
    texts = reader.read_texts(key, default[0], may_be_empty=True)
    return default if texts == default else texts


def _requires(reader: ObjectReader) -> str | None:
    requires = reader.read_text("requires", RANGE_EXAMPLE)
    if requires is None:
        return None
    fix = f'write a range, for example "requires": "{RANGE_EXAMPLE}", or "1.x || >=2.3.1"'
    if not requires.strip():
        reader.add_error("requires", "'requires' is empty", fix)
        return None
    try:
        parse_range(requires)
    except ValueError as error:
        reader.add_error("requires", str(error), fix)
    return requires


def _check_requires(reader: ObjectReader, requires: str, service: ServiceDescriptor) -> None:
    # Not an error: the version may be started later.
    if select_service((service,), requires) is None:
        known = f"has the version {service.version}" if service.version else "declares no version"
        reader.report.add_warning(
            "requires",
            f"no version of the service '{excerpt(service.id)}' satisfies '{excerpt(requires)}' (it {known}), "
            "so each call is rejected",
            "correct the range, or declare such a version of the service or of one of its instances",
        )


def _rollout(reader: ObjectReader, version: str | None) -> dict[str, float]:
    shares = reader.read_object("rollout", {"2.0.0": 5}) or EMPTY
    add_error = reader.report.add_error
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
    return shares


def _input_schema(reader: ObjectReader, is_foreign: bool) -> dict[str, Any] | None:
    schema = reader.read_object("input-schema", {"type": "object", "properties": {"topic": {"type": "string"}}})
    if schema is None:
        return None
    return read_input_schema(schema, reader.report, is_foreign=is_foreign)


def _output_schema(reader: ObjectReader, is_foreign: bool) -> dict[str, Any] | None:
    schema = reader.read_object("output-schema", {"type": "string"})
    return None if schema is None else read_schema(schema, reader.report, "output-schema", is_foreign=is_foreign)


def _config(reader: ObjectReader, raw: dict[str, Any], service: ServiceDescriptor | None) -> FrozenDict[Any]:
    if service is None:
        return EMPTY
    for param in service.config_params:
        if param.required and param.name not in raw:
            reader.add_error(
                param.name,
                f"the service '{excerpt(service.id)}' requires a value for its config param '{excerpt(param.name)}'",
                reader.describe_missing(param.name, "…"),
            )
    values = {param.name: raw[param.name] for param in service.config_params if param.name in raw}
    return FrozenDict(values) if values else EMPTY


def _name(reader: ObjectReader, item_name: str, namespace: str) -> str:
    own = reader.read_name("name", "tell-joke", default=item_name)
    name = reader.add_namespace("name", own, namespace, MAX_MODEL_NAME_CHARS)
    if name and not _MODEL_NAME.fullmatch(name):
        reader.report.add_warning(
            "name",
            f"many models reject the tool name '{excerpt(name)}'",
            f"use at most {MAX_MODEL_NAME_CHARS} letters, digits, '-' and '_'",
        )
    return name


def _description(reader: ObjectReader) -> str:
    description = reader.read_required_text("description", "Tell a joke on a given topic", may_be_empty=True)
    if isinstance(reader.raw.get("description"), str) and not description.strip():
        reader.report.add_warning(
            "description",
            "the description is empty, and models choose tools by it",
            "say what the tool does, and when to use it",
        )
    return description


def _arguments(reader: ObjectReader) -> tuple[Argument, ...]:
    arguments: dict[str, Argument] = {}
    example = {"name": "topic", "type": "string", "description": "What the joke is about", "required": True}
    for entry in reader.read_objects("arguments", _ARGUMENT_KEYS, example):
        argument = Argument(
            name=sys.intern(entry.read_name("name", "topic")),
            type=sys.intern(_argument_type(entry)),
            description=entry.read_required_text("description", "What the joke is about", may_be_empty=True),
            required=entry.read_flag("required"),
        )
        if argument.name and argument.name in arguments:
            entry.add_error("name", f"the argument '{excerpt(argument.name)}' is not unique", "give each its own name")
        arguments[argument.name] = argument
        entry.warn_of_unknown_keys()
    return tuple(arguments.values())


def _check_arguments(reader: ObjectReader, tool: ToolDescriptor) -> None:
    """Report ``arguments`` that differ from the input schema."""
    names = {each.name for each in tool.arguments}
    known = {each.name for each in tool.described_arguments}
    for name in sorted(names ^ known):
        here, there = ("arguments", "input-schema") if name in names else ("input-schema", "arguments")
        reader.add_error(
            there,
            f"the argument '{excerpt(name)}' is in '{here}' only",
            "describe the same arguments in both, or remove 'arguments', which dispatch does not need beside the schema",
        )


def _argument_type(entry: ObjectReader) -> str:
    given = entry.read_required_text("type", "string")
    if given.strip() and given not in ARGUMENT_TYPES:
        near = find_near_names(given, ARGUMENT_TYPES, 1)
        meant = OTHER_NAMES_OF_TYPES.get(given.strip().casefold()) or (near[0] if near else None)
        all_types = ", ".join(ARGUMENT_TYPES)
        entry.add_error(
            "type",
            f"the argument type '{excerpt(given)}' is unknown",
            f'write "{meant}"; the types are {all_types}' if meant else f"write one of {all_types}",
        )
    return given


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
    """Content of a tool that its source refuses, with the reasons."""

    problems: tuple[Problem, ...]


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


def refuse_item(item: Item, key: str, problem: str, fix: str) -> ReadItem:
    """Return ``item`` as refused for one reason."""
    return ReadItem(item, None, None, (Problem(item.origin, key, problem, fix),), True)


def read_service_item(item: Item, base: Policy = DEFAULT_POLICY) -> ReadItem:
    """Read a tool service; ``base``: defaults under its policy. The content of an item never raises an exception."""
    report = Report(item.origin)
    raw = _object(item.raw, report)
    if raw is None:
        return ReadItem(item, None, None, tuple(report.problems), True, item.key_name)
    service = read_service(raw, item.key, report, item.namespace, base)
    problems = tuple(report.problems)
    if report.has_errors:
        return ReadItem(item, None, None, problems, True, service.id, version=service.version)
    return ReadItem(item, service, None, problems, False, service.id, version=service.version)


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
    tool = read_tool(raw, item.key, service, report, item.namespace, base, is_foreign=item.is_foreign)
    meant = {tool.service, item.add_namespace(tool.service), ""}
    if service is None and tool.service.strip() and unavailable.refused.isdisjoint(meant):
        _report_unknown_service(item, tool.service, services, unavailable, report)
    problems = tuple(report.problems)
    if report.has_errors:
        return ReadItem(item, None, None, problems, True, tool.name, version=tool.version)
    if item.is_foreign:
        _log_widened(item, problems)
    return ReadItem(item, None, tool if service else None, problems, False, tool.name, version=tool.version)


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
