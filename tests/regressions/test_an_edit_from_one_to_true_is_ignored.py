"""An edit of a value from 1 to ``true`` or 1.0 was not in force: in Python the three are equal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dispatch
from benchmarks.catalog.folder_edits import write_file
from dispatch.documents import FrozenDict
from tests.helpers.descriptor_folder import SERVICE, TOOL, make_folder


class Echo(dispatch.ToolService):
    async def invoke(self, config: dict[str, object], arguments: object, user: str = "") -> str:
        return json.dumps(config)


@pytest.mark.wall_clock
async def test_the_service_receives_the_edited_value(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "tools")
    write_file(folder, "tool-service/joke-service.json", SERVICE | {"config-params": [{"name": "limit"}]})
    write_file(folder, "tool/tell-joke.json", TOOL | {"limit": 1})
    broker = f"memory://{tmp_path.name}"
    async with (
        dispatch.ToolServer(Echo(), broker, service="joke"),
        dispatch.connect(broker, dispatch.Folder(folder, id="jokes")) as dispatcher,
    ):
        for value in (1, True, 1.0, [1], [True], {"a": 1}, {"a": 1.0}):
            write_file(folder, "tool/tell-joke.json", TOOL | {"limit": value})
            await dispatcher.registry.refresh("jokes")
            assert await dispatcher.call("tell-joke") == json.dumps({"limit": value})


@pytest.mark.parametrize("other", [{"a": True}, {"a": 1.0}, {"a": 2}, {"b": 1}, {}])
def test_frozen_objects_that_are_not_the_same_json_differ(other: dict[str, object]) -> None:
    frozen = FrozenDict({"a": 1})
    assert frozen != FrozenDict(other)
    assert FrozenDict({"a": (frozen,)}) != FrozenDict({"a": (FrozenDict(other),)})
    assert frozen == FrozenDict({"a": 1})
    assert frozen == {"a": 1}
