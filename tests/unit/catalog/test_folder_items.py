"""Items that a program writes to a folder; the commands: tests/unit/cli/test_items.py."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dispatch
from dispatch.catalog import CatalogError, check_directory
from dispatch.documents import replace_file
from tests.helpers.followed_config import SERVICE, TOOL
from tests.helpers.run_profile import by_profile

NAMES = st.sampled_from(["one", "two"])
VERSIONS = st.sampled_from(["", "@1.0.0", "@2.0.0-beta"])
PARAMS = st.lists(st.fixed_dictionaries({"name": st.just("style"), "required": st.booleans()}), max_size=1)
SERVICES = st.builds(
    lambda params, queue: {"request-queue": queue, "response-queue": "response:tg:x", "config-params": params},
    PARAMS,
    st.sampled_from(["request:tg:x", "x"]),
)
TOOLS = st.builds(
    lambda service, style: {"type": "tool-service", "description": "Work.", "service": service, **style},
    NAMES,
    st.sampled_from([{}, {"style": "pun"}]),
)
PUTS = st.one_of(
    st.tuples(st.tuples(st.just("tool-service"), st.builds(str.__add__, NAMES, VERSIONS)), SERVICES),
    st.tuples(st.tuples(st.just("tool"), st.builds(str.__add__, NAMES, VERSIONS)), TOOLS),
)
STEPS = st.lists(st.tuples(st.booleans(), PUTS), min_size=1, max_size=12)


@pytest.mark.costly
@settings(max_examples=by_profile(short=24, long=60))
@given(STEPS)
def test_no_change_makes_a_valid_folder_invalid(steps: list[tuple[bool, tuple[tuple[str, str], Any]]]) -> None:
    asyncio.run(change_folder(steps))


def hidden_files(path: Path) -> list[Path]:
    return list(path.rglob(".*"))


async def change_folder(steps: list[tuple[bool, tuple[tuple[str, str], Any]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        for kind in ("tool", "tool-service"):
            (path / kind).mkdir()
        folder = dispatch.Folder(name)
        expected: dict[tuple[str, str], Any] = {}
        for is_put, ((kind, key), raw) in steps:
            try:
                if is_put:
                    await folder.put(kind, raw, key=key)
                    expected[kind, key] = raw
                else:
                    assert await folder.remove(kind, key) == (expected.pop((kind, key), None) is not None)
            except ValueError:  # refused; a CatalogError is one
                pass
            else:
                assert await folder.get(kind, key) == expected.get((kind, key))
            catalog, problems = check_directory(name)
            assert catalog is not None, problems
            found = {(kind, key) for kind in ("tool", "tool-service") for key in await folder.list(kind)}
            assert found == set(expected)
            assert not hidden_files(path)


async def test_a_program_puts_lists_reads_and_removes_items_as_in_trustgraphs_configuration(tmp_path: Path) -> None:
    folder = dispatch.Folder(tmp_path)
    await folder.put("tool-service", SERVICE)
    await folder.put("tool", TOOL)
    assert json.loads((tmp_path / "tool" / "tell-joke.json").read_text()) == TOOL
    assert await folder.list("tool") == ("tell-joke",)
    assert await folder.get("tool", "tell-joke") == TOOL
    assert await folder.get("tool", "none") is None
    assert not await folder.remove("tool", "none")
    with pytest.raises(ValueError, match=r"joke-service was not removed: .* needs it\. Fix: remove these"):
        await folder.remove("tool-service", "joke-service")
    assert await folder.remove("tool-service", "joke-service", force=True)
    with pytest.raises(CatalogError, match="there is no tool service 'joke-service'"):
        await folder.put("tool", {**TOOL, "name": "sing"})
    assert await folder.list("tool") == ("tell-joke",)


async def test_a_text_is_written_as_it_is_and_its_warnings_are_returned(tmp_path: Path) -> None:
    folder = dispatch.Folder(tmp_path)
    await folder.put("tool-service", SERVICE)
    raw = {**TOOL, "rollout": {"9.0.0": 5}}
    text = f"# a comment\n{json.dumps(raw)}\n"
    (warning,) = await folder.put("tool", raw, text=text, suffix=".yaml")
    assert "rollout" in warning.key
    assert (tmp_path / "tool" / "tell-joke.yaml").read_text() == text
    with pytest.raises(ValueError, match=r"is stored in .*tell-joke\.yaml, and the new descriptor is JSON"):
        await folder.put("tool", raw)


async def test_a_wrong_kind_or_key_is_a_value_error(tmp_path: Path) -> None:
    folder = dispatch.Folder(tmp_path)
    for kind, raw, key in (
        ("tools", TOOL, None),
        ("tool", {}, None),
        ("tool", TOOL, "../x"),
        ("tool", TOOL, "x" * 251),
    ):
        with pytest.raises(ValueError, match=r"Use |Give it one|use a key"):
            await folder.put(kind, raw, key=key)
    for call in (folder.remove("tools", "x"), folder.get("tools", "x"), folder.list("tools")):
        with pytest.raises(ValueError, match="is not a kind of descriptor"):
            await call
    assert os.listdir(tmp_path) == []


async def test_two_changes_at_once_are_checked_one_after_the_other(tmp_path: Path) -> None:
    folder = dispatch.Folder(tmp_path)
    await folder.put("tool-service", SERVICE)
    for _ in range(20):
        changes = folder.put("tool", TOOL), folder.remove("tool-service", "joke-service")
        ends = await asyncio.gather(*changes, return_exceptions=True)
        assert sum(isinstance(end, ValueError) for end in ends) == 1
        assert check_directory(tmp_path)[0] is not None
        await folder.remove("tool", "tell-joke")
        await folder.put("tool-service", SERVICE)


def test_a_replaced_file_keeps_its_mode_and_a_failure_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ("é" * 125 + ".json")
    mask = os.umask(0o027)
    try:
        replace_file(file, "1")
        replace_file(tmp_path / "private", "1", 0o600)
    finally:
        os.umask(mask)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (file, tmp_path / "private")] == [0o640, 0o600]
    file.chmod(0o604)
    replace_file(file, "2")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("2", 0o604)

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dispatch.catalog.folder.os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(file, "3")
    assert {each.name for each in tmp_path.iterdir()} == {file.name, "private"}
    assert file.read_text() == "2"
