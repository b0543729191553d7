"""Authorization of calls: which user may call, and so see, which tool."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from typing import Any, Final

import msgspec

from dispatch._internal import (
    DaemonThreads,
    ErrorBoundary,
    describe_type,
    is_kind,
    loop_clock,
    type_name,
    unwrap,
    wait_shared,
)
from dispatch.permissions.grants import (
    GRANTED,
    NO_PERMISSIONS,
    Decision,
    Grants,
    InvalidAnswerError,
    PermissionSet,
    Requirement,
    check_answer,
    watch_grants,
)
from dispatch.telemetry.events import Listeners, TransitionLogger

# Asks an application's callable for the grants of a user: one request for concurrent callers, with a time limit, cached.


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
        return await wait_shared(called)

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
        text = str(error) if is_kind(error, InvalidAnswerError) else name
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


_UNAVAILABLE: Final = Decision("unavailable")


def _cache_permissions(grants: Grants) -> Callable[[str], PermissionSet]:
    """Return ``grants.permissions_of`` with a cache. A changed file replaces the function in one assignment, so that no
    permissions of former grants are used."""
    return lru_cache(MAX_CACHED_USERS)(grants.permissions_of)


class Authorizer:
    """Decides about calls for one dispatcher. Tools without permissions need no decision.

    Args:
        grants: the grants of all users, or a callable that returns those of one. None: there are none, and every call of a
            tool with permissions is refused.

    Raises:
        TypeError: ``grants`` is something else.
    """

    def __init__(self, grants: Grants | GrantsFunction | None = None) -> None:
        self._permissions_of = _cache_permissions(grants) if isinstance(grants, Grants) else None
        self._watcher = watch_grants(grants, self._apply) if isinstance(grants, Grants) and grants.path else None
        self._lookup: PermissionLookup | None = None
        self._on_change: Listeners[Grants] = Listeners("a listener of grants")
        if grants is not None and not isinstance(grants, Grants):
            if not callable(grants) or isinstance(grants, type):
                raise TypeError(
                    f"grants must be dispatch.Grants or a callable, not {describe_type(grants)}; load a file with "
                    "dispatch.Grants.load(FILE), or give the content of one to dispatch.Grants.of({…})"
                )
            self._lookup = PermissionLookup(grants)

    @property
    def has_grants(self) -> bool:
        """Whether users differ in what they may call."""
        return self._permissions_of is not None or self._lookup is not None

    @property
    def is_closed(self) -> bool:
        """Whether no permissions can be asked for any more."""
        return self._lookup is not None and self._lookup.is_closed

    def start(self) -> None:
        """Begin to watch the file of the grants, if they have one."""
        if self._watcher is not None:
            self._watcher.start()

    async def close(self) -> None:
        """Stop watching, and end the requests of the callable."""
        self.abandon()
        if self._lookup is not None:
            await self._lookup.close()

    def abandon(self) -> None:
        """Stop watching: all that :meth:`close` does without the event loop."""
        if self._watcher is not None:
            self._watcher.close()

    def _apply(self, grants: Grants) -> None:
        self._permissions_of = _cache_permissions(grants)
        self._on_change.publish(grants)

    def subscribe(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call ``listener``, in another thread, when the file of the grants changes. Return a function that removes it."""
        return self._on_change.subscribe(lambda _: listener())

    # -- decisions on calls -------------------------------------------------------------------------------------

    def decide(self, user: str, requirement: Requirement, now: float) -> Decision | None:
        """Decide at once whether ``user`` may call a tool. None: not cached, use :meth:`resolve`; or ``user`` is no text.

        Args:
            now: on the loop's clock.
        """
        permissions_of, lookup = self._permissions_of, self._lookup
        if permissions_of is not None:
            try:
                permissions = permissions_of(user)
            except TypeError:  # it cannot be hashed
                return None
            return GRANTED if requirement in permissions.satisfied else permissions.decide(requirement)
        if lookup is None:
            return Decision("no-grants", requirement.permissions[0])
        try:
            answer = lookup.answers.get(user)
        except TypeError:
            return None
        if answer is None or now >= answer.expires_at:
            return None
        lookup.answers.move_to_end(user)
        found = answer.permissions
        if found is None:
            return _UNAVAILABLE
        return GRANTED if requirement in found.satisfied else found.decide(requirement)

    async def resolve(self, user: str, requirement: Requirement, timeout: float = LOOKUP_TIMEOUT_S) -> Decision:
        """Ask for the permissions of ``user``, for at most ``timeout`` seconds, and decide."""
        permissions = await self.fetch_permissions(user, timeout)
        return _UNAVAILABLE if permissions is None else permissions.decide(requirement)

    # -- visibility ---------------------------------------------------------------------------------------------

    def known_permissions(self, user: str, now: float) -> PermissionSet:
        """Return the permissions of ``user`` as far as they are known at once, to hide the tools that the user may not call
        (:meth:`PermissionSet.permits`). While the answer of a callable is not cached there are none: all tools with
        permissions are hidden.

        Args:
            now: on the loop's clock.
        """
        if not isinstance(user, str):  # the call is refused for that
            return NO_PERMISSIONS
        permissions_of, lookup = self._permissions_of, self._lookup
        if permissions_of is not None:
            return permissions_of(user)
        answer = None if lookup is None else lookup.cached(user, now)
        return NO_PERMISSIONS if answer is None or answer.permissions is None else answer.permissions

    async def fetch_permissions(self, user: str, timeout: float = LOOKUP_TIMEOUT_S) -> PermissionSet | None:
        """Return the permissions of ``user``; None: they could not be resolved."""
        if self._lookup is not None:
            return await self._lookup.fetch(user, timeout)
        return NO_PERMISSIONS if self._permissions_of is None else self._permissions_of(user)
