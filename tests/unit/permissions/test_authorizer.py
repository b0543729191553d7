"""Decisions: from grants at once, from a callable when its answer is cached, and none without either."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from dispatch.permissions import authorizer as module
from dispatch.permissions.authorizer import CACHE_S, Authorizer
from dispatch.permissions.grants import (
    MAX_SATISFIED,
    NO_PERMISSIONS,
    Decision,
    Grants,
    PermissionSet,
    Requirement,
    require_permissions,
)


def requirement(*permissions: str) -> Requirement:
    found = require_permissions(permissions)
    assert found is not None
    return found


JOKES = requirement("tools:jokes")


def now() -> float:
    return asyncio.get_running_loop().time()


def test_grants_decide_at_once() -> None:
    authorizer = Authorizer(Grants.of({"users": {"alice": ["tools:*"]}}))
    for _ in range(2):
        assert authorizer.decide("alice", JOKES, 0.0) == Decision("granted")
        assert authorizer.decide("bob", JOKES, 0.0) == Decision("not-granted", "tools:jokes")
    assert authorizer.known_permissions("alice", 0.0) == PermissionSet(["tools:*"])


async def test_without_grants_every_requirement_is_refused() -> None:
    authorizer = Authorizer()
    assert authorizer.decide("alice", JOKES, 0.0) == Decision("no-grants", "tools:jokes")
    assert authorizer.known_permissions("alice", 0.0) == NO_PERMISSIONS
    assert await authorizer.fetch_permissions("alice") == NO_PERMISSIONS


def test_a_user_that_is_no_text_is_not_decided() -> None:
    assert Authorizer(Grants.of({})).decide(["alice"], JOKES, 0.0) is None  # type: ignore[arg-type] # wrong on purpose
    assert Authorizer(lambda _: ()).decide({}, JOKES, 0.0) is None  # type: ignore[arg-type] # likewise


async def test_a_callable_decides_once_its_answer_is_cached() -> None:
    authorizer = Authorizer(lambda user: ["tools:jokes"] if user == "alice" else [])
    assert authorizer.decide("alice", JOKES, now()) is None
    assert authorizer.known_permissions("alice", now()) == NO_PERMISSIONS
    assert (await authorizer.resolve("alice", JOKES)).is_allowed
    assert authorizer.decide("alice", JOKES, now()) == Decision("granted")
    assert await authorizer.resolve("bob", JOKES) == Decision("not-granted", "tools:jokes")
    assert authorizer.decide("alice", JOKES, now() + CACHE_S) is None
    await authorizer.close()
    assert authorizer.is_closed


async def test_a_failed_answer_is_a_decision_while_it_is_cached() -> None:
    def fail(_user: str) -> list[str]:
        raise LookupError

    authorizer = Authorizer(fail)
    assert await authorizer.resolve("alice", JOKES) == Decision("unavailable")
    assert authorizer.decide("alice", JOKES, now()) == Decision("unavailable")
    assert authorizer.known_permissions("alice", now()) == NO_PERMISSIONS


def test_changed_grants_decide_at_once_also_about_cached_users(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": ["tools:*"]}}))
    authorizer = Authorizer(Grants.load(file))
    assert authorizer._watcher is not None
    authorizer._watcher.check()
    assert authorizer.decide("alice", JOKES, 0.0) == Decision("granted")
    file.write_text("{}")
    authorizer._watcher.check()
    assert authorizer.decide("alice", JOKES, 0.0) == Decision("not-granted", "tools:jokes")


def test_the_number_of_cached_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_USERS", 3)
    authorizer = Authorizer(Grants.of({"everyone": ["tools:*"]}))
    for number in range(10):
        assert authorizer.decide(f"user-{number}", JOKES, 0.0) == Decision("granted")
    assert authorizer._in_force is not None
    assert list(authorizer._in_force.cached) == ["user-7", "user-8", "user-9"]


def test_the_number_of_remembered_requirements_is_bounded() -> None:
    permissions = PermissionSet(["tools:*"])
    for number in range(3 * MAX_SATISFIED):
        assert permissions.permits(requirement(f"tools:{number}"))
        assert len(permissions.satisfied) <= MAX_SATISFIED
    assert not permissions.permits(requirement("other"))


@pytest.mark.parametrize("grants", ["grants.json", {"users": {}}, 5])
def test_anything_else_is_refused(grants: object) -> None:
    with pytest.raises(TypeError, match=r"dispatch\.Grants\.load"):
        Authorizer(grants)  # type: ignore[arg-type] # wrong on purpose
