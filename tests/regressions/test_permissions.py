"""An edit of a value from 1 to ``true`` or 1.0 was not in force: in Python the three are equal.
The descriptor key ``permissions`` was accepted and shown, but every user could call the tool. It is enforced, without
grants too; a value that is not understood is an error, because a restriction that is ignored is worse than none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dispatch
from benchmarks.catalog.folder_edits import write_file
from dispatch import RejectedError
from dispatch.catalog import Catalog
from dispatch.documents import FrozenDict
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, check, service_item, tool_item
from tests.helpers.descriptor_folder import SERVICE, TOOL, make_folder
from tests.helpers.dispatcher_and_service import Service, catalog, dispatching, serving


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


INVALID: list[tuple[Any, str, str]] = [
    ([], "permissions", "the list is empty"),  # may be meant as "no user may call it"
    ("admin", "permissions", "not a list"),
    ([""], "permissions[0]", "an empty text"),
    (["tools:*"], "permissions[0]", "'*' and '!' are for grants"),
    (["a", "!b"], "permissions[1]", "'*' and '!' are for grants"),
    (["a b"], "permissions[0]", "a blank"),
    ([1], "permissions[0]", "instead of a text"),
]


@pytest.mark.parametrize(
    ("service", "tool"),
    [({"permissions": ["lab"]}, {}), ({}, {"permissions": ["lab"]}), ({"permissions": ["a"]}, {"permissions": ["b"]})],
)
async def test_a_tool_with_permissions_is_not_called_without_grants(service: Any, tool: Any) -> None:
    spy = Service(lambda _: "done")
    async with serving(spy), dispatching(catalog(service=service, work=tool)) as dispatcher:
        with pytest.raises(RejectedError) as caught:
            await dispatcher.call("work", user="alice")
    assert caught.value.type == "not-permitted"
    assert spy.requests == []


@pytest.mark.parametrize(("value", "key", "text"), INVALID)
def test_a_value_that_is_not_understood_is_an_error_in_tools_and_services(value: Any, key: str, text: str) -> None:
    for items in (
        (service_item(), tool_item(TELL_JOKE | {"permissions": value})),
        (service_item(JOKE_SERVICE | {"permissions": value}), tool_item()),
    ):
        (problem,) = check(*items)
        assert problem.key == key
        assert text in problem.problem
        assert problem.fix


def test_null_is_a_missing_key() -> None:
    assert not check(service_item(JOKE_SERVICE | {"permissions": None}), tool_item(TELL_JOKE | {"permissions": None}))


def test_a_config_param_of_that_name_goes_to_the_service() -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": "permissions"}]}
    tool = {key: value for key, value in TELL_JOKE.items() if key != "style"}
    descriptor = Catalog.of([service], [tool | {"permissions": "any"}]).tool("tell-joke")
    assert descriptor.config == {"permissions": "any"}
    assert descriptor.permissions == ()
