"""Reads a raw tool item as a :class:`ToolDescriptor`."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from dispatch._internal.extras import install_extra
from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.catalog.descriptors import (
    ANY_STATE,
    ARGUMENT_TYPES,
    DEFAULT_GROUPS,
    EMPTY,
    Argument,
    ServiceDescriptor,
    ToolDescriptor,
)
from dispatch.catalog.errors import Report
from dispatch.catalog.frozen_json import FrozenDict, describe_value, join_path
from dispatch.catalog.readers.field_validation import MAX_MODEL_NAME_CHARS, ObjectReader
from dispatch.catalog.readers.item_key import ItemKey
from dispatch.catalog.readers.policy_check import check_policy
from dispatch.catalog.readers.schema_check import read_input_schema, read_schema
from dispatch.catalog.version_ranges import RANGE_EXAMPLE, parse_range
from dispatch.catalog.version_selection import select_service
from dispatch.catalog.versions import is_version
from dispatch.policy import DEFAULT_POLICY, Policy, PolicyError, check_repeats
from dispatch.schemas.engine import has_engine

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
        if policy.check_arguments == "always" and not has_engine():
            report.add_error(
                "policy.check-arguments",
                "'always' needs jsonschema-rs, which is not installed",
                f'{install_extra("schema")}, or write "check-arguments": "model"',
            )
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
    if reader.raw.get("arguments") is not None:
        reader.add_error(
            "input-schema",
            "both 'input-schema' and 'arguments' describe the arguments",
            "remove 'arguments', which the schema replaces, or remove 'input-schema'",
        )
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
