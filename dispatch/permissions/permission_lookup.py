"""Asks an application's callable for the grants of a user: one request for concurrent callers, with a time limit, cached."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

import msgspec

from dispatch._internal.clock import loop_clock
from dispatch._internal.daemon_executor import DaemonThreads
from dispatch._internal.user_code import ErrorBoundary, type_name, unwrap
from dispatch.permissions.grants import InvalidAnswerError, check_answer
from dispatch.permissions.permission_set import PermissionSet
from dispatch.telemetry.logs import TransitionLogger

GrantsFunction = Callable[[str], Collection[str] | Awaitable[Collection[str]]]
"""Returns the grants of a user: permissions, wildcards and denials."""

LOOKUP_TIMEOUT_S: Final = 1.0
"""Seconds for one request. A call waits for it, within its own deadline, before its tool is executed."""
CACHE_S: Final = 60.0
"""Seconds for which an answer is used: a revoked permission is in force within that time."""
FAILURE_CACHE_S: Final = 1.0
"""Seconds after a failure in which the callable is not asked again for that user, and calls fail at once."""
MAX_CACHED_USERS: Final = 10_000
"""Users whose answers are cached; beyond that the one that was used longest ago is evicted."""
MAX_THREADS: Final = 16
"""Threads for a synchronous callable. A request that hangs occupies its thread until it returns."""

logger = logging.getLogger("dispatch.permissions")


class Answer(msgspec.Struct):
    """The permissions of a user, None after a failure, and until when they are used, on the loop's clock."""

    permissions: PermissionSet | None
    expires_at: float


class _Pending(msgspec.Struct):
    """A request, and when it fails at the latest, on the loop's clock."""

    task: asyncio.Task[PermissionSet | None]
    expires_at: float


class PermissionLookup:
    """Asks ``function`` for the grants of users, on one event loop.

    A coroutine function runs on the loop. Any other callable runs in a thread, always: it may read a file or a database,
    which would stop all calls and could not be limited in time, and the thread's cost (some 100 µs for each user and minute)
    does not matter.

    Args:
        function: see :data:`GrantsFunction`.

    Attributes:
        answers: the cached ones by user, the one that was used longest ago first.
        is_closed: no request begins any more.
    """

    def __init__(self, function: GrantsFunction) -> None:
        self._function: Callable[[str], Any] = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - the method of an object, to see whether it is a coroutine
        )
        self.answers: OrderedDict[str, Answer] = OrderedDict()
        self._pending: dict[str, _Pending] = {}
        self._threads = DaemonThreads("dispatch-permissions")
        self._free_threads = asyncio.Semaphore(MAX_THREADS)
        self._log = TransitionLogger(logger, time.monotonic)
        self._called: set[asyncio.Future[Any]] = set()
        self.is_closed = False

    def cached(self, user: str, now: float) -> Answer | None:
        """Return the answer that is cached for ``user`` at ``now``, on the loop's clock; None: there is none."""
        answer = self.answers.get(user)
        if answer is None or now >= answer.expires_at:
            return None
        self.answers.move_to_end(user)
        return answer

    async def fetch(self, user: str, timeout: float) -> PermissionSet | None:
        """Return the permissions of ``user``; None: they are not known after ``timeout`` seconds, or the callable has
        failed. Concurrent callers share one request; the cancellation of one of them does not end it."""
        now = loop_clock()
        if (answer := self.cached(user, now())) is not None:
            return answer.permissions
        pending = self._pending.get(user)
        if pending is None:
            if self.is_closed:
                return None
            task = asyncio.get_running_loop().create_task(self._request(user))
            pending = self._pending[user] = _Pending(task, now() + LOOKUP_TIMEOUT_S)
        task = pending.task
        # A coroutine that swallows its cancellation outlives its limit: callers do not wait for it.
        await asyncio.wait((task,), timeout=max(0.0, min(timeout, pending.expires_at - now())))
        if not task.done() or task.cancelled():
            return None
        return task.result()

    async def _request(self, user: str) -> PermissionSet | None:
        permissions = None
        try:
            async with asyncio.timeout(LOOKUP_TIMEOUT_S):
                with ErrorBoundary():
                    grants = self._function(user) if self._is_async else await self._call_in_thread(user)
                    if inspect.isawaitable(grants):
                        grants = await grants
                    permissions = PermissionSet(check_answer(grants))
        except Exception as error:
            self._report(error)
        finally:
            del self._pending[user]
            self._store(user, permissions)
        return permissions

    async def _call_in_thread(self, user: str) -> Any:
        await self._free_threads.acquire()
        try:
            called = asyncio.get_running_loop().run_in_executor(self._threads, self._function, user)
        except BaseException:
            self._free_threads.release()
            raise
        self._called.add(called)
        called.add_done_callback(self._on_thread_returned)  # may be long after the time limit
        return await asyncio.shield(called)

    def _on_thread_returned(self, called: asyncio.Future[Any]) -> None:
        self._called.discard(called)
        self._free_threads.release()
        if not called.cancelled():
            called.exception()  # asyncio logs errors that are never retrieved

    def _store(self, user: str, permissions: PermissionSet | None) -> None:
        duration = FAILURE_CACHE_S if permissions is None else CACHE_S
        self.answers[user] = Answer(permissions, loop_clock()() + duration)
        self.answers.move_to_end(user)
        if len(self.answers) > MAX_CACHED_USERS:
            self.answers.popitem(last=False)

    def _report(self, error: Exception) -> None:
        """Log a failure, limited in rate for each type of it: without the user, and without the text of a foreign exception,
        which may contain user data or credentials."""
        name = type_name(unwrap(error))
        text = str(error) if isinstance(error, InvalidAnswerError) else name
        self._log.log(
            logging.WARNING, (text,), f"calls are refused, because the callable in grants= failed: {text}", error=name
        )

    async def close(self) -> None:
        """End the requests; their callers get None. A thread that hangs is abandoned."""
        self.is_closed = True
        tasks = [pending.task for pending in self._pending.values()]
        for each in (*tasks, *self._called):
            each.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LOOKUP_TIMEOUT_S)  # a coroutine may swallow its cancellation
