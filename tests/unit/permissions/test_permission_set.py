"""Matching of permissions, compared with a plain comparison of segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.permissions.grants import (
    MAX_PERMISSION_CHARS,
    NO_PERMISSIONS,
    Decision,
    PermissionSet,
    check_grant,
    check_permission,
    require_permissions,
)

SEGMENTS = st.sampled_from(["a", "b", "tools"])
PERMISSIONS = st.lists(SEGMENTS, min_size=1, max_size=4).map(":".join)
GRANTS = st.builds(
    lambda deny, segments, wild: "!" * deny + ":".join([*segments, *(["*"] if wild or not segments else [])]),
    st.booleans(),
    st.lists(SEGMENTS, max_size=4),
    st.booleans(),
)


def matches(grant: str, permission: str) -> bool:
    wanted, given = permission.split(":"), grant.split(":")
    if given[-1] != "*":
        return given == wanted
    return len(wanted) >= len(given) and wanted[: len(given) - 1] == given[:-1]


@given(st.lists(GRANTS, max_size=6), st.lists(PERMISSIONS, min_size=1, max_size=3))
def test_every_permission_must_be_granted_and_none_denied(grants: list[str], required: list[str]) -> None:
    allowed = [grant for grant in grants if not grant.startswith("!")]
    denied = [grant[1:] for grant in grants if grant.startswith("!")]
    expected = all(
        any(matches(grant, each) for grant in allowed) and not any(matches(grant, each) for grant in denied)
        for each in required
    )
    requirement = require_permissions(tuple(required))
    decision = PermissionSet(grants).decide(requirement)
    assert decision.is_allowed == expected == PermissionSet(grants).permits(requirement)
    if not expected:
        assert decision.permission in required
        assert (decision.reason == "denied") == any(matches(grant, decision.permission) for grant in denied)


@given(st.lists(GRANTS, max_size=6), PERMISSIONS, GRANTS)
def test_a_further_denial_never_allows_more(grants: list[str], permission: str, further: str) -> None:
    requirement = require_permissions((permission,))
    if not PermissionSet(grants).permits(requirement):
        assert not PermissionSet([*grants, "!" + further.removeprefix("!")]).permits(requirement)


@given(GRANTS)
def test_the_generated_grants_are_valid(grant: str) -> None:
    assert check_grant(grant) is None


@pytest.mark.parametrize(
    ("grant", "permission", "allowed"),
    [
        ("tools:jokes", "tools:jokes", True),
        ("tools:jokes", "Tools:jokes", False),
        ("tools:jokes", "tools:jokes:read", False),
        ("tools:*", "tools:jokes", True),
        ("tools:*", "tools:jokes:read", True),
        ("tools:*", "tools", False),
        ("tools:*", "toolsmith:jokes", False),
        ("*", "tools", True),
        ("*", "tools:jokes", True),
    ],
)
def test_wildcards_match_whole_segments(grant: str, permission: str, allowed: bool) -> None:
    assert PermissionSet([grant]).permits(require_permissions((permission,))) is allowed


def test_permissions_of_tool_and_service_add_up() -> None:
    requirement = require_permissions(("tools:jokes",), ("services:humour", "tools:jokes"))
    assert requirement is not None
    assert requirement.permissions == ("tools:jokes", "services:humour")
    assert PermissionSet(["tools:jokes"]).decide(requirement) == Decision("not-granted", "services:humour")
    assert PermissionSet(["*", "!services:*"]).decide(requirement) == Decision("denied", "services:humour")
    assert PermissionSet(["*"]).decide(requirement).is_allowed


def test_a_tool_without_permissions_is_open_to_all() -> None:
    assert require_permissions((), ()) is None
    assert NO_PERMISSIONS.permits(None)
    assert PermissionSet(["!*"]).permits(None)


def test_equal_requirements_are_one_object() -> None:
    assert require_permissions(("tools:a",), ()) is require_permissions((), ("tools:a",))


@pytest.mark.parametrize(
    "text", ["", "a b", "a:", ":a", "a::b", "*", "a:*", "!a", "a\n", "x" * (MAX_PERMISSION_CHARS + 1), "a\u00a0b"]
)
def test_invalid_permissions_have_a_reason(text: str) -> None:
    assert check_permission(text)


@pytest.mark.parametrize("text", ["", "!", "!!a", "a*", "*:a", "a:*:b", "a:**", ":*", "!:*", "**", "a b", "a:"])
def test_invalid_grants_have_a_reason(text: str) -> None:
    assert check_grant(text)


@pytest.mark.parametrize("text", ["a", "a:b", "a:*", "*", "!a", "!a:*", "!*", "tools:jokes-2_x.y/z"])
def test_valid_grants_have_none(text: str) -> None:
    assert check_grant(text) is None
