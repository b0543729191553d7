"""Resolves names of tools and services; each one is computed once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from dispatch.calls.resolution.resolution_errors import error_from_unknown_name
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.resolution.visibility import error_from_hidden_name, select_visible
from dispatch.catalog import Catalog, ServiceDescriptor, ToolDescriptor, UnknownServiceError, UnknownToolError
from dispatch.errors import DispatchError, ErrorType, RejectedError
from dispatch.messaging.wire.codec import json_text
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.permissions import Authorizer, PermissionSet, require_permissions
from dispatch.permissions.error_messages import error_from_decision, error_from_unknown_permissions
from dispatch.policy import Policy, PolicyError
from dispatch.routing.pool_registry import PoolKey

_BALANCED = frozenset({"balancing", "outlier-detection"})
"""A tool whose own policy has one of these keys gets an instance pool of its own."""
MAX_ALTERNATIVES = 3


def _pool_key(service: ServiceDescriptor, tool: str = "") -> PoolKey:
    return PoolKey(service.id, (service.request_queue, service.response_queue), tool)


class ToolResolver:
    """Resolves the names of one catalogue.

    Args:
        catalog: services and tools.
        policy: defaults under the policies of services and tools.
    """

    def __init__(self, catalog: Catalog, policy: Policy) -> None:
        self.catalog = catalog
        self.policy = policy
        self._tools: dict[str, ResolvedTool] = {}
        self._services: dict[str, ResolvedTool] = {}
        self._pools: dict[PoolKey, PoolKey] = {}

    def check(self) -> ToolResolver:
        """Check that each service's and tool's policy is valid over ``policy`` (they were checked over the defaults only);
        return this resolver.

        Raises:
            PolicyError: one is not; it names the service or the tool.
        """
        services: dict[str, Policy] = {}
        for service in self.catalog.services.values():
            services[service.id] = self._merged(self.policy, service.policy, f"the service '{service.id}'")
        for tool in self.catalog.tools.values():
            if tool.policy:
                self._merged(services[tool.service], tool.policy, f"the tool '{tool.name}'")
        return self

    def renewed(self, catalog: Catalog, policy: Policy) -> ToolResolver:
        """Return the checked resolver of another catalogue or policy. An unchanged tool or service keeps its
        :class:`ResolvedTool`, the same object. May run on another thread while this resolver is in use.

        Raises:
            PolicyError: as :meth:`check`.
        """
        renewed = ToolResolver(catalog, policy).check()
        is_same_policy = policy == self.policy
        for id, former in self._services.copy().items():
            service = catalog.services.get(id)
            if service is not None and service == former.service:
                renewed._keep(former, is_same_policy or renewed.service(id) == former)
        for name, former in self._tools.copy().items():
            tool = catalog.tools.get(name)
            if tool is not None and tool == former.descriptor and catalog.service_of(tool) == former.service:
                renewed._keep(former, is_same_policy or renewed.tool(name) == former)
        return renewed

    def _keep(self, former: ResolvedTool, is_unchanged: bool) -> None:
        if is_unchanged:
            (self._tools if former.is_tool else self._services)[former.label] = former
            self._pools.setdefault(former.pool_key, former.pool_key)

    @staticmethod
    def _merged(base: Policy, raw: Mapping[str, Any], where: str) -> Policy:
        try:
            return base.merged(raw)
        except PolicyError as error:
            raise PolicyError(
                error.key, f"{error.problem} (the policy of {where}, merged with the defaults)", error.fix
            ) from None

    def tool(self, name: str) -> ResolvedTool:
        """Resolve the tool ``name``.

        Raises:
            RejectedError: there is no such tool; the message has similar names.
        """
        target = self._tools.get(name)
        if target is None:
            try:
                descriptor = self.catalog.tool(name)
            except UnknownToolError as error:
                raise error_from_unknown_name(error) from None
            service = self.catalog.service_of(descriptor)
            policy = self.policy.merged(service.policy).merged(descriptor.policy)
            target = self._tools[name] = ResolvedTool(
                name,
                service,
                sys.intern(json_text(descriptor.config, "config")),
                policy,
                descriptor.repeatable,
                self._pool_key_of(service, "" if _BALANCED.isdisjoint(descriptor.policy) else name),
                _is_durable(service),
                policy.single_flight and descriptor.read_only,
                descriptor=descriptor,
                requirement=require_permissions(descriptor.permissions, service.permissions),
            )
        return target

    def tool_for(self, name: str, user: str, authorizer: Authorizer, now: float) -> ResolvedTool:
        """Resolve the tool ``name`` for a list of tools, if ``user`` may call it.

        Args:
            now: on the clock of ``authorizer``.

        Raises:
            RejectedError: there is no such tool; the user may not call it; or the user's permissions are not cached.
        """
        try:
            target = self.tool(name)
        except RejectedError as error:
            raise self.hide_names(error, name, authorizer.known_permissions(user, now)) from None
        if target.requirement is not None:
            decision = authorizer.decide(user, target.requirement, now)
            if decision is None or decision.reason == "unavailable":
                raise error_from_unknown_permissions(user)
            if not decision.is_allowed:
                raise error_from_decision(decision, name, user)
        return target

    def hide_names(self, error: DispatchError, name: str, permissions: PermissionSet) -> DispatchError:
        """Return ``error``, of a call of ``name``, for a user with ``permissions``: the error of an unknown tool names only
        tools that the user may call."""
        if error.type != ErrorType.UNKNOWN_TOOL:
            return error
        visible = select_visible(self.catalog, permissions)
        return error if len(visible) == len(self.catalog.tools) else error_from_hidden_name(name, visible)

    def _pool_key_of(self, service: ServiceDescriptor, tool: str) -> PoolKey:
        """Return the key of a pool, one object for all tools that share it: less memory to read for each call."""
        key = _pool_key(service, tool)
        return self._pools.setdefault(key, key)

    def alternatives(self, name: str, permissions: PermissionSet) -> tuple[str, ...]:
        """Return tools that could serve instead of ``name``: of its category, or with the most tags in common. Tools of
        other services come first, because a failure of one tool is often one of its whole service.

        Args:
            permissions: of the user; tools that the user may not call are left out.
        """
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
        visible = select_visible(self.catalog, permissions, near)
        return tuple(other.name for other in sorted(visible, key=rank)[:MAX_ALTERNATIVES])

    def service(self, id: str) -> ResolvedTool:
        """Resolve the service ``id``, to be called without a tool.

        Raises:
            RejectedError: there is no such service; the message has similar names.
        """
        target = self._services.get(id)
        if target is None:
            try:
                descriptor = self.catalog.service(id)
            except UnknownServiceError as error:
                raise error_from_unknown_name(error) from None
            target = self._services[id] = ResolvedTool(
                id,
                descriptor,
                "{}",
                self.policy.merged(descriptor.policy),
                repeatable=False,
                pool_key=self._pool_key_of(descriptor, ""),
                is_durable=_is_durable(descriptor),
                is_tool=False,
                requirement=require_permissions(descriptor.permissions),
            )
        return target

    def find(self, label: str, *, is_tool: bool) -> ResolvedTool | None:
        """Return the tool, or the service, of that name; None: the catalogue has none."""
        if label not in (self.catalog.tools if is_tool else self.catalog.services):
            return None
        return self.tool(label) if is_tool else self.service(label)

    def pool_user(self, key: PoolKey) -> ResolvedTool | None:
        """Return the tool, or the service, whose policy applies to an instance pool; None: the catalogue does not have the
        pool."""
        is_tool, label = key.owner
        target = self.find(label, is_tool=is_tool)
        return target if target is not None and target.pool_key == key else None

    def has_service(self, id: str) -> bool:
        """Return whether the catalogue has the service."""
        return id in self.catalog.services


def _is_durable(service: ServiceDescriptor) -> bool:
    return TopicName.parse(service.request_queue).persistent
