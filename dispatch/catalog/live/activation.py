"""Puts changes of the catalogue in force: merged in a thread of their own, coalesced, at most ten times per second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeVar

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.catalog.changes import CatalogChanges
from dispatch.catalog.live.merge import Merged, Merger
from dispatch.catalog.live.schedule import ActivationSchedule

T = TypeVar("T")

logger = logging.getLogger("dispatch.catalog")


class Prepared(NamedTuple):
    """A merged catalogue that is ready to come into force.

    Attributes:
        merged: the catalogue.
        activate: puts it in force, on the event loop: one assignment, and work for what has changed.
        changes: since the catalogue in force.
        fingerprints: of added and changed tools, by name.
    """

    merged: Merged
    activate: Callable[[], None]
    changes: CatalogChanges
    fingerprints: Mapping[str, str]


class CatalogTarget(Protocol):
    """Puts merged catalogues in force."""

    def prepare(self, merged: Merged) -> Prepared:
        """Prepare ``merged``. Called in another thread, because it may take as long as the catalogue is large.

        Raises:
            PolicyError: the policy of a service or tool is invalid together with the defaults.
        """
        ...


OnActivated = Callable[[Prepared, Collection[str], bool], object]
"""Called on the event loop after an activation, with the ids of the sources that caused it, and whether all sources or the
policy were replaced."""


class Activator:
    """Activates the catalogue of a merger.

    Args:
        merger: of the sources; its catalogue comes into force at once.
        target: puts catalogues in force.
        on_activated: see :data:`OnActivated`.

    Attributes:
        merged: the merge in force.
    """

    def __init__(self, merger: Merger, target: CatalogTarget, on_activated: OnActivated) -> None:
        self._merger = merger
        self._target = target
        self._on_activated = on_activated
        self._schedule = ActivationSchedule()
        self._worker: ThreadPoolExecutor | None = None
        """One thread: while there is one, it alone uses the merger."""
        self._activating = asyncio.Lock()
        self._changed = asyncio.Event()
        self._causes: set[str] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._put_in_force(self._prepare(merger), ())

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._worker is not None

    def start(self) -> None:
        """Begin to activate changes, on the running event loop."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dispatch-catalog")
        self._task = asyncio.create_task(self._activate_changes(), name="dispatch-catalog-activation")

    async def close(self) -> None:
        """Activate nothing more."""
        await cancel_and_wait((self._task,))
        self.abandon()
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.cancel()

    def abandon(self) -> None:
        """Release the thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[Merger], T]) -> T:
        """Return ``function(merger)``. It runs in the thread of the merger, before the start and after the close in the
        caller's."""
        if self._worker is None:
            return function(self._merger)
        return await asyncio.get_running_loop().run_in_executor(self._worker, lambda: function(self._merger))

    async def activate(self, source: str) -> None:
        """Return when all changes until now are in force; ``source`` has caused them."""
        self._causes.add(source)
        if self._worker is None:
            self._put_in_force(self._prepare(self._merger), self._pop_causes())
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._changed.set()
        await waiter

    async def replace(self, build: Callable[[Merger], Merger], sources: Collection[str]) -> None:
        """Put the catalogue of another merger in force. An exception leaves everything as it is.

        Args:
            build: makes the other merger from the former one, which it does not change.
            sources: ids of its sources.
        """

        def prepare(former: Merger) -> Prepared:
            merger = build(former)
            prepared = self._prepare(merger)
            self._merger = merger
            return prepared

        async with self._activating:  # what is prepared next refers to what is in force
            self._put_in_force(await self.run(prepare), sources, is_replaced=True)

    def _prepare(self, merger: Merger) -> Prepared:
        return self._target.prepare(merger.merge())

    def _put_in_force(self, prepared: Prepared, causes: Collection[str], *, is_replaced: bool = False) -> None:
        prepared.activate()
        self.merged = prepared.merged
        if self._worker is not None:
            self._schedule.record_activation(asyncio.get_running_loop().time())
        self._on_activated(prepared, causes, is_replaced)

    def _pop_causes(self) -> set[str]:
        causes, self._causes = self._causes, set()
        return causes

    async def _activate_changes(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            now = loop.time()
            await asyncio.sleep(self._schedule.due_at(now) - now)
            self._changed.clear()
            waiting, self._waiting = self._waiting, []
            try:
                async with self._activating:
                    self._put_in_force(await self.run(self._prepare), self._pop_causes())
            except Exception as error:  # the next change must still be activated
                logger.exception("the changed catalogue cannot be activated; the former one stays in force")
                self._schedule.record_activation(loop.time())
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_exception(error)
            else:
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(None)
            finally:
                for waiter in waiting:
                    waiter.cancel()
