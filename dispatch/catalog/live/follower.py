"""Follows one source: discovers its items at the start and after each change, and again when it is out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.permit import Randomness
from dispatch._internal.suggestions import excerpt
from dispatch._internal.user_code import ErrorBoundary, read_text, type_name, unwrap
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.base import Source, SourceState

logger = logging.getLogger("dispatch.catalog")

FIRST_RETRY_S: Final = 0.5
"""Seconds until a source that is out of reach is tried again; doubled each time."""
MAX_RETRY_S: Final = 30.0
JITTER: Final = 0.2
"""Share by which a wait varies, so that many dispatchers do not retry at the same instant."""
MAX_PROBLEM_CHARS: Final = 500
MAX_REPORTED: Final = 100
"""Problems of a source that are reported until it is ``ok``: some texts, with a time or a port, are never the same."""

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
        state, since, problem: see :class:`~dispatch.catalog.sources.base.SourceStatus`.
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
        self.error: Exception | None = None
        self.is_ready = asyncio.Event()
        self._accept = accept
        self._on_state = on_state
        self._randomness = randomness
        self._has_items = False
        self._attempt = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._wait = FIRST_RETRY_S
        self._reported: set[str] = set()
        """Problems since the source was ``ok``."""

    def set_ready(self) -> None:
        """Record that the items are in force already."""
        self._has_items = True
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
            try:
                with ErrorBoundary():
                    closing = getattr(self.source, "close", _do_nothing)()
                    if inspect.isawaitable(closing):
                        await closing
            except Exception as error:  # of a source, which may raise anything; the others are still to be closed
                logger.warning("the source '%s' cannot be closed: %s", self.source.id, describe_error(error))

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

    async def discover(self) -> None:
        """Discover the items now; ``error`` says how it went."""
        async with self._attempt:
            error: Exception | None = None
            try:
                with ErrorBoundary():
                    items = await self.source.discover()
                    problems = await self._accept(self.source, items)
                if problems:
                    error = CatalogError(problems)
                else:
                    self._has_items = True
            except Exception as raised:  # as above
                error = raised
            self.record(error)
            self.is_ready.set()

    def record(self, error: Exception | None) -> None:
        """Record how an attempt to read the source went."""
        former = self.state
        self.error = error
        self.problem = "" if error is None else describe_error(error)
        self.state = "ok" if error is None else "stale" if self._has_items else "failed"
        if self.state != former:
            self.since = time.time()
        is_new = self.problem not in self._reported and len(self._reported) < MAX_REPORTED
        if error is None:
            self._reported.clear()
        elif is_new:
            self._reported.add(self.problem)
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
    if isinstance(error, CatalogError):
        errors = [problem for problem in error.problems if problem.severity == "error"]
        more = f" (and {len(errors) - 1:,} more)" if len(errors) > 1 else ""
        return excerpt(f"{errors[0]}{more}" if errors else str(error), MAX_PROBLEM_CHARS)
    name, text = type_name(unwrap(error)), " ".join(read_text(unwrap(error)).split())
    return excerpt(f"{name}: {text}" if text else name, MAX_PROBLEM_CHARS)


_END: Final = object()


def _do_nothing() -> None:
    """Close a source that has no ``close()``."""


async def _await_change(changes: AsyncIterator[object]) -> object:
    with ErrorBoundary():  # this is a task: SystemExit, for example, would end the event loop
        return await anext(changes, _END)


async def _end_iteration(changes: AsyncIterator[object], change: asyncio.Task[object]) -> None:
    await cancel_and_wait((change,))
    close = getattr(changes, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception), ErrorBoundary():  # of a source; it is not used any more
            await close()
