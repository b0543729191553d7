"""Puts changes of the catalogue in force: merged in a thread of their own, coalesced, at most ten times per second."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

from dispatch._internal import (
    OTHER_LOOP,
    ErrorBoundary,
    Randomness,
    cancel_and_wait,
    excerpt,
    is_kind,
    read_text,
    retrieve_error,
    run_in_thread,
    type_name,
    unwrap,
    wait_shared,
)
from dispatch.catalog.catalog import CatalogChanges
from dispatch.catalog.descriptors import CatalogError
from dispatch.catalog.items import Item, Source, SourceState
from dispatch.catalog.merge import Merged, Merger
from dispatch.documents import Problem

# When a changed catalogue comes into force: changes are coalesced, and the number of activations is limited.


COALESCE_S: Final = 0.05
"""Seconds from the first change to its activation: changes meanwhile are part of it. A folder that is copied is one change,
and an operator does not notice the delay."""
MIN_INTERVAL_S: Final = 0.1
"""Seconds between two activations: at most ten per second, however fast a source changes."""


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
        self._activated_at = -math.inf
        """On the clock of the event loop."""
        self._worker: ThreadPoolExecutor | None = None
        """One thread: while there is one, it alone uses the merger."""
        self._activating = asyncio.Lock()
        self._merging = asyncio.Lock()
        """Held while the merger is used, and until a replacement of it is in force."""
        self._changed = asyncio.Event()
        self._causes: set[str] = set()
        self._next: asyncio.Future[None] | None = None
        """The next activation, which changes wait for; None: there is no change."""
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._put_in_force(self._prepare(merger), ())

    @property
    def is_running(self) -> bool:
        """Whether it was started and not closed."""
        return self._worker is not None

    def start(self) -> None:
        """Begin to activate changes, on the running event loop."""
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="dispatch-catalog")
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._activate_changes(), name="dispatch-catalog-activation")

    def check_loop(self) -> None:
        """Check that the running event loop is the one of the start.

        Raises:
            RuntimeError: it is another one, whose changes would wait for ever.
        """
        if self._worker is not None and asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(OTHER_LOOP)

    async def close(self) -> None:
        """Activate nothing more. A change that is not in force yet fails with RuntimeError."""
        await cancel_and_wait((self._task,))
        self.abandon()
        if self._next is not None:
            self._next.set_exception(_closed())
            self._next = None

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
            task = asyncio.current_task()
            if self._worker is None and (task is None or not task.cancelling()):
                raise _closed() from None  # the close has cancelled the future, rather than this task
            raise

    async def activate(self, source: str) -> None:
        """Return when all changes until now are in force; ``source`` has caused them."""
        self._causes.add(source)
        if self._worker is None:
            self._put_in_force(self._prepare(self._merger), self._pop_causes())
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            self._next.add_done_callback(retrieve_error)  # also of one that nothing waits for any more
            self._changed.set()
        await wait_shared(self._next)

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
            self._activated_at = asyncio.get_running_loop().time()
        self._on_activated(prepared, causes, is_replaced)

    def _pop_causes(self) -> set[str]:
        causes, self._causes = self._causes, set()
        return causes

    async def _activate_changes(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            now = loop.time()
            await asyncio.sleep(max(COALESCE_S, self._activated_at + MIN_INTERVAL_S - now))
            self._changed.clear()
            activation, self._next = self._next, None
            assert activation is not None  # there is a change
            try:
                async with self._activating:
                    self._put_in_force(await self.run(self._prepare), self._pop_causes())
                activation.set_result(None)
            except Exception as error:  # the next change must still be activated
                logger.exception("the changed catalogue cannot be activated; the former one stays in force")
                self._activated_at = loop.time()
                activation.set_exception(error)
            finally:
                if not activation.done():  # the task is cancelled
                    activation.set_exception(_closed())


def _closed() -> RuntimeError:
    return RuntimeError(
        "the dispatcher was closed before the change of its catalogue was in force. Fix: repeat the change after connect()."
    )


# Follows one source: discovers its items at the start and after each change, and again when it is out of reach.


FIRST_RETRY_S: Final = 0.5
"""Seconds until a source that is out of reach is tried again; doubled each time."""
MAX_RETRY_S: Final = 30.0
JITTER: Final = 0.2
"""Share by which a wait varies, so that many dispatchers do not retry at the same instant."""
MAX_PROBLEM_CHARS: Final = 500
MAX_REPORTED: Final = 100
"""Reports of further problems of a source until it is ``ok``: some texts, with a time or a port, are never the same."""

Accept = Callable[[Source, Sequence[Item]], Awaitable[Sequence[Problem]]]
"""Puts the items of a source into the catalogue; returns the problems for which they are refused as a whole."""


class SourceFollower:
    """Follows one source.

    Args:
        source: to follow.
        accept: see :data:`Accept`.
        on_state: called after each change of the state, and once for each further problem until the source is ``ok``.
        randomness: of the waits.

    Attributes:
        state, since, problem: see :class:`~dispatch.catalog.items.SourceStatus`.
        is_connected: the source has what it needs of the dispatcher.
        error: of the last attempt; None: it succeeded.
        is_ready: set after the first attempt.
    """

    def __init__(
        self,
        source: Source,
        accept: Accept,
        on_state: Callable[[SourceFollower, SourceState], object],
        randomness: Randomness,
    ) -> None:
        self.source = source
        self.state: SourceState = "failed"
        self.since = time.time()
        self.problem = "not read yet"
        self.is_connected = False
        self.error: Exception | None = None
        self.is_ready = asyncio.Event()
        self._accept = accept
        self._on_state = on_state
        self._randomness = randomness
        self._attempt = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._wait = FIRST_RETRY_S
        self._reported: set[int] = set()
        """Hashes of the problems that were reported since the source was ``ok``."""
        self._reports = 0

    def set_ready(self) -> None:
        """Record that the items are in force already."""
        self.record(None)
        self.is_ready.set()

    def start(self) -> None:
        """Begin to follow the source."""
        self._task = asyncio.create_task(self._follow(), name=f"dispatch-catalog-{self.source.id}")

    async def close(self) -> None:
        """Stop following the source and close it. An error of its ``close()`` is written to the log."""
        try:
            await cancel_and_wait((self._task,))
        finally:
            self.is_ready.set()  # an add_source() that waits for the first items
            # One that serves a single dispatcher may serve another one.
            is_own = self.is_connected or not hasattr(self.source, "use_providers")
            try:
                with ErrorBoundary():
                    closing = getattr(self.source, "close", _do_nothing)() if is_own else None
                    if inspect.isawaitable(closing):
                        await closing
            except Exception as error:  # of a source, which may raise anything; the others are still to be closed
                logger.warning("the source '%s' cannot be closed: %s", self.source.id, describe_error(error))

    def abandon(self) -> None:
        """Release the source, because the event loop has ended."""
        if self.is_connected:
            getattr(self.source, "abandon", _do_nothing)()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                with ErrorBoundary():
                    await self._follow_changes()
            except Exception as error:  # of a source, which may raise anything; it is reported
                self.record(error)
                self.is_ready.set()
            if loop.time() - began >= MAX_RETRY_S:  # otherwise it fails again and again
                self._wait = FIRST_RETRY_S
            await asyncio.sleep(self._next_wait())

    async def _follow_changes(self) -> None:
        """Discover the items now and after each change, until the source announces no more changes."""
        changes = aiter(self.source.changes())
        change = asyncio.create_task(_await_change(changes))
        try:
            await asyncio.sleep(0)  # the iteration begins before the discovery: no change is missed
            while True:
                await self.discover()
                if self.error is not None:
                    done, _ = await asyncio.wait((change,), timeout=self._next_wait())
                    if not done:
                        continue
                if await change is _END:
                    return
                self._wait = FIRST_RETRY_S  # the source is in reach
                change = asyncio.create_task(_await_change(changes))
        finally:
            await _end_iteration(changes, change)

    def _next_wait(self) -> float:
        """Return the seconds until the next attempt; the one after it is later."""
        wait, self._wait = self._wait, min(self._wait * 2, MAX_RETRY_S)
        return wait * (1 - JITTER + 2 * JITTER * self._randomness())

    async def try_again(self, limit: float) -> None:
        """Read a source that has failed again, if it can be asked to try at once.

        Args:
            limit: seconds, at most.
        """
        if await getattr(self.source, "try_again", _cannot_try)(limit):
            await self.discover(only_failed=True)

    async def settle(self) -> None:
        """Read a source again whose items depend on those of others, and have changed by them."""
        if hasattr(self.source, "is_outdated"):
            async with self._attempt:  # one may be under way
                is_outdated = self.source.is_outdated
            if is_outdated:
                await self.discover()

    async def discover(self, *, only_failed: bool = False) -> None:
        """Discover the items now, ``only_failed``: unless another attempt has; ``error`` says how it went."""
        async with self._attempt:
            if only_failed and self.state != "failed":
                return
            error: Exception | None = None
            try:
                with ErrorBoundary():
                    items = await self.source.discover()
                    problems = await self._accept(self.source, items)
                if problems:
                    error = CatalogError(problems)
            except Exception as raised:  # as above
                error = raised
            self.record(error)
            self.is_ready.set()

    def record(self, error: Exception | None) -> None:
        """Record how an attempt to read the source went."""
        former = self.state
        self.error = error
        problems = [] if error is None else _list_problems(error)
        new = [each for each in problems if hash(each) not in self._reported]
        self.problem = _summarize([*new, *(each for each in problems if hash(each) in self._reported)])
        self.state = "ok" if error is None else "failed" if former == "failed" else "stale"
        if self.state != former:
            self.since = time.time()
        is_new = bool(new) and self._reports < MAX_REPORTED
        if error is None:
            self._reported.clear()
            self._reports = 0
        elif is_new:
            self._reported.update(map(hash, new))
            self._reports += 1
        if self.state != former or (error is not None and is_new):
            self._on_state(self, former)


async def close_followers(followers: Iterable[SourceFollower]) -> None:
    """Close ``followers`` at the same time, every one also when this is cancelled."""
    closing = [asyncio.ensure_future(follower.close()) for follower in followers]
    try:
        if closing:
            await asyncio.wait(closing)
    except asyncio.CancelledError:
        await cancel_and_wait(closing)
        raise


def describe_error(error: Exception) -> str:
    """Return the reason of a failure in one line."""
    return _summarize(_list_problems(error))


def _list_problems(error: Exception) -> list[str]:
    if is_kind(error, CatalogError):
        return [str(each) for each in error.problems if each.severity == "error"] or [str(error)]
    name, text = type_name(unwrap(error)), " ".join(read_text(unwrap(error)).split())
    return [f"{name}: {text}" if text else name]


def _summarize(problems: Sequence[str]) -> str:
    """Return the first problem and the number of the others."""
    more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
    return excerpt(f"{problems[0]}{more}", MAX_PROBLEM_CHARS) if problems else ""


_END: Final = object()


def _do_nothing() -> None:
    """Close a source that has no ``close()``."""


async def _cannot_try(_limit: float) -> bool:
    """Try a source again that has no ``try_again()``."""
    return False


async def _await_change(changes: AsyncIterator[object]) -> object:
    with ErrorBoundary():  # this is a task: SystemExit, for example, would end the event loop
        return await anext(changes, _END)


async def _end_iteration(changes: AsyncIterator[object], change: asyncio.Task[object]) -> None:
    await cancel_and_wait((change,))
    close = getattr(changes, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception), ErrorBoundary():  # of a source; it is not used any more
            await close()
