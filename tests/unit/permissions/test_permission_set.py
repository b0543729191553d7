"""Matching of permissions, compared with a plain comparison of segments.
Asking an application's callable: shared requests, the time limit, the cache, and failures that refuse calls.
Decisions: from grants at once, from a callable when its answer is cached, and none without either.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.permissions import authorizer
from dispatch.permissions import authorizer as module
from dispatch.permissions.authorizer import CACHE_S, FAILURE_CACHE_S, LOOKUP_TIMEOUT_S, Authorizer, PermissionLookup
from dispatch.permissions.grants import (
    MAX_PERMISSION_CHARS,
    MAX_SATISFIED,
    NO_PERMISSIONS,
    Decision,
    Grants,
    PermissionSet,
    Requirement,
    check_grant,
    check_permission,
    require_permissions,
)
from dispatch.testing.clock import VirtualClockLoop

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


JOKES = PermissionSet(["tools:jokes"])


class Directory:
    """An asynchronous callable that counts its requests."""

    def __init__(self, seconds: float = 0.0, error: BaseException | None = None) -> None:
        self.asked: list[str] = []
        self.seconds = seconds
        self.error = error

    async def __call__(self, user: str) -> Collection[str]:
        self.asked.append(user)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return ["tools:jokes"]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_an_answer_is_cached_for_a_minute_from_its_arrival() -> None:
    directory = Directory(seconds=0.5)
    lookup = PermissionLookup(directory)
    assert lookup.cached("alice", now()) is None
    assert await lookup.fetch("alice", 1.0) == JOKES
    await asyncio.sleep(CACHE_S - 0.001)
    answer = lookup.cached("alice", now())
    assert answer is not None
    assert answer.permissions == JOKES
    assert await lookup.fetch("alice", 1.0) == JOKES
    await asyncio.sleep(0.001)
    assert lookup.cached("alice", now()) is None
    assert directory.asked == ["alice"]
    assert await lookup.fetch("alice", 1.0) == JOKES
    assert directory.asked == ["alice"] * 2


async def test_concurrent_callers_of_one_user_share_one_request() -> None:
    directory = Directory(seconds=0.5)
    lookup = PermissionLookup(directory)
    calls = [asyncio.create_task(lookup.fetch(user, 1.0)) for user in ("alice", "bob") for _ in range(100)]
    await asyncio.sleep(0.1)
    calls[0].cancel()  # the caller that began the request
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [JOKES] * 199
    assert directory.asked == ["alice", "bob"]


async def test_a_slow_answer_fails_after_the_limit_also_for_callers_that_join_late() -> None:
    directory = Directory(seconds=5.0)
    lookup = PermissionLookup(directory)
    first = asyncio.create_task(lookup.fetch("alice", 10.0))
    await asyncio.sleep(0.9)
    second = asyncio.create_task(lookup.fetch("alice", 10.0))
    began = now()
    assert await first is None
    assert await second is None
    assert now() - began == pytest.approx(LOOKUP_TIMEOUT_S - 0.9)


async def test_a_caller_waits_no_longer_than_its_own_deadline() -> None:
    lookup = PermissionLookup(Directory(seconds=0.5))
    began = now()
    assert await lookup.fetch("alice", 0.2) is None
    assert now() - began == pytest.approx(0.2)
    assert await lookup.fetch("alice", 1.0) == JOKES, "the request went on"


async def test_a_failure_is_cached_for_a_second_and_reported_without_user_and_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory = Directory(error=RuntimeError("password of alice"))
    lookup = PermissionLookup(directory)
    with caplog.at_level(logging.WARNING, "dispatch.permissions"):
        assert await lookup.fetch("alice", 1.0) is None
        answer = lookup.cached("alice", now())
        assert answer is not None
        assert answer.permissions is None
        assert await lookup.fetch("alice", 1.0) is None
        assert await lookup.fetch("bob", 1.0) is None
    assert directory.asked == ["alice", "bob"]
    (record,) = caplog.records
    assert "RuntimeError" in record.getMessage()
    assert "alice" not in record.getMessage()
    directory.error = None
    await asyncio.sleep(FAILURE_CACHE_S)
    assert await lookup.fetch("alice", 1.0) == JOKES


@pytest.mark.parametrize("answer", [None, "tools:jokes", {"tools:jokes": True}, [1], ["to*ls"], 5])
async def test_an_invalid_answer_is_a_failure(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    lookup = PermissionLookup(lambda _user: answer)
    with caplog.at_level(logging.WARNING, "dispatch.permissions"):
        assert await lookup.fetch("alice", 1.0) is None
    assert "it returned" in caplog.text


async def test_a_synchronous_callable_runs_in_a_thread_and_may_return_a_coroutine() -> None:
    threads: list[threading.Thread] = []
    directory = Directory()

    def ask(user: str) -> Any:
        threads.append(threading.current_thread())
        return ["tools:jokes"] if user == "alice" else directory(user)

    lookup = PermissionLookup(ask)
    assert await lookup.fetch("alice", 1.0) == JOKES
    assert await lookup.fetch("bob", 1.0) == JOKES
    assert all(each is not threading.main_thread() and each.daemon for each in threads)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
async def test_what_a_thread_raises_is_a_failure(error: BaseException) -> None:
    def ask(_user: str) -> Collection[str]:
        raise error

    assert await PermissionLookup(ask).fetch("alice", 1.0) is None


async def test_a_thread_that_hangs_occupies_its_place_and_no_further_ones_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(authorizer, "MAX_THREADS", 2)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualClockLoop)
    loop.threads_may_hang = True
    released = threading.Event()
    asked: list[str] = []

    def ask(user: str) -> Collection[str]:
        asked.append(user)
        released.wait(30)
        return ["tools:jokes"]

    lookup = PermissionLookup(ask)
    began = now()
    users = ["a", "b", "c", "d"]
    assert await asyncio.gather(*(lookup.fetch(user, 9.0) for user in users)) == [None] * 4
    assert now() - began == pytest.approx(LOOKUP_TIMEOUT_S)
    assert len(asked) == 2
    loop.threads_may_hang = False
    released.set()
    await asyncio.sleep(FAILURE_CACHE_S)
    assert await asyncio.gather(*(lookup.fetch(user, 9.0) for user in users)) == [JOKES] * 4
    assert len(asked) == 6


async def test_a_coroutine_that_swallows_its_cancellation_delays_no_caller() -> None:
    released = asyncio.Event()

    async def ask(_user: str) -> Collection[str]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await released.wait()
        return ["tools:jokes"]

    lookup = PermissionLookup(ask)
    began = now()
    assert await lookup.fetch("alice", 9.0) is None
    assert await lookup.fetch("alice", 9.0) is None
    assert now() - began == pytest.approx(LOOKUP_TIMEOUT_S)
    released.set()


async def test_the_number_of_cached_users_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "MAX_CACHED_USERS", 3)
    directory = Directory()
    lookup = PermissionLookup(directory)
    for user in ("a", "b", "c"):
        await lookup.fetch(user, 1.0)
    assert lookup.cached("a", now()) is not None
    await lookup.fetch("d", 1.0)
    assert [lookup.cached(user, now()) is not None for user in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize("make", [lambda: Directory(seconds=0.5), lambda: lambda _user: threading.Event().wait(0.2)])
async def test_close_ends_requests_and_begins_no_further_ones(make: Callable[[], Any]) -> None:
    lookup = PermissionLookup(make())
    calls = [asyncio.create_task(lookup.fetch(user, 9.0)) for user in ("alice", "bob")]
    await asyncio.sleep(0)
    await lookup.close()
    assert await asyncio.gather(*calls) == [None, None]
    assert await lookup.fetch("carol", 9.0) is None


def requirement(*permissions: str) -> Requirement:
    found = require_permissions(permissions)
    assert found is not None
    return found


JOKES_AUTHORIZER = requirement("tools:jokes")


def test_grants_decide_at_once() -> None:
    authorizer = Authorizer(Grants.of({"users": {"alice": ["tools:*"]}}))
    for _ in range(2):
        assert authorizer.decide("alice", JOKES_AUTHORIZER, 0.0) == Decision("granted")
        assert authorizer.decide("bob", JOKES_AUTHORIZER, 0.0) == Decision("not-granted", "tools:jokes")
    assert authorizer.known_permissions("alice", 0.0) == PermissionSet(["tools:*"])


async def test_without_grants_every_requirement_is_refused() -> None:
    authorizer = Authorizer()
    assert authorizer.decide("alice", JOKES_AUTHORIZER, 0.0) == Decision("no-grants", "tools:jokes")
    assert authorizer.known_permissions("alice", 0.0) == NO_PERMISSIONS
    assert await authorizer.fetch_permissions("alice") == NO_PERMISSIONS


def test_a_user_that_is_no_text_is_not_decided() -> None:
    assert Authorizer(Grants.of({})).decide(["alice"], JOKES_AUTHORIZER, 0.0) is None  # type: ignore[arg-type] # wrong on purpose
    assert Authorizer(lambda _: ()).decide({}, JOKES_AUTHORIZER, 0.0) is None  # type: ignore[arg-type] # likewise


async def test_a_callable_decides_once_its_answer_is_cached() -> None:
    authorizer = Authorizer(lambda user: ["tools:jokes"] if user == "alice" else [])
    assert authorizer.decide("alice", JOKES_AUTHORIZER, now()) is None
    assert authorizer.known_permissions("alice", now()) == NO_PERMISSIONS
    assert (await authorizer.resolve("alice", JOKES_AUTHORIZER)).is_allowed
    assert authorizer.decide("alice", JOKES_AUTHORIZER, now()) == Decision("granted")
    assert await authorizer.resolve("bob", JOKES_AUTHORIZER) == Decision("not-granted", "tools:jokes")
    assert authorizer.decide("alice", JOKES_AUTHORIZER, now() + CACHE_S) is None
    await authorizer.close()
    assert authorizer.is_closed


async def test_a_failed_answer_is_a_decision_while_it_is_cached() -> None:
    def fail(_user: str) -> list[str]:
        raise LookupError

    authorizer = Authorizer(fail)
    assert await authorizer.resolve("alice", JOKES_AUTHORIZER) == Decision("unavailable")
    assert authorizer.decide("alice", JOKES_AUTHORIZER, now()) == Decision("unavailable")
    assert authorizer.known_permissions("alice", now()) == NO_PERMISSIONS


def test_changed_grants_decide_at_once_also_about_cached_users(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps({"users": {"alice": ["tools:*"]}}))
    authorizer = Authorizer(Grants.load(file))
    assert authorizer._watcher is not None
    authorizer._watcher.check()
    assert authorizer.decide("alice", JOKES_AUTHORIZER, 0.0) == Decision("granted")
    file.write_text("{}")
    authorizer._watcher.check()
    assert authorizer.decide("alice", JOKES_AUTHORIZER, 0.0) == Decision("not-granted", "tools:jokes")


def test_the_number_of_cached_users_is_bounded_authorizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_USERS", 3)
    authorizer = Authorizer(Grants.of({"everyone": ["tools:*"]}))
    for number in range(10):
        assert authorizer.decide(f"user-{number}", JOKES_AUTHORIZER, 0.0) == Decision("granted")
    assert authorizer._permissions_of.cache_info().currsize == 3  # type: ignore[union-attr] # of functools


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
