"""Descriptors of tool services and of the tools that refer to them. Immutable values.

Keys in files are in kebab-case (``request-queue``, ``read-only``).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Annotated, Any, Final

import msgspec

from dispatch._internal import excerpt, find_near_names
from dispatch.documents import (
    EMPTY,
    FLAG_KEY,
    WRONG,
    Key,
    Problem,
    Report,
    describe_value,
    is_list,
    is_number,
    list_mistakes,
    name_key,
    object_key,
    objects_key,
    refuse,
    text_key,
    texts_key,
)
from dispatch.messaging.wire import TopicError, TopicName
from dispatch.permissions import check_permission
from dispatch.policy import repeatable
from dispatch.schemas import find_value, split_pointer, type_of

# Errors.


class CatalogError(ValueError):
    """The descriptors are invalid. ``problems`` has all problems, with warnings and notes; ``str()`` lists each error and
    each warning with its file, key and fix."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        warnings = [f"  Warning: {problem}" for problem in self.problems if problem.severity == "warning"]
        super().__init__("\n".join([list_mistakes("The tools cannot be loaded", errors), *warnings]))

    def __reduce__(self) -> tuple[type[CatalogError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class ItemError(ValueError):
    """An item cannot be written or removed.

    Args:
        problem: one sentence.
        fix: what to do.
    """

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem} Fix: {self.fix}."


DEFAULT_GROUPS: Final = ("default",)
"""Groups of a tool that declares none, as in TrustGraph."""

VERSION_EXAMPLE: Final = "1.4.0"
RANGE_EXAMPLE: Final = "^1.4"

ANY_STATE: Final = ("*",)
"""Applicable states of a tool that declares none, as in TrustGraph: it is offered in every state."""

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
"""Types of arguments: those of JSON Schema without ``null``. TrustGraph uses ``string`` and ``number``."""


REQUEST_EXAMPLE: Final = "non-persistent://tg/request/joke"
RESPONSE_EXAMPLE: Final = "non-persistent://tg/response/joke"
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


# The rules of their keys.


def _topic(example: str, *, is_required: bool = True) -> Key:
    def read(topic: str, report: Report, path: str) -> Any:
        try:
            return str(TopicName.parse(topic, example=example))
        except TopicError as error:
            return refuse(report, path, error.problem, error.fix)

    return text_key(example, read, is_required=is_required, may_be_empty=False)


def _read_weight(value: float, report: Report, path: str) -> Any:
    if value > 0:
        return value
    return refuse(report, path, f"{describe_value(value)} is not above 0", 'write "weight": 1, or remove it')


def _read_argument_type(given: str, report: Report, path: str) -> Any:
    if given in ARGUMENT_TYPES:
        return sys.intern(given)
    near = find_near_names(given, ARGUMENT_TYPES, 1)
    meant = OTHER_NAMES_OF_TYPES.get(given.strip().casefold()) or (near[0] if near else None)
    all_types = ", ".join(ARGUMENT_TYPES)
    fix = f'write "{meant}"; the types are {all_types}' if meant else f"write one of {all_types}"
    return refuse(report, path, f"the argument type '{excerpt(given)}' is unknown", fix)


def _read_permissions(values: Any, report: Report, path: str) -> Any:
    example = "tools:jokes"
    if not values:  # it may be meant as "no user may call it"
        fix = f'write "permissions": ["{example}"], or remove it: every user may call then'
        return refuse(report, path, "the list is empty", fix)
    read = [_read_permission(value, report, f"{path}[{index}]") for index, value in enumerate(values)]
    return WRONG if WRONG in read else tuple(dict.fromkeys(read))


def _read_permission(value: Any, report: Report, path: str) -> Any:
    problem = check_permission(value) if isinstance(value, str) else f"{describe_value(value)} instead of a text"
    return value if problem is None else refuse(report, path, problem, 'write a permission such as "tools:jokes"')


PERMISSIONS_KEY: Final = Key(is_list, "a list", ["tools:jokes"], _read_permissions)
POLICY_KEY: Final = object_key({"timeout": 10})
_DESCRIPTION: Final = text_key("What the joke is about", is_required=True)
_VERSION: Final = text_key(VERSION_EXAMPLE)


# Descriptors contain texts and frozen JSON, which form no cycles: gc=False excludes them from garbage collection.


class ConfigParam(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A parameter of a service that its tools configure.

    Attributes:
        name: the key in the tool's descriptor and in the request's ``config``.
        required: each tool of the service must set it. Default false, as in TrustGraph.
    """

    name: Annotated[str, name_key("style")]
    required: Annotated[bool, FLAG_KEY] = False


class Instance(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """An instance of a service on topics of its own, so that a dispatcher can balance load between instances.

    Attributes:
        id: unique within the service.
        request_queue: whole name of its request topic.
        response_queue: whole name of its response topic; default (``""`` while it is read): the service's.
        weight: share of the calls relative to the other instances, above 0. Default 1.
        version: SemVer version; default: the service's.
    """

    id: Annotated[str, name_key("joke-1")]
    request_queue: Annotated[str, _topic(f"{REQUEST_EXAMPLE}-1")]
    response_queue: Annotated[str, _topic(f"{RESPONSE_EXAMPLE}-1", is_required=False)] = ""
    weight: Annotated[float, Key(is_number, "a number", 1, _read_weight)] = 1
    version: Annotated[str | None, _VERSION] = None


_PARAMS_KEY: Final = objects_key(
    ConfigParam,
    {"name": "style", "required": False},
    "name",
    "the config param '{}' is declared twice",
    "remove one of them",
)
_QUEUES_EXAMPLE: Final = {"request-queue": f"{REQUEST_EXAMPLE}-1", "response-queue": f"{RESPONSE_EXAMPLE}-1"}
_INSTANCES_KEY: Final = objects_key(
    Instance,
    {"id": "joke-1", **_QUEUES_EXAMPLE},
    "id",
    "the instance id '{}' is not unique",
    "give each instance its own id",
)


class ServiceDescriptor(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A tool service: its topics, and the parameters that its tools configure.

    Attributes:
        id: the id that tools refer to.
        request_queue: whole name of the request topic, with TrustGraph's short form expanded.
        response_queue: whole name of the response topic.
        config_params: parameters that its tools configure.
        instances: instances with topics of their own; empty if all share ``request_queue``.
        version: SemVer version; None: not declared.
        policy: policy keys for all its tools, as in the descriptor and checked (for ``Policy.merged``). Empty: none.
        permissions: a user needs all of them to call any tool of the service, besides those of the tool. Empty: none.
    """

    id: Annotated[str, name_key("joke-service")]
    request_queue: Annotated[str, _topic(REQUEST_EXAMPLE)]
    response_queue: Annotated[str, _topic(RESPONSE_EXAMPLE)]
    config_params: Annotated[tuple[ConfigParam, ...], _PARAMS_KEY] = ()
    instances: Annotated[tuple[Instance, ...], _INSTANCES_KEY] = ()
    version: Annotated[str | None, _VERSION] = None
    policy: Annotated[Mapping[str, Any], POLICY_KEY] = EMPTY
    permissions: Annotated[tuple[str, ...], PERMISSIONS_KEY] = ()


class Argument(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """An argument that the model gives.

    Attributes:
        name: its key in the request's ``arguments``.
        type: one of :data:`ARGUMENT_TYPES`. A hint for the model: the service itself checks its arguments.
        description: text for the model.
        required: the argument must be given; None: not declared, as by TrustGraph, and so optional.
    """

    name: Annotated[str, name_key("topic")]
    type: Annotated[str, text_key("string", _read_argument_type, is_required=True, may_be_empty=False)]
    description: Annotated[str, _DESCRIPTION]
    required: Annotated[bool | None, FLAG_KEY] = None


_TEXT_EXAMPLE: Final = {"name": "topic", "type": "string", "description": "What the joke is about", "required": True}
_ARGUMENTS_KEY: Final = objects_key(
    Argument, _TEXT_EXAMPLE, "name", "the argument '{}' is not unique", "give each its own name"
)
_SCHEMA_EXAMPLE: Final = {"type": "object", "properties": {"topic": {"type": "string"}}}


class ToolDescriptor(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A tool: its interface for the model, and the service that executes it with which config.

    Attributes:
        name: name for the model.
        description: text by which the model chooses the tool.
        service: id of its service.
        arguments: arguments that the model gives.
        config: values of the service's config params, any JSON; sent with every call.
        policy: policy keys of the tool, as in the descriptor and checked; they override those of the service. Empty: none.
        category: of the tool, or None.
        tags: of the tool, for searches.
        author: of the tool, or None.
        output_schema: JSON Schema of its result, or None. Results are not validated.
        read_only: declared to change nothing. Default false, as MCP's ``readOnlyHint``.
        idempotent: declared to have no further effect when repeated. Default false, as MCP's ``idempotentHint``.
        destructive: declared to destroy something (true) or not (false); None: not declared, and treated as true, as MCP's
            ``destructiveHint`` is by default.
        version: SemVer version; None: not declared.
        requires: range of versions; calls go only to versions and instances of the service that are in it. None: to all.
        rollout: share of the calls, in per cent, for other versions of the tool; 100 in all at most. In force on the default
            version.
        permissions: a user needs all of them to call the tool, besides those of its service. Empty: every user may.
        groups: the tool is offered to agents that ask for one of them; see :meth:`Catalog.list`.
        state: state of the agent after a call of the tool, as in TrustGraph; None: unchanged.
        applicable_states: the tool is offered in these states of an agent; ``*``: in all.
        input_schema: JSON Schema 2020-12 of the arguments, in place of ``arguments``; None: ``arguments`` describes them.
    """

    name: Annotated[str, name_key("tell-joke")]
    description: Annotated[str, text_key("Tell a joke on a given topic", is_required=True)]
    service: Annotated[str, name_key("joke-service")]
    arguments: Annotated[tuple[Argument, ...], _ARGUMENTS_KEY] = ()
    config: Mapping[str, Any] = EMPTY
    policy: Annotated[Mapping[str, Any], POLICY_KEY] = EMPTY
    category: Annotated[str | None, text_key("entertainment")] = None
    tags: Annotated[tuple[str, ...], texts_key("fun")] = ()
    author: Annotated[str | None, text_key("the jokes team")] = None
    output_schema: Annotated[Mapping[str, Any] | None, object_key({"type": "string"})] = None
    read_only: Annotated[bool, FLAG_KEY] = False
    idempotent: Annotated[bool, FLAG_KEY] = False
    destructive: Annotated[bool | None, FLAG_KEY] = None
    version: Annotated[str | None, _VERSION] = None
    requires: Annotated[str | None, text_key(RANGE_EXAMPLE)] = None
    rollout: Annotated[Mapping[str, float], object_key({"2.0.0": 5})] = EMPTY
    permissions: Annotated[tuple[str, ...], PERMISSIONS_KEY] = ()
    groups: Annotated[tuple[str, ...], texts_key("default", may_be_empty=True)] = msgspec.field(
        default=DEFAULT_GROUPS, name="group"
    )
    state: Annotated[str | None, text_key("running", lambda state, _report, _path: state or None)] = None
    applicable_states: Annotated[tuple[str, ...], texts_key("*", may_be_empty=True)] = ANY_STATE
    input_schema: Annotated[Mapping[str, Any] | None, object_key(_SCHEMA_EXAMPLE)] = None

    @property
    def repeatable(self) -> bool:
        """A repeated call has no further effect: see :func:`dispatch.policy.repeatable`."""
        return repeatable(self)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments, which models are shown and calls are checked against: ``input_schema``, or that
        of ``arguments``. Only arguments that are declared ``required`` must be given: TrustGraph's descriptors do not
        declare it, and its services have optional arguments."""
        if self.input_schema is not None:
            return self.input_schema
        return {
            "type": "object",
            "properties": {each.name: {"type": each.type, "description": each.description} for each in self.arguments},
            "required": [each.name for each in self.arguments if each.required],
        }

    @property
    def described_arguments(self) -> tuple[Argument, ...]:
        """The arguments for display and for command lines: ``arguments``, or the properties of the input schema's root. The
        type of a property that allows several types besides null, or none by name, is ``any``."""
        if self.input_schema is None:
            return self.arguments
        required = self.input_schema.get("required", ())
        return tuple(
            _describe_property(name, schema, name in required, self.input_schema)
            for name, schema in self.input_schema.get("properties", EMPTY).items()
        )

    def is_offered(self, groups: Collection[str] | None = None, state: str | None = None) -> bool:
        """Return whether an agent that asks for ``groups`` in ``state`` is offered the tool, by the rules of TrustGraph's
        ``filter_tools_by_group_and_state``.

        Args:
            groups: the agent asks for; ``*`` asks for all. Default: the group ``default``.
            state: of the agent. Default, also of an empty text: ``undefined``.
        """
        wanted = DEFAULT_GROUPS if groups is None else groups
        is_in_group = "*" in wanted or any(group in wanted for group in self.groups)
        return is_in_group and ("*" in self.applicable_states or (state or "undefined") in self.applicable_states)


def _describe_property(
    name: str, schema: Mapping[str, Any] | bool, required: bool, root: Mapping[str, Any]
) -> Argument:
    fields = schema if isinstance(schema, Mapping) else EMPTY
    types = set(islice(list_types(fields, root), MAX_TYPES)) - {"null"}
    argument_type = types.pop() if len(types) == 1 else "any"
    if argument_type not in ARGUMENT_TYPES:
        argument_type = "any"
    return Argument(name, argument_type, fields.get("description", ""), required)


MAX_STEPS: Final = 8
"""References and alternatives inside each other that are followed for the type of an argument."""
MAX_TYPES: Final = 64
"""Alternatives that are read for the type of an argument: references can multiply them."""


def list_types(schema: object, root: Mapping[str, Any], steps: int = MAX_STEPS) -> Iterator[str]:
    """Yield the types of the values that a schema allows; ``any``: it names none."""
    fields = schema if isinstance(schema, Mapping) else EMPTY
    given, reference = fields.get("type"), fields.get("$ref")
    values = [fields["const"]] if "const" in fields else fields.get("enum")
    alternatives = fields.get("anyOf") or fields.get("oneOf")
    if given is not None:
        yield from [given] if isinstance(given, str) else given
    elif values:
        yield from map(type_of, values)
    elif steps and isinstance(reference, str) and reference.startswith("#/"):
        yield from list_types(find_value(root, split_pointer(reference[1:])), root, steps - 1)
    elif steps and alternatives:
        for each in alternatives:
            yield from list_types(each, root, steps - 1)
    else:
        yield "any"
