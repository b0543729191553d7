"""Faults of a watched folder: the last valid catalogue stays in force; the fault and its end are reported once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.catalog.folder_edits import replace_file, write_file
from dispatch.catalog import activation
from dispatch.catalog import folder as folder_reader
from dispatch.catalog.items import Item
from dispatch.telemetry.events import Event, SourceChanged
from tests.helpers.descriptor_folder import TOOL, make_folder

pytestmark = pytest.mark.wall_clock

PATIENCE_S = 20
Break = Callable[[Path, pytest.MonkeyPatch], Callable[[], object]]
"""Breaks a folder; returns a function that repairs it."""


class CountedFolder(dispatch.Folder):
    """A folder that counts the attempts to read it."""

    attempts = 0

    async def discover(self) -> Sequence[Item]:
        self.attempts += 1
        return await super().discover()

    async def wait_for_attempts(self, count: int) -> None:
        """Wait for so many further attempts."""
        last = self.attempts + count
        while self.attempts < last:  # noqa: ASYNC110 - a count has no event
            await asyncio.sleep(0.005)


def write_half(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    replace_file(folder, "tool/second.json", "{")
    return (folder / "tool" / "second.json").unlink


def contradict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    replace_file(folder, "tool/second.json", TOOL | {"name": "second", "service": "missing"})
    return (folder / "tool" / "second.json").unlink


def remove(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    elsewhere = folder.rename(folder.with_name("elsewhere"))
    return lambda: elsewhere.rename(folder)


def add_too_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    monkeypatch.setattr(folder_reader, "MAX_FILES", 1)
    path = replace_file(folder, "tool/second.json", TOOL | {"name": "second"})
    return path.unlink


def forbid(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    real = os.scandir
    closed = str(folder / "tool")
    is_closed = True

    def refuse(path: str) -> Any:
        if is_closed and path == closed:
            raise PermissionError(13, "Permission denied")
        return real(path)

    def repair() -> None:
        nonlocal is_closed
        is_closed = False
        (folder / "tool").chmod(0o755)

    monkeypatch.setattr(os, "scandir", refuse)  # the tests may run as root, which every mode admits
    (folder / "tool").chmod(0o700)
    return repair


@pytest.mark.parametrize(
    ("break_folder", "problem"),
    [
        (write_half, "not JSON"),
        (contradict, "there is no tool service 'missing'"),
        (remove, "there is no such folder"),
        (add_too_many, "more than 1 files"),
        (forbid, "Permission denied"),
    ],
    ids=["syntax-error", "contradiction", "missing-folder", "too-many-files", "missing-permission"],
)
async def test_the_last_valid_catalogue_stays_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, break_folder: Break, problem: str
) -> None:
    monkeypatch.setattr(activation, "FIRST_RETRY_S", 0.02)  # many more attempts than reports
    folder = make_folder(tmp_path / "tools")
    changes: list[SourceChanged] = []
    reported = asyncio.Event()

    def record(event: Event) -> None:
        if isinstance(event, SourceChanged) and event.old:
            changes.append(event)
            reported.set()

    source = CountedFolder(folder, watch=True, id="jokes")
    async with dispatch.connect(f"memory://{tmp_path.name}", source) as dispatcher:
        dispatcher.on_event(record)
        before = dispatcher.catalog
        repair = break_folder(folder, monkeypatch)
        async with asyncio.timeout(PATIENCE_S):
            await reported.wait()
            (status,) = dispatcher.registry.sources()
            assert (status.state, status.items) == ("stale", 2)
            assert problem in status.problem
            assert dispatcher.catalog is before
            await source.wait_for_attempts(3)
            reported.clear()
            repair()
            await reported.wait()
        (status,) = dispatcher.registry.sources()
        assert (status.state, status.problem) == ("ok", "")
        assert dispatcher.catalog == before
    assert [(event.old, event.new) for event in changes] == [("ok", "stale"), ("stale", "ok")]
    assert problem in changes[0].problem


async def test_a_tool_keeps_its_descriptor_through_every_fault(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tools")
    changed = asyncio.Event()
    async with dispatch.connect(f"memory://{tmp_path.name}", dispatch.Folder(folder, watch=True)) as dispatcher:
        dispatcher.on_event(lambda event: changed.set())
        descriptor = dispatcher.catalog.tool("tell-joke")
        elsewhere = folder.rename(folder.with_name("elsewhere"))
        write_file(elsewhere, "tool/second.json", TOOL | {"name": "second"})
        elsewhere.rename(folder)
        async with asyncio.timeout(PATIENCE_S):
            while "second" not in dispatcher.catalog.tools:
                changed.clear()
                await changed.wait()
        assert dispatcher.catalog.tool("tell-joke") is descriptor


async def test_a_folder_that_is_not_watched_is_read_on_request(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tools")
    async with dispatch.connect(f"memory://{tmp_path.name}", dispatch.Folder(folder, id="jokes")) as dispatcher:
        write_file(folder, "tool/second.json", TOOL | {"name": "second"})
        await dispatcher.registry.refresh("jokes")
        assert "second" in dispatcher.catalog.tools
        write_file(folder, "tool/second.json", "{")
        with pytest.raises(dispatch.CatalogError, match="not JSON"):
            await dispatcher.registry.refresh("jokes")
        assert "second" in dispatcher.catalog.tools


async def test_a_warning_of_a_descriptor_is_logged_once_while_it_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_folder(tmp_path)
    replace_file(folder, "tool/second.json", TOOL | {"name": "second", "servce": "joke"})
    async with dispatch.connect("memory://warnings", catalog=[dispatch.Folder(folder, id="tools")]) as dispatcher:

        async def edit(**keys: Any) -> list[str]:
            caplog.clear()
            replace_file(folder, "tool/second.json", TOOL | {"name": "second", **keys})
            await dispatcher.registry.refresh("tools")
            return [message.partition("second.json: ")[2] for message in caplog.messages if "second.json" in message]

        (first,) = caplog.messages
        assert "second.json: servce: an unknown key" in first
        assert await edit(servce="joke") == []
        assert await edit(servce="other") == []
        (added,) = await edit(servce="joke", tgas=[])
        assert added.startswith("tgas: an unknown key, which is ignored.")
        assert await edit() == []
        (again,) = await edit(tgas=[])
        assert again == added
