"""A resolved tool: what does not change from call to call."""

from __future__ import annotations

import msgspec

from dispatch.calls.resolution.local_queues import tool_type_of
from dispatch.catalog import ServiceDescriptor, ToolDescriptor
from dispatch.catalog.version_ranges import Range
from dispatch.permissions.permission_set import Requirement
from dispatch.policy import Policy
from dispatch.routing.pool_registry import PoolKey


def meter_label(name: str, *, is_tool: bool) -> str:
    """Return the label of a tool in metrics, events and logs: its name; of a service that is called without a tool:
    ``service:`` and its id."""
    return name if is_tool else f"service:{name}"


class ResolvedTool(msgspec.Struct, frozen=True, gc=False):  # it is in no cycle
    """A tool with everything that a call of it needs.

    Attributes:
        label: the tool's name; the service's id where a client calls a service without a tool.
        service: that executes the tool.
        config_text: the config values, as the JSON text of the request.
        policy: the defaults, overlaid by the service's and the tool's own.
        repeatable: declared read-only or idempotent.
        pool_key: of the service's instances.
        is_durable: requests are sent on a persistent topic.
        is_single_flight: equal calls in flight at the same time share one exchange.
        is_tool: a tool of the catalogue, rather than a service that is called without one.
        descriptor: of the tool; None: it is not in the catalogue.
        requirement: the permissions of the tool and its service; None: it has none, and every user may call it.
        version: of the tool; None: not declared.
        requires: range that restricts the instances of the service by their versions; None: calls go to all of them.
        is_local: this process executes the tool.
    """

    label: str
    service: ServiceDescriptor
    config_text: str
    policy: Policy
    repeatable: bool
    pool_key: PoolKey
    is_durable: bool = False
    is_single_flight: bool = False
    is_tool: bool = True
    descriptor: ToolDescriptor | None = None
    requirement: Requirement | None = None
    version: str | None = None
    requires: Range | None = None
    is_local: bool = False

    @property
    def description(self) -> str:
        """The description of the tool."""
        return "" if self.descriptor is None else self.descriptor.description

    @property
    def service_id(self) -> str:
        """The id of the service."""
        return self.service.id

    @property
    def tool_type(self) -> str:
        """The type of the tool, as OpenTelemetry names it."""
        return tool_type_of(self.service.request_queue)

    @property
    def meter_label(self) -> str:
        """See :func:`meter_label`."""
        return meter_label(self.label, is_tool=self.is_tool)

    def may_be_redelivered(self, idempotency_key: str | None) -> bool:
        """Whether the broker may deliver a request to another instance when the first one dies."""
        return self.is_durable and (self.repeatable or idempotency_key is not None)
