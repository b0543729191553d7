"""The file of approved definitions: damaged, concurrent, with permissions."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dispatch.catalog import approvals as module
from dispatch.catalog.approvals import Approvals, ApprovalsError

A, B = "a" * 64, "b" * 64


def test_without_a_file_nothing_is_approved(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    assert approvals.load() == {}
    assert approvals.modified() == (0, 0, 0)
    assert list(tmp_path.iterdir()) == []


def test_what_is_added_is_loaded_and_replaces_its_key(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    assert approvals.add({"tool/one": frozenset({A}), "tool/two": frozenset({A})}) == Approvals(approvals.path).load()
    before = approvals.modified()
    approvals.add({"tool/one": frozenset({A, B})})
    assert approvals.load() == {"tool/one": {A, B}, "tool/two": {A}}
    assert approvals.modified() != before
    assert json.loads(approvals.path.read_text())["approved"]["tool/one"] == [A, B]
    assert [each.name for each in tmp_path.iterdir()] == ["approved.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"approved": []}',
        b'{"approved": {"tool/one": 7}}',
        b'{"approved": {"tool/one": ["short"]}}',
        b'{"approved": {"tool/one": ["' + b"G" * 64 + b'"]}}',
        b'{"approved": {"tool/one": [7]}}',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_a_damaged_file_is_an_error_and_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.path.write_bytes(content)
    for use in (approvals.load, lambda: approvals.add({"tool/one": frozenset({A})})):
        with pytest.raises(ApprovalsError, match="Fix: restore it"):
            use()
    assert approvals.path.read_bytes() == content


def test_a_file_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 50)
    approvals = Approvals(tmp_path / "approved.json")
    approvals.path.write_text(json.dumps({"approved": {"tool/one": [A]}}))
    with pytest.raises(ApprovalsError, match="more than 50 bytes"):
        approvals.load()


def test_a_place_that_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "approved.json").mkdir()
    with pytest.raises(ApprovalsError, match="cannot be read"):
        Approvals(tmp_path / "approved.json").load()
    with pytest.raises(ApprovalsError, match=r"cannot be written.*make its folder writable"):
        Approvals(tmp_path / "missing" / "approved.json").add({"tool/one": frozenset({A})})


def test_a_write_that_fails_leaves_the_former_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.add({"tool/one": frozenset({A})})

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", refuse)
    with pytest.raises(ApprovalsError, match="No space left"):
        approvals.add({"tool/one": frozenset({B})})
    assert approvals.load() == {"tool/one": {A}}
    assert [each.name for each in tmp_path.iterdir()] == ["approved.json"]


def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.add({"tool/one": frozenset({A})})
    assert stat.S_IMODE(approvals.path.stat().st_mode) == 0o600


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "approved.json"

    def add(at: int) -> None:
        Approvals(path).add({f"tool/t{at}": frozenset({A})})

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(100)))
    assert set(Approvals(path).load()) == {f"tool/t{at}" for at in range(100)}


def test_a_reader_sees_a_whole_file_always(tmp_path: Path) -> None:
    approvals = Approvals(tmp_path / "approved.json")
    approvals.add({"tool/one": frozenset({A})})
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(lambda: [approvals.add({f"tool/t{at}": frozenset({A})}) for at in range(100)])
        seen = [len(approvals.load())]
        while not writing.done():
            seen.append(len(approvals.load()))
    assert seen == sorted(seen)
    assert len(approvals.load()) == 101
