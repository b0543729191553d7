"""Grants: which user has which permissions. An immutable value, from a file or a mapping."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

from dispatch._internal.suggestions import excerpt, find_near_names
from dispatch.permissions.grants_errors import GrantsError, GrantsProblem, GrantsReport
from dispatch.permissions.permission_set import DENY, PermissionSet, check_grant

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
