from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.catalog.folder_edits import write_file
from dispatch import CatalogError, Folder
from dispatch.catalog import folder as folder_module
from dispatch.catalog.folder import FolderReading
from tests.helpers.descriptor_folder import TOOL, make_folder

pytestmark = pytest.mark.wall_clock


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "tools")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - it depends on a thread that reads
            await asyncio.sleep(0.001)


async def test_a_source_without_watching(folder: Path) -> None:
    source = Folder(folder, namespace="crm", on_change="hold")
    assert (source.id, source.is_atomic, source.is_watched) == (f"folder:{folder}", True, False)
    assert (source.namespace, source.on_change) == ("crm", "hold")
    items = source.load()
    assert [item.key for item in items] == ["joke-service", "tell-joke"]
    assert await source.discover() is items
    changes = asyncio.ensure_future(anext(source.changes()))
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    assert await source.discover() is not items
    assert not changes.done()
    changes.cancel()
    await asyncio.wait([changes])


def test_an_id_of_its_own(folder: Path) -> None:
    assert Folder(folder, id="jokes").id == "jokes"


def test_the_first_load_reports_files_and_descriptors(folder: Path) -> None:
    write_file(folder, "tool/a.json", "{")
    write_file(folder, "tool/b.json", TOOL | {"name": "b", "service": "other"})
    with pytest.raises(CatalogError) as raised:
        Folder(folder).load()
    assert [Path(problem.file).name for problem in raised.value.problems] == ["a.json", "b.json"]


async def test_errors_in_files_are_raised_and_recovery_returns_the_same_items(folder: Path) -> None:
    source = Folder(folder)
    items = source.load()
    write_file(folder, "tool/a.json", "{")
    for _ in range(2):
        with pytest.raises(CatalogError) as raised:
            await source.discover()
        (problem,) = raised.value.problems
        assert problem.file == str(folder / "tool" / "a.json")
    (folder / "tool" / "a.json").unlink()
    assert list(map(id, await source.discover())) == list(map(id, items))


async def test_a_partly_written_file_is_read_again_before_it_is_reported(folder: Path) -> None:
    source = Folder(folder)
    source.load()
    write_file(folder, "tool/tell-joke.json", "{")
    discovery = asyncio.ensure_future(source.discover())
    await until(lambda: source._reader.last.has_errors)
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    items = await discovery
    assert items[1].raw == TOOL | {"description": "Tell another joke"}


async def test_each_partly_written_file_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Folder(folder)
    source.load()
    read = source._reader.read
    numbers = itertools.count()

    def read_during_a_copy() -> FolderReading:
        """Read the folder while another file is half written each time."""
        number = next(numbers)
        if number:
            write_file(folder, f"tool/t{number - 1}.json", TOOL | {"name": f"t{number - 1}"})
        if number < 3:
            write_file(folder, f"tool/t{number}.json", "{")
        return read()

    monkeypatch.setattr(source._reader, "read", read_during_a_copy)
    assert [item.key for item in await source.discover()] == ["joke-service", "t0", "t1", "t2", "tell-joke"]


async def test_a_folder_that_is_never_complete_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_READINGS", 2)
    source = Folder(folder)
    source.load()
    read = source._reader.read
    names = iter("abcdef")

    def read_another() -> FolderReading:
        for path in folder.glob("tool/?.json"):
            path.unlink()
        write_file(folder, f"tool/{next(names)}.json", "{")
        return read()

    monkeypatch.setattr(source._reader, "read", read_another)
    with pytest.raises(CatalogError, match=r"c\.json"):
        await source.discover()


async def test_a_partly_written_yaml_file_is_read_again_although_it_is_valid(folder: Path) -> None:
    source = Folder(folder)
    source.load()
    write_file(folder, "tool/pun.yaml", "type: tool-service\n")
    discovery = asyncio.ensure_future(source.discover())
    await until(lambda: source._reader.last.number == 2)
    write_file(folder, "tool/pun.yaml", "type: tool-service\ndescription: Tell a pun\nservice: joke-service\n")
    assert (await discovery)[1].raw == {
        "type": "tool-service",
        "description": "Tell a pun",
        "service": "joke-service",
    }


async def test_warnings_of_the_folder_are_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tool" / "tell-joke.json").unlink()
    (folder / "tool").rmdir()
    source = Folder(folder)
    with caplog.at_level(logging.WARNING, "dispatch.catalog"):
        source.load()
        await source.discover()
    (record,) = caplog.records
    assert "there is no tool/" in record.getMessage()


async def test_polling_reports_contents_that_differ(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "POLL_S", 0.01)
    source = Folder(folder, watch=True)
    source.load()
    changes = source.changes()
    first = asyncio.ensure_future(anext(changes))
    write_file(folder, "tool/.tell-joke.json.swp", "{")
    await asyncio.sleep(0.1)
    assert not first.done()
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    await asyncio.wait_for(first, 10)
    assert (await source.discover())[1].raw == TOOL | {"description": "Tell another joke"}
    await changes.aclose()


async def test_a_change_between_discovery_and_watching_is_reported(folder: Path) -> None:
    source = Folder(folder, watch=True)
    source.load()
    changes = source.changes()
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    await asyncio.wait_for(anext(changes), 10)
    await changes.aclose()
