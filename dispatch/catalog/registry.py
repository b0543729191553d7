"""The registry: the sources of a dispatcher's catalogue, and the items that the program itself puts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import operator
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Unpack

from msgspec.structs import asdict

from dispatch._internal import ErrorBoundary, Randomness, cancel_and_wait, check_instance, yield_to_others
from dispatch.catalog import merge
from dispatch.catalog.activation import (
    FIRST_RETRY_S,
    Activator,
    CatalogTarget,
    Prepared,
    SourceFollower,
    close_followers,
)
from dispatch.catalog.approvals import Approvals, ApprovalWatcher, check_approvals
from dispatch.catalog.catalog import Catalog, ListConditions
from dispatch.catalog.descriptors import CatalogError, ToolDescriptor
from dispatch.catalog.items import Item, Source, SourceGroup, SourceState, SourceStatus
from dispatch.documents import Problem
from dispatch.policy import Policy
from dispatch.telemetry.observers import NULL_DISPATCHER, DispatcherObserver, HeldChange

logger = logging.getLogger("dispatch.catalog")

FIRST_DISCOVERY_S: Final = 10.0
"""Seconds that the start waits for the first items of each source: as long as the start of an MCP server may take. A source
that takes longer is followed meanwhile, and calls of tools that are not known yet wait for it."""


class Registry:
    """The live catalogue of a dispatcher, as ``dispatcher.registry``.

    Args:
        catalog: the first sources. A catalogue or a folder is loaded at once.
        policy: defaults under the policies of services and tools.
        target: puts catalogues in force.
        approvals: for sources that hold changes.
        randomness: of the waits between attempts to reach a source.

    Raises:
        CatalogError: descriptors of a folder are invalid.
        ApprovalsError: the file of approvals cannot be used, or a source needs one.
        PolicyError: the policy of a service or tool is invalid together with ``policy``.
        ValueError: two sources have the same id.
    """

    def __init__(
        self,
        catalog: merge.CatalogLike | None,
        policy: Policy,
        target: CatalogTarget,
        approvals: Approvals | None = None,
        randomness: Randomness = random.random,
    ) -> None:
        self._observer: DispatcherObserver = NULL_DISPATCHER
        self._warnings: frozenset[Problem] = frozenset()
        """Of descriptors, which were logged."""
        self._connect: Callable[[Source, bool], object] = lambda source, is_in_force: None
        self._approvals = approvals
        self._randomness = randomness
        self._put_since = time.time()
        self._followers: dict[str, SourceFollower] = {}
        self._approval_watcher: ApprovalWatcher | None = None
        self._changing = asyncio.Lock()
        """Held while the list of sources changes."""
        merger = merge.Merger(policy)
        merger.add_source(merge.PUT)
        if approvals is not None:
            merger.approved = approvals.load()
        sources = merge.list_sources(catalog)
        for source in sources:
            self._add_to(merger, source)
            self._followers[source.id] = self._follower_of(source)
        found = {source.id: source.load() for source in sources if hasattr(source, "load")}
        known = {source.id for source in sources if isinstance(source, merge.FixedCatalog)}.union(found)
        for id in known.difference(merger.load_items(found, others_follow=len(known) < len(sources))):
            self._followers[id].set_ready()
        self._activator = Activator(merger, target, self._on_activated)
        if approvals is not None:
            self._approval_watcher = ApprovalWatcher(approvals, self._activator)
            self._approval_watcher.add_first_seen(self._activator.merged.first_seen)

    # -- life cycle ---------------------------------------------------------------------------------------------

    async def start(self, connect: Callable[[Source, bool], object], observer: DispatcherObserver) -> None:
        """Follow the sources, and wait up to :data:`FIRST_DISCOVERY_S` for their first items.

        Args:
            connect: called with each source before it is read, and with True once its items may come into force.
            observer: of the dispatcher.
        """
        self._connect, self._observer = connect, observer
        self._report_items(self._activator.merged)  # what was found before there was an observer
        self._activator.start()
        for follower in self._followers.values():
            self._start(follower)
        if self._approval_watcher is not None:
            self._approval_watcher.start()
        await _wait_ready(self._followers.values(), asyncio.ALL_COMPLETED, FIRST_DISCOVERY_S)
        await asyncio.gather(*(each.settle() for each in self._followers.values() if each.is_ready.is_set()))

    async def wait_for_tool(self, name: str, timeout: float) -> None:
        """Wait while the catalogue has no tool ``name`` and a source was never read; then have those that have failed read
        again, where they can be asked to. ``timeout`` seconds at most."""

        def list_unread() -> list[SourceFollower]:
            unread = [each for each in self._followers.values() if not each.is_ready.is_set()]
            return [] if name in self.merged.catalog.tools else unread

        failed = [each for each in self._followers.values() if each.state == "failed"]
        if not failed:  # the usual case has no timer
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while unread := list_unread():
                    await _wait_ready(unread, asyncio.FIRST_COMPLETED)
                if name not in self.merged.catalog.tools:
                    await asyncio.gather(*(each.try_again(timeout) for each in failed if each.state == "failed"))

    def try_failed(self) -> None:
        """Have the sources that have failed read again soon, where they can be asked to; their changes follow."""
        for each in self._followers.values():
            if each.state == "failed":
                getattr(each.source, "try_now", bool)()

    def find_failed(self) -> tuple[list[tuple[str, str]], float | None]:
        """Return ids and problems of the sources that have failed, and the seconds until one of them is read again; None:
        none is. Of a folder it is the name without its path."""
        found, waits = [], []
        for each in self._followers.values():
            if each.state == "failed":
                name = each.source.id.rstrip("/").rpartition("/")[2]
                found.append((name, each.problem.replace(each.source.id, name)))
                waits.append(getattr(each.source, "retry_after", FIRST_RETRY_S))
        return found, min((each for each in waits if each is not None), default=None)

    def find_refused(self, name: str) -> Problem | None:
        """Return why the tool ``name`` is not in the catalogue, though a source has it; None: no source has it."""
        found = (report.find_refused(name) for report in self.merged.reports.values())
        return next((each for each in found if each is not None), None)

    async def close(self) -> None:
        """Stop following the sources, and close them. The catalogue stays as it is."""
        async with contextlib.AsyncExitStack() as stack:  # every callback runs, also when the close is cancelled
            stack.push_async_callback(self._activator.close)
            stack.push_async_callback(close_followers, tuple(self._followers.values()))
            if self._approval_watcher is not None:
                stack.push_async_callback(self._approval_watcher.close)

    def abandon(self) -> None:
        """Release the thread and the sources, because the event loop has ended."""
        self._activator.abandon()
        for follower in self._followers.values():
            follower.abandon()

    async def _enter(self) -> None:
        """Begin a public coroutine.

        Raises:
            RuntimeError: the dispatcher was started on another event loop.
        """
        await yield_to_others()
        self._activator.check_loop()

    # -- sources ------------------------------------------------------------------------------------------------

    def sources(self) -> tuple[SourceStatus, ...]:
        """Return the state of each source, the highest precedence first."""
        found = []
        unread = {id: merge.SourceReport(0, 0) for id in self._followers if id not in self._activator.merged.reports}
        for id, report in {**self._activator.merged.reports, **unread}.items():
            follower = self._followers.get(id)
            counts = report.items, report.tools
            if follower is not None:
                refused, held = len(report.refused), len(report.held)
                found.append(SourceStatus(id, follower.state, follower.since, *counts, follower.problem, refused, held))
            elif id == merge.PUT and report.items:
                found.append(SourceStatus(id, "ok", self._put_since, *counts))
        return tuple(found)

    def source(self, id: str) -> Source:
        """Return the source with that id.

        Raises:
            LookupError: there is none.
        """
        return self._find(id).source

    async def add_source(self, source: Source | SourceGroup) -> None:
        """Add a source, or all sources of a group, with the lowest precedence, and wait for their first items. A source that
        is out of reach, or whose items are invalid, is added as well: see its status.

        Raises:
            ValueError: there is a source with that id, or its ``on_change`` is unknown.
            ApprovalsError: it holds changes, and there is no file of approvals.
            RuntimeError: another dispatcher uses it. Nothing is added.
        """
        await self._enter()
        async with self._changing:
            sources = merge.sources_in(source)
            for number, each in enumerate(sources):
                merge.check_source(each, (*self._followers, *(other.id for other in sources[:number])))
                check_approvals(self._approvals, each)
            added = [self._follower_of(each) for each in sources]
            try:
                for follower in added if self._activator.is_running else ():
                    self._connect_to(follower, False)
            except BaseException:
                await close_followers(added)
                raise
            for follower in added:
                await self._activator.run(partial(self._add_to, source=follower.source))
                self._followers[follower.source.id] = follower
                self._observer.on_source_changed(follower.source.id, "", follower.state, follower.problem)
                if self._activator.is_running:
                    self._start(follower)
        for follower in added:
            if not self._activator.is_running:
                await follower.discover()
            await follower.is_ready.wait()

    async def remove_source(self, id: str) -> None:
        """Remove a source. Its items are no longer in force on return.

        Raises:
            LookupError: there is none.
        """
        await self._enter()
        async with self._changing:
            follower = self._find(id)
            await self._activator.run(lambda merger: merger.remove_source(id))
            del self._followers[id]
            try:
                await self._activator.activate(id)
            finally:
                self._observer.on_source_changed(id, follower.state, "removed")
                await follower.close()

    async def refresh(self, id: str) -> None:
        """Read a source again now. What it delivers is in force on return.

        Raises:
            LookupError: there is no such source.
            CatalogError: its items are invalid; the former ones stay in force.
            Exception: it is out of reach; its items stay in force.
        """
        await self._enter()
        follower = self._find(id)
        await follower.discover()
        if follower.error is not None:
            raise follower.error

    async def approve(self, name: str, fingerprint: str) -> None:
        """Approve a held definition of a tool or a service: it is written to the file of approvals, and in force within
        seconds.

        Raises:
            LookupError: that definition does not wait.
            ApprovalsError: the file cannot be written.
        """
        await self._enter()
        check_instance("name", name, str, "the name of a tool, such as 'tell-joke'")
        check_instance("fingerprint", fingerprint, str, "the fingerprint of a definition that waits")
        held = [each for report in self.merged.reports.values() for each in report.held]
        key = next((each.key for each in held if (each.name, each.new) == (name, fingerprint)), None)
        if self._approvals is None or key is None:
            raise LookupError(f"no definition '{fingerprint[:12]}' of '{name[:80]}' waits for approval.")
        await asyncio.to_thread(self._approvals.add, {key: frozenset({fingerprint})})

    async def replace(self, catalog: merge.CatalogLike | None, policy: Policy) -> None:
        """Replace all sources and the policy. Items that were put stay. Nothing changes if it raises, and new sources are
        closed.

        Args:
            catalog: None: the sources stay as they are.
            policy: defaults under the policies of services and tools.

        Raises:
            CatalogError, PolicyError, ApprovalsError, ValueError: as :class:`Registry`.
        """
        await self._enter()
        if catalog is None:
            await self._activator.replace(lambda merger: merger.copy(merger.order, policy), tuple(self._followers))
            return
        async with self._changing:
            former = self._followers
            followers: dict[str, SourceFollower] = {}
            try:
                await self._replace_sources(merge.list_sources(catalog), policy, followers)
            except BaseException:
                await close_followers(each for id, each in followers.items() if former.get(id) is not each)
                raise
            for id, each in followers.items():
                if self._activator.is_running and former.get(id) is not each:
                    old = former[id].state if id in former else ""
                    if each.state != old:
                        self._observer.on_source_changed(id, old, each.state, each.problem)
                    self._start(each)
            for id, each in former.items():
                if id not in followers:
                    self._observer.on_source_changed(id, each.state, "removed")
            await close_followers(each for id, each in former.items() if followers.get(id) is not each)

    async def _replace_sources(
        self, sources: Sequence[Source], policy: Policy, followers: dict[str, SourceFollower]
    ) -> None:
        """Put the items of ``sources`` in force, and fill ``followers``. Nothing else changes if it raises."""
        found: dict[str, Sequence[Item]] = {}
        for source in sources:
            check_approvals(self._approvals, source)
            known = self._followers.get(source.id)
            if known is not None and known.source is source:
                followers[source.id] = known
                continue
            follower = followers[source.id] = self._follower_of(source)
            self._connect_to(follower, False)
            try:
                with ErrorBoundary():
                    found[source.id] = await source.discover()
            except CatalogError:
                raise
            except Exception as error:  # of a source, which may raise anything: it is out of reach, and is tried again
                follower.record(error)
            else:
                follower.set_ready()

        def build(former: merge.Merger) -> merge.Merger:
            kept = [id for id, each in followers.items() if each is self._followers.get(id)]
            merger = former.copy((merge.PUT, *kept), policy)
            for source in sources:
                if source.id not in kept:
                    self._add_to(merger, source)
            merger.load_items(found)
            merger.set_order((merge.PUT, *followers))
            return merger

        await self._activator.replace(build, tuple(followers))
        self._followers = followers  # in the same turn of the loop: no items of a former source are accepted in between

    async def refuse_conflicts(self, find: merge.FindConflicts) -> None:
        """Let each service for which ``find`` returns a problem keep its definition in force, from the next change on. An
        atomic source with such a service is refused as a whole."""
        await self._activator.run(lambda merger: setattr(merger, "find_conflicts", find))

    # -- items --------------------------------------------------------------------------------------------------

    async def put(self, kind: str, raw: Mapping[str, Any]) -> None:
        """Put a descriptor in force, before those of all sources. One that was put under its name and version is replaced.

        Args:
            kind: ``tool`` or ``tool-service``.
            raw: the descriptor, as the contents of its file.

        Raises:
            CatalogError: it is invalid; nothing has changed.
        """
        await self._enter()
        await self._activator.run(lambda merger: merger.put_item(kind, raw))
        await self._activator.activate(merge.PUT)

    async def remove(self, kind: str, key: str) -> None:
        """Remove a descriptor that was put. An item of the same name of a source comes into force.

        Args:
            kind: ``tool`` or ``tool-service``.
            key: its name or id; with a version: ``NAME@VERSION``.

        Raises:
            LookupError: it was not put.
        """
        await self._enter()
        await self._activator.run(lambda merger: merger.remove_item(kind, key))
        await self._activator.activate(merge.PUT)

    @property
    def catalog(self) -> Catalog:
        """The catalogue in force."""
        return self._activator.merged.catalog

    @property
    def merged(self) -> merge.Merged:
        """The catalogue in force with everything that is to be said about its sources."""
        return self._activator.merged

    def get(self, name: str) -> ToolDescriptor:
        """Return the tool with that name.

        Raises:
            UnknownToolError: there is none.
        """
        return self.catalog.tool(name)

    def list(self, **conditions: Unpack[ListConditions]) -> tuple[ToolDescriptor, ...]:
        """Return the tools in force that meet the conditions of :meth:`Catalog.list`."""
        return self.catalog.list(**conditions)

    @property
    def others(self) -> Mapping[str, merge.OtherTool]:
        """Tools that other runtimes execute, by name, each with its owner."""
        return self._activator.merged.others

    # -- followers ----------------------------------------------------------------------------------------------

    def _add_to(self, merger: merge.Merger, source: Source) -> None:
        check_approvals(self._approvals, source)
        is_atomic = bool(getattr(source, "is_atomic", False))
        merger.add_source(source.id, is_atomic=is_atomic, on_change=merge.on_change_of(source))
        if isinstance(source, merge.FixedCatalog):
            merger.set_catalog(source.id, source.catalog)

    def _follower_of(self, source: Source) -> SourceFollower:
        return SourceFollower(source, self._accept, self._on_state, self._randomness)

    def _connect_to(self, follower: SourceFollower, is_in_force: bool) -> None:
        self._connect(follower.source, is_in_force)
        follower.is_connected = True

    def _start(self, follower: SourceFollower) -> None:
        if not isinstance(follower.source, merge.FixedCatalog):
            self._connect_to(follower, True)
            follower.start()

    def _find(self, id: str) -> SourceFollower:
        check_instance("id", id, str, "the id of a source, such as 'tools'")
        follower = self._followers.get(id)
        if follower is None:
            known = ", ".join(self._followers) or "none"
            raise LookupError(f"there is no source '{id}'; the sources are: {known}.")
        return follower

    async def _accept(self, source: Source, items: Sequence[Item]) -> Sequence[Problem]:
        def accept(merger: merge.Merger) -> list[Problem] | None:
            follower = self._followers.get(source.id)
            if follower is None or follower.source is not source:
                raise LookupError(f"the source '{source.id}' was removed meanwhile.")
            merge.check_items(source, items)
            former = merger.items(source.id)
            if len(items) == len(former) and all(map(operator.is_, items, former)):
                return None
            return merger.set_items(source.id, items)

        problems = await self._activator.run(accept)
        if problems == []:
            await self._activator.activate(source.id)
        return problems or []

    def _on_state(self, follower: SourceFollower, former: SourceState) -> None:
        if self._followers.get(follower.source.id) is follower:
            self._observer.on_source_changed(follower.source.id, former, follower.state, follower.problem)

    def _on_activated(self, prepared: Prepared, causes: Collection[str], is_replaced: bool) -> None:
        merged, changes = prepared.merged, prepared.changes.tools
        if merged.first_seen and self._approval_watcher is not None:
            self._approval_watcher.add_first_seen(merged.first_seen)
        self._report_items(merged)
        if prepared.changes or is_replaced:
            names, tools = asdict(changes), len(merged.catalog.tools)
            self._observer.on_activated(causes, tools, names, prepared.fingerprints, is_reload=is_replaced)

    def _report_items(self, merged: merge.Merged) -> None:
        warnings = [each for report in merged.reports.values() for each in report.warnings]
        for warning in warnings:
            if warning not in self._warnings:
                logger.warning("%s", warning)
        self._warnings = frozenset(warnings)
        for id, report in merged.reports.items():
            self._observer.on_refused_items(id, report.describe_refused(id))
            self._observer.on_shadowed_items(id, report.shadowed)
            held = [HeldChange(each.source, each.name, each.old, each.new) for each in report.held]
            self._observer.on_held_changes(id, held)


async def _wait_ready(followers: Iterable[SourceFollower], return_when: str, timeout: float | None = None) -> None:
    """Wait for the first attempts of ``followers``, as ``asyncio.wait`` does."""
    waits = [asyncio.create_task(each.is_ready.wait()) for each in followers]
    try:
        if waits:
            await asyncio.wait(waits, timeout=timeout, return_when=return_when)
    finally:
        await cancel_and_wait(waits)
