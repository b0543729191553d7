from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.catalog.folder_edits import update_config_map, write_file
from dispatch.catalog.folder import _resolve, find_watched_paths, is_editor_file
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
    assert paths.directories == {
        str(path) for path in (folder.parent, folder, folder / "tool", folder / "tool-service")
    }
    assert paths.contents == {str(folder / "tool"), str(folder / "tool-service")}
    assert paths.is_current()


@pytest.mark.parametrize(
    ("name", "is_relevant"),
    [
        ("tools", True),
        ("other", False),
        ("tools/tool", True),
        ("tools/README.md", False),
        ("tools/tool/a.json", True),
        ("tools/tool/a.json~", False),
        ("tools/tool/..data", True),
        ("tools/tool-service/.a.json", False),
    ],
)
def test_which_changes_are_relevant(folder: Path, name: str, is_relevant: bool) -> None:
    assert find_watched_paths(str(folder)).is_relevant(str(folder.parent / name)) is is_relevant


def test_the_volume_of_a_config_map(tmp_path: Path) -> None:
    mount = tmp_path.resolve() / "tools"
    mount.mkdir()
    update_config_map(mount, {"tool/a.json": TOOL, "tool-service/b.json": SERVICE}, 1)
    paths = find_watched_paths(str(mount))
    data = mount / "..2026_11_22_000001"
    assert {str(mount), str(data), str(data / "tool"), str(data / "tool-service")} < paths.directories
    assert paths.is_relevant(str(mount / "..data"))
    assert paths.is_relevant(str(mount / "tool"))
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
    assert str(target.parent) not in paths.contents
    for path in (target, tmp_path.resolve() / "link", tmp_path.resolve() / "second.json"):
        assert paths.is_relevant(str(path))
    assert not paths.is_relevant(str(target.parent / "b.json"))


def test_a_relative_path_and_a_link_to_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.parent / "current").symlink_to("tools")
    monkeypatch.chdir(folder.parent)
    paths = find_watched_paths("current")
    assert str(folder) in paths.directories
    assert paths.is_relevant(str(folder.parent / "current"))


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
    assert find_watched_paths("tools\0").contents


NAMES = st.sampled_from("abcd")
PATHS = st.lists(NAMES | st.sampled_from(["..", ".", ""]), min_size=1, max_size=4).map("/".join)


@given(
    st.lists(
        st.tuples(st.lists(NAMES, min_size=1, max_size=2), st.none() | st.tuples(st.booleans(), PATHS)), max_size=8
    ),
    PATHS,
)
def test_symbolic_links_are_resolved_as_by_the_operating_system(
    tree: list[tuple[list[str], tuple[bool, str] | None]], path: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        base = os.path.realpath(directory)
        for parts, target in tree:
            place = Path(base, *parts)
            if os.path.lexists(place) or not place.parent.is_dir():
                continue
            if target is None:
                place.mkdir()
            else:
                is_absolute, text = target
                place.symlink_to(f"{base}/{text}" if is_absolute else text or ".")
        links: set[str] = set()
        resolved = _resolve(base, path.lstrip("/"), links)
        try:
            os.stat(Path(base, path.lstrip("/")))
        except OSError:
            return  # missing, or links in a circle: nothing to compare with
        assert resolved == os.path.realpath(f"{base}/{path.lstrip('/')}")
        assert all(os.path.islink(link) for link in links)
