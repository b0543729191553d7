"""Watching a file with grants: every way to change it, and files that are invalid or missing for a time."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch.documents import SETTLE_S
from dispatch.permissions import grants as grants_watcher
from dispatch.permissions.grants import Grants, GrantsWatcher, PermissionSet


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
        self.watcher = GrantsWatcher(
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
    monkeypatch.setattr(grants_watcher, "read_grants_file", lambda _path: pytest.fail("it was read"))
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
    watcher = GrantsWatcher(Grants.load(file), loaded.append)
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
    failing = GrantsWatcher(Grants.load(watched.file), lambda _grants: 1 / 0, lambda _seconds: False)
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

    watcher = GrantsWatcher(Grants.load(file), loaded.append, wait)
    watcher.start()
    watcher.start()
    assert ended.wait(10)
    threads[0].join(10)
    assert len(threads) == 3
    assert len(set(threads)) == 1
    assert threads[0].daemon
    assert len(loaded) == 1


def test_a_closed_watcher_ends_its_thread(watched: Watched) -> None:
    watcher = GrantsWatcher(Grants.load(watched.file), lambda _grants: None)
    watcher.start()
    (thread,) = (each for each in threading.enumerate() if each.name == "dispatch-grants")
    watcher.close()
    thread.join(10)
    assert not thread.is_alive()
