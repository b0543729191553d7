from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.catalog.folder_edits import update_config_map, write_file
from dispatch.catalog.folder import find_watched_paths, is_editor_file
from tests.helpers.descriptor_folder import SERVICE, TOOL, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path.resolve() / "parent" / "tools")


@pytest.mark.parametrize("name", [".tell-joke.json.swp", "tell-joke.json~", "a.tmp", "a.swx", ".#a.json", ".hidden"])
def test_files_of_editors(name: str) -> None:
    assert is_editor_file(name)


@pytest.mark.parametrize("name", ["tell-joke.json", "a.yaml", "..data", "..2026_11_22"])
def test_other_files(name: str) -> None:
    assert not is_editor_file(name)


def test_a_plain_folder(folder: Path) -> None:
    paths = find_watched_paths(str(folder))
    assert paths.directories == {str(path) for path in (folder, folder / "tool", folder / "tool-service")}
    assert paths.is_current()


def test_the_volume_of_a_config_map(tmp_path: Path) -> None:
    mount = tmp_path.resolve() / "tools"
    mount.mkdir()
    update_config_map(mount, {"tool/a.json": TOOL, "tool-service/b.json": SERVICE}, 1)
    paths = find_watched_paths(str(mount))
    data = mount / "..2026_11_22_000001"
    assert paths.directories == {str(mount), str(data / "tool"), str(data / "tool-service")}
    update_config_map(mount, {"tool/a.json": TOOL, "tool-service/b.json": SERVICE}, 2)
    assert not paths.is_current()
    assert find_watched_paths(str(mount)) != paths


def test_a_chain_of_links_to_one_file(tmp_path: Path, folder: Path) -> None:
    target = write_file(tmp_path.resolve(), "shared/a.json", TOOL)
    (tmp_path / "link").symlink_to("shared")
    (tmp_path / "second.json").symlink_to("link/../link/a.json")
    (folder / "tool" / "a.json").symlink_to("../../../second.json")
    paths = find_watched_paths(str(folder))
    assert {str(target.parent), str(tmp_path.resolve())} <= paths.directories
    write_file(tmp_path.resolve(), "other/a.json", TOOL)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("other")
    assert not paths.is_current()


def test_a_relative_path_and_a_link_to_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "current").symlink_to("tools")
    monkeypatch.chdir(folder.parent)
    paths = find_watched_paths("current")
    assert str(folder) in paths.directories
    make_folder(folder.parent / "next")
    (folder.parent / "current").unlink()
    (folder.parent / "current").symlink_to("next")
    assert not paths.is_current()


def test_a_missing_folder(tmp_path: Path) -> None:
    folder = tmp_path.resolve() / "missing" / "tools"
    paths = find_watched_paths(str(folder))
    assert paths.directories == set()
    assert paths.is_current()
    make_folder(folder)
    assert not paths.is_current()


def test_a_directory_that_was_replaced(folder: Path) -> None:
    paths = find_watched_paths(str(folder))
    folder.parent.rename(folder.parent.with_name("former"))
    make_folder(folder)
    assert find_watched_paths(str(folder)).directories == paths.directories
    assert not paths.is_current()


def test_links_in_a_circle_and_impossible_names(folder: Path) -> None:
    (folder / "tool" / "a.json").symlink_to("b.json")
    (folder / "tool" / "b.json").symlink_to("a.json")
    (folder / "tool" / os.fsdecode(b"\xff.json")).symlink_to("/")
    assert str(folder / "tool") in find_watched_paths(str(folder)).directories
    assert not find_watched_paths("tools\0").directories
