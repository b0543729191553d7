"""``dispatch check``: mistakes. The effective policy: test_check_policy.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import Run, write_catalog


def break_it(folder: Path) -> None:
    """Two mistakes in two files, and one thing that is only odd."""
    service = folder / "tool-service" / "joke-service.json"
    content = json.loads(service.read_text())
    service.write_text(json.dumps(content | {"request-queue": "joke", "versoin": "1.0.0"}))
    (folder / "tool" / "broken.json").write_text("{")


def test_without_mistakes_it_says_what_is_there(run: Run, catalog_folder: Path) -> None:
    end = run("check", str(catalog_folder), "--plan", "none")
    assert (end.code, end.err) == (0, "")
    assert end.out == f"{catalog_folder}: 1 service, 1 tool, no mistakes.\n"


def test_every_mistake_with_file_key_and_fix(run: Run, catalog_folder: Path) -> None:
    break_it(catalog_folder)
    end = run("check", str(catalog_folder))
    assert end.code == 1
    assert "joke-service.json: request-queue: 'joke' is no whole topic name\n  fix: write" in end.out
    assert "error: " in end.out
    assert "broken.json" in end.out
    assert end.out.splitlines()[-1].endswith("The catalogue cannot be loaded until the errors are fixed.")


def test_json_has_them_all(run: Run, catalog_folder: Path) -> None:
    break_it(catalog_folder)
    end = run("check", str(catalog_folder), "--json")
    assert end.code == 1
    assert end.json["ok"] is False
    assert end.json["tools"] is None
    assert end.json["plan"] is None
    errors = [problem for problem in end.json["problems"] if problem["severity"] == "error"]
    assert {Path(problem["file"]).name for problem in errors} == {"joke-service.json", "broken.json"}
    assert all(set(problem) == {"source", "file", "key", "problem", "fix", "severity"} for problem in errors)


def test_warnings_are_shown_and_are_no_failure(run: Run, catalog_folder: Path) -> None:
    (catalog_folder / "tool" / "tell-joke.json").unlink()
    (catalog_folder / "tool").rmdir()
    end = run("check", str(catalog_folder))
    assert end.code == 0
    assert "warning: " in end.out
    assert "1 warning." in end.out


def test_the_folder_may_come_from_where_the_catalogue_does(run: Run, tmp_path: Path) -> None:
    assert run("check").code == 2
    write_catalog(tmp_path / "tools")
    assert run("check").out.startswith("tools: 1 service,")


def test_a_folder_that_is_not_there(run: Run) -> None:
    end = run("check", "nowhere")
    assert end.code == 1
    assert "nowhere: there is no such folder" in end.out


def test_several_sources_with_what_is_shadowed(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two")
    end = run("check", str(one), str(two), "--plan", "none")
    assert (end.code, end.err) == (0, "")
    assert f"{one}: 1 service, 1 tool, no mistakes.\n" in end.out
    assert "warning: " in end.out
    assert f"'tell-joke' is shadowed: the earlier source folder:{one} has it" in end.out
    assert f"{two}: 0 services, 0 tools, 2 warnings.\n" in end.out
    assert end.out.endswith("all sources: 1 service, 1 tool, 2 warnings.\n")
    value = run("check", "--catalog", str(one), "--catalog", str(two), "--json").json
    assert [(source["source"], source["ok"], source["tools"]) for source in value["sources"]] == [
        (f"folder:{one}", True, 1),
        (f"folder:{two}", True, 0),
    ]
    assert {problem["source"] for problem in value["problems"]} == {f"folder:{two}"}


def test_a_mistake_in_one_of_several_sources(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", "other")
    break_it(two)
    value = run("check", str(one), str(two), "--json").json
    assert [source["ok"] for source in value["sources"]] == [True, False]
    assert (value["ok"], value["plan"]) == (False, None)
    end = run("check", str(one), str(two))
    assert end.code == 1
    assert f"{one}: 1 service, 1 tool, no mistakes.\n" in end.out


def test_a_tool_may_use_the_service_of_another_source(run: Run, tmp_path: Path) -> None:
    one, two = write_catalog(tmp_path / "one"), write_catalog(tmp_path / "two", name="sing")
    (two / "tool-service" / "joke-service.json").unlink()
    assert run("check", str(one), str(two), "--plan", "none").code == 0
    assert run("check", str(two), str(one), "--plan", "none").code == 0


@pytest.mark.parametrize(
    ("config", "servers", "expected"),
    [
        ({"broker": "http://x"}, "{}", "relay.json: broker: 'http://x' is not a broker address (http is for Pulsar's"),
        ({"broker": "memory://x"}, "{}", "relay.json: broker: 'memory://x' is not a broker address"),
        ({}, "[", "mcp.json: not JSON:"),
        ({}, '{"mcpServers": 7}', "mcp.json: mcpServers: the servers are a number, not an object"),
        ({}, '{"mcpServers": {"it": {"comand": "x"}}}', "mcp.json: it: command: neither 'command' nor 'url' is given"),
        ([], "{}", "relay.json: the document is a list, not an object. Fix: write {"),
    ],
)
def test_all_that_a_relay_reads_is_checked(run: Run, tmp_path: Path, config: Any, servers: str, expected: str) -> None:
    write_catalog(tmp_path / "tools")
    (tmp_path / "mcp.json").write_text(servers)
    given = {"catalog": ["tools"], "mcp-servers": "mcp.json", **config} if isinstance(config, dict) else config
    (tmp_path / "relay.json").write_text(json.dumps(given))
    end = run("check", "--relay", "relay.json", "--plan", "none")
    assert (end.code, expected in end.out + end.err) == (1, True), end


def test_a_relay_of_no_services_is_a_warning(run: Run, tmp_path: Path) -> None:
    write_catalog(tmp_path / "tools")
    relay = {"catalog": ["tools"]}
    for config, warnings in ((relay, 1), (relay | {"mcp-tool": {}}, 0)):
        (tmp_path / "relay.json").write_text(json.dumps(config))
        end = run("check", "--relay", "relay.json", "--plan", "none")
        assert (end.code, end.out.count("no service is relayed: none has 'instances'")) == (0, warnings)
