"""Permissions: which user may call, and so see, which tool.

A tool requires permissions (:class:`Requirement`), a user holds grants (:class:`PermissionSet`), from :class:`Grants` (an
immutable value, from a file or a mapping) or a callable; the :class:`Authorizer` decides. Everything that is unknown refuses
the call.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from dispatch import documents
from dispatch._internal import (
    DaemonThreads,
    ErrorBoundary,
    describe_type,
    excerpt,
    explain_keywords,
    is_kind,
    loop_clock,
    type_name,
    unwrap,
    wait_shared,
)
from dispatch.telemetry.events import Listeners, TransitionLogger

logger = logging.getLogger("dispatch.permissions")

# The error.


class GrantsError(ValueError):
    """The grants are invalid. ``str()`` lists every problem with its key and fix.

    Attributes:
        file: path of the file; empty: the grants are no file.
        problems: the problems.
    """

    def __init__(self, file: str, problems: Iterable[documents.Problem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        where = f" of '{file}'" if file else ""
        super().__init__(documents.list_mistakes(f"The grants{where} cannot be loaded", self.problems))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.problems)


# Matching of permissions: what a tool requires, and what a user holds. Pure.
#
# A permission is a text of segments between colons, such as ``tools:jokes``. A grant is a permission, or a wildcard that
# ends in ``*`` as its last segment: ``tools:*`` grants every permission that begins with ``tools:``, and ``*`` grants all.
# A grant that begins with ``!`` denies what it matches. A denial wins over every grant, wherever the two come from.


MAX_PERMISSION_CHARS: Final = 256
"""Characters of one permission or grant: it appears in errors and log lines."""
MAX_SATISFIED: Final = 32
"""Requirements that are remembered for each user: the memory for 10,000 users stays below 32 MB."""
DENY: Final = "!"
WILDCARD: Final = "*"
SEPARATOR: Final = ":"

Reason = Literal["granted", "not-granted", "denied", "no-grants", "unavailable"]


class Decision(msgspec.Struct, frozen=True):
    """Whether a user may call a tool, and why.

    Attributes:
        reason: ``granted``: allowed. All others refuse the call: ``not-granted``: no grant matches; ``denied``: a denial
            matches; ``no-grants``: the dispatcher has no grants at all; ``unavailable``: the user's grants are not known,
            because they could not be resolved.
        permission: the first permission that the user lacks; empty: none, or not known.
    """

    reason: Reason
    permission: str = ""

    @property
    def is_allowed(self) -> bool:
        """Whether the user may call the tool."""
        return self.reason == "granted"


GRANTED: Final = Decision("granted")


class Requirement(msgspec.Struct, frozen=True, eq=False):
    """The permissions that a tool requires, all of them. Create it with :func:`require_permissions`: equal ones are mostly
    one object, and are compared as such.

    Attributes:
        permissions: without duplicates, those of the tool first.
        covers: for each permission all grants that match it: itself first, then each wildcard over it. So a check intersects
            sets, and its cost depends neither on the number of grants nor on the number of tools.
    """

    permissions: tuple[str, ...]
    covers: tuple[tuple[str, ...], ...]


@lru_cache(maxsize=4096)
def _requirement_of(permissions: tuple[str, ...]) -> Requirement:
    return Requirement(permissions, tuple(_list_covers(permission) for permission in permissions))


def require_permissions(*permissions: tuple[str, ...]) -> Requirement | None:
    """Return the requirement of a tool with ``permissions``: its own, and those of its service. None: it requires none."""
    wanted = tuple(dict.fromkeys(each for part in permissions for each in part))
    return _requirement_of(wanted) if wanted else None


def _list_covers(permission: str) -> tuple[str, ...]:
    """Return all grants that match ``permission``: ``a:b`` is matched by ``a:b``, ``a:*`` and ``*``."""
    segments = permission.split(SEPARATOR)
    wildcards = [SEPARATOR.join([*segments[:count], WILDCARD]) for count in range(len(segments))]
    return (permission, *reversed(wildcards))


class PermissionSet:
    """The grants of one user. Immutable.

    Args:
        grants: valid ones (:func:`check_grant`).

    Attributes:
        allowed: the grants.
        denied: the denials, without their ``!``.
        satisfied: requirements that these grants were found to satisfy, at most :data:`MAX_SATISFIED`.
    """

    __slots__ = ("allowed", "denied", "satisfied")

    def __init__(self, grants: Iterable[str] = ()) -> None:
        texts = frozenset(grants)
        self.allowed = frozenset(text for text in texts if not text.startswith(DENY))
        self.denied = frozenset(text[1:] for text in texts if text.startswith(DENY))
        self.satisfied: set[Requirement] = set()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PermissionSet):
            return NotImplemented
        return self.allowed == other.allowed and self.denied == other.denied

    def __hash__(self) -> int:
        return hash((self.allowed, self.denied))

    def __repr__(self) -> str:
        return f"PermissionSet({sorted([*self.allowed, *(DENY + text for text in self.denied)])})"

    def decide(self, requirement: Requirement | None) -> Decision:
        """Decide whether these grants satisfy ``requirement``. This is the only decision on what a user may see and call:
        calls, lists of tools, alternatives and similar names in errors use it. None: a tool without permissions."""
        if requirement is None or requirement in self.satisfied:
            return GRANTED
        allowed, denied = self.allowed, self.denied
        for cover in requirement.covers:
            if denied and not denied.isdisjoint(cover):
                return Decision("denied", cover[0])
            if allowed.isdisjoint(cover):
                return Decision("not-granted", cover[0])
        if len(self.satisfied) >= MAX_SATISFIED:
            self.satisfied.clear()
        self.satisfied.add(requirement)
        return GRANTED

    def permits(self, requirement: Requirement | None) -> bool:
        """Return whether :meth:`decide` allows."""
        return requirement is None or self.decide(requirement) is GRANTED


NO_PERMISSIONS: Final = PermissionSet()


def check_permission(text: str) -> str | None:
    """Return why ``text`` is no permission that a tool can require, or None if it is one."""
    if not text:
        return "an empty text"
    if len(text) > MAX_PERMISSION_CHARS:
        return f"a permission has {len(text):,} characters, above the limit of {MAX_PERMISSION_CHARS}"
    if not text.isprintable() or any(character.isspace() for character in text):
        return "a permission contains a blank or a control character"
    if text.startswith(DENY) or WILDCARD in text:
        return "'*' and '!' are for grants, not for what a tool requires"
    if "" in text.split(SEPARATOR):
        return "a segment between colons is empty"
    return None


def check_grant(text: str) -> str | None:
    """Return why ``text`` is no grant (a permission, a wildcard, or a denial of either), or None if it is one."""
    pattern = text.removeprefix(DENY)
    if pattern == WILDCARD:
        return None
    ending = SEPARATOR + WILDCARD
    if WILDCARD in pattern.removesuffix(ending):
        return f"'{WILDCARD}' is not the whole last segment"
    return check_permission(pattern.removesuffix(ending))


MAX_FILE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a file with grants: about 100,000 users with one grant each, which are parsed in half a second. A larger user
base needs a callable."""
MAX_GRANTS: Final = 1_000
"""Grants of one user, of one group, and of everyone. Wildcards shorten longer lists."""
MAX_NAME_CHARS: Final = 256
"""Characters of the name of a user or a group."""

_EXAMPLE: Final = '{"users": {"alice": ["tools:jokes"]}}'


def _in_place_of(kind: type | tuple[type, ...], what: str, example: str) -> documents.Need:
    return (
        lambda value: isinstance(value, kind),
        lambda value: f"{documents.describe_kind(value)} in place of {what}",
        f"write {what} such as {example}",
    )


def _explain_name(name: object) -> str:
    shown = f"'{excerpt(name)}'" if isinstance(name, str) else documents.describe_kind(name)
    return f"{shown} is no name of a user or a group"


_NAME: Final = documents.require(
    (
        lambda name: (
            isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS and name == name.strip() and name.isprintable()
        ),
        _explain_name,
        f"write 1 to {MAX_NAME_CHARS} printable characters without blanks around them; 'everyone' is for all users",
    )
)


_MEMBER: Final = documents.require((documents.is_text, "{kind} in place of a text", 'write a text, as in ["alice"]'))


def _read_member(name: object, report: documents.Report, path: str) -> Any:
    read = _MEMBER(name, report, path)
    return read if read is documents.WRONG else _NAME(name, report, path.rpartition("[")[0])


_GRANT: Final = documents.require(
    (documents.is_text, "{kind} in place of a text", 'write a text, as in ["tools:jokes"]'),
    (
        lambda text: check_grant(text) is None,
        lambda text: f"'{excerpt(text)}': {check_grant(text)}",
        "write a grant such as 'tools:jokes', 'tools:*' or '!tools:jokes'",
    ),
)
_GRANTS: Final = documents.list_of(
    _GRANT,
    _in_place_of((list, tuple), "a list", '["tools:jokes"]'),
    (
        lambda texts: len(texts) <= MAX_GRANTS,
        lambda texts: f"{len(texts):,} grants, above the limit of {MAX_GRANTS:,}",
        "use wildcards",
    ),
)
_MEMBERS: Final = documents.list_of(_read_member, _in_place_of((list, tuple), "a list", '["alice"]'))


class _Group(msgspec.Struct):
    members: Annotated[tuple[str, ...], _MEMBERS]
    permissions: Annotated[tuple[str, ...], _GRANTS]


_GROUP: Final = documents.object_of(
    _Group,
    {"members": 'add "members": ["alice"], or []', "permissions": 'add "permissions": ["articles:*"], or []'},
    _in_place_of(Mapping, "an object", '{"members": ["alice"], "permissions": ["articles:*"]}'),
)
_USERS: Final = documents.map_of(_NAME, _GRANTS, _in_place_of(Mapping, "an object", '{"alice": ["tools:jokes"]}'))
_GROUPS: Final = documents.map_of(
    _NAME,
    _GROUP,
    _in_place_of(Mapping, "an object", '{"editors": {"members": ["alice"], "permissions": ["articles:*"]}}'),
)


class _Document(msgspec.Struct):
    """Grants as they are written. Every part that is not understood is an error: a dropped grant could be a denial."""

    users: Annotated[Mapping[str, tuple[str, ...]], _USERS] = {}
    groups: Annotated[Mapping[str, _Group], _GROUPS] = {}
    everyone: Annotated[tuple[str, ...], _GRANTS] = ()


_DOCUMENT: Final = documents.object_of(_Document, {}, _in_place_of(Mapping, "an object", _EXAMPLE))


class Grants:
    """Which user has which permissions: see :meth:`load` and :meth:`of`. Immutable.

    A user has the grants listed under the user's name, those of each group with that member, and those of everyone. Users
    that the file does not name have those of everyone, and so have calls without a user.

    Attributes:
        path: the file; None: the grants were given in code.
        users: number of users that are named, as such or as members of a group.
    """

    __slots__ = ("_everyone", "_groups", "_users", "path", "users")

    def __init__(
        self,
        users: Mapping[str, tuple[str, ...]],
        groups: Mapping[str, tuple[tuple[str, ...], ...]],
        everyone: tuple[str, ...],
        path: Path | None = None,
    ) -> None:
        """Store checked grants; :meth:`of` takes raw ones.

        Args:
            users: grants by user.
            groups: the grants of each group of a user, by user.
            everyone: grants of all users.
            path: see :attr:`path`.
        """
        self._users = users
        self._groups = groups
        self._everyone = everyone
        self.path = path
        self.users = len(users.keys() | groups.keys())

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Grants:
        """Return the grants in ``raw``, which has these keys, all optional::

            {"users": {"alice": ["tools:jokes"]},
             "groups": {"editors": {"members": ["alice", "bob"], "permissions": ["articles:*", "!articles:delete"]}},
             "everyone": ["tools:time"]}

        A grant is a permission, a wildcard such as ``tools:*`` (every permission that begins with ``tools:``) or ``*``
        (all), or a denial of either, which begins with ``!``. A denial wins over every grant.

        Raises:
            GrantsError: ``raw`` is invalid; the error lists every problem with its key and fix.
        """
        return _read_grants(raw, None)

    @classmethod
    @explain_keywords
    def load(cls, file: str | os.PathLike[str]) -> Grants:
        """Load grants from a JSON file with the keys of :meth:`of`. A connected dispatcher watches the file: a change is in
        force within about a second, and an invalid file changes nothing.

        Raises:
            GrantsError: the file cannot be read, or is invalid.
        """
        return parse_grants(read_grants_file(Path(file)), Path(file))

    @property
    def allowed(self) -> frozenset[str]:
        """All grants of any user, without the denials."""
        lists = [self._everyone, *self._users.values(), *(each for groups in self._groups.values() for each in groups)]
        return frozenset(text for grants in lists for text in grants if not text.startswith(DENY))

    def permissions_of(self, user: str) -> PermissionSet:
        """Return the permissions of ``user``."""
        grants = [*self._everyone, *self._users.get(user, ())]
        for each in self._groups.get(user, ()):
            grants += each
        return PermissionSet(grants)

    def __repr__(self) -> str:
        return f"<Grants: {self.users} users{f', {self.path}' if self.path else ''}>"


def read_grants_file(path: Path) -> bytes:
    """Return the content of a file with grants.

    Raises:
        GrantsError: it cannot be read, or is too large.
    """
    too_large = "use groups and wildcards, or give connect() a callable that reads the grants of one user"
    try:
        return documents.read_regular_file(path, MAX_FILE_BYTES, too_large)[0]
    except (documents.DocumentError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem, fix = f"the file cannot be read ({reason})", "correct the path, or the file's permissions"
        if isinstance(error, documents.DocumentError) and error.mistakes[0][2] == too_large:
            problem, fix = f"the file has {reason}", too_large
        raise GrantsError(str(path), [documents.Problem("", "", problem, fix)]) from None


def parse_grants(content: bytes, path: Path) -> Grants:
    """Return the grants in the content of a file.

    Raises:
        GrantsError: they are invalid.
    """
    try:
        raw = documents.parse_document(content, path)
    except documents.DocumentError as error:
        merge = "merge the two values: of two equal keys JSON readers drop one"
        problems = [
            documents.Problem("", key, "the key occurs twice", merge)
            if key
            else documents.Problem("", "", problem, f"write {_EXAMPLE}" if problem == documents.EMPTY_FILE else fix)
            for key, problem, fix in error.mistakes
        ]
        raise GrantsError(str(path), problems) from None
    return _read_grants(raw, path)


def _read_grants(raw: object, path: Path | None) -> Grants:
    report = documents.Report("", repeats_keys=True)
    document = _DOCUMENT(raw, report, "")
    if report.has_errors:
        raise GrantsError("" if path is None else str(path), report.problems)
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}  # many users have equal grants
    users = {user: shared.setdefault(grants, grants) for user, grants in document.users.items()}
    groups: dict[str, tuple[tuple[str, ...], ...]] = {}
    for group in document.groups.values():
        for member in dict.fromkeys(group.members):
            groups[member] = (*groups.get(member, ()), group.permissions)
    return Grants(users, groups, document.everyone, path)


class InvalidAnswerError(ValueError):
    """A callable for grants returned something else. The text contains nothing of the answer."""


def check_answer(grants: object) -> tuple[str, ...]:
    """Return the answer of a callable for one user, if it is a collection of valid grants.

    Raises:
        InvalidAnswerError: it is not.
    """
    # A text is a collection of texts, too: its letters.
    if isinstance(grants, (str, bytes, Mapping)) or not isinstance(grants, Collection):
        raise InvalidAnswerError(
            f"it returned {documents.describe_kind(grants)} in place of a list, tuple or set of texts"
        )
    if len(grants) > MAX_GRANTS:
        raise InvalidAnswerError(f"it returned {len(grants):,} grants, above the limit of {MAX_GRANTS:,}")
    for text in grants:
        problem = check_grant(text) if isinstance(text, str) else f"{documents.describe_kind(text)} in place of a text"
        if problem is not None:
            raise InvalidAnswerError(f"it returned an invalid grant: {problem}")
    return tuple(grants)


def watch_grants(grants: Grants, on_change: Callable[[Grants], object]) -> documents.FileWatch[Grants]:
    """Return a watch of the file of ``grants``, which are from :meth:`Grants.load`.

    Args:
        on_change: receives the new grants, in a thread.
    """
    path = grants.path
    assert path is not None
    return documents.FileWatch(path, read_grants_file, partial(parse_grants, path=path), on_change, "grants", logger)


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
