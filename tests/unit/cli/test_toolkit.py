"""``dispatch toolkit show|recommend|draw``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run

FILE = """
tools: [{name: find, module_path: shop}, {name: pages, type: MCP}]
actions:
  - {name: ask, desc: Ask.}
  - {name: research, desc: Research., tools: [find, pages]}
  - {name: answer, desc: Answer., tools: [find]}
toolkit: [[ask, research, answer]]
scores: [{from: research, to: find, score: 0.4}]
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "toolkit.yml"
    path.write_text(FILE)
    return str(path)


def test_show(run: Run, file: str) -> None:
    end = run("toolkit", "show", file, code=0)
    assert end.out.splitlines() == [
        "ask",
        "  next   1.00  research",
        "research",
        "  next   1.00  answer",
        "  tools  1.00  pages",
        "  tools  0.40  find",
        "answer",
        "  tools  1.00  find",
        "pages (group): pages",
        "3 actions, 2 tools, 1 group",
    ]


def test_recommend(run: Run, file: str) -> None:
    end = run("toolkit", "recommend", file, "ask", "--hops", "1", "--json", code=0)
    assert end.json == {
        "actions": [
            {"id": "ask", "name": "ask", "next": [{"name": "research", "score": 1.0}], "tools": []},
            {"id": "research", "name": "research", "next": [], "tools": [{"name": "pages", "score": 1.0}]},
        ],
        "tools": ["pages"],
        "groups": {},
    }


def test_an_unknown_action_has_a_suggestion(run: Run, file: str) -> None:
    err = run.refused("toolkit", "recommend", file, "reserch")
    assert "There is no action 'reserch'" in err
    assert "write 'research'" in err


@pytest.mark.parametrize(
    ("name", "start"), [("t.png", b"\x89PNG"), ("t.svg", b"<?xml"), ("t.mmd", b"flowchart LR"), ("t.graphml", b"<")]
)
def test_draw(run: Run, file: str, name: str, start: bytes) -> None:
    end = run("toolkit", "draw", file, "--output", name)
    assert (end.code, end.out) == (0, f"{name}: written\n")
    assert Path(name).read_bytes().startswith(start)


def test_draw_writes_beside_the_file(run: Run, file: str) -> None:
    assert run("toolkit", "draw", file).code == 0
    assert Path(file).with_suffix(".svg").is_file()


def test_mistakes(run: Run, file: str) -> None:
    assert "'.gif' is no format of pictures" in run.refused("toolkit", "draw", file, "--output", "t.gif")
    Path(file).write_text("toolkit: [[nothing]]")
    assert "toolkit[0][0]: there is no action 'nothing'" in run.refused("toolkit", "show", file)


def run_without(library: str, *commands: list[str]) -> list[tuple[int, str]]:
    """Run commands in a process that lacks the library; return their exit codes and errors."""
    script = (
        f"import contextlib, io, json, sys\nsys.modules[{library!r}] = None\nfrom dispatch.cli import main\nends = []\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):\n"
        "        code = main(['toolkit', *command])\n"
        "    ends.append((code, err.getvalue()))\n"
        "print(json.dumps(ends))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return [(code, err.replace("\n", "")) for code, err in json.loads(ended.stdout)]


@pytest.mark.parametrize(
    ("library", "commands", "extra"),
    [
        ("networkx", (["show"], ["recommend", "ask"], ["draw"]), "toolkit"),
        ("matplotlib", (["draw"],), "draw"),
        ("yaml", (["show"],), "yaml"),
    ],
)
def test_a_missing_extra_is_named(file: str, library: str, commands: tuple[list[str], ...], extra: str) -> None:
    ends = run_without(library, *([command, file, *actions] for command, *actions in commands))
    assert len(ends) == len(commands)
    for code, err in ends:
        assert code == 2
        assert f"tool-dispatch[{extra}]" in err
        assert "Traceback" not in err


def test_a_picture_without_matplotlib_is_mermaid_or_graphml(file: str) -> None:
    assert run_without("matplotlib", ["draw", file, "--output", "t.mmd"]) == [(0, "")]
    assert Path("t.mmd").read_text().startswith("flowchart LR")
