"""Matching of permissions: what a tool requires, and what a user holds. Pure.

A permission is a text of segments between colons, such as ``tools:jokes``. A grant is a permission, or a wildcard that ends
in ``*`` as its last segment: ``tools:*`` grants every permission that begins with ``tools:``, and ``*`` grants all. A grant
that begins with ``!`` denies what it matches. A denial wins over every grant, wherever the two come from.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal

import msgspec

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
