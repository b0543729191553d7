"""The descriptor keys ``permissions`` and ``requires`` were accepted and shown, but every user could call the tool at any
service version. A descriptor that has one of them is refused, because dispatch does not enforce it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch.catalog import Catalog, CatalogError
from dispatch.cli import main
from tests.helpers.catalog_items import JOKE_SERVICE, TELL_JOKE, check, service_item, tool_item

RESTRICTIONS: list[tuple[str, Any]] = [
    ("permissions", ["tools:jokes"]),
    ("permissions", []),  # may be meant as "no user may call it"
    ("permissions", "admin"),
    ("requires", ">=1.4.0, <2"),
    ("requires", "newest"),
]


@pytest.mark.parametrize(("key", "value"), RESTRICTIONS)
def test_a_tool_with_an_unenforced_restriction_is_refused(key: str, value: Any) -> None:
    (problem,) = check(service_item(), tool_item(TELL_JOKE | {key: value}))
    assert (problem.file, problem.key) == ("tool/tell-joke.json", key)
    assert f"'{key}' is not enforced" in problem.problem
    assert problem.fix.startswith(f"remove '{key}'")


@pytest.mark.parametrize(("key", "value"), RESTRICTIONS)
def test_a_service_with_an_unenforced_restriction_is_refused(key: str, value: Any) -> None:
    (problem,) = check(service_item(JOKE_SERVICE | {key: value}), tool_item())
    assert (problem.file, problem.key) == ("tool-service/joke-service.json", key)
    assert f"'{key}' is not enforced" in problem.problem
    assert problem.fix.startswith(f"remove '{key}'")


@pytest.mark.parametrize("key", ["permissions", "requires"])
def test_null_is_a_missing_key(key: str) -> None:
    assert not check(service_item(JOKE_SERVICE | {key: None}), tool_item(TELL_JOKE | {key: None}))


@pytest.mark.parametrize("key", ["permissions", "requires"])
def test_a_config_param_of_that_name_goes_to_the_service(key: str) -> None:
    service = JOKE_SERVICE | {"config-params": [{"name": key}]}
    catalog = Catalog.of([service], [{k: v for k, v in TELL_JOKE.items() if k != "style"} | {key: "any"}])
    assert catalog.tool("tell-joke").config == {key: "any"}


def test_a_dispatcher_does_not_start_with_it() -> None:
    with pytest.raises(CatalogError, match=r"tools\[0\]: permissions: .* Fix: remove 'permissions'"):
        dispatch.connect(
            "memory://", catalog=Catalog.of([JOKE_SERVICE], [TELL_JOKE | {"permissions": ["tools:jokes"]}])
        )


def test_check_names_file_key_and_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = {
        "tool-service/joke-service.json": JOKE_SERVICE,
        "tool/tell-joke.json": TELL_JOKE | {"permissions": ["tools:jokes"]},
    }
    for name, item in items.items():
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text(json.dumps(item))
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "tell-joke.json: permissions: 'permissions' is not enforced" in out
    assert "fix: remove 'permissions'" in out
