"""``dispatch tools``."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.helpers.cli_processes import ended
from tests.unit.cli.conftest import Run, write_catalog


def test_into_a_pipe_it_is_aligned_text(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools", version="1.4.0")
    end = run("tools")
    assert (end.code, end.err) == (0, "")
    (row,) = run("tools", "--json").json
    print = row["fingerprint"][:12]
    assert end.out == (
        "TOOL       VERSION  SERVICE       SOURCE        FINGERPRINT   ARGUMENTS                       DESCRIPTION\n"
        f"tell-joke  1.4.0    joke-service  folder:tools  {print}  topic: string, words?: integer  "
        "Tell a joke. It is short.\n"
    )


def test_json_is_the_descriptors(run: Run, catalog_folder: Path) -> None:
    (tool,) = run("tools", "--catalog", str(catalog_folder), "--json").json
    assert tool["name"] == "tell-joke"
    assert tool["config"] == {"style": "pun"}
    assert tool["request-queue"] == "non-persistent://tg/request/joke"
    assert [argument["type"] for argument in tool["arguments"]] == ["string", "integer"]
    assert run("tools", "tell-joke", "--catalog", str(catalog_folder), "--json").json == tool


def test_one_tool_in_full_with_the_command_that_calls_it(run: Run, catalog_folder: Path) -> None:
    end = run("tools", "tell-joke", "--catalog", str(catalog_folder))
    assert end.code == 0
    assert "non-persistent://tg/response/joke" in end.out
    assert "integer, optional: How long." in end.out
    assert end.out.endswith("\ndispatch call tell-joke topic=… words=…\n")


def test_an_unknown_tool_has_its_near_names(run: Run, catalog_folder: Path) -> None:
    end = run("tools", "tel-joke", "--catalog", str(catalog_folder))
    assert (end.code, end.out) == (2, "")
    assert "Did you mean 'tell-joke'?" in end.err


def test_an_empty_catalogue_says_so(run: Run, tmp_path: Path) -> None:
    for kind in ("tool", "tool-service"):
        (tmp_path / "tools" / kind).mkdir(parents=True)
    end = run("tools")
    assert end.code == 0
    assert end.out == "tools contains no tools.\n"
    assert "no descriptors in this folder" in end.err


def write_tool(folder: Path, name: str, file: str | None = None, **keys: object) -> None:
    tool = {"type": "tool-service", "name": name, "description": f"Do {name}.", "service": "joke-service", **keys}
    (folder / "tool" / f"{file or name}.json").write_text(json.dumps(tool))


def names(run: Run, *options: str) -> list[str]:
    return [tool["name"] for tool in run("tools", "--json", *options).json]


def test_filters_are_those_of_the_catalogues_list(run: Run, tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools", category="fun", tags=["short"], permissions=["tools:jokes"])
    write_tool(folder, "sing", group=["music"], **{"applicable-states": ["awake"]})
    write_tool(folder, "sing", "sing@2.0.0", version="2.0.0", rollout={"1.0.0": 5}, tags=["loud"])
    (folder / "tool" / "sing.json").write_text(
        (folder / "tool" / "sing.json").read_text().replace('"name": "sing"', '"name": "sing", "version": "1.0.0"')
    )
    assert names(run) == ["sing", "tell-joke"]
    assert names(run, "--category", "fun") == ["tell-joke"]
    assert names(run, "--tag", "loud", "--tag", "short") == ["sing", "tell-joke"]
    assert names(run, "--tag", "quiet") == []
    assert names(run, "--service", "joke-service") == ["sing", "tell-joke"]
    assert names(run, "--source", "folder:tools") == ["sing", "tell-joke"]
    assert names(run, "--source", "trustgraph") == []
    assert names(run, "--text", "JOKE") == ["tell-joke"]
    assert names(run, "--permission", "tools:jokes") == ["tell-joke"]
    assert names(run, "--group", "music") == []
    assert names(run, "--version", "^1", "--group", "music", "--state", "awake") == ["sing"]
    assert [tool["version"] for tool in run("tools", "--json", "--version", "^1").json] == ["1.0.0"]
    assert run("tools", "--text", "nothing").out == "No tool meets these conditions.\n"
    wrong = run("tools", "--version", "one")
    assert (wrong.code, wrong.out) == (2, "")
    assert "one" in wrong.err


def test_a_tool_in_full_names_its_other_versions_permissions_and_schema(run: Run, tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools")
    schema = {
        "type": "object",
        "properties": {"song": {"type": "string"}, "loud": {"type": "boolean"}},
        "required": ["song"],
    }
    write_tool(folder, "sing", "sing@1.0.0", rollout={"2.0.0": 5}, permissions=["tools:music"])
    write_tool(folder, "sing", "sing@2.0.0", **{"input-schema": schema})
    out = run("tools", "sing").out
    for expected in (
        "version         1.0.0",
        "source          folder:tools",
        "other versions  2.0.0",
        "rollout         5 % to 2.0.0",
        "permissions     tools:music",
    ):
        assert expected in out
    newer = run("tools", "sing", "--version", "^2")
    assert "default version  1.0.0" in newer.out
    assert '"song": {' in newer.out
    assert newer.out.endswith("\ndispatch call sing song=… loud=…\n")


def test_several_folders_are_one_catalogue_and_the_first_one_wins(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", description="Another joke.")
    write_tool(two, "sing")
    both = ("--catalog", str(one), "--catalog", str(two))
    listed = {tool["name"]: tool for tool in run("tools", "--json", *both).json}
    assert {name: tool["source"] for name, tool in listed.items()} == {
        "tell-joke": f"folder:{one}",
        "sing": f"folder:{two}",
    }
    assert listed["tell-joke"]["description"] == "Tell a joke. It is short."
    hint = run("tools", *both)
    assert hint.code == 0
    assert "2 items are not in force; 'dispatch tools --all' says why." in hint.err


def test_all_names_what_is_not_in_force_with_reason_and_fix(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two")
    write_tool(one, "sing", "sing@1.0.0", rollout={"2.0.0": 5})
    write_tool(one, "sing", "sing@2.0.0")
    (one / "tool" / "search.json").write_text('{"type": "mcp-tool", "name": "search"}')
    broken = write_catalog(tmp_path / "broken", service="joke-servise")
    options = ("--all", "--catalog", str(one), "--catalog", str(two), "--catalog", str(broken))
    rows = run("tools", "--json", *options).json
    unused = {(row["status"], row["name"]): row for row in rows if row["status"] != "in-force"}
    assert set(unused) == {
        ("shadowed", "joke-service"),
        ("shadowed", "tell-joke"),
        ("version", "sing"),
        ("foreign", "search"),
        ("refused", ""),
    }
    assert unused["shadowed", "tell-joke"]["kind"] == "tool"
    assert unused["shadowed", "joke-service"]["kind"] == "tool-service"
    assert "5 % of the calls" in unused["version", "sing"]["reason"]
    assert "mcp-tool" in unused["foreign", "search"]["reason"]
    assert unused["refused", ""]["fix"].startswith('write "service": "joke-service"')
    text = run("tools", *options)
    assert text.code == 0
    assert "NOT IN FORCE" in text.out
    assert 'write "service": "joke-service"' in text.out
    assert run("tools", *options[1:]).code == 2


def test_a_folder_that_is_given_twice(run: Run, catalog_folder: Path) -> None:
    end = run("tools", "--catalog", str(catalog_folder), "--catalog", str(catalog_folder))
    assert end.code == 2
    assert "is given twice" in end.err


def test_held_definitions_are_listed(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    assert {row["status"] for row in run("tools", "--all", "--json").json} == {"in-force"}
    (tmp_path / "approved.json").write_text(json.dumps({"approved": {"tool/tell-joke": ["0" * 64]}}))
    rows = run("tools", "--all", "--json", "--approvals", "approved.json").json
    (held,) = (row for row in rows if row["status"] == "held")
    assert (held["name"], held["fix"]) == ("tell-joke", "dispatch tools approve tell-joke")
    (tmp_path / "approved.json").write_text("[]")
    broken = run("tools", "--approvals", "approved.json")
    assert broken.code == 1
    assert "is not a file of approvals" in broken.err


def test_a_tool_that_is_not_in_force_says_why(run: Run, tmp_path: Path) -> None:
    folder = write_catalog(tmp_path / "tools")
    (folder / "tool" / "search.json").write_text('{"type": "mcp-tool", "name": "search"}')
    end = run("tools", "search")
    assert (end.code, end.out) == (2, "")
    assert "The tool 'search' is foreign: tools/tool/search.json: another runtime executes" in end.err


def test_a_terminal_shows_one_line_for_each_tool_in_colour(tmp_path: Path) -> None:
    write_tool(write_catalog(tmp_path / "tools"), "sing", description="Sing about a topic. " * 20)
    code, out, _ = ended("tools", "--catalog", "tools", terminal=True, cwd=tmp_path, COLUMNS="80")
    assert code == 0
    assert "\x1b[36mtell-joke" in out
    header, sing, joke = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert "Fingerprint" in header
    assert sing.startswith("sing ")
    assert sing.rstrip().endswith("…")
    assert joke.startswith("tell-joke ")
