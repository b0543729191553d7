"""Grants: which user has which permissions. An immutable value, from a file or a mapping."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from dispatch._internal import excerpt, find_near_names

# Problems in grants, and the error that lists them.


MAX_PROBLEMS: Final = 100
"""Problems reported for one file."""


class GrantsProblem(msgspec.Struct, frozen=True):
    """One problem in grants.

    Attributes:
        key: path of the value, such as ``users.alice[0]``; ``""``: the whole file.
        problem: description of the problem.
        fix: how to correct it.
    """

    key: str
    problem: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.key}: " if self.key else ""
        return f"{where}{self.problem}. Fix: {self.fix}."


class GrantsError(ValueError):
    """The grants are invalid. ``str()`` lists every problem with its key and fix.

    Attributes:
        file: path of the file; empty: the grants are no file.
        problems: the problems.
    """

    def __init__(self, file: str, problems: Iterable[GrantsProblem]) -> None:
        self.file = file
        self.problems = tuple(problems)
        count = f"{len(self.problems)} mistake{'' if len(self.problems) == 1 else 's'}"
        where = f" of '{file}'" if file else ""
        super().__init__(
            "\n".join([f"The grants{where} cannot be loaded: {count}.", *(f"  {p}" for p in self.problems)])
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.problems)


class GrantsReport:
    """Collects the problems of grants while they are read, at most :data:`MAX_PROBLEMS`."""

    def __init__(self) -> None:
        self.problems: list[GrantsProblem] = []

    def add(self, key: str, problem: str, fix: str) -> None:
        """Add a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(GrantsProblem(key, problem, fix))


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
"""Bytes of a file with grants: about 100,000 users with one grant each, which are parsed in some 50 ms. A larger user base
needs a callable."""
MAX_GRANTS: Final = 1_000
"""Grants of one user, of one group, and of everyone. Wildcards shorten longer lists."""
MAX_NAME_CHARS: Final = 256
"""Characters of the name of a user or a group."""

_KEYS: Final = ("users", "groups", "everyone")
_GROUP_KEYS: Final = ("members", "permissions")
_EXAMPLE: Final = '{"users": {"alice": ["tools:jokes"]}}'


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
    try:
        if path.exists() and not path.is_file():  # reading a pipe could block without a limit
            raise OSError("not a regular file")
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror or error})"
        raise GrantsError(
            str(path), [GrantsProblem("", problem, "correct the path, or the file's permissions")]
        ) from None
    if len(content) > MAX_FILE_BYTES:
        problem = f"the file has more than {MAX_FILE_BYTES:,} bytes"
        fix = "use groups and wildcards, or give connect() a callable that reads the grants of one user"
        raise GrantsError(str(path), [GrantsProblem("", problem, fix)])
    return content


def parse_grants(content: bytes, path: Path) -> Grants:
    """Return the grants in the content of a file.

    Raises:
        GrantsError: they are invalid.
    """
    try:
        raw = json.loads(content.decode("utf-8-sig"), object_pairs_hook=_reject_duplicates)
    except _DuplicateKeyError as error:
        fix = "merge the two values: of two equal keys JSON readers drop one"
        raise GrantsError(str(path), [GrantsProblem(excerpt(str(error)), "the key occurs twice", fix)]) from None
    except (ValueError, RecursionError) as error:  # JSON and UTF-8
        raise GrantsError(
            str(path), [GrantsProblem("", f"the file is not JSON ({error})", f"write JSON such as {_EXAMPLE}")]
        ) from None
    return _read_grants(raw, path)


class _DuplicateKeyError(ValueError):
    """An object has two equal keys."""


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateKeyError(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value] # add() in place of a loop
    return values


def _read_grants(raw: object, path: Path | None) -> Grants:
    reader = _GrantsReader()
    users, groups, everyone = reader.read(raw)
    if reader.report.problems:
        raise GrantsError("" if path is None else str(path), reader.report.problems)
    return Grants(users, groups, everyone, path)


class _GrantsReader:
    """Checks raw grants. Every part that is not understood is an error: a grant that is dropped could be a denial."""

    def __init__(self) -> None:
        self.report = GrantsReport()
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}

    def read(
        self, raw: object
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[tuple[str, ...], ...]], tuple[str, ...]]:
        """Return the grants of users, the grants of their groups, and those of everyone."""
        top = self._object(raw, "", _EXAMPLE)
        self._reject_unknown_keys(top, "", _KEYS)
        users = {
            name: self._grants(values, f"users.{excerpt(name)}")
            for name, values in self._object(top.get("users", {}), "users", '{"alice": ["tools:jokes"]}').items()
            if self._is_name(name, "users")
        }
        groups: dict[str, list[tuple[str, ...]]] = {}
        example = '{"editors": {"members": ["alice"], "permissions": ["articles:*"]}}'
        for name, value in self._object(top.get("groups", {}), "groups", example).items():
            if self._is_name(name, "groups"):
                self._read_group(value, f"groups.{excerpt(name)}", groups)
        everyone = self._grants(top.get("everyone", []), "everyone")
        return users, {user: tuple(each) for user, each in groups.items()}, everyone

    def _read_group(self, value: object, path: str, groups: dict[str, list[tuple[str, ...]]]) -> None:
        group = self._object(value, path, '{"members": ["alice"], "permissions": ["articles:*"]}')
        self._reject_unknown_keys(group, path, _GROUP_KEYS)
        if not isinstance(value, Mapping):
            return
        for key, meaning in (("members", '["alice"]'), ("permissions", '["articles:*"]')):
            if key not in group:
                self.report.add(f"{path}.{key}", "the key is missing", f'add "{key}": {meaning}, or []')
        grants = self._grants(group.get("permissions", []), f"{path}.permissions")
        members = self._texts(group.get("members", []), f"{path}.members", '["alice"]')
        for member in dict.fromkeys(members):
            if self._is_name(member, f"{path}.members"):
                groups.setdefault(member, []).append(grants)

    def _grants(self, value: object, path: str) -> tuple[str, ...]:
        texts = self._texts(value, path, '["tools:jokes"]')
        if len(texts) > MAX_GRANTS:
            self.report.add(path, f"{len(texts):,} grants, above the limit of {MAX_GRANTS:,}", "use wildcards")
            return ()
        for index, text in enumerate(texts):
            problem = check_grant(text)
            if problem is not None:
                shown = excerpt(text)
                self.report.add(
                    f"{path}[{index}]",
                    f"'{shown}': {problem}",
                    "write a grant such as 'tools:jokes', 'tools:*' or '!tools:jokes'",
                )
        return self._shared.setdefault(texts, texts)  # many users have equal grants

    def _texts(self, value: object, path: str, example: str) -> tuple[str, ...]:
        if not isinstance(value, (list, tuple)):
            self.report.add(path, f"{_describe_kind(value)} in place of a list", f"write a list such as {example}")
            return ()
        for index, text in enumerate(value):
            if not isinstance(text, str):
                self.report.add(
                    f"{path}[{index}]", f"{_describe_kind(text)} in place of a text", f"write a text, as in {example}"
                )
        return tuple(text for text in value if isinstance(text, str))

    def _object(self, value: object, path: str, example: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            self.report.add(
                path, f"{_describe_kind(value)} in place of an object", f"write an object such as {example}"
            )
            return {}
        return value

    def _reject_unknown_keys(self, value: Mapping[str, Any], path: str, known: tuple[str, ...]) -> None:
        for key in value:
            if key not in known:
                near = find_near_names(str(key), known, 1)
                fix = f"rename it to '{near[0]}'" if near else f"remove it; the keys are {', '.join(known)}"
                where = excerpt(str(key))
                self.report.add(f"{path}.{where}" if path else where, "an unknown key", fix)

    def _is_name(self, name: object, path: str) -> bool:
        if (
            isinstance(name, str)
            and name
            and len(name) <= MAX_NAME_CHARS
            and name == name.strip()
            and name.isprintable()
        ):
            return True
        shown = excerpt(name) if isinstance(name, str) else _describe_kind(name)
        problem = f"'{shown}' is no name of a user or a group"
        fix = (
            f"write 1 to {MAX_NAME_CHARS} printable characters without blanks around them; 'everyone' is for all users"
        )
        self.report.add(path, problem, fix)
        return False


def _describe_kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


class InvalidAnswerError(ValueError):
    """A callable for grants returned something else. The text contains nothing of the answer."""


def check_answer(grants: object) -> tuple[str, ...]:
    """Return the answer of a callable for one user, if it is a collection of valid grants.

    Raises:
        InvalidAnswerError: it is not.
    """
    # A text is a collection of texts, too: its letters.
    if isinstance(grants, (str, bytes, Mapping)) or not isinstance(grants, Collection):
        raise InvalidAnswerError(f"it returned {_describe_kind(grants)} in place of a list, tuple or set of texts")
    if len(grants) > MAX_GRANTS:
        raise InvalidAnswerError(f"it returned {len(grants):,} grants, above the limit of {MAX_GRANTS:,}")
    for text in grants:
        problem = check_grant(text) if isinstance(text, str) else f"{_describe_kind(text)} in place of a text"
        if problem is not None:
            raise InvalidAnswerError(f"it returned an invalid grant: {problem}")
    return tuple(grants)


# Watches a file with grants: a valid change comes into force, an invalid one is reported once and changes nothing.


logger = logging.getLogger("dispatch.permissions")

POLL_S: Final = 1.0
"""Seconds between two checks of the file."""
SETTLE_S: Final = 0.2
"""Seconds after which an invalid file is read again before it is reported: it may have been written in part."""
RACY_S: Final = 2.0
"""Seconds for which the content of a changed file is compared on each check: a second change within the granularity of the
file system's clock (2 s on FAT) does not change the file's time."""

Signature = tuple[int, int, int, int, int]


class GrantsWatcher:
    """Keeps the grants of a file up to date, in a daemon thread. Polling follows what notifications miss: an atomic rename,
    the swap of the ``..data`` link of a Kubernetes ConfigMap, network file systems.

    Args:
        grants: from :meth:`Grants.load`.
        on_change: receives the new grants, in the thread.
        wait: waits for that many seconds; True: the watcher is closed. Tests set it.
    """

    def __init__(
        self, grants: Grants, on_change: Callable[[Grants], object], wait: Callable[[float], bool] | None = None
    ) -> None:
        assert grants.path is not None
        self._path = grants.path
        self._on_change = on_change
        self._closed = threading.Event()
        self._wait = self._closed.wait if wait is None else wait
        self._thread: threading.Thread | None = None
        self._signature: Signature | None = (
            None  # the first check reads the file, which may have changed since it was loaded
        )
        self._content: bytes | None = None
        self._problem = ""

    def start(self) -> None:
        """Begin to watch. A second call does nothing."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dispatch-grants", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop watching. Does not wait for the thread, which may be reading from a file system that hangs."""
        self._closed.set()

    def _run(self) -> None:
        while not self._wait(POLL_S):
            self.check()

    def check(self) -> None:
        """Read the file if it has changed."""
        try:
            self._check()
        except GrantsError as error:
            self._report(str(error))
        except Exception as error:  # a bug must not end the watch
            self._report(f"{type(error).__name__}: {error}")

    def _check(self) -> None:
        signature = self._sign()
        if signature is not None and signature == self._signature:
            return
        try:
            content = read_grants_file(self._path)
            if content != self._content:
                self._apply(content)
        except GrantsError:
            if self._problem:
                raise
            self._wait(SETTLE_S)
            self._apply(read_grants_file(self._path))
        is_racy = signature is None or time.time() - signature[3] / 1e9 < RACY_S
        self._signature = None if is_racy else signature
        if self._problem:
            self._problem = ""
            logger.info("the grants in '%s' are valid again", self._path)

    def _apply(self, content: bytes) -> None:
        grants = parse_grants(content, self._path)
        is_first = self._content is None
        self._on_change(grants)
        self._content = content
        if not is_first:
            logger.info("grants loaded from '%s': %d users", self._path, grants.users)

    def _sign(self) -> Signature | None:
        """Return what changes with every change of the file; None: it cannot be read."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _report(self, problem: str) -> None:
        """Log a problem once; the grants in force stay."""
        if problem != self._problem:
            self._problem = problem
            logger.warning("the grants in force stay, because the file is invalid: %s", problem)
