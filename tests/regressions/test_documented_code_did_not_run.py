"""Code blocks of README.md and docs/ could not be run as they stand: names that nothing defines, ``await`` outside of a
function, files that a new user does not have. Each block runs in a new folder, or says in the document why it is not run."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dispatch.cli import main
from tests.helpers.python_processes import running

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"python", "sh", "json"}
SHOWN = {"", "text", "promql", "yaml"}
"""Not code, or not ours to run; tests of their own read the PromQL."""
NOT_RUN = re.compile(r"<!-- not run: (.{10,}) -->")
NAMED = re.compile(r"`([\w/.-]+\.(?:py|json))`:$")
COMMAND = re.compile(r" {4}(\$ |sudo )?(dispatch|make|python|pip|prometheus|apt-get|curl|docker|pulsar-admin) ")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        file: where the page says that it stands; None: nowhere.
        reason: why it is not run; None: it is.
    """

    page: Path
    line: int
    language: str
    code: str
    file: str | None
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        opened = re.fullmatch(r"( *)```(\w*)", lines[number])
        if opened is None:
            number += 1
            continue
        before = [line for line in lines[:number] if line.strip()][-2:]
        reason = NOT_RUN.fullmatch(before[-1].strip()) if before else None
        named = NAMED.search(before[-1]) if before else None
        end = lines.index(f"{opened[1]}```", number + 1)
        code = "\n".join(line[len(opened[1]) :] for line in lines[number + 1 : end]) + "\n"
        yield Block(page, number + 1, opened[2], code, named and named[1], reason and reason[1])
        number = end + 1


EACH = [pytest.param(block, id=str(block)) for page in PAGES for block in blocks(page)]
READMES = list(blocks(README))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder of a user without settings, where Python finds modules that stand there."""
    for name in ("BROKER", "CATALOG", "POLICY", "TOKEN", "TOKEN_FILE", "TRUST_CERTS", "ADMIN"):
        monkeypatch.delenv(f"DISPATCH_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def put(block: Block, folder: Path) -> None:
    assert block.file is not None
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.code, encoding="utf-8")


def first_steps(folder: Path) -> None:
    """The files that the README has its reader make."""
    for block in READMES:
        if block.file is not None:
            put(block, folder)


def run_python(block: Block) -> None:
    if block.file is None:
        exec(compile(block.code, str(block), "exec"), {"__name__": "__main__"})
    elif Path(block.file).name.startswith("test_"):
        compile(block.code, str(block), "exec")  # tests/unit/testing/test_documentation.py runs these tests
    else:
        importlib.import_module(Path(block.file).stem)


def run_shell(block: Block) -> None:
    for line in block.code.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            assert words[0] == "dispatch", (
                f"{block}: only dispatch can be run here; say in the document why it is not run"
            )
            assert main(words[1:]) == 0, f"{block}: {line}"


def check_json(block: Block) -> None:
    json.loads(block.code)


KINDS: dict[str, Callable[[Block], Any]] = {"python": run_python, "sh": run_shell, "json": check_json}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if page != README:
        first_steps(folder)
    for block in blocks(page):
        if block.language in RUN and block.reason is None:
            if block.file is not None:
                put(block, folder)
            KINDS[block.language](block)


@pytest.mark.parametrize("block", EACH)
def test_a_block_is_run_or_only_shown(block: Block) -> None:
    assert block.language in RUN | SHOWN, "name the language: python, sh, json; or text, for what is only shown"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_stand_in_blocks_with_a_language(page: Path) -> None:
    fenced = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        assert fenced or not COMMAND.match(line), f"{page.name}:{number}"


def test_a_reason_belongs_to_a_block() -> None:
    for page in PAGES:
        said = page.read_text(encoding="utf-8").count("<!-- not run")
        assert said == sum(block.reason is not None for block in blocks(page)), page.name


def test_the_readme_prints_what_it_promises(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_python(READMES[0])
    assert capsys.readouterr().out.splitlines() == [
        "Why did the cats cross the road? To get to the other side.",
        "success",
        "Why did the dogs cross the road? To get to the other side.",
        "Why did the hens cross the road? To get to the other side.",
    ]


@pytest.mark.pulsar
def test_from_nothing_to_a_call_on_a_genuine_broker(
    folder: Path, pulsar_endpoint: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first_steps(folder)
    monkeypatch.setenv("DISPATCH_BROKER", pulsar_endpoint.service_url)
    (block,) = (block for block in READMES if "dispatch broker start" in block.code)
    start, serve, call, stop = (shlex.split(line, comments=True) for line in block.code.splitlines())
    assert (start, stop) == (["dispatch", "broker", "start"], ["dispatch", "broker", "stop"])
    assert (serve[:2], serve[-1]) == (["dispatch", "serve"], "&")
    served = [str(folder / word) if word.startswith("joke.py") else word for word in serve[1:-1]]
    with running("-m", "dispatch", *served, ready="non-persistent://tg/request/joke"):
        assert main(call[1:]) == 0
    assert "alice" in capsys.readouterr().out
