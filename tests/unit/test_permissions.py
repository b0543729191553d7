"""Matching of permissions, compared with a plain comparison of segments.
Asking an application's callable: shared requests, the time limit, the cache, and failures that refuse calls.
Decisions: from grants at once, from a callable when its answer is cached, and none without either.
Grants from files and mappings: who has what, and every mistake with its key and fix.
Watching a file with grants: every way to change it, and files that are invalid or missing for a time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch import documents
from dispatch import permissions as module
from dispatch.documents import MAX_PROBLEMS_PER_ITEM, SETTLE_S
from dispatch.permissions import (
    CACHE_S,
    FAILURE_CACHE_S,
    LOOKUP_TIMEOUT_S,
    MAX_FILE_BYTES,
    MAX_GRANTS,
    MAX_NAME_CHARS,
    MAX_PERMISSION_CHARS,
    MAX_SATISFIED,
    NO_PERMISSIONS,
    Authorizer,
    Decision,
    Grants,
    GrantsError,
    InvalidAnswerError,
    PermissionLookup,
    PermissionSet,
    Requirement,
    check_answer,
    check_grant,
    check_permission,
    require_permissions,
    watch_grants,
)
from tests.helpers.clock import now

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


@pytest.mark.costly
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


async def test_an_answer_is_cached_for_a_minute_from_its_arrival() -> None:
    directory = Directory(seconds=0.5)
    lookup = PermissionLookup(directory)
    assert lookup.cached("alice", now()) is None
    assert await lookup.fetch("alice", 1.0) == JOKES
    await asyncio.sleep(CACHE_S - 0.001)
    answer = lookup.cached("alice", now())
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
    monkeypatch.setattr(module, "MAX_THREADS", 2)
    loop = asyncio.get_running_loop()
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
    monkeypatch.setattr(module, "MAX_CACHED_USERS", 3)
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


RAW: dict[str, Any] = {
    "users": {"alice": ["tools:jokes"], "mallory": ["*", "!tools:admin"]},
    "groups": {
        "editors": {"members": ["alice", "bob"], "permissions": ["articles:*", "!articles:delete"]},
        "owners": {"members": ["bob"], "permissions": ["articles:delete", "tools:admin"]},
    },
    "everyone": ["tools:time"],
}


def permissions(*grants: str) -> PermissionSet:
    return PermissionSet(grants)


def test_a_user_has_own_grants_those_of_groups_and_those_of_everyone() -> None:
    grants = Grants.of(RAW)
    assert grants.permissions_of("alice") == permissions("tools:time", "tools:jokes", "articles:*", "!articles:delete")
    of_bob = permissions("tools:time", "articles:*", "!articles:delete", "articles:delete", "tools:admin")
    assert grants.permissions_of("bob") == of_bob
    assert grants.permissions_of("unknown") == grants.permissions_of("") == permissions("tools:time")
    assert grants.permissions_of("Alice") == permissions("tools:time"), "names are case-sensitive"
    assert grants.users == 3


def test_all_keys_are_optional() -> None:
    assert Grants.of({}).permissions_of("alice") == permissions()


def test_a_file_has_the_same_keys(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    file.write_text(json.dumps(RAW))
    assert Grants.load(file).permissions_of("alice") == Grants.of(RAW).permissions_of("alice")
    assert Grants.load(str(file)).path == file
    assert Grants.of(RAW).path is None


def problems(raw: object) -> list[tuple[str, str, str]]:
    with pytest.raises(GrantsError) as caught:
        Grants.of(raw)  # type: ignore[arg-type] # wrong on purpose
    for each in caught.value.problems:
        assert each.fix
        assert str(each) in str(caught.value)
    return [(each.key, each.problem, each.fix) for each in caught.value.problems]


@pytest.mark.parametrize(
    ("raw", "key", "problem"),
    [
        ([], "", "list in place of an object"),
        (None, "", "null in place of an object"),
        ({"user": {}}, "user", "an unknown key"),
        ({"users": None}, "users", "null in place of an object"),
        ({"users": {"alice": "tools:jokes"}}, "users.alice", "a text in place of a list"),
        ({"users": {"alice": [1]}}, "users.alice[0]", "a number in place of a text"),
        ({"users": {"alice": ["a", "to*ls"]}}, "users.alice[1]", "'to*ls': '*' is not the whole last segment"),
        ({"users": {"bob": ["! a"]}}, "users.bob[0]", "'! a': a permission contains a blank or a control character"),
        ({"users": {"": []}}, "users", "'' is no name of a user or a group"),
        ({"users": {" alice": []}}, "users", "' alice' is no name of a user or a group"),
        ({"users": {"x" * (MAX_NAME_CHARS + 1): []}}, "users", "is no name of a user or a group"),
        ({"users": {1: []}}, "users", "a number is no name of a user or a group"),
        ({"groups": {"g": ["a"]}}, "groups.g", "list in place of an object"),
        ({"groups": {"g": {"members": [], "member": [], "permissions": []}}}, "groups.g.member", "an unknown key"),
        ({"groups": {"g": {"permissions": ["a"]}}}, "groups.g.members", "the key is missing"),
        ({"groups": {"g": {"members": ["alice"]}}}, "groups.g.permissions", "the key is missing"),
        ({"groups": {"g": {"members": [2], "permissions": []}}}, "groups.g.members[0]", "a number in place of a text"),
        ({"groups": {"g": {"members": [""], "permissions": []}}}, "groups.g.members", "'' is no name"),
        ({"everyone": {"a": 1}}, "everyone", "an object in place of a list"),
        ({"everyone": ["a"] * (MAX_GRANTS + 1)}, "everyone", "1,001 grants, above the limit of 1,000"),
    ],
)
def test_every_mistake_has_key_and_fix(raw: object, key: str, problem: str) -> None:
    ((found_key, found_problem, _fix),) = problems(raw)
    assert found_key == key
    assert problem in found_problem


def test_a_misspelt_key_names_the_right_one() -> None:
    ((_, _, fix),) = problems({"everyones": []})
    assert fix == "rename it to 'everyone'"


def test_all_mistakes_are_listed_up_to_a_limit() -> None:
    assert len(problems({"users": {"a": [1], "b": ["* *"]}, "group": {}})) == 3
    assert len(problems({"everyone": [1] * (MAX_PROBLEMS_PER_ITEM + 5)})) == MAX_PROBLEMS_PER_ITEM + 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", r"the file is empty\. Fix: write {\"users\""),
        (b'{"users": {"alice": ["a"]', "not JSON: .* Fix: correct line 1"),
        (b"\xff", "not UTF-8: .* iconv"),
        (b"[" * 100_000, "too many nested"),
        (b'{"users": {"alice": ["a"], "alice": []}}', "the key occurs twice"),
        (b" " * (MAX_FILE_BYTES + 1), "the file has more than 4,194,304 bytes"),
    ],
)
def test_an_unreadable_file_names_itself_and_the_fix(tmp_path: Path, content: bytes, problem: str) -> None:
    file = tmp_path / "grants.json"
    file.write_bytes(content)
    with pytest.raises(GrantsError, match=problem) as caught:
        Grants.load(file)
    assert caught.value.file == str(file)
    assert str(file) in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).problems == caught.value.problems


def test_a_missing_file_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(GrantsError, match=r"cannot be read .*correct the path"):
        Grants.load(tmp_path / "missing.json")


@pytest.mark.parametrize("answer", [["a"], ("a",), {"a"}, frozenset({"a"}), {"a": 1}.keys()])
def test_the_answer_of_a_callable_is_a_collection_of_grants(answer: object) -> None:
    assert check_answer(answer) == ("a",)


@pytest.mark.parametrize(
    "answer", [None, "a", b"a", {"a": 1}, 1, ["x y"], [1], [None], ["a"] * (MAX_GRANTS + 1), iter(["a"])]
)
def test_any_other_answer_is_refused_without_its_content(answer: object) -> None:
    with pytest.raises(InvalidAnswerError, match="it returned") as caught:
        check_answer(answer)
    assert "x y" not in str(caught.value)


def write(file: Path, *grants: str) -> None:
    file.write_text(json.dumps({"users": {"alice": list(grants)}}))


class Watched:
    """A file and its watcher, whose checks the test makes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        if not file.exists():
            write(file, "first")
        self.loaded: list[PermissionSet] = []
        self.waits: list[float] = []
        self.on_wait: Callable[[], object] = lambda: None
        self.watcher = watch_grants(Grants.load(file), lambda new: self.loaded.append(new.permissions_of("alice")))
        self.watcher.wait = self._wait
        self.watcher.check()
        self.loaded.clear()

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.on_wait()
        return False

    def check(self) -> list[PermissionSet]:
        """Make one check; return what it loaded."""
        self.watcher.check()
        loaded, self.loaded = self.loaded, []
        return loaded


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "grants.json")


def settle(file: Path) -> None:
    """Set the file's time back, beyond the time for which its content is compared on each check."""
    found = file.stat()
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns - 10 * 10**9))


SECOND = PermissionSet(["second"])


def test_a_changed_file_is_loaded_once(watched: Watched) -> None:
    assert watched.check() == []
    write(watched.file, "second")
    assert watched.check() == [SECOND]
    assert watched.check() == []


def test_a_file_that_does_not_change_is_not_read(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    settle(watched.file)
    watched.check()
    monkeypatch.setattr(watched.watcher, "_read", lambda _path: pytest.fail("it was read"))
    watched.check()


def test_a_change_of_the_same_size_and_time_is_noticed(watched: Watched) -> None:
    settle(watched.file)
    watched.check()
    found = watched.file.stat()
    write(watched.file, "fisrt")
    os.utime(watched.file, ns=(found.st_atime_ns, found.st_mtime_ns))
    assert watched.check() == [PermissionSet(["fisrt"])]


def test_a_change_within_the_granularity_of_the_files_time_is_noticed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = documents.sign_file(watched.file)
    monkeypatch.setattr(documents, "sign_file", lambda _path: frozen)
    write(watched.file, "third")
    assert watched.check() == [PermissionSet(["third"])]


def test_an_atomic_rename_is_noticed(watched: Watched) -> None:
    other = watched.file.with_name("other.json")
    write(other, "second")
    settle(other)
    other.replace(watched.file)
    assert watched.check() == [SECOND]


def test_the_swap_of_a_config_maps_link_is_noticed(tmp_path: Path) -> None:
    for name, grant in (("one", "first"), ("two", "second")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "grants.json", grant)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "grants.json").symlink_to("..data/grants.json")
    watched = Watched(tmp_path / "grants.json")
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    assert watched.check() == [SECOND]


def test_a_change_between_loading_and_the_first_check_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    write(file, "first")
    loaded: list[Grants] = []
    watcher = watch_grants(Grants.load(file), loaded.append)
    write(file, "second")
    watcher.check()
    assert [grants.permissions_of("alice") for grants in loaded] == [SECOND]


@pytest.mark.parametrize("content", [b'{"users": {"al', b'{"user": {}}', b"\xff", None])
def test_an_invalid_file_is_reported_once_and_so_is_its_recovery(
    watched: Watched, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dispatch.permissions")
    if content is None:
        watched.file.unlink()
    else:
        watched.file.write_bytes(content)
    for _ in range(3):
        assert watched.check() == []
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "the grants in force stay" in record.getMessage()
    assert str(watched.file) in record.getMessage()
    caplog.clear()
    write(watched.file, "second")
    assert watched.check() == [SECOND]
    assert any("valid again" in each.getMessage() for each in caplog.records)
    caplog.clear()
    watched.check()
    assert not caplog.records


def test_a_file_that_becomes_valid_again_with_its_former_content_is_reported(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dispatch.permissions")
    former = watched.file.read_bytes()
    watched.file.write_bytes(b"{")
    watched.check()
    watched.file.write_bytes(former)
    assert watched.check() == []
    assert "valid again" in caplog.text


def test_a_partly_written_file_is_read_again_before_it_is_reported(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.file.write_bytes(b'{"users": {"al')
    watched.on_wait = lambda: write(watched.file, "second")
    assert watched.check() == [SECOND]
    assert watched.waits == [SETTLE_S]
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_bug_of_a_listener_does_not_end_the_watch(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    failing = watch_grants(Grants.load(watched.file), lambda _grants: 1 / 0)
    failing.check()
    assert "ZeroDivisionError" in caplog.text


def test_the_thread_checks_until_it_is_closed(tmp_path: Path) -> None:
    file = tmp_path / "grants.json"
    write(file, "first")
    loaded: list[Grants] = []
    threads: list[threading.Thread] = []
    ended = threading.Event()

    def wait(_seconds: float) -> bool:
        threads.append(threading.current_thread())
        if len(threads) == 3:
            ended.set()
        return len(threads) >= 3

    watcher = watch_grants(Grants.load(file), loaded.append)
    watcher.wait = wait
    watcher.start()
    watcher.start()
    assert ended.wait(10)
    threads[0].join(10)
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threads[0].daemon
    assert len(loaded) == 1


def test_a_closed_watcher_ends_its_thread(watched: Watched) -> None:
    watcher = watch_grants(Grants.load(watched.file), lambda _grants: None)
    watcher.start()
    (thread,) = (each for each in threading.enumerate() if each.name == "dispatch-grants")
    watcher.close()
    thread.join(10)
    assert not thread.is_alive()
