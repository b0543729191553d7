"""Descriptors of tool services and of the tools that refer to them. Immutable values.

Keys in files are in kebab-case (``request-queue``, ``read-only``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from dispatch.documents import EMPTY, Problem
from dispatch.policy import repeatable

# Errors.


class CatalogError(ValueError):
    """The descriptors are invalid. ``problems`` has all problems, with warnings and notes; ``str()`` lists each error and
    each warning with its file, key and fix."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity == "error"]
        warnings = [problem for problem in self.problems if problem.severity == "warning"]
        count = f"{len(errors)} mistake{'' if len(errors) == 1 else 's'}"
        lines = [f"The tools cannot be loaded: {count}."]
        lines += [f"  {problem}" for problem in errors]
        lines += [f"  Warning: {problem}" for problem in warnings]
        super().__init__("\n".join(lines))

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

ANY_STATE: Final = ("*",)
"""Applicable states of a tool that declares none, as in TrustGraph: it is offered in every state."""

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
"""Types of arguments: those of JSON Schema without ``null``. TrustGraph uses ``string`` and ``number``."""


# Descriptors contain texts and frozen JSON, which form no cycles: gc=False excludes them from garbage collection.


class ConfigParam(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """A parameter of a service that its tools configure.

    Attributes:
        name: the key in the tool's descriptor and in the request's ``config``.
        required: each tool of the service must set it. Default false, as in TrustGraph.
    """

    name: str
    required: bool = False


class Instance(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """An instance of a service on topics of its own, so that a dispatcher can balance load between instances.

    Attributes:
        id: unique within the service.
        request_queue: whole name of its request topic.
        response_queue: whole name of its response topic; default: the service's.
        weight: share of the calls relative to the other instances, above 0. Default 1.
        version: SemVer version; default: the service's.
    """

    id: str
    request_queue: str
    response_queue: str
    weight: float = 1
    version: str | None = None


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

    id: str
    request_queue: str
    response_queue: str
    config_params: tuple[ConfigParam, ...] = ()
    instances: tuple[Instance, ...] = ()
    version: str | None = None
    policy: Mapping[str, Any] = EMPTY
    permissions: tuple[str, ...] = ()


class Argument(msgspec.Struct, frozen=True, gc=False, rename="kebab"):
    """An argument that the model gives.

    Attributes:
        name: its key in the request's ``arguments``.
        type: one of :data:`ARGUMENT_TYPES`. A hint for the model: the service itself checks its arguments.
        description: text for the model.
        required: the argument must be given; None: not declared, as by TrustGraph, and so optional.
    """

    name: str
    type: str
    description: str
    required: bool | None = None


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

    name: str
    description: str
    service: str
    arguments: tuple[Argument, ...] = ()
    config: Mapping[str, Any] = EMPTY
    policy: Mapping[str, Any] = EMPTY
    category: str | None = None
    tags: tuple[str, ...] = ()
    author: str | None = None
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None
    version: str | None = None
    requires: str | None = None
    rollout: Mapping[str, float] = EMPTY
    permissions: tuple[str, ...] = ()
    groups: tuple[str, ...] = msgspec.field(default=DEFAULT_GROUPS, name="group")
    state: str | None = None
    applicable_states: tuple[str, ...] = ANY_STATE
    input_schema: Mapping[str, Any] | None = None

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
        type of a property that allows several types, or none by name, is ``any``."""
        if self.input_schema is None:
            return self.arguments
        required = self.input_schema.get("required", ())
        return tuple(
            _describe_property(name, schema, name in required)
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


def _describe_property(name: str, schema: Mapping[str, Any] | bool, required: bool) -> Argument:
    fields = schema if isinstance(schema, Mapping) else EMPTY
    given = fields.get("type")
    types = [given] if isinstance(given, str) else [each for each in given or () if each != "null"]
    argument_type = types[0] if len(types) == 1 and types[0] in ARGUMENT_TYPES else "any"
    return Argument(name, argument_type, fields.get("description", ""), required)
