"""``dispatch put``, ``rm`` and ``get`` in a folder, and in TrustGraph's configuration on the embedded broker."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch.catalog.items import Source
from dispatch.cli.base import Settings
from tests.helpers.config_service import ConfigStore, config_broker, config_service
from tests.helpers.followed_config import SERVICE, TOOL
from tests.unit.cli.conftest import Ended, Run, no_room, write_catalog

URL = "memory://config-of-the-command-line"
SING = {"type": "tool-service", "name": "sing", "description": "Sing.", "service": "joke-service"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_catalog(tmp_path / "tools")


@pytest.fixture
def give(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``give(value)``: what the next command reads from stdin."""

    def give_stdin(value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    return give_stdin


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.costly
def test_put_from_a_file_then_get_then_rm(run: Run, folder: Path, tmp_path: Path) -> None:
    text = json.dumps(SING, indent=3)
    (tmp_path / "sing.json").write_text(text)
    assert run("put", "tool/sing", "sing.json") == Ended(0, "tools/tool/sing.json: written.\n", "")
    assert (folder / "tool" / "sing.json").read_text() == f"{text}\n"
    assert run("get", "tool/sing", "--json").json == SING
    assert json.loads(run("get", "tool/sing").out) == SING
    assert [tool["name"] for tool in run("tools", "--json").json] == ["sing", "tell-joke"]
    assert run("get", "tool").out == "sing\ntell-joke\n"
    assert run("get", "tool-service", "--json").json == ["joke-service"]
    assert run("put", "tool/sing", "sing.json").out == "tools/tool/sing.json: replaced.\n"
    assert run("rm", "tool/sing") == Ended(0, "tools/tool/sing.json: removed.\n", "")
    assert files(folder) == {"tool/tell-joke.json", "tool-service/joke-service.json"}


def test_trustgraphs_flags_name_the_same_item(run: Run, folder: Path, give: Any) -> None:
    give(SING)
    value = run("put", "--type", "tool", "--key", "sing", "--stdin", "--json").json
    assert value == {"item": "tool/sing", "place": "tools/tool/sing.json", "replaced": False, "warnings": []}
    assert run("get", "--type", "tool", "--key", "sing", "--json").json == SING
    give(SING)
    assert run("put", "--type", "tool", "--key", "sing", "-").out == "tools/tool/sing.json: replaced.\n"
    assert run("get", "--type", "tool", "--json").json == ["sing", "tell-joke"]
    value = run("rm", "--type", "tool", "--key", "sing", "--json").json
    assert value == {"item": "tool/sing", "place": "tools/tool/sing.json", "removed": True}


@pytest.mark.costly
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("put",), "No item is given."),
        (("put", "sing", "-"), "'sing' is no item."),
        (("put", "tool/", "-"), "No item is given."),
        (("put", "tols/sing", "-"), "'tols' is no kind of item."),
        (("put", "/srv/tools/sing.json"), "'/srv/tools/sing.json' is no item."),
        (("put", "tool/sing"), "No descriptor is given."),
        (("put", "tool/sing", "x.json", "--stdin"), "The descriptor is given twice."),
        (("put", "tool/sing", "-", "--type", "tool"), "The item is given twice."),
        (("put", "tool/sing", "nowhere.json"), "nowhere.json cannot be read"),
        (("put", "tool/sing", "tools"), "tools cannot be read"),
        (("put", "tool/sing@2.0", "-"), "'2.0' is not a SemVer version."),
        (("put", "tool/a/b", "-"), "cannot be the name of a file"),
        (("put", "tool/../tool", "-"), "cannot be the name of a file"),
        (("put", "tool/.hidden", "-"), "cannot be the name of a file"),
        (("put", f"tool/{'x' * 300}", "-"), "cannot be the name of a file"),
        (("put", "tool/sing", "-", "--catalog", "nowhere"), "There is no folder 'nowhere'."),
        (("put", "tool/sing", "-", "--catalog", "a", "--catalog", "b"), "An item belongs to one source."),
        (("put", "tool/sing", "-", "--catalog", "tools", "--trustgraph"), "An item belongs to one source."),
        (("get", "tool/sing", "--workspace", "*"), "An item belongs to one workspace."),
        (("get", "tool/sing", "--workspace", "_system"), "'_system' is not a workspace with tools"),
        (("get", "tool/sing", "--trustgraph", "--broker", "memory://"), "memory:// is the embedded broker"),
        (("get", "tool/tel-joke"), "There is no tool/tel-joke in tools."),
        (("rm", "tool-service/joke"), "There is no tool-service/joke in tools."),
    ],
)
def test_mistakes_of_the_user(run: Run, folder: Path, give: Any, words: tuple[str, ...], message: str) -> None:
    give(SING)
    before = files(folder)
    err = run.refused(*words)
    assert message in err
    assert "fix: " in err or "Fix: " in err or "Use " in err
    assert files(folder) == before


@pytest.mark.parametrize(
    ("item", "text", "message"),
    [
        ("tool/sing", "{", "stdin: "),
        ("tool/sing", "", "give the descriptor as JSON on stdin"),
        ("tool/sing", '{"a": 1, "a": 2}', "stdin: "),
        ("tool/sing", "[]", "not an object"),
        ("tool/sing", json.dumps(SING | {"service": "joke"}), "there is no tool service 'joke'"),
        ("tool/sing", json.dumps(SING | {"name": "tell-joke"}), "the tool name 'tell-joke' is already used by"),
        ("tool-service/joke-service", '{"id": "joke-service"}', "request-queue"),
        (
            "tool-service/joke-service",
            json.dumps(SERVICE | {"config-params": [{"name": "voice", "required": True}]}),
            "tell-joke.json",
        ),
    ],
)
def test_an_invalid_item_is_refused_with_key_and_fix_and_nothing_is_written(
    run: Run, folder: Path, give: Any, item: str, text: str, message: str
) -> None:
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    give(text)
    err = run.refused("put", item, "-")
    assert message in err
    assert "fix:" in err.lower()
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_a_mistake_that_is_there_already_is_no_reason_to_refuse_its_correction(
    run: Run, folder: Path, give: Any
) -> None:
    (folder / "tool" / "sing.json").write_text("{")
    (folder / "tool" / "dance.json").write_text("{")
    give(SING)
    assert run("put", "tool/sing", "-").code == 0
    assert run("check", "--plan", "none").out.count("error: ") == 1


def test_a_service_that_tools_use_is_not_removed_without_force(run: Run, folder: Path) -> None:
    err = run.refused("rm", "tool-service/joke-service")
    assert "tool-service/joke-service was not removed: tools/tool/tell-joke.json needs it." in err
    assert "--force" in err
    assert run("rm", "tool-service/joke-service", "--force").code == 0
    assert files(folder) == {"tool/tell-joke.json"}


def test_a_service_goes_when_another_version_stays(run: Run, folder: Path, give: Any) -> None:
    give(SERVICE | {"version": "2.0.0", "config-params": [{"name": "style"}]})
    assert run("put", "tool-service/joke-service@2.0.0", "-").code == 0
    assert run("rm", "tool-service/joke-service").code == 0
    assert run("check", "--plan", "none").code == 0


def test_yaml_stays_yaml(run: Run, folder: Path, tmp_path: Path, give: Any) -> None:
    (tmp_path / "sing.yaml").write_text("type: tool-service\nname: sing\ndescription: Sing.\nservice: joke-service\n")
    assert run("put", "tool/sing", "sing.yaml").out == "tools/tool/sing.yaml: written.\n"
    assert run("get", "tool/sing", "--json").json == SING
    give(SING)
    assert "stored in tools/tool/sing.yaml" in run.refused("put", "tool/sing", "-")
    assert run("rm", "tool/sing").code == 0


def test_warnings_are_shown(run: Run, folder: Path, give: Any) -> None:
    give(SING | {"descripton": "Sing?"})
    end = run("put", "tool/sing", "-", "--json", code=0)
    assert "descripton" in end.json["warnings"][0]
    assert "Warning: tools/tool/sing.json: descripton" in end.err


def test_a_replaced_file_keeps_its_permissions_and_leaves_no_other(run: Run, folder: Path, give: Any) -> None:
    file = folder / "tool" / "tell-joke.json"
    file.chmod(0o640)
    give(SING | {"name": "tell-joke", "style": "dry"})
    assert run("put", "tool/tell-joke", "-").code == 0
    assert file.stat().st_mode & 0o777 == 0o640
    give(SING)
    mask = os.umask(0o027)
    try:
        assert run("put", "tool/sing", "-").code == 0
    finally:
        os.umask(mask)
    assert (folder / "tool" / "sing.json").stat().st_mode & 0o777 == 0o640
    assert files(folder) == {"tool/tell-joke.json", "tool/sing.json", "tool-service/joke-service.json"}


def test_a_full_disk_is_told_as_such(run: Run, folder: Path, give: Any) -> None:
    give(SING)
    with no_room():
        end = run("put", "tool/sing", "-")
    assert (end.code, end.err) == (
        2,
        "Error: tools/tool/sing.json cannot be written: File too large.\n"
        "  fix: make room on its disk, or raise its quota or limit of size\n",
    )
    assert files(folder) == {"tool/tell-joke.json", "tool-service/joke-service.json"}


def test_a_file_that_cannot_be_replaced_leaves_nothing_behind(
    run: Run, folder: Path, give: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dispatch.catalog.folder.os.replace", fail)
    give(SING)
    assert "tools/tool/sing.json cannot be written: No space left on device." in run.refused("put", "tool/sing", "-")
    assert files(folder) == {"tool/tell-joke.json", "tool-service/joke-service.json"}


def test_text_that_is_no_json_is_printed_as_it_is(run: Run, folder: Path) -> None:
    (folder / "tool" / "broken.json").write_text("{ half")
    assert run("get", "tool/broken").out == "{ half\n"
    assert run("get", "tool/broken", "--json").json == "{ half"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> ConfigStore:
    """TrustGraph's configuration with one service and one tool, which the commands reach without a broker of their own."""
    store = ConfigStore()
    store.write("tool-service", "joke-service", SERVICE)
    store.write("tool", "tell-joke", TOOL)

    @contextlib.asynccontextmanager
    async def connect(_settings: Settings, sources: Sequence[Source], _command: str) -> AsyncIterator[None]:
        async with config_broker(URL) as broker, config_service(URL, store) as service:
            service.is_silent = store.version < 0
            for source in sources:
                if isinstance(source, dispatch.TrustGraphConfig):
                    source.connect(broker)
            yield

    monkeypatch.setattr("dispatch.cli.sources.connect_sources", connect)
    monkeypatch.setattr("dispatch.cli.items.connect_sources", connect)
    return store


@pytest.mark.costly
def test_items_of_trustgraphs_configuration(run: Run, store: ConfigStore, give: Any) -> None:
    give(SING)
    assert run("put", "tool/sing", "-", "--trustgraph").out == "trustgraph:default/tool/sing: written.\n"
    assert json.loads(store.texts["default", "tool", "sing"]) == SING
    assert run("get", "tool/sing", "--trustgraph", "--json").json == SING
    assert run("get", "tool", "--trustgraph").out == "sing\ntell-joke\n"
    give(SING)
    assert run("put", "tool/sing", "-", "--workspace", "default", "--json").json["replaced"] is True
    assert run("rm", "tool/sing", "--trustgraph").out == "trustgraph:default/tool/sing: removed.\n"
    assert run("rm", "tool/sing", "--trustgraph").code == 2
    err = run.refused("get", "tool/tell-joke", "--workspace", "crm")
    assert "There is no tool/tell-joke in TrustGraph's configuration, workspace 'crm'." in err


def test_an_invalid_item_is_not_written_to_trustgraph(run: Run, store: ConfigStore, give: Any) -> None:
    for value, message in (
        (SING | {"service": "none"}, "there is no tool service 'none'"),
        (["sing"], "not an object"),
    ):
        give(value)
        assert message in run.refused("put", "tool/sing", "-", "--trustgraph")
    assert ("default", "tool", "sing") not in store.texts


def test_a_service_in_use_is_not_removed_from_trustgraph_without_force(run: Run, store: ConfigStore) -> None:
    err = run.refused("rm", "tool-service/joke-service", "--trustgraph")
    assert "tell-joke" in err
    assert "--force" in err
    assert ("default", "tool-service", "joke-service") in store.texts
    assert run("rm", "tool-service/joke-service", "--trustgraph", "--force").code == 0
    assert ("default", "tool-service", "joke-service") not in store.texts


def test_tools_and_check_read_trustgraphs_configuration(run: Run, store: ConfigStore, tmp_path: Path) -> None:
    (row,) = run("tools", "--trustgraph", "--json").json
    assert (row["name"], row["source"]) == ("tell-joke", "trustgraph")
    store.write("tool", "broken", "{")
    store.write("tool", "search", {"type": "mcp-tool", "name": "search"})
    write_catalog(tmp_path / "tools")
    rows = run("tools", "--trustgraph", "--catalog", "tools", "--all", "--json").json
    statuses = {(row["status"], row["source"], row["name"]) for row in rows}
    assert statuses == {
        ("in-force", "folder:tools", "tell-joke"),
        ("shadowed", "trustgraph", "tell-joke"),
        ("shadowed", "trustgraph", "joke-service"),
        ("refused", "trustgraph", "broken"),
        ("foreign", "trustgraph", "search"),
    }
    end = run("check", "tools", "--trustgraph", "--plan", "none", code=1)
    assert "trustgraph:default/tool/broken" in end.out
    assert "tools: 1 service, 1 tool, no mistakes.\n" in end.out


def test_no_broker_is_exit_code_4(run: Run, folder: Path) -> None:
    for words in (("get", "tool/sing"), ("tools",)):
        end = run(*words, "--trustgraph", "--broker", "pulsar://127.0.0.1:1")
        assert (end.code, end.out) == (4, "")
    value = run("check", "tools", "--trustgraph", "--broker", "pulsar://127.0.0.1:1", "--json").json
    assert [source["ok"] for source in value["sources"]] == [True, False]


@pytest.mark.costly
def test_a_config_service_that_does_not_answer(
    run: Run, store: ConfigStore, give: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.trustgraph.config.TIMEOUT_S", 0.2)
    monkeypatch.setattr("dispatch.cli.sources.PROGRESS_AFTER_S", 0.01)
    store.version = -1
    for words in (("get", "tool/sing"), ("put", "tool/sing", "-"), ("tools",)):
        give(SING)
        err = run.refused(*words, "--trustgraph", code=4)
        assert " TrustGraph's config" in err.splitlines()[0]
        assert err.splitlines()[0].endswith("…")
        assert "fix: check with 'dispatch doctor'" in err
    assert run("tools", "--trustgraph", "--all", "--json").json[0]["status"] == "refused"
