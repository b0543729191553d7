"""Faults of a watched folder: the last valid catalogue stays in force; the fault and its end are reported once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from watchfiles import _rust_notify

import dispatch
from benchmarks.catalog.folder_edits import EditedFolder, replace_file, update_config_map, write_file
from dispatch import CatalogError, Folder
from dispatch.catalog import activation
from dispatch.catalog import folder as folder_module
from dispatch.catalog import folder as folder_reader
from dispatch.catalog import folder as folder_watch
from dispatch.catalog.folder import FolderReading
from dispatch.catalog.items import Item
from dispatch.telemetry.events import Event, SourceChanged
from tests.helpers.descriptor_folder import SERVICE, TOOL, make_folder
from tests.helpers.run_profile import by_profile

pytestmark = pytest.mark.wall_clock

PATIENCE_S = 20
CHANGED = TOOL | {"description": "Tell another joke"}


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What these tests see was reported by the operating system."""
    monkeypatch.setattr(folder_module, "POLL_S", 3600.0)
    monkeypatch.delenv("WATCHFILES_FORCE_POLLING", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "tools")


class Follower:
    """The last valid items of a watched folder, as the registry of a dispatcher follows them."""

    def __init__(self, path: Path) -> None:
        self.source = Folder(path, watch=True)
        self.items: Sequence[Item] = self.source.load()
        self.readings = 0
        self.errors: list[str] = []
        self._progress = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Follower]:
        task = asyncio.create_task(self._follow())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _follow(self) -> None:
        async for _ in self.source.changes():
            try:
                self.items = await self.source.discover()
            except CatalogError as error:
                self.errors.append(error.problems[0].problem)
            self.readings += 1
            self._progress.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._progress.clear()
                await self._progress.wait()

    @property
    def descriptions(self) -> dict[str, str]:
        return {item.key: item.raw["description"] for item in self.items if item.kind == "tool"}  # type: ignore[index]


@contextlib.asynccontextmanager
async def follow(folder: Path) -> AsyncIterator[Follower]:
    """Follow a folder, from the moment on at which the operating system reports its changes."""
    async with Follower(folder).running() as follower:
        write_file(folder, "tool/first.json", TOOL | {"name": "first"})
        await follower.until(lambda: "first" in follower.descriptions)
        yield follower


def rename_away_and_back(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    write_file(folder.with_name("elsewhere"), "tool/tell-joke.json", CHANGED)
    folder.with_name("elsewhere").rename(folder)


def create_again(folder: Path) -> None:
    shutil.rmtree(folder)
    make_folder(folder)
    write_file(folder, "tool/tell-joke.json", CHANGED)


def replace_parent(folder: Path) -> None:
    parent = folder.parent
    parent.rename(parent.with_name("former"))
    make_folder(folder)
    write_file(folder, "tool/tell-joke.json", CHANGED)


def replace_kind(folder: Path) -> None:
    shutil.rmtree(folder / "tool")
    write_file(folder, "tool/tell-joke.json", CHANGED)


def change_permissions(folder: Path) -> None:
    replace_file(folder, "tool/tell-joke.json", CHANGED)
    (folder / "tool" / "tell-joke.json").chmod(0o600)


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: write_file(folder, "tool/tell-joke.json", CHANGED),
        lambda folder: replace_file(folder, "tool/tell-joke.json", CHANGED),
        rename_away_and_back,
        create_again,
        replace_parent,
        replace_kind,
        change_permissions,
    ],
    ids=["write", "rename", "move-and-restore", "create-again", "replace-parent", "replace-kind", "permissions"],
)
async def test_an_edit_is_reported(tmp_path: Path, edit: Callable[[Path], object]) -> None:
    folder = make_folder(tmp_path / "parent" / "tools")
    async with follow(folder) as follower:
        edit(folder)
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")
        write_file(folder, "tool/tell-joke.json", TOOL)  # the watch is in force afterwards, too
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell a joke")


async def test_a_deleted_file_is_reported(folder: Path) -> None:
    async with follow(folder) as follower:
        (folder / "tool" / "tell-joke.json").unlink()
        await follower.until(lambda: follower.descriptions.keys() == {"first"})


@pytest.mark.parametrize("is_kind_mounted", [False, True])
async def test_the_swap_of_a_config_map_is_reported(tmp_path: Path, is_kind_mounted: bool) -> None:
    folder = tmp_path / "tools"
    service, tool = "tool-service/joke-service.json", "tool/tell-joke.json"
    if is_kind_mounted:  # one volume for each kind: each file is a symbolic link into ..data
        write_file(folder, service, SERVICE)
        mount, tool = folder / "tool", "tell-joke.json"
        files = {}
    else:
        mount, files = folder, {service: SERVICE}
    mount.mkdir(parents=True)
    update_config_map(mount, files | {tool: TOOL}, 0)
    async with Follower(folder).running() as follower:
        for number in range(1, 5):
            description = f"Tell joke {number}"
            update_config_map(mount, files | {tool: TOOL | {"description": description}}, number)
            await follower.until(lambda: follower.descriptions == {"tell-joke": description})  # noqa: B023 - at once


async def test_the_target_of_a_symbolic_link_is_watched(tmp_path: Path, folder: Path) -> None:
    target = write_file(tmp_path, "elsewhere/shared.json", TOOL | {"name": "shared"})
    (tmp_path / "link").symlink_to("elsewhere")
    (folder / "tool" / "shared.json").symlink_to(tmp_path / "link" / "shared.json")
    async with follow(folder) as follower:
        target.write_text(target.read_text().replace("Tell a joke", "Tell a pun"))
        await follower.until(lambda: follower.descriptions["shared"] == "Tell a pun")


async def test_a_folder_that_is_missing_for_long_comes_back(folder: Path) -> None:
    async with follow(folder) as follower:
        elsewhere = folder.parent.rename(folder.parent.with_name("elsewhere"))  # with its parent
        await follower.until(lambda: bool(follower.errors))
        assert follower.errors == ["there is no such folder"]
        write_file(elsewhere / folder.name, "tool/tell-joke.json", CHANGED)
        elsewhere.rename(folder.parent)
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")


async def test_files_of_editors_are_no_change(folder: Path) -> None:
    async with follow(folder) as follower:
        readings = follower.readings
        for name in (".tell-joke.json.swp", "tell-joke.json~", "tell-joke.json.tmp", ".#tell-joke.json", "4913"):
            write_file(folder, f"tool/{name}", "{").unlink()
        replace_file(folder, "tool/tell-joke.json", CHANGED)
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")
        assert follower.readings == readings + 1


@pytest.mark.costly
async def test_cancellation_leaves_no_thread_and_no_file_descriptor(folder: Path) -> None:
    async with follow(folder):
        pass
    before = count_descriptors()
    for delay in range(40):
        task = asyncio.create_task(anext(Folder(folder, watch=True).changes(), None))
        await asyncio.sleep(delay / 1000)  # it is cancelled before, while and after the watch is opened
        task.cancel()
        await asyncio.wait([task])
    async with asyncio.timeout(PATIENCE_S):
        while watching_threads() or count_descriptors() > before:  # noqa: ASYNC110 - a thread that opens a watch
            await asyncio.sleep(0.01)


def watching_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dispatch-folder"]


@pytest.mark.costly
async def test_a_change_without_a_notification_is_found_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_watch, "RESCAN_S", 0.5)
    monkeypatch.setattr(folder_watch, "is_editor_file", lambda path: True)
    async with follow(folder) as follower:
        write_file(folder, "tool/tell-joke.json", CHANGED)
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")


async def test_several_dispatchers_may_follow_one_source(folder: Path) -> None:
    async with follow(folder) as first:
        second = Follower(folder)
        second.source = first.source
        async with second.running():
            for number in range(3):
                write_file(folder, "tool/tell-joke.json", TOOL | {"description": f"Tell joke {number}"})
                for follower in (first, second):
                    await follower.until(lambda: follower.descriptions["tell-joke"] == f"Tell joke {number}")  # noqa: B023 - at once


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_without_watchfiles_the_folder_is_scanned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder_module, "POLL_S", 0.05)
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.setitem(sys.modules, "watchfiles._rust_notify", None)
    with caplog.at_level(logging.INFO, "dispatch.catalog"):
        async with follow(folder) as follower:
            create_again(folder)
            await follower.until(lambda: follower.descriptions == {"tell-joke": "Tell another joke"})
        async with follower.running():
            write_file(folder, "tool/tell-joke.json", TOOL)
            await follower.until(lambda: follower.descriptions == {"tell-joke": "Tell a joke"})
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "pip install 'tool-dispatch[watch]'" in record.getMessage()


async def test_forced_polling_does_not_watch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "POLL_S", 0.05)
    monkeypatch.setattr(folder_module, "watch_folder", None)
    monkeypatch.setenv("WATCHFILES_FORCE_POLLING", "true")
    async with follow(folder) as follower:
        update_config_map(folder.with_name("map"), {"tell-joke.json": CHANGED}, 0)
        (folder / "tool" / "tell-joke.json").unlink()
        (folder / "tool" / "tell-joke.json").symlink_to("../../map/tell-joke.json")
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")


@pytest.mark.parametrize(
    "error",
    [OSError("OS file watch limit reached."), RuntimeError("Error creating recommended watcher: Too many open files")],
    ids=["watches", "instances"],
)
@pytest.mark.costly
async def test_a_limit_of_the_operating_system_is_reported_once_and_the_watch_begins_when_there_is_room(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    notify, limits = _rust_notify.RustNotify, [error] * 10

    def open_watch(*arguments: Any) -> object:
        if limits:
            raise limits.pop()
        monkeypatch.setattr(folder_module, "POLL_S", 3600.0)  # what follows was not found by a scan
        return notify(*arguments)

    monkeypatch.setattr(folder_module, "POLL_S", 0.05)
    monkeypatch.setattr(_rust_notify, "RustNotify", open_watch)
    async with follow(folder) as follower:
        assert limits
        for number in range(len(limits) + 1):  # each is found by a scan, after another attempt
            write_file(folder, "tool/tell-joke.json", TOOL | {"description": f"Tell joke {number}"})
            await follower.until(lambda: follower.descriptions["tell-joke"] == f"Tell joke {number}")  # noqa: B023 - at once
        assert not limits
        write_file(folder, "tool/tell-joke.json", CHANGED)
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert str(error) in record.getMessage()
    assert record.getMessage().endswith("Raise the limits fs.inotify.*")


async def test_a_folder_that_moves_while_its_watch_is_opened_is_watched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notify, opened = _rust_notify.RustNotify, []

    def open_while_it_is_away(*arguments: Any) -> object:
        opened.append(arguments)
        elsewhere = folder.rename(folder.with_name("elsewhere")) if len(opened) == 1 else folder
        try:
            return notify(*arguments)
        finally:
            elsewhere.rename(folder)

    monkeypatch.setattr(_rust_notify, "RustNotify", open_while_it_is_away)
    async with follow(folder) as follower:
        write_file(folder, "tool/tell-joke.json", CHANGED)
        await follower.until(lambda: follower.descriptions["tell-joke"] == "Tell another joke")


@pytest.mark.parametrize("layout", ["plain", "config-map", "release"])
@pytest.mark.long
async def test_random_edits(tmp_path: Path, layout: str) -> None:
    seed = random.randrange(10**6)
    edited = EditedFolder(tmp_path / "tools", layout, "edited", random.Random(seed))
    kinds: list[str] = []
    async with Follower(edited.path).running() as follower:
        for _ in range(by_profile(short=15, long=300)):
            edited.make_noise()
            kinds.append(await asyncio.to_thread(edited.edit))
            try:
                await follower.until(lambda: follower.descriptions == edited.expected)
            except TimeoutError:
                pytest.fail(f"seed {seed}: {kinds[-3:]}: {follower.descriptions} instead of {edited.expected}")


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


async def test_a_partly_written_file_is_read_again_before_it_is_reported(folder: Path) -> None:
    source = Folder(folder)
    source.load()
    write_file(folder, "tool/tell-joke.json", "{")
    discovery = asyncio.ensure_future(source.discover())
    await until(lambda: source._reader.last.has_errors)
    write_file(folder, "tool/tell-joke.json", TOOL | {"description": "Tell another joke"})
    assert (await discovery)[1].raw == TOOL | {"description": "Tell another joke"}


@pytest.mark.costly
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


@pytest.mark.costly
async def test_a_partly_written_yaml_file_is_read_again_although_it_is_valid(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "PARTIAL_WRITE_S", 1.0)  # on a busy machine the rest is written later
    source = Folder(folder)
    source.load()
    write_file(folder, "tool/pun.yaml", "type: tool-service\n")
    discovery = asyncio.ensure_future(source.discover())
    await until(lambda: source._reader.last.number == 2)
    write_file(folder, "tool/pun.yaml", "type: tool-service\ndescription: Tell a pun\nservice: joke-service\n")
    assert (await discovery)[1].raw == {"type": "tool-service", "description": "Tell a pun", "service": "joke-service"}


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
@pytest.mark.costly
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
