"""What a catalogue holds: tool services, and the tools that refer to them. Immutable values.

The names on disk are the kebab-case ones (``request-queue``, ``read-only``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from dispatch.catalog.frozen_json import FrozenDict
from dispatch.policy import repeatable

ARGUMENT_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array")
"""The types an argument may have: JSON Schema's without ``null``. TrustGraph writes ``string`` and ``number``."""


class ConfigParam(msgspec.Struct, frozen=True, rename="kebab"):
    """A setting that a service takes from the tools that use it.

    Attributes:
        name: the key in the tool's descriptor and in the request's ``config``.
        required: each tool of the service must have a value for it. Default false, as TrustGraph has it.
    """

    name: str
    required: bool = False


class Instance(msgspec.Struct, frozen=True, rename="kebab"):
    """One of several instances of a service, on topics of its own, so that a dispatcher can choose between them.

    Attributes:
        id: unique within the service.
        request_queue: whole name of the topic it listens on.
        response_queue: whole name of the topic it answers on; the service's, when its descriptor leaves it out.
        weight: its share of the calls relative to the others', above 0. Default 1: all the same.
    """

    id: str
    request_queue: str
    response_queue: str
    weight: float = 1


class ServiceDescriptor(msgspec.Struct, frozen=True, rename="kebab"):
    """A tool service: where it listens, where it answers, what its tools must set.

    Attributes:
        id: what tools call it by.
        request_queue: whole name of the topic it listens on, TrustGraph's short form expanded.
        response_queue: whole name of the topic it answers on.
        config_params: the settings it takes from its tools.
        instances: its instances, when they have topics of their own; empty when all share ``request_queue``.
        version: SemVer, or None when not declared.
        policy: the keys of the policy that it sets for all its tools, as in the descriptor; already checked, so
            ``Policy.merged`` takes it. Empty: none.
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
        type: one of :data:`ARGUMENT_TYPES`. A hint for the model: the service itself checks what it gets.
        description: what the model reads.
        required: whether it must be given; None when the descriptor does not say (TrustGraph's never do).
    """

    name: str
    type: str
    description: str
    required: bool | None = None


class ToolDescriptor(msgspec.Struct, frozen=True, rename="kebab"):
    """A tool: what the model sees, and which service does the work with which settings.

    Attributes:
        name: what the model calls it by.
        description: what the model chooses by.
        service: id of its service.
        arguments: what the model gives.
        config: values of the service's config params, any JSON; sent with every call.
        policy: the keys of the policy that it sets itself, as in the descriptor, to be laid over its service's;
            already checked. Empty: none.
        category: one word to file it under, or None.
        tags: words to find it by.
        author: who answers for it, or None.
        output_schema: JSON Schema of its result, or None. Not checked.
        read_only: declared to change nothing. Default false, as MCP's ``readOnlyHint``: assume the worse.
        idempotent: declared to have no further effect when repeated. Default false, as MCP's ``idempotentHint``.
        destructive: declared to destroy something (true) or not (false); None: not declared, so assume it may
            (MCP's ``destructiveHint`` is true by default).
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
        """Calling it twice does no more than calling it once: see :func:`dispatch.policy.repeatable`."""
        return repeatable(self)
