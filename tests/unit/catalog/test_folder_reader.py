from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.catalog.folder_edits import replace_file, write_file
from dispatch.catalog import folder as folder_reader
from dispatch.catalog.folder import FolderReader
from dispatch.catalog.items import Unreadable
from tests.helpers.descriptor_folder import SERVICE, TOOL, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "tools")


@pytest.fixture
def reader(folder: Path) -> FolderReader:
    return FolderReader(folder)


def set_age(path: Path, seconds: int) -> None:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - seconds * 10**9))


def test_unchanged_contents_are_the_same_reading(folder: Path, reader: FolderReader) -> None:
    assert reader.last.number == 0
    first = reader.read()
    assert first.number == 1
    assert [(item.kind, item.key) for item in first.items] == [("tool-service", "joke-service"), ("tool", "tell-joke")]
    assert reader.read() is first
    assert reader.last is first


def test_a_changed_file_has_a_new_item_and_others_keep_theirs(folder: Path, reader: FolderReader) -> None:
    first = reader.read()
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    second = reader.read()
    assert second.number == 2
    assert second.items[0] is first.items[0]
    assert second.items[1].raw == TOOL | {"description": "Tell another joke"}


def test_a_second_write_within_the_clock_of_the_file_system_is_seen(folder: Path, reader: FolderReader) -> None:
    path = folder / "tool" / "tell-joke.json"
    reader.read()
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(b"Tell a joke", b"Tell a pun!"))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    second = reader.read()
    assert second.items[1].raw == TOOL | {"description": "Tell a pun!"}


def test_time_stamps_prove_that_an_old_file_is_unchanged(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_reader, "RACY_NS", 0)
    reader = FolderReader(folder)
    first = reader.read()
    monkeypatch.setattr(folder_reader, "read_regular_file", None)  # a further reading would call it
    assert reader.read() is first


@pytest.mark.parametrize("racy_ns", [0, 10**15])
def test_equal_contents_keep_the_item(folder: Path, monkeypatch: pytest.MonkeyPatch, racy_ns: int) -> None:
    monkeypatch.setattr(folder_reader, "RACY_NS", racy_ns)
    reader = FolderReader(folder)
    first = reader.read()
    replace_file(folder, "tool/tell-joke.json", TOOL)
    set_age(folder / "tool-service" / "joke-service.json", 3600)
    assert reader.read() is first


def test_a_value_of_another_type_is_a_change(folder: Path, reader: FolderReader) -> None:
    write_file(folder, "tool/tell-joke.json", TOOL | {"config": {"limit": 1}})
    reader.read()
    write_file(folder, "tool/tell-joke.json", TOOL | {"config": {"limit": True}})
    assert reader.read().number == 2


def test_an_item_is_the_same_after_its_file_was_truncated_and_written_again(folder: Path, reader: FolderReader) -> None:
    first = reader.read()
    write_file(folder, "tool/tell-joke.json", "")
    second = reader.read()
    assert second.has_errors
    assert second.may_be_partial
    assert isinstance(second.items[1].raw, Unreadable)
    write_file(folder, "tool/tell-joke.json", TOOL)
    third = reader.read()
    assert third.items[1] is first.items[1]
    assert (third.number, third.has_errors) == (3, False)


def test_items_are_the_same_after_the_folder_was_removed_and_restored(folder: Path, reader: FolderReader) -> None:
    first = reader.read()
    folder.rename(folder.with_name("elsewhere"))
    assert [problem.problem for problem in reader.read().problems] == ["there is no such folder"]
    folder.with_name("elsewhere").rename(folder)
    assert list(map(id, reader.read().items)) == list(map(id, first.items))


def test_a_deleted_file_is_not_remembered(folder: Path, reader: FolderReader) -> None:
    first = reader.read()
    (folder / "tool" / "tell-joke.json").unlink()
    assert len(reader.read().items) == 1
    write_file(folder, "tool/tell-joke.json", TOOL)
    assert reader.read().items[1] is not first.items[1]


@pytest.mark.parametrize("name", ["tool/notes.txt", "tool/.tell-joke.json.swp", "tool/tell-joke.json~", "tool/4913"])
def test_files_of_editors_are_no_change(folder: Path, name: str, reader: FolderReader) -> None:
    first = reader.read()
    write_file(folder, name, "{")
    assert reader.read() is first


def test_an_error_that_remains_is_the_same_reading(folder: Path, reader: FolderReader) -> None:
    write_file(folder, "tool/tell-joke.json", "{")
    (folder / "tool" / "gone.json").symlink_to("nowhere")
    first = reader.read()
    assert first.has_errors
    assert reader.read() is first
    shutil.rmtree(folder)
    second = reader.read()
    assert second.number == 2
    assert reader.read() is second


def test_too_many_files_remain_the_same_reading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_reader, "MAX_FILES", 1)
    write_file(folder, "tool/second.json", TOOL | {"name": "second"})
    reader = FolderReader(folder)
    first = reader.read()
    assert [problem.problem for problem in first.problems] == ["more than 1 files"]
    assert reader.read() is first


def test_a_file_that_is_deleted_during_the_scan_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "tool" / "tell-joke.json"
    real = os.stat

    def delete_first(target: str, **options: object) -> os.stat_result:
        if target == str(path):
            path.unlink(missing_ok=True)
        return real(target, **options)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(os, "stat", delete_first)
    reading = FolderReader(folder).read()
    assert not reading.has_errors
    assert len(reading.items) == 1


def test_a_folder_that_is_moved_during_the_scan_is_not_read_in_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "tool" / "tell-joke.json"
    real = os.stat

    def move_first(target: str, **options: object) -> os.stat_result:
        if target == str(path) and folder.exists():
            folder.rename(folder.with_name("elsewhere"))
        return real(target, **options)  # type: ignore[arg-type]  # passed through

    monkeypatch.setattr(os, "stat", move_first)
    reading = FolderReader(folder).read()
    assert [problem.problem for problem in reading.problems] == ["the folder was moved or replaced while it was read"]


def test_a_path_with_a_nul_character_is_no_folder() -> None:
    assert [problem.problem for problem in FolderReader("tools\0").read().problems] == ["there is no such folder"]


def test_items_have_the_namespace_and_the_version_in_their_key(folder: Path) -> None:
    write_file(folder, "tool/tell-joke@2.0.0.json", TOOL)
    items = FolderReader(folder, "crm").read().items
    found = [(item.key, item.namespace) for item in items]
    assert found == [("joke-service", "crm"), ("tell-joke", "crm"), ("tell-joke@2.0.0", "crm")]
    assert items[0].raw == SERVICE


def test_a_yaml_file_that_was_just_written_may_be_partial(folder: Path, reader: FolderReader) -> None:
    assert not reader.read().may_be_partial
    path = write_file(folder, "tool/pun.yaml", "type: tool-service\nservice: joke-service\n")
    assert reader.read().may_be_partial
    set_age(path, 10)
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    assert not reader.read().may_be_partial


CONTENTS = ("", "{", json.dumps(TOOL), json.dumps(TOOL | {"description": "Tell a pun!"}), "[1]", "[true]")
FILES = st.sampled_from(["tool/a.json", "tool/a.yaml", "tool/b@2.json", "tool-service/a.json", "tool/notes.txt"])
EDITS = st.one_of(
    st.tuples(st.just("write"), FILES, st.sampled_from(CONTENTS)),
    st.tuples(st.just("delete"), FILES, st.none()),
    st.tuples(st.just("link"), FILES, FILES),
    st.tuples(st.just("rename"), FILES, FILES),
    st.tuples(st.just("remove folder"), st.none(), st.none()),
    st.tuples(st.just("read"), st.none(), st.none()),
)


def apply_edit(folder: Path, number: int, edit: tuple[str, str | None, str | None]) -> None:
    kind, name, value = edit
    if kind == "remove folder":
        shutil.rmtree(folder)
        return
    if name is None:
        return
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "write":
        path.unlink(missing_ok=True)  # it may be a symbolic link
        path.write_text(value or "")
        os.utime(
            path, ns=(number, number)
        )  # the time stamp tells two contents apart, as it does for a file that is old
    elif kind == "delete":
        path.unlink(missing_ok=True)
    elif value is not None and value != name:
        other = folder / value
        other.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            other.unlink(missing_ok=True)
            other.symlink_to(path)
        elif os.path.lexists(path):
            path.replace(other)


@pytest.mark.parametrize("racy_ns", [0, 10**18], ids=["time-stamps", "contents"])
@given(edits=st.lists(EDITS, max_size=12))
def test_a_reader_finds_what_a_new_reader_finds(racy_ns: int, edits: list[tuple[str, str | None, str | None]]) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_reader, "RACY_NS", racy_ns)
        folder = Path(directory) / "tools"
        reader = FolderReader(folder)
        number = 0
        for at, edit in enumerate(edits, 1):
            if not folder.exists():
                make_folder(folder)
            apply_edit(folder, at, edit)
            reading, fresh = reader.read(), FolderReader(folder).read()
            assert describe(reading) == describe(fresh)
            assert reader.read() is reading
            assert reading.number in (number, number + 1)
            number = reading.number


def describe(reading: folder_reader.FolderReading) -> tuple[object, ...]:
    """What a reading holds; a number differs from a truth value."""
    items = [(item.origin, item.kind, item.key, read_raw(item.raw)) for item in reading.items]
    problems = [problem for problem in reading.problems if problem.severity != "info"]
    return items, problems, reading.has_errors


def read_raw(raw: object) -> str:
    return "unreadable" if isinstance(raw, Unreadable) else json.dumps(raw)
