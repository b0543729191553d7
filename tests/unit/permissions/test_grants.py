"""Grants from files and mappings: who has what, and every mistake with its key and fix.
Watching a file with grants: every way to change it, and files that are invalid or missing for a time.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch.documents import MAX_PROBLEMS_PER_ITEM, SETTLE_S
from dispatch.permissions.grants import (
    MAX_FILE_BYTES,
    MAX_GRANTS,
    MAX_NAME_CHARS,
    Grants,
    GrantsError,
    InvalidAnswerError,
    PermissionSet,
    check_answer,
    watch_grants,
)

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
    assert grants.permissions_of("bob") == permissions(
        "tools:time", "articles:*", "!articles:delete", "articles:delete", "tools:admin"
    )
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
        (
            {"users": {"alice": ["! a"]}},
            "users.alice[0]",
            "'! a': a permission contains a blank or a control character",
        ),
        ({"users": {"": []}}, "users", "'' is no name of a user or a group"),
        ({"users": {" alice": []}}, "users", "' alice' is no name of a user or a group"),
        ({"users": {"x" * (MAX_NAME_CHARS + 1): []}}, "users", "is no name of a user or a group"),
        ({"users": {1: []}}, "users", "a number is no name of a user or a group"),
        ({"groups": {"g": ["a"]}}, "groups.g", "list in place of an object"),
        (
            {"groups": {"g": {"members": [], "permission": [], "permissions": []}}},
            "groups.g.permission",
            "an unknown key",
        ),
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
        self.watcher = watch_grants(
            Grants.load(file), lambda grants: self.loaded.append(grants.permissions_of("alice")), self._wait
        )
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
    frozen = watched.watcher._sign()
    monkeypatch.setattr(watched.watcher, "_sign", lambda: frozen)
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
    failing = watch_grants(Grants.load(watched.file), lambda _grants: 1 / 0, lambda _seconds: False)
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

    watcher = watch_grants(Grants.load(file), loaded.append, wait)
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
