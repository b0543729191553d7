"""Targets: what a call is made of that does not change from call to call, worked out once for each tool."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from dispatch.catalog import Catalog, ServiceDescriptor, ToolDescriptor, UnknownServiceError, UnknownToolError
from dispatch.errors import RejectedError
from dispatch.messaging.wire.codec import json_text
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.policy import Policy, PolicyError
from dispatch.routing.pool_key import PoolKey, Topics

_BALANCED = frozenset({"balancing", "health", "addressed"})
"""Keys of a policy that a tool with one of its own does not share with the others of its service."""
MAX_ALTERNATIVES = 3


def _fleet_key(service: ServiceDescriptor, tool: str = "") -> PoolKey:
    return PoolKey(service.id, (service.request_queue, service.response_queue), service.instances, tool)


def meter_label(name: str, *, is_tool: bool) -> str:
    """What stands for a tool in metrics, events and logs: its name; for a service that is called without a tool, its id
    after ``service:``."""
    return name if is_tool else f"service:{name}"


class ResolvedTool(msgspec.Struct, frozen=True):
    """What a call is made of that does not change from call to call.

    Attributes:
        label: the tool's name (the service's id where a client calls a service without a tool).
        service: where it is served.
        config_text: the config values, as the JSON text that travels.
        policy: defaults ← service ← tool.
        repeatable: declared read-only or idempotent.
        fleet: see :class:`PoolKey`.
        kept: its requests go over a persistent topic.
        shares: calls that are the same share one exchange.
        is_tool: a tool was called, rather than a service without one.
        description: the tool's.
    """

    label: str
    service: ServiceDescriptor
    config_text: str
    policy: Policy
    repeatable: bool
    fleet: PoolKey
    kept: bool = False
    shares: bool = False
    is_tool: bool = True
    description: str = ""

    @property
    def service_id(self) -> str:
        """The id of the service."""
        return self.service.id

    @property
    def meter_label(self) -> str:
        """See :func:`meter_label`."""
        return meter_label(self.label, is_tool=self.is_tool)

    def redelivered(self, idempotency_key: str | None) -> bool:
        """May the broker give a request to another instance when the one that had it died?"""
        return self.kept and (self.repeatable or idempotency_key is not None)


class ToolResolver:
    """The targets of one catalogue.

    Args:
        catalog: services and tools.
        policy: what calls may take where neither service nor tool says more.
    """

    def __init__(self, catalog: Catalog, policy: Policy) -> None:
        self.catalog = catalog
        self._policy = policy
        self._tools: dict[str, ResolvedTool] = {}
        self._services: dict[str, ResolvedTool] = {}
        self._fleets: dict[PoolKey, PoolKey] = {}

    def check(self) -> ToolResolver:
        """These, if each service's and tool's policy goes with ``policy``. They were checked over the defaults only.

        Raises:
            PolicyError: one does not; it names the service or the tool.
        """
        services: dict[str, Policy] = {}
        for service in self.catalog.services.values():
            services[service.id] = self._merged(self._policy, service.policy, f"the service '{service.id}'")
        for tool in self.catalog.tools.values():
            if tool.policy:
                self._merged(services[tool.service], tool.policy, f"the tool '{tool.name}'")
        return self

    @staticmethod
    def _merged(base: Policy, raw: Mapping[str, Any], where: str) -> Policy:
        try:
            return base.merged(raw)
        except PolicyError as error:
            raise PolicyError(
                error.key, f"{error.problem} (what {where} sets, laid over what it does not)", error.fix
            ) from None

    def tool(self, name: str) -> ResolvedTool:
        """What a call of the tool ``name`` is made of.

        Raises:
            RejectedError: there is no such tool; the message has the near names.
        """
        target = self._tools.get(name)
        if target is None:
            try:
                descriptor = self.catalog.tool(name)
            except UnknownToolError as error:
                raise RejectedError(
                    "unknown-tool", str(error), rejected_by="catalog", alternatives=error.near
                ) from None
            service = self.catalog.service_of(descriptor)
            policy = self._policy.merged(service.policy).merged(descriptor.policy)
            target = self._tools[name] = ResolvedTool(
                name,
                service,
                sys.intern(json_text(descriptor.config, "config")),
                policy,
                descriptor.repeatable,
                self._fleet(service, "" if _BALANCED.isdisjoint(descriptor.policy) else name),
                _kept(service),
                policy.single_flight and descriptor.read_only,
                description=descriptor.description,
            )
        return target

    def _fleet(self, service: ServiceDescriptor, tool: str) -> PoolKey:
        """The key, one object for all tools that have it in common: less memory to read for a call of any of them."""
        key = _fleet_key(service, tool)
        return self._fleets.setdefault(key, key)

    def alternatives(self, name: str) -> tuple[str, ...]:
        """Tools that could do instead of ``name``: of its category, or with the most tags in common; of another service
        first, because what is wrong with one tool is often wrong with all of its service."""
        tool = self.catalog.tools.get(name)
        if tool is None or not (tool.category or tool.tags):
            return ()
        tags = frozenset(tool.tags)

        def rank(other: ToolDescriptor) -> tuple[bool, int]:
            same = tool.category is not None and other.category == tool.category
            return other.service == tool.service, -len(tags.intersection(other.tags)) - same

        near = [
            other
            for other in self.catalog.tools.values()
            if other.name != name
            and (not tags.isdisjoint(other.tags) or (tool.category is not None and other.category == tool.category))
        ]
        return tuple(other.name for other in sorted(near, key=rank)[:MAX_ALTERNATIVES])

    def service(self, id: str) -> ResolvedTool:
        """What a call of the service ``id`` without a tool is made of.

        Raises:
            RejectedError: there is no such service; the message has the near names.
        """
        target = self._services.get(id)
        if target is None:
            try:
                descriptor = self.catalog.service(id)
            except UnknownServiceError as error:
                raise RejectedError(
                    "unknown-service", str(error), rejected_by="catalog", alternatives=error.near
                ) from None
            target = self._services[id] = ResolvedTool(
                id,
                descriptor,
                "{}",
                self._policy.merged(descriptor.policy),
                repeatable=False,
                fleet=self._fleet(descriptor, ""),
                kept=_kept(descriptor),
                is_tool=False,
            )
        return target

    def find(self, label: str, *, is_tool: bool) -> ResolvedTool | None:
        """The target of the tool, or the service, that is called ``label``; None: there is none."""
        if label not in (self.catalog.tools if is_tool else self.catalog.services):
            return None
        return self.tool(label) if is_tool else self.service(label)

    def fleet_policy(self, key: PoolKey) -> Policy | None:
        """The policy of the instances that are known as ``key``; None: no call of this catalogue has that key."""
        service = self.catalog.services.get(key.service)
        if service is None or _fleet_key(service, key.tool) != key:
            return None
        if not key.tool:
            return self.service(service.id).policy
        target = self.find(key.tool, is_tool=True)
        return target.policy if target is not None and target.fleet == key else None

    @property
    def topics(self) -> frozenset[Topics]:
        """The topics of all services."""
        return frozenset(pair for service in self.catalog.services.values() for pair in _fleet_key(service).pairs)


def _kept(service: ServiceDescriptor) -> bool:
    return TopicName.parse(service.request_queue).persistent
