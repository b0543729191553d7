"""Step 1 of a call: the name of a tool, and a version, become a resolved tool."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from dispatch._internal import Randomness, check_instance, find_near_names
from dispatch.calls.error_messages import (
    error_from_decision,
    error_from_hidden_versions,
    error_from_invalid_range,
    error_from_requirement,
    error_from_unknown_name,
    error_from_unknown_permissions,
    error_from_version_mismatch,
)
from dispatch.catalog import (
    Catalog,
    CatalogError,
    ServiceDescriptor,
    ToolDescriptor,
    UnknownServiceError,
    UnknownToolError,
    VersionMismatchError,
)
from dispatch.catalog.activation import Prepared
from dispatch.catalog.approvals import Approvals
from dispatch.catalog.catalog import CatalogChanges, compare, fingerprint
from dispatch.catalog.items import Source
from dispatch.catalog.merge import CatalogLike, Merged, list_sources
from dispatch.catalog.registry import Registry
from dispatch.catalog.versions import Range, parse_range, version_key
from dispatch.errors import DispatchError, ErrorType, RejectedError
from dispatch.messaging.wire import TopicName, is_local_queue, json_text, tool_type_of
from dispatch.permissions import Authorizer, PermissionSet, Requirement, require_permissions
from dispatch.policy import Policy, PolicyError, PolicyLike, read_policy
from dispatch.routing.pool import PoolKey
from dispatch.telemetry.observers import DispatcherObserver

# A resolved tool: what does not change from call to call.


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


# The versions that share the calls of one tool: a canary gets a few per cent of them.


BUCKETS: Final = 10_000
"""Buckets of users, and of calls without a user: the granularity of a share is 0.01 per cent."""


class Rollout:
    """Assigns buckets to versions of one tool, by share; the rest belongs to the default version.

    The version that a bucket belongs to depends on the shares alone, so that all dispatchers agree. A version whose share is
    raised keeps its buckets. The shares of one or two versions change independently of each other: the lower version has
    the first buckets, the higher one the last. With more versions, another share may move the buckets of those in between.

    Args:
        shares: of versions other than the default one, in per cent, 100 in all at most.
    """

    __slots__ = ("_intervals",)

    def __init__(self, shares: Mapping[str, float]) -> None:
        sizes = [(version, round(shares[version] * BUCKETS / 100)) for version in sorted(shares, key=version_key)]
        intervals = []
        begin = 0
        for version, size in sizes[:-1]:
            intervals.append((begin, begin + size, version))
            begin += size
        for version, size in sizes[-1:]:
            intervals.append((max(begin, BUCKETS - size), BUCKETS, version))
        self._intervals = tuple(intervals)

    def version_of(self, bucket: int) -> str | None:
        """Return the version that ``bucket`` belongs to; None: the default one."""
        for begin, end, version in self._intervals:
            if begin <= bucket < end:
                return version
        return None


def hash_bucket(tool: str, text: str) -> int:
    """Return the bucket of a user, or of an idempotency key, for a tool: another one for each tool, so that the same few
    users do not get every canary."""
    digest = hashlib.blake2b(f"{tool}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % BUCKETS


# Checks the policies of a catalogue over the policy of a dispatcher.


def check_policies(catalog: Catalog, policy: Policy, checked: Catalog | None = None) -> None:
    """Check that the policy of each version of each service and tool is valid over ``policy``. Reading a descriptor checked
    it over the defaults only.

    Args:
        checked: a catalogue that was checked over the same policy; only what differs from it is checked.

    Raises:
        PolicyError: one is not; it names the service or the tool.
    """
    merged: dict[tuple[str, str | None], Policy] = {}

    def policy_of(service: ServiceDescriptor) -> Policy:
        key = service.id, service.version
        if key not in merged:
            merged[key] = _merge(policy, service.policy, f"the service '{service.id}'")
        return merged[key]

    changed = set()
    for id, versions in catalog.versions_by_id.items():
        if checked is None or checked.versions_by_id.get(id) != versions:
            changed.add(id)
            for service in versions:
                policy_of(service)
    for name, tools in catalog.versions_by_name.items():
        is_checked = checked is not None and checked.versions_by_name.get(name) == tools
        if is_checked and not changed:
            continue  # perf: most tools at most activations
        for tool in tools:
            if tool.policy and not (is_checked and tool.service not in changed):
                _merge(policy_of(catalog.service_or_default(tool)), tool.policy, f"the tool '{name}'")


def _merge(base: Policy, raw: Mapping[str, Any], where: str) -> Policy:
    try:
        return base.merged(raw)
    except PolicyError as error:
        raise PolicyError(
            error.key, f"{error.problem} (the policy of {where}, merged with the defaults)", error.fix
        ) from None


# Resolves names and versions of tools, and ids of services; each one is computed once.


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
            can_admit: whether a version can be called now. The share of one that cannot goes to the default version.
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
            if not isinstance(version, str):
                raise error_from_invalid_range(name, f"the version is of the type {type(version).__name__}, not a text")
            if isinstance(name, str) and (found := self._by_range.get((name, version))) is not None:
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
        if version is not None:
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
        try:
            return self._tools.get((name, descriptor.version)) or self._add(descriptor)
        except VersionMismatchError:
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

    def find_guarded(self, key: tuple[bool, str, str | None]) -> ResolvedTool | None:
        """Return what guards belong to (:data:`dispatch.calls.guards.GuardKey`); None: the catalogue does not have it. The
        versions of a service that is called without a tool have the same guards."""
        is_tool, label, version = key
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
        for (name, version), former in self._tools.copy().items():
            if is_same_policy and self._has_same_definition(former, catalog):
                renewed._tools[name, version] = former
                continue
            found = renewed.find(name, version)
            if found is not None:
                renewed._tools[name, version] = _keep_equal(former, found)
        return renewed

    def _has_same_definition(self, former: ResolvedTool, catalog: Catalog) -> bool:
        """Return whether the only version of a tool, and its service, are the same objects in both catalogues: most tools at
        most changes. They are not computed again."""
        tool = former.descriptor
        if tool is None or tool.requires is not None or catalog.tools.get(tool.name) is not tool:
            return False
        several = (len(each.versions(tool.name)) > 1 for each in (self.catalog, catalog))
        return catalog.services[tool.service] is former.service and not any(several)


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


# Which tools a user sees: those that the user may call. All lists, alternatives and similar names use this module.


MAX_ALTERNATIVES = 3


def select_visible(
    catalog: Catalog, permissions: PermissionSet, tools: Iterable[ToolDescriptor] | None = None
) -> tuple[ToolDescriptor, ...]:
    """Return those of ``tools`` that a user with ``permissions`` may call, in their order.

    Args:
        catalog: that the tools belong to.
        permissions: of the user.
        tools: None: the default version of each tool.
    """
    permissions_of, permits = catalog.permissions_of, permissions.permits
    if tools is None:
        tools = catalog.tools.values()
    return tuple(tool for tool in tools if not (names := permissions_of(tool)) or permits(require_permissions(names)))


EXPECTED_USER: Final = "the name of a user, or an empty text"


async def list_visible(
    catalog: Catalog, authorizer: Authorizer, user: str, tools: Iterable[ToolDescriptor]
) -> tuple[ToolDescriptor, ...]:
    """Return those of ``tools`` that ``user`` may call, in their order. If a tool requires permissions, those of the user
    are asked for.

    Raises:
        RejectedError: ``permissions-unavailable``: they could not be resolved.
        TypeError: ``user`` is no text.
    """
    check_instance("user", user, str, EXPECTED_USER)
    found = tuple(tools)
    if not any(catalog.permissions_of(tool) for tool in found):
        return found
    permissions = await authorizer.fetch_permissions(user)
    if permissions is None:
        raise error_from_unknown_permissions(user)
    return select_visible(catalog, permissions, found)


def resolve_visible(
    resolver: ToolResolver, name: str, version: str | None, user: str, authorizer: Authorizer, now: float
) -> ResolvedTool:
    """Resolve a tool for a list of tools, if ``user`` may call it.

    Args:
        version: see :meth:`ToolResolver.tool`.
        now: on the clock of ``authorizer``.

    Raises:
        RejectedError: there is no such tool or version; the user may not call it; or the user's permissions are not cached.
        InvalidArgumentsError: ``version`` is no range.
        TypeError: ``name`` or ``user`` is no text.
    """
    check_instance("user", user, str, EXPECTED_USER)
    try:
        tool = resolver.tool(name, version)
    except RejectedError as error:
        raise hide_names(resolver.catalog, error, name, authorizer.known_permissions(user, now)) from None
    if tool.requirement is not None:
        decision = authorizer.decide(user, tool.requirement, now)
        if decision is None or decision.reason == "unavailable":
            raise error_from_unknown_permissions(user, is_cache_miss=True)
        if not decision.is_allowed:
            raise error_from_decision(decision, name, user)
    return tool


def hide_names(catalog: Catalog, error: DispatchError, name: str, permissions: PermissionSet) -> DispatchError:
    """Return ``error``, of a call of ``name``, for a user with ``permissions``: it names only tools that the user may call,
    and no versions of others."""
    if error.type == ErrorType.VERSION_MISMATCH and not select_visible(catalog, permissions, [catalog.tools[name]]):
        return error_from_hidden_versions(name)
    if error.type != ErrorType.UNKNOWN_TOOL:
        return error
    visible = select_visible(catalog, permissions)
    if len(visible) == len(catalog.tools):
        return error
    names = tuple(tool.name for tool in visible)
    return error_from_unknown_name(UnknownToolError(name, find_near_names(name, names), names))


def find_alternatives(catalog: Catalog, name: str, permissions: PermissionSet) -> tuple[str, ...]:
    """Return tools that could serve instead of ``name``: of its category, or with the most tags in common. Tools of other
    services come first, because a failure of one tool is often one of its whole service.

    Args:
        permissions: of the user; tools that the user may not call are left out.
    """
    tool = catalog.tools.get(name)
    if tool is None or not (tool.category or tool.tags):
        return ()
    tags = frozenset(tool.tags)

    def rank(other: ToolDescriptor) -> tuple[bool, int]:
        same = tool.category is not None and other.category == tool.category
        return other.service == tool.service, -len(tags.intersection(other.tags)) - same

    near = [
        other
        for other in catalog.tools.values()
        if other.name != name
        and (not tags.isdisjoint(other.tags) or (tool.category is not None and other.category == tool.category))
    ]
    visible = select_visible(catalog, permissions, near)
    return tuple(other.name for other in sorted(visible, key=rank)[:MAX_ALTERNATIVES])


# The catalogue of a dispatcher: the registry of its sources, and the resolver of what is in force.


MAX_FINGERPRINTS = 1_000
"""Tools whose fingerprints an activation computes for its event: as many as the event names."""


class CatalogUser(Protocol):
    """What a connected dispatcher has for the tools of its catalogue."""

    observer: DispatcherObserver

    def renew(self, tools: ToolResolver, changes: CatalogChanges) -> None:
        """Apply another catalogue or policy."""


class LiveCatalog:
    """Puts catalogues in force: one assignment, so that a call and its retries keep the resolved tool with which they began.

    Args:
        catalog: the first sources.
        policy: defaults under the policies of services and tools.
        approvals: file of approved definitions; None: no source may hold changes.
        randomness: see :class:`Registry`.

    Attributes:
        resolver: of the catalogue in force.
        registry: of the sources.
        policy: in force.

    Raises:
        CatalogError, PolicyError, ApprovalsError, ValueError: as :class:`Registry`.
    """

    def __init__(
        self,
        catalog: CatalogLike | None,
        policy: PolicyLike | None,
        approvals: str | Path | None,
        randomness: Randomness,
    ) -> None:
        self._runtime: CatalogUser | None = None
        self.policy = read_policy(policy)
        self.resolver = ToolResolver(Catalog.empty(), self.policy)
        self.registry = Registry(
            catalog, self.policy, self, None if approvals is None else Approvals(approvals), randomness
        )

    async def start(self, runtime: CatalogUser, connect: Callable[[Source, bool], object]) -> None:
        """Follow the sources for a connected dispatcher.

        Args:
            runtime: of the dispatcher.
            connect: see :meth:`Registry.start`.
        """
        self._runtime = runtime
        await self.registry.start(connect, runtime.observer)

    def detach(self) -> None:
        """Apply no further catalogue to the dispatcher's runtime, which is closed."""
        self._runtime = None

    async def reload(self, catalog: CatalogLike | None, policy: PolicyLike | None) -> None:
        """See :meth:`dispatch.Dispatcher.reload`."""
        try:
            await self.registry.replace(catalog, self.policy if policy is None else read_policy(policy))
        except (CatalogError, PolicyError) as error:
            if self._runtime is not None:
                given = list_sources(catalog) if catalog is not None else self.registry.sources()
                tools = len(self.resolver.catalog.tools)
                observer = self._runtime.observer
                observer.on_reload_rejected([each.id for each in given], tools, str(error))
            raise

    def prepare(self, merged: Merged) -> Prepared:
        """See :class:`dispatch.catalog.activation.CatalogTarget`."""
        former = self.resolver
        resolver = former.renewed(merged.catalog, merged.policy)
        changes = compare(former.catalog, merged.catalog)
        named = (*changes.tools.added, *changes.tools.changed)[:MAX_FINGERPRINTS]
        tools = [merged.catalog.tools[name] for name in named]
        fingerprints = {tool.name: fingerprint(tool, merged.catalog.service_or_default(tool)) for tool in tools}

        def activate() -> None:
            self.resolver, self.policy = resolver, merged.policy
            if self._runtime is not None:
                self._runtime.renew(resolver, changes)

        return Prepared(merged, activate, changes, fingerprints)
