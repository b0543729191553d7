"""The catalogue of a dispatcher: the registry of its sources, and the resolver of what is in force."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dispatch._internal.permit import Randomness
from dispatch.calls.resolution.resolver import ToolResolver
from dispatch.catalog import Catalog, CatalogError
from dispatch.catalog.changes import CatalogChanges, compare
from dispatch.catalog.fingerprint import fingerprint
from dispatch.catalog.live.activation import Prepared
from dispatch.catalog.live.approvals import Approvals
from dispatch.catalog.live.merge import Merged
from dispatch.catalog.live.registry import Registry
from dispatch.catalog.live.source_list import CatalogLike, list_sources
from dispatch.catalog.sources.base import Source
from dispatch.policy import PolicyError, PolicyLike, read_policy
from dispatch.telemetry.call_observer import DispatcherObserver

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
        await self.registry.start(connect, runtime.observer.catalog)

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
                observer = self._runtime.observer.catalog
                observer.on_reload_rejected([each.id for each in given], tools, str(error))
            raise

    def prepare(self, merged: Merged) -> Prepared:
        """See :class:`dispatch.catalog.live.activation.CatalogTarget`."""
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
