"""Resolves names and versions of tools, and ids of services; each one is computed once."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from dispatch._internal.permit import Randomness
from dispatch.calls.resolution.local_queues import is_local_queue
from dispatch.calls.resolution.policy_check import check_policies
from dispatch.calls.resolution.resolution_errors import (
    error_from_invalid_range,
    error_from_requirement,
    error_from_unknown_name,
    error_from_version_mismatch,
)
from dispatch.calls.resolution.resolved_tool import ResolvedTool
from dispatch.calls.resolution.rollout import BUCKETS, Rollout, hash_bucket
from dispatch.catalog import (
    Catalog,
    ServiceDescriptor,
    ToolDescriptor,
    UnknownServiceError,
    UnknownToolError,
    VersionMismatchError,
)
from dispatch.catalog.version_ranges import Range, parse_range
from dispatch.messaging.wire.codec import json_text
from dispatch.messaging.wire.topic_name import TopicName
from dispatch.permissions import require_permissions
from dispatch.policy import Policy
from dispatch.routing.pool_registry import PoolKey

_BALANCED = frozenset({"balancing", "outlier-detection"})
"""A tool whose own policy has one of these keys gets an instance pool of its own."""
MAX_RANGES = 4_096
"""Pairs of a tool and a version range that are remembered. Callers choose the ranges, so that their number is bounded."""


class ToolResolver:
    """Resolves the names of one catalogue.

    Args:
        catalog: services and tools.
        policy: defaults under the policies of services and tools.

    Attributes:
        catalog, policy: as given.
        fixed: by name, the tools whose calls without a version all go to the default version; filled by :meth:`select`. A
            call of such a tool costs one lookup.
    """

    def __init__(self, catalog: Catalog, policy: Policy) -> None:
        self.catalog = catalog
        self.policy = policy
        self.fixed: dict[str, ResolvedTool] = {}
        self._tools: dict[tuple[str, str | None], ResolvedTool] = {}
        self._by_range: dict[tuple[str, str], ResolvedTool] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._services: dict[tuple[str, str | None], ResolvedTool] = {}
        self._pools: dict[PoolKey, PoolKey] = {}

    # -- tools --------------------------------------------------------------------------------------------------

    def select(
        self,
        name: str,
        version: str | None,
        caller: str,
        *,
        can_admit: Callable[[ResolvedTool], bool],
        randomness: Randomness,
    ) -> ResolvedTool:
        """Select the version of a tool for one call.

        Args:
            name: of the tool.
            version: range of the caller; None: the default version, or the one that the tool's ``rollout`` assigns.
            caller: the user or the idempotency key, by whose hash ``rollout`` assigns a version; ``""``: at random.
            can_admit: whether the circuit breaker of a version admits calls. The share of one that does not goes to the
                default version.
            randomness: in [0, 1).

        Raises:
            RejectedError, InvalidArgumentsError: as :meth:`tool`.
        """
        default = self.tool(name, version)
        if version is not None:
            return default
        assert default.descriptor is not None  # a tool of the catalogue
        if not default.descriptor.rollout:
            self.fixed[name] = default
            return default
        rollout = self._rollouts.get(name)
        if rollout is None:
            rollout = self._rollouts[name] = Rollout(default.descriptor.rollout)
        target = rollout.version_of(hash_bucket(name, caller) if caller else int(randomness() * BUCKETS))
        selected = None if target is None else self.find(name, target)
        # Lists show the default version: a version with other permissions would reject users to whom the tool is shown.
        if selected is None or selected.requirement != default.requirement or not can_admit(selected):
            return default
        return selected

    def tool(self, name: str, version: str | None = None) -> ResolvedTool:
        """Resolve the default version of a tool, or the one that :meth:`Catalog.tool` selects in the range ``version``.

        Raises:
            RejectedError: there is no such tool, no such version of it, or no version of its service that it requires.
            InvalidArgumentsError: ``version`` is no range.
        """
        if version is not None:
            return self._in_range(name, version)
        try:
            descriptor = self.catalog.tool(name)
            return self._tools.get((name, descriptor.version)) or self._add(descriptor)
        except UnknownToolError as error:
            raise error_from_unknown_name(error) from None
        except VersionMismatchError as error:
            raise error_from_requirement(name, error.name, error.range, error.available) from None

    def _in_range(self, name: str, version: str) -> ResolvedTool:
        if not isinstance(version, str):
            raise error_from_invalid_range(name, f"the version is of the type {type(version).__name__}, not a text")
        found = self._by_range.get((name, version))
        if found is not None:
            return found
        try:
            descriptor = self.catalog.tool(name, version)
        except UnknownToolError as error:
            raise error_from_unknown_name(error) from None
        except VersionMismatchError as error:
            raise error_from_version_mismatch(name, error.range, error.available) from None
        except ValueError as error:
            raise error_from_invalid_range(name, str(error)) from None
        try:
            found = self._tools.get((name, descriptor.version)) or self._add(descriptor)
        except VersionMismatchError as error:
            raise error_from_requirement(name, error.name, error.range, error.available) from None
        if len(self._by_range) >= MAX_RANGES:
            self._by_range.clear()
        self._by_range[name, version] = found
        return found

    def find(self, name: str, version: str | None) -> ResolvedTool | None:
        """Return exactly that version of a tool; None: the catalogue has none that can be called."""
        found = self._tools.get((name, version))
        if found is None and name in self.catalog.tools:
            for descriptor in self.catalog.versions(name):
                if descriptor.version == version:
                    try:
                        return self._add(descriptor)
                    except VersionMismatchError:
                        return None
        return found

    def describe(self, name: str) -> ResolvedTool:
        """Return the default version of a tool for a report, also if no version of its service satisfies its ``requires``
        and each call is rejected.

        Raises:
            RejectedError: there is no such tool.
        """
        try:
            descriptor = self.catalog.tool(name)
        except UnknownToolError as error:
            raise error_from_unknown_name(error) from None
        return self._compute(descriptor, self.catalog.service_or_default(descriptor))

    def _add(self, descriptor: ToolDescriptor) -> ResolvedTool:
        """Compute the resolved tool of a descriptor, once.

        Raises:
            VersionMismatchError: no version of its service satisfies its ``requires``.
        """
        found = self._compute(descriptor, self.catalog.service_of(descriptor))
        self._tools[descriptor.name, descriptor.version] = found
        return found

    def _compute(self, descriptor: ToolDescriptor, service: ServiceDescriptor) -> ResolvedTool:
        name = descriptor.name
        policy = self._policy_of(descriptor, service)
        default = self.catalog.tools[name]
        if default is not descriptor:  # rate limits belong to the name: a canary raises none
            limits = self._policy_of(default, self.catalog.service_or_default(default))
            policy = msgspec.structs.replace(
                policy,
                rate_limit=limits.rate_limit,
                user_rate_limit=limits.user_rate_limit,
                shared_user_rate_limit=limits.shared_user_rate_limit,
            )
        owns_pool = not _BALANCED.isdisjoint(descriptor.policy)
        return ResolvedTool(
            name,
            service,
            sys.intern(json_text(descriptor.config, "config")),
            policy,
            descriptor.repeatable,
            self._pool_key_of(service, descriptor if owns_pool else None),
            _is_durable(service),
            policy.single_flight and descriptor.read_only,
            descriptor=descriptor,
            version=descriptor.version,
            requires=_instance_range(descriptor, service),
            requirement=require_permissions(descriptor.permissions, service.permissions),
            is_local=is_local_queue(service.request_queue),
        )

    def _policy_of(self, tool: ToolDescriptor, service: ServiceDescriptor) -> Policy:
        return self.policy.merged(service.policy).merged(tool.policy)

    # -- services and pools -------------------------------------------------------------------------------------

    def service(self, id: str) -> ResolvedTool:
        """Resolve the default version of the service ``id``, to be called without a tool.

        Raises:
            RejectedError: there is no such service; the message has similar names.
        """
        try:
            return self._service_version(self.catalog.service(id))
        except UnknownServiceError as error:
            raise error_from_unknown_name(error) from None

    def _service_version(self, descriptor: ServiceDescriptor) -> ResolvedTool:
        key = descriptor.id, descriptor.version
        found = self._services.get(key)
        if found is None:
            found = self._services[key] = ResolvedTool(
                descriptor.id,
                descriptor,
                "{}",
                self.policy.merged(descriptor.policy),
                repeatable=False,
                pool_key=self._pool_key_of(descriptor, None),
                is_durable=_is_durable(descriptor),
                is_tool=False,
                requirement=require_permissions(descriptor.permissions),
            )
        return found

    def _pool_key_of(self, service: ServiceDescriptor, owner: ToolDescriptor | None) -> PoolKey:
        """Return the key of a pool, one object for all tools that share it: less memory to read for each call."""
        topics = service.request_queue, service.response_queue
        tool, tool_version = ("", None) if owner is None else (owner.name, owner.version)
        key = PoolKey(service.id, topics, service.version, tool, tool_version)
        return self._pools.setdefault(key, key)

    def find_guarded(self, label: str, version: str | None, *, is_tool: bool) -> ResolvedTool | None:
        """Return what the guards of that label and version belong to; None: the catalogue does not have it. The versions of
        a service that is called without a tool have the same guards."""
        if is_tool:
            return self.find(label, version)
        return self.service(label) if label in self.catalog.services else None

    def pool_user(self, key: PoolKey) -> ResolvedTool | None:
        """Return the tool, or the service, whose policy applies to an instance pool; None: the catalogue does not have the
        pool."""
        if key.tool:
            found = self.find(key.tool, key.tool_version)
            return found if found is not None and found.pool_key == key else None
        if key.service in self.catalog.services:
            for service in self.catalog.service_versions(key.service):
                found = self._service_version(service)
                if found.pool_key == key:
                    return found
        return None

    def has_service(self, id: str) -> bool:
        """Return whether the catalogue has the service."""
        return id in self.catalog.services

    # -- another catalogue --------------------------------------------------------------------------------------

    def check(self) -> ToolResolver:
        """Check that each service's and tool's policy is valid over ``policy`` (they were checked over the defaults only);
        return this resolver.

        Raises:
            PolicyError: one is not; it names the service or the tool.
        """
        check_policies(self.catalog, self.policy)
        return self

    def renewed(self, catalog: Catalog, policy: Policy) -> ToolResolver:
        """Return the checked resolver of another catalogue or policy. An unchanged tool or service keeps its
        :class:`ResolvedTool`, the same object. May run on another thread while this resolver is in use.

        Raises:
            PolicyError: as :meth:`check`.
        """
        renewed = ToolResolver(catalog, policy)
        is_same_policy = policy == self.policy
        check_policies(catalog, policy, self.catalog if is_same_policy else None)
        formers = (*self._services.copy().values(), *self._tools.copy().values())
        renewed._pools = {former.pool_key: former.pool_key for former in formers}
        for id, version in self._services.copy():
            for service in catalog.service_versions(id) if id in catalog.services else ():
                if service.version == version:
                    former = self._services[id, version]
                    renewed._services[id, version] = _keep_equal(former, renewed._service_version(service))
        has_same_definition = self._compare_definitions(catalog)
        for (name, version), former in self._tools.copy().items():
            if is_same_policy and has_same_definition(former):
                renewed._tools[name, version] = former
                continue
            found = renewed.find(name, version)
            if found is not None:
                renewed._tools[name, version] = _keep_equal(former, found)
        return renewed

    def _compare_definitions(self, catalog: Catalog) -> Callable[[ResolvedTool], bool]:
        """Return a function that returns whether the only version of a tool, and its service, are the same objects in both
        catalogues: most tools at most changes. They are not computed again."""
        tools, services = catalog.tools, catalog.services
        several = self.catalog.several_tool_versions | catalog.several_tool_versions

        def has_same_definition(former: ResolvedTool) -> bool:
            tool = former.descriptor
            return (
                tool is not None
                and tools.get(tool.name) is tool
                and tool.requires is None
                and services[tool.service] is former.service
                and tool.name not in several
            )

        return has_same_definition


def _keep_equal(former: ResolvedTool, new: ResolvedTool) -> ResolvedTool:
    return former if former == new else new


def _instance_range(tool: ToolDescriptor, service: ServiceDescriptor) -> Range | None:
    """Return the range that restricts the instances of ``service`` for ``tool``; None: all of them satisfy it."""
    if tool.requires is None:
        return None
    range = parse_range(tool.requires)
    versions = [each.version for each in service.instances] or [service.version]
    return None if all(version is not None and range.includes(version) for version in versions) else range


def _is_durable(service: ServiceDescriptor) -> bool:
    return TopicName.parse(service.request_queue).persistent
