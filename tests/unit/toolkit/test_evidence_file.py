"""The SQLite file of evidence: additions, decay, several connections, broken and foreign files."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.toolkit import evidence as evidence_module
from dispatch.toolkit.evidence import Change, Edge, Evidence, EvidenceFile

DAY = 86_400.0
EDGE = ("read", "search")
ONE = Evidence(success=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "learned.db"


def merge(file: EvidenceFile, added: dict[Edge, Evidence], resets: list[Edge] | None, now: float) -> list[Change]:
    changes: list[Change] = []
    file.write(added, resets, now)
    file.read(changes.extend)
    return changes


def read(path: Path, now: float = 0.0) -> dict[Edge, Evidence]:
    file = EvidenceFile(path, DAY)
    changes = merge(file, {}, [], now)
    file.close()
    return {(change.source, change.target): change.evidence for change in changes}


def test_evidence_is_read_again_after_the_file_was_closed(path: Path) -> None:
    file = EvidenceFile(path, DAY)
    merge(file, {EDGE: Evidence(1, 2, 3), ("读", "søk\0"): ONE}, [], 0.0)
    file.close()
    assert read(path) == {EDGE: Evidence(1, 2, 3), ("读", "søk\0"): ONE}


def test_a_row_of_a_clock_that_is_ahead_is_treated_as_present(path: Path) -> None:
    file = EvidenceFile(path, DAY)
    merge(file, {EDGE: ONE}, [], 1000 * DAY)
    (change,) = merge(file, {EDGE: ONE}, [], 0.0)
    assert (change.evidence, change.time) == (Evidence(success=2.0), 0.0)
    file.close()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), st.floats(0.1, 9), st.floats(0, 3 * DAY)), max_size=12)
)
def test_any_order_of_processes_gives_the_decayed_sum(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str, float, float]]
) -> None:
    path = tmp_path_factory.mktemp("evidence") / "learned.db"
    files = [EvidenceFile(path, DAY) for _ in range(3)]
    now = 0.0
    seen: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for process, target, amount, pause in steps:
        now += pause
        merge(files[process], {("a", target): Evidence(amount, amount / 2, amount / 3)}, [], now)
        seen[target].append((amount, now))
    for file in files:
        file.close()
    reader = EvidenceFile(path, DAY)
    found = {change.target: change for change in merge(reader, {}, [], now)}
    assert merge(reader, {}, [], now) == []
    reader.close()
    assert found.keys() == seen.keys()
    for target, added in seen.items():
        change = found[target]
        expected = sum(amount * 0.5 ** ((change.time - time) / DAY) for amount, time in added)
        assert change.evidence == pytest.approx((expected, expected / 2, expected / 3))


def test_the_weakest_rows_beyond_the_limit_are_deleted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence_module, "MAX_EDGES", 32)
    file = EvidenceFile(path, DAY)
    merge(file, {("old", str(number)): Evidence(success=3.0) for number in range(20)}, [], 0.0)
    merge(file, {("new", str(number)): ONE for number in range(20)}, [], 3 * DAY)
    file.close()
    found = read(path, 3 * DAY)
    assert len(found) == 30
    assert sum(u == "new" for u, _ in found) == 20


@pytest.mark.parametrize("place", [0, 2 * 4096], ids=["header", "page"])
def test_a_broken_file_is_moved_aside_and_reported_by_name(
    path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    file = EvidenceFile(path, DAY)
    merge(file, {(str(number), "search"): ONE for number in range(1000)}, [], 0.0)
    file.close()
    content = bytearray(path.read_bytes())
    content[place : place + 4096] = b"\xfe" * 4096
    path.write_bytes(content)
    assert read(path) == {}
    (aside,) = path.parent.glob("learned.db.broken-*")
    assert aside.read_bytes() == content
    (record,) = caplog.records
    assert str(path) in record.message
    assert str(aside) in record.message


def test_a_file_that_breaks_while_it_is_open_is_moved_aside_and_the_call_is_written(path: Path) -> None:
    file = EvidenceFile(path, DAY)
    merge(file, {(str(number), "search"): ONE for number in range(1000)}, [], 0.0)
    file.close()
    merge(file, {}, [], 0.0)
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xfe" * (len(content) - 4096)
    path.write_bytes(content)  # in place: the connection reads it
    file._connection.execute("PRAGMA shrink_memory")
    changes = merge(file, {EDGE: ONE}, [], 0.0)
    file.close()
    assert [change.evidence for change in changes] == [ONE]
    assert len(list(path.parent.glob("learned.db.broken-*"))) == 1
    assert read(path) == {EDGE: ONE}


def test_of_two_processes_that_find_a_broken_file_one_moves_it(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    one, two = EvidenceFile(path, DAY), EvidenceFile(path, DAY)
    error = sqlite3.DatabaseError("file is not a database")
    two._inode = path.stat().st_ino
    merge(one, {EDGE: ONE}, [], 0.0)
    two._move_aside(error)  # it had found the same fault, and waited for the lock
    (change,) = merge(two, {}, [], 0.0)
    assert change.evidence == ONE
    one.close()
    two.close()
    assert len([each for each in path.parent.glob("*.broken-*") if not each.name.endswith(("-wal", "-shm"))]) == 1


def test_a_deleted_file_is_created_again(path: Path) -> None:
    file = EvidenceFile(path, DAY)
    merge(file, {EDGE: ONE}, [], 0.0)
    for each in path.parent.iterdir():
        each.unlink()
    merge(file, {EDGE: ONE}, [], 0.0)
    file.close()
    assert read(path) == {EDGE: ONE}


def test_databases_of_other_applications_and_of_newer_versions_are_refused_and_not_moved(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE notes (text TEXT)")
    other.close()
    with pytest.raises(ValueError, match="another application"):
        EvidenceFile(path, DAY)
    assert [each.name for each in path.parent.iterdir()] == ["learned.db"]
    newer = path.with_name("newer.db")
    file = EvidenceFile(newer, DAY)
    merge(file, {}, [], 0.0)
    file.close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(ValueError, match="format 2"):
        EvidenceFile(newer, DAY)


def test_a_missing_folder_is_named(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Create its folder first"):
        EvidenceFile(path / "missing" / "learned.db", DAY)


@pytest.mark.parametrize("value", [-1.0, float("inf"), 1e300, "text"])
def test_rows_that_cannot_be_evidence_are_ignored(path: Path, value: object) -> None:
    file = EvidenceFile(path, DAY)
    merge(file, {EDGE: ONE, ("read", "open"): ONE}, [], 0.0)
    file.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE evidence SET success = ? WHERE target = 'open'", (value,))
    connection.close()
    assert read(path) == {EDGE: ONE}


def test_ids_that_are_no_text_are_not_stored(path: Path) -> None:
    file = EvidenceFile(path, DAY)
    (change,) = merge(file, {("a", "half \ud800"): ONE, EDGE: ONE}, [], 0.0)
    file.close()
    assert change[:2] == EDGE
