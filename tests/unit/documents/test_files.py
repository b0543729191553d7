"""Reading of files: bounded, and never from a pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dispatch.documents import DocumentError, load_document, parse_typed, read_regular_file


def load(path: Path) -> object:
    return load_document(path, 50, "make it smaller", "write {}")


def test_the_suffix_decides_how_a_file_is_read(tmp_path: Path) -> None:
    for name, text in (("a.json", '{"a": 1}'), ("a.yaml", "a: 1"), ("a.YML", "a: 1"), ("a.conf", '\ufeff{"a": 1}')):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert load(tmp_path / name) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "problem", "fix"),
    [
        (b"", "the file is empty", "write {}"),
        (b"\xff\xfea", "not UTF-8: byte 0 begins no character", "iconv -f UTF-16"),
        (b'{"a": 1,\n}', "line 2, column 1", "correct line 2"),
        (b" " * 51, "more than 50 bytes", "make it smaller"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes, problem: str, fix: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DocumentError) as caught:
        load(tmp_path / "a.json")
    ((key, what, how),) = caught.value.mistakes
    assert key == ""
    assert problem in what
    assert fix in how


def test_pipes_and_folders_are_no_files_and_leave_no_descriptor_open(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else []
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(DocumentError, match="not a regular file"):
            read_regular_file(path, 50, "")
    with pytest.raises(DocumentError, match="cannot be read: No such file"):
        load(tmp_path / "missing")
    assert not before or len(os.listdir("/proc/self/fd")) == len(before)


def test_a_type_of_msgspec_is_read_from_json_and_yaml() -> None:
    assert parse_typed(b'\xef\xbb\xbf{"a": ["x"]}', "keys.json", dict[str, list[str]]) == {"a": ["x"]}
    assert parse_typed(b"a: [x]", "keys.yaml", dict[str, list[str]]) == {"a": ["x"]}
    with pytest.raises(DocumentError, match=r"Expected `str`, got `int` - at `\$\[\.\.\.\]`") as caught:
        parse_typed(b'{"a": 5}', "keys.json", dict[str, str])
    assert "5" not in str(caught.value)
