"""Puts changes of the catalogue in force: merged in a thread of their own, coalesced, at most ten times per second."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from dispatch._internal.cancellation import cancel_and_wait
from dispatch.catalog.changes import CatalogChanges
from dispatch.catalog.live.merge import Merged, Merger
from dispatch.catalog.live.schedule import ActivationSchedule
from dispatch.catalog.sources.background import run_in_thread

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
        self._merging = asyncio.Lock()
        """Held while the merger is used, and until a replacement of it is in force."""
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
        """Activate nothing more. A change that is not in force yet fails with RuntimeError."""
        await cancel_and_wait((self._task,))
        self.abandon()
        waiting, self._waiting = self._waiting, []
        _fail(waiting, _closed())

    def abandon(self) -> None:
        """Release the thread."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[Merger], T]) -> T:
        """Return ``function(merger)``. It runs in the thread of the merger, before the start and after the close in the
        caller's.

        Raises:
            RuntimeError: the dispatcher was closed before the function began.
        """
        async with self._merging:
            return await self._run(function)

    async def _run(self, function: Callable[[Merger], T]) -> T:
        if self._worker is None:
            return function(self._merger)
        try:
            return await run_in_thread(partial(function, self._merger), self._worker)
        except asyncio.CancelledError:
            if (
                self._worker is None and not _is_cancelling()
            ):  # the close has cancelled the future, rather than this task
                raise _closed() from None
            raise

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
        """Put the catalogue of another merger in force. An exception or a cancellation leaves everything as it is.

        Args:
            build: makes the other merger from the former one, which it does not change.
            sources: ids of its sources.
        """

        def prepare(former: Merger) -> tuple[Merger, Prepared]:
            merger = build(former)
            return merger, self._prepare(merger)

        async with self._activating, self._merging:  # what is prepared next refers to what is in force
            merger, prepared = await self._run(prepare)
            self._merger = merger
            self._put_in_force(prepared, sources, is_replaced=True)

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
                _fail(waiting, error)
            else:
                for waiter in waiting:
                    if not waiter.done():
                        waiter.set_result(None)
            finally:
                _fail(waiting, _closed())  # those that are not done: the task is cancelled


def _fail(waiting: Iterable[asyncio.Future[None]], error: Exception) -> None:
    for waiter in waiting:
        if not waiter.done():
            waiter.set_exception(error)


def _closed() -> RuntimeError:
    return RuntimeError(
        "the dispatcher was closed before the change of its catalogue was in force. Fix: repeat the change after connect()."
    )


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
