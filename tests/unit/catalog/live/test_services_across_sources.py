"""Tools of one source that use a service of another one, whatever their order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dispatch
from dispatch import CatalogError, Folder
from dispatch.catalog.items import Item
from tests.helpers.clock import advance
from tests.helpers.troubled_source import SERVICE, TOOL, TroubledSource

BROKER = "memory://across"


def folder(path: Path, **files: object) -> Folder:
    for name, content in files.items():
        kind, _, key = name.partition("__")
        at = path / kind.replace("_", "-")
        at.mkdir(parents=True, exist_ok=True)
        (at / f"{key}.json").write_text(json.dumps(content))
    return Folder(path)


def tools_and_service(path: Path) -> tuple[Folder, Folder]:
    return folder(path / "tools", tool__stamp=TOOL), folder(path / "services", tool_service__desk=SERVICE)


async def test_a_folder_may_use_a_service_of_a_later_folder(tmp_path: Path) -> None:
    async with dispatch.connect(BROKER, tools_and_service(tmp_path)) as dispatcher:
        assert list(dispatcher.catalog.tools) == ["stamp"]
        tools, services = tools_and_service(tmp_path / "others")
        await dispatcher.reload([tools, services])
        assert list(dispatcher.catalog.tools) == ["stamp"]
        await dispatcher.reload([services, tools])
        assert list(dispatcher.catalog.tools) == ["stamp"]


async def test_folders_may_use_services_of_each_other_in_turn(tmp_path: Path) -> None:
    second = {**SERVICE, "id": "counter"}
    folders = [
        folder(tmp_path / "a", tool__stamp=TOOL),
        folder(tmp_path / "b", tool_service__desk=SERVICE, tool__count={**TOOL, "name": "count", "service": "counter"}),
        folder(tmp_path / "c", tool_service__counter=second),
    ]
    async with dispatch.connect(BROKER, folders) as dispatcher:
        assert set(dispatcher.catalog.tools) == {"stamp", "count"}


def test_a_folder_without_its_service_is_refused_if_no_source_can_bring_it(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="no tool service 'desk'"):
        dispatch.connect(BROKER, [tools_and_service(tmp_path)[0], dispatch.Catalog.empty()])


async def test_a_folder_waits_for_the_service_of_a_source_that_is_read_later(tmp_path: Path) -> None:
    source = TroubledSource(on_change="apply")
    source.deliver()
    tools, _ = tools_and_service(tmp_path)
    async with dispatch.connect(BROKER, [tools, source]) as dispatcher:
        assert list(dispatcher.catalog.tools) == []
        status = dispatcher.registry.sources()[0]
        assert status.state == "failed"
        assert "no tool service 'desk'" in status.problem
        source.deliver(Item("tool-service/desk", "tool-service", "desk", SERVICE))
        await advance(40)
        assert list(dispatcher.catalog.tools) == ["stamp"]
        assert {status.state for status in dispatcher.registry.sources()} == {"ok"}


def test_a_mistake_in_a_folder_is_reported_at_once_beside_a_source_that_is_read_later(tmp_path: Path) -> None:
    tools = folder(tmp_path, tool__stamp={**TOOL, "description": 5})
    with pytest.raises(CatalogError, match="'description' is a number"):
        dispatch.connect(BROKER, [tools, TroubledSource(on_change="apply")])
