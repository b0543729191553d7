"""``dispatch tools``."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.cli_processes import ended
from tests.unit.cli.conftest import Run


def test_into_a_pipe_it_is_aligned_text(run: Run, catalog_folder: Path) -> None:
    end = run("tools", "--catalog", str(catalog_folder))
    assert (end.code, end.err) == (0, "")
    assert end.out == (
        "TOOL       SERVICE       ARGUMENTS                       DESCRIPTION\n"
        "tell-joke  joke-service  topic: string, words?: integer  Tell a joke. It is short.\n"
    )


def test_on_a_terminal_it_is_a_table_in_colour(catalog_folder: Path) -> None:
    code, out, _ = ended("tools", "--catalog", str(catalog_folder), terminal=True)
    assert code == 0
    assert "\x1b[36mtell-joke" in out
    assert "Tell a joke" in out
    code, out, _ = ended("tools", "--catalog", str(catalog_folder), terminal=True, NO_COLOR="1")
    assert code == 0
    assert "\x1b[36m" not in out
    assert "tell-joke" in out


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
