"""Descriptors of tool services and of the tools that refer to them. Immutable values.

Keys in files are in kebab-case (``request-queue``, ``read-only``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatch.catalog.frozen_json import FrozenDict
from dispatch.policy import repeatable

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
"""Types of arguments: those of JSON Schema without ``null``. TrustGraph uses ``string`` and ``number``."""


class ConfigParam(msgspec.Struct, frozen=True, rename="kebab"):
    """A parameter of a service that its tools configure.

    Attributes:
        name: the key in the tool's descriptor and in the request's ``config``.
        required: each tool of the service must set it. Default false, as in TrustGraph.
    """

    name: str
    required: bool = False


class Instance(msgspec.Struct, frozen=True, rename="kebab"):
    """An instance of a service on topics of its own, so that a dispatcher can balance load between instances.

    Attributes:
        id: unique within the service.
        request_queue: whole name of its request topic.
        response_queue: whole name of its response topic; default: the service's.
        weight: share of the calls relative to the other instances, above 0. Default 1.
    """

    id: str
    request_queue: str
    response_queue: str
    weight: float = 1


class ServiceDescriptor(msgspec.Struct, frozen=True, rename="kebab"):
    """A tool service: its topics, and the parameters that its tools configure.

    Attributes:
        id: the id that tools refer to.
        request_queue: whole name of the request topic, with TrustGraph's short form expanded.
        response_queue: whole name of the response topic.
        config_params: parameters that its tools configure.
        instances: instances with topics of their own; empty if all share ``request_queue``.
        version: SemVer version; None: not declared.
        policy: policy keys for all its tools, as in the descriptor and checked (for ``Policy.merged``). Empty: none.
    """

    id: str
    request_queue: str
    response_queue: str
    config_params: tuple[ConfigParam, ...] = ()
    instances: tuple[Instance, ...] = ()
    version: str | None = None
    policy: Mapping[str, Any] = msgspec.field(default_factory=FrozenDict)


class Argument(msgspec.Struct, frozen=True, rename="kebab"):
    """An argument that the model gives.

    Attributes:
        name: its key in the request's ``arguments``.
        type: one of :data:`ARGUMENT_TYPES`. A hint for the model: the service itself checks its arguments.
        description: text for the model.
        required: the argument must be given; None: not declared, as in all descriptors of TrustGraph.
    """

    name: str
    type: str
    description: str
    required: bool | None = None


class ToolDescriptor(msgspec.Struct, frozen=True, rename="kebab"):
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
    """

    name: str
    description: str
    service: str
    arguments: tuple[Argument, ...] = ()
    config: Mapping[str, Any] = msgspec.field(default_factory=FrozenDict)
    policy: Mapping[str, Any] = msgspec.field(default_factory=FrozenDict)
    category: str | None = None
    tags: tuple[str, ...] = ()
    author: str | None = None
    output_schema: Mapping[str, Any] | None = None
    read_only: bool = False
    idempotent: bool = False
    destructive: bool | None = None

    @property
    def repeatable(self) -> bool:
        """A repeated call has no further effect: see :func:`dispatch.policy.repeatable`."""
        return repeatable(self)
