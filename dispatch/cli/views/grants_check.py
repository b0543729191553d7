"""Checks grants against the permissions that tools require."""

from __future__ import annotations

from dispatch._internal.suggestions import excerpt, join_names
from dispatch.catalog import Catalog, Problem
from dispatch.permissions import Grants, GrantsError, PermissionSet, require_permissions

MAX_NAMES = 5
"""Tools that one problem names."""


def check_grants(catalog: Catalog, file: str | None) -> list[Problem]:
    """Return what is wrong with the grants in ``file``, and the tools that no user may call.

    Args:
        file: None: there are no grants.
    """
    required = {name: found for name, tool in catalog.tools.items() if (found := catalog.permissions_of(tool))}
    if file is None:
        if not required:
            return []
        names = join_names(tuple(required), MAX_NAMES)
        problem = (
            f"every call of {names} is refused: {_verb(required, 'requires', 'require')} permissions without grants"
        )
        return [
            Problem(
                "catalogue", "permissions", problem, "give --grants FILE, and connect(grants=…) in the agent", "warning"
            )
        ]
    shown = excerpt(file, 4096)
    try:
        grants = Grants.load(file)
    except GrantsError as error:
        return [Problem(shown, each.key, each.problem, each.fix) for each in error.problems]
    anything = PermissionSet(grants.allowed)
    refused: dict[str, list[str]] = {}
    for name, permissions in required.items():
        decision = anything.decide(require_permissions(permissions))
        if not decision.is_allowed:
            refused.setdefault(decision.permission, []).append(name)
    return [
        Problem(
            shown,
            "",
            f"no grant matches the permission '{permission}', which {join_names(names, MAX_NAMES)} "
            f"{_verb(names, 'requires', 'require')}",
            "grant it, or correct its spelling",
            "warning",
        )
        for permission, names in refused.items()
    ]


def _verb(of: dict[str, tuple[str, ...]] | list[str], one: str, several: str) -> str:
    return one if len(of) == 1 else several
