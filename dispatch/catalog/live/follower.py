"""Follows one source: discovers its items at the start and after each change, and again when it is out of reach."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from dispatch._internal.cancellation import cancel_and_wait
from dispatch._internal.permit import Randomness
from dispatch._internal.suggestions import excerpt
from dispatch.catalog.errors import CatalogError, Problem
from dispatch.catalog.readers.item import Item
from dispatch.catalog.sources.base import Source, SourceState

FIRST_RETRY_S: Final = 0.5
"""Seconds until a source that is out of reach is tried again; doubled each time."""
MAX_RETRY_S: Final = 30.0
JITTER: Final = 0.2
"""Share by which a wait varies, so that the dispatchers of a fleet do not return at the same instant."""
MAX_PROBLEM_CHARS: Final = 500

Accept = Callable[[Source, Sequence[Item]], Awaitable[Sequence[Problem]]]
"""Puts the items of a source into the catalogue; returns the problems for which they are refused as a whole."""


class SourceFollower:
    """Follows one source.

    Args:
        source: to follow.
        accept: see :data:`Accept`.
        on_state: called after each change of the state or the problem.
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

    def set_ready(self) -> None:
        """Record that the items are in force already."""
        self._has_items = True
        self.record(None)
        self.is_ready.set()

    def start(self) -> None:
        """Begin to follow the source."""
        self._task = asyncio.create_task(self._follow(), name=f"dispatch-catalog-{self.source.id}")

    async def close(self) -> None:
        """Stop following the source and close it."""
        await cancel_and_wait((self._task,))
        close = getattr(self.source, "close", None)
        if close is not None:
            closing = close()
            if inspect.isawaitable(closing):
                await closing

    async def _follow(self) -> None:
        wait = FIRST_RETRY_S
        while True:
            changes = aiter(self.source.changes())
            change = asyncio.create_task(_await_change(changes))
            try:
                await asyncio.sleep(0)  # the iteration begins before the discovery: no change is missed
                while True:
                    await self.discover()
                    if self.error is None:
                        wait = FIRST_RETRY_S
                        if await change is _END:
                            return  # it announces no changes
                    else:
                        pause = wait * (1 - JITTER + 2 * JITTER * self._randomness())
                        wait = min(wait * 2, MAX_RETRY_S)
                        done, _ = await asyncio.wait((change,), timeout=pause)
                        if not done:
                            continue
                        wait = FIRST_RETRY_S
                        if change.result() is _END:
                            await asyncio.sleep(pause)
                            break
                    change = asyncio.create_task(_await_change(changes))
            except Exception as error:  # of a source, which may raise anything; it is reported
                self.record(error)
                await asyncio.sleep(wait * (1 - JITTER + 2 * JITTER * self._randomness()))
                wait = min(wait * 2, MAX_RETRY_S)
            finally:
                await _end_iteration(changes, change)

    async def discover(self) -> None:
        """Discover the items now; ``error`` says how it went."""
        async with self._attempt:
            error: Exception | None = None
            try:
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
        former, problem = self.state, "" if error is None else describe_error(error)
        self.error = error
        self.state = "ok" if error is None else "stale" if self._has_items else "failed"
        if self.state != former:
            self.since = time.time()
        if self.state != former or problem != self.problem:
            self.problem = problem
            self._on_state(self, former)


def describe_error(error: Exception) -> str:
    """Return the reason of a failure in one line."""
    if isinstance(error, CatalogError):
        errors = [problem for problem in error.problems if problem.severity == "error"]
        more = f" (and {len(errors) - 1:,} more)" if len(errors) > 1 else ""
        return excerpt(f"{errors[0]}{more}" if errors else str(error), MAX_PROBLEM_CHARS)
    text = " ".join(str(error).split())
    return excerpt(f"{type(error).__name__}: {text}" if text else type(error).__name__, MAX_PROBLEM_CHARS)


_END: Final = object()


async def _await_change(changes: AsyncIterator[object]) -> object:
    return await anext(changes, _END)


async def _end_iteration(changes: AsyncIterator[object], change: asyncio.Task[object]) -> None:
    await cancel_and_wait((change,))
    close = getattr(changes, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception):  # of a source; it is not used any more
            await close()
