"""The descriptor key ``permissions`` was accepted and shown, but every user could call the tool. It is enforced, without
grants too; a value that is not understood is an error, because a restriction that is ignored is worse than none."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch import RejectedError
from dispatch.catalog import Catalog
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, check, service_item, tool_item
from tests.helpers.dispatcher_and_service import Service, catalog, dispatching, serving

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
