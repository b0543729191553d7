"""Reads a raw tool item as a :class:`ToolDescriptor`."""

from __future__ import annotations

import re
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.descriptors import ARGUMENT_TYPES, Argument, ServiceDescriptor, ToolDescriptor
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import FrozenDict
from dispatch.catalog.readers.field_validation import UNENFORCED, ObjectReader
from dispatch.catalog.readers.policy_check import check_policy
from dispatch.policy import DEFAULT_POLICY, PolicyError, check_repeats

_TRUSTGRAPH_KEYS: Final = ("type", "name", "description", "service", "arguments")
_OUR_KEYS: Final = (
    "policy",
    *UNENFORCED,
    "category",
    "tags",
    "author",
    "output-schema",
    "read-only",
    "idempotent",
    "destructive",
)
# Keys that TrustGraph's own agent reads, and dispatch does not.
_SILENT: Final = ("id", "group", "state", "applicable-states")
_ARGUMENT_KEYS: Final = ("name", "type", "description", "required")

_OTHER_NAMES_OF_TYPES: Final = {
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

_MODEL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_tool(raw: dict[str, Any], item_key: str, service: ServiceDescriptor | None, report: Report) -> ToolDescriptor:
    """Return the descriptor in ``raw``; ``item_key`` is the default of its name, ``service`` the service that it refers to
    (None: unknown, so that its config is not checked). After an error in ``report`` only its name may be used."""
    params = {param.name: param for param in service.config_params} if service else {}
    own = {key: value for key, value in raw.items() if key not in params or key not in _OUR_KEYS}
    reader = ObjectReader(own, report, (*_TRUSTGRAPH_KEYS, *_OUR_KEYS, *params))
    for key in raw:
        if key not in own:
            report.add_warning(
                key,
                f"the service has a config param '{key}', so the value is sent to the service and dispatch ignores it",
                "rename the service's config param if the tool's own key is meant",
            )
    base = DEFAULT_POLICY.merged(service.policy) if service else DEFAULT_POLICY
    tool = ToolDescriptor(
        name=_name(reader, item_key),
        description=_description(reader),
        service=reader.read_name("service", "joke-service"),
        arguments=_arguments(reader),
        config=_config(reader, raw, service),
        policy=check_policy(reader.read_object("policy", {"timeout": 10}), report, base),
        category=reader.read_text("category", "entertainment"),
        tags=reader.read_texts("tags", "fun"),
        author=reader.read_text("author", "the jokes team"),
        output_schema=reader.read_object("output-schema", {"type": "string"}),
        read_only=bool(reader.read_flag("read-only")),
        idempotent=bool(reader.read_flag("idempotent")),
        destructive=reader.read_flag("destructive"),
    )
    reader.reject_unenforced_keys()
    if tool.read_only and tool.destructive:
        reader.add_error(
            "destructive",
            "'read-only' and 'destructive' contradict each other",
            "remove the wrong one: a read-only tool may be called again after a failure",
        )
    if not report.has_errors:
        try:
            check_repeats(tool, base.merged(tool.policy), tool.policy)
        except PolicyError as error:
            report.add_error(f"policy.{error.key}", error.problem, error.fix)
    if service is not None:  # without it the config params are not known
        reader.warn_of_unknown_keys(_SILENT)
    return tool


def _config(reader: ObjectReader, raw: dict[str, Any], service: ServiceDescriptor | None) -> FrozenDict[Any]:
    if service is None:
        return FrozenDict()
    for param in service.config_params:
        if param.required and param.name not in raw:
            reader.add_error(
                param.name,
                f"the service '{excerpt(service.id)}' requires a value for its config param '{excerpt(param.name)}'",
                reader.describe_missing(param.name, "…"),
            )
    return FrozenDict({param.name: raw[param.name] for param in service.config_params if param.name in raw})


def _name(reader: ObjectReader, item_key: str) -> str:
    name = reader.read_name("name", "tell-joke", default=item_key)
    if name and not _MODEL_NAME.fullmatch(name):
        reader.report.add_warning(
            "name",
            f"many models reject the tool name '{excerpt(name)}'",
            "use at most 64 letters, digits, '-' and '_'",
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
    example = {"name": "topic", "type": "string", "description": "What the joke is about"}
    for entry in reader.read_objects("arguments", _ARGUMENT_KEYS, example):
        argument = Argument(
            name=entry.read_name("name", "topic"),
            type=_argument_type(entry),
            description=entry.read_required_text("description", "What the joke is about", may_be_empty=True),
            required=entry.read_flag("required"),
        )
        if argument.name and argument.name in arguments:
            entry.add_error("name", f"the argument '{excerpt(argument.name)}' is not unique", "give each its own name")
        arguments[argument.name] = argument
        entry.warn_of_unknown_keys()
    return tuple(arguments.values())


def _argument_type(entry: ObjectReader) -> str:
    given = entry.read_required_text("type", "string")
    if given.strip() and given not in ARGUMENT_TYPES:
        near = find_near_names(given, ARGUMENT_TYPES, 1)
        meant = _OTHER_NAMES_OF_TYPES.get(given.strip().casefold()) or (near[0] if near else None)
        all_types = ", ".join(ARGUMENT_TYPES)
        entry.add_error(
            "type",
            f"the argument type '{excerpt(given)}' is unknown",
            f'write "{meant}"; the types are {all_types}' if meant else f"write one of {all_types}",
        )
    return given
