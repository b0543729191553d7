"""Code blocks of README.md and docs/ could not be run as they stand: names without a definition, ``await`` outside of a
function, files that a new user does not have. Each block runs in a new folder that has the files of the tutorial, or the
page says why it is not run. A page that needs the files of the tutorial has a link to it."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dispatch import Catalog, Grants
from dispatch.announcements import Question, decode_announcement, decode_question
from dispatch.cli import main
from dispatch.mcp.conversion import Configuration, read_configuration
from dispatch.policy import parse_policy
from dispatch.relay import RelayConfig
from tests.docs.pages import EXPECTED, PAGES, README, ROOT, TUTORIAL, Block, blocks, page_id
from tests.helpers.published_agent import as_published
from tests.helpers.python_processes import environment, running
from tests.helpers.word_llama import needs_word_llama

__all__ = ["as_published"]  # a fixture
RUN = {"python", "sh", "json"}
SHOWN = {"", "text", "promql", "yaml"}
"""Shown, not run; other tests evaluate the PromQL."""
COMMAND = re.compile(r" {4}(\$ |sudo )?(dispatch|python|pip|prometheus|apt-get|curl|docker|pulsar-admin) ")
LONGEST_S = 60
EACH = [block for page in PAGES for block in blocks(page)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_logging: None) -> Iterator[Path]:
    """An empty folder of a user without settings, from which Python imports modules."""
    for name in ("BROKER", "CATALOG", "POLICY", "GRANTS", "TOKEN", "TOKEN_FILE", "TRUST_CERTS", "ADMIN"):
        monkeypatch.delenv(f"DISPATCH_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if (tmp_path / f"{name}.py").exists():
            del sys.modules[name]


def save(block: Block, folder: Path) -> None:
    assert block.file is not None
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.code, encoding="utf-8")


def save_tutorial(folder: Path, until: str = "guarded.py") -> None:
    """Save the files that the tutorial has its reader write, up to the program ``until``."""
    for block in blocks(TUTORIAL):
        if block.file == until:
            return
        if block.file is not None and not (folder / block.file).exists():
            save(block, folder)


class Reader:
    """Runs the blocks of one page, as its reader does."""

    def __init__(self, page: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._page = page
        self._folder = folder
        self._capsys = capsys
        self._output = ""

    def follow(self) -> None:
        for block in blocks(self._page):
            if block.expected:
                assert self._output.splitlines() == block.code.splitlines(), str(block)
            elif block.language in RUN and block.reason is None:
                if block.file is not None:
                    save(block, self._folder)
                {"python": self._run_python, "sh": self._run_shell, "json": self._check_json}[block.language](block)
                self._output = self._capsys.readouterr().out

    def _run_python(self, block: Block) -> None:
        if block.file is None:
            exec(compile(block.code, str(block), "exec"), {"__name__": "__main__"})
        elif Path(block.file).name.startswith("test_"):
            compile(block.code, str(block), "exec")  # tests/unit/testing/test_plugin.py runs these tests
        elif f"python {block.file}" not in self._page.read_text(encoding="utf-8"):
            importlib.import_module(Path(block.file).stem)

    def _run_shell(self, block: Block) -> None:
        for line in block.code.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "dispatch":
                assert main(words[1:]) == 0, f"{block}: {line}"
            elif words and words[0] in ("python", "make"):
                cwd = self._folder if words[0] == "python" else ROOT
                command = [sys.executable, *words[1:]] if words[0] == "python" else words
                end = subprocess.run(
                    command, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=LONGEST_S, check=False
                )
                assert end.returncode == 0, f"{block}: {line}\n{end.stderr}"
                sys.stdout.write(end.stdout)
            else:
                assert not words, f"{block}: '{words[0]}' cannot be run here; give the reason in the page"

    def _check_json(self, block: Block) -> None:
        value: dict[str, Any] = json.loads(block.code)
        if self._page.name == "admin-api.md":
            return  # tests/unit/admin/test_api.py compares them with answers
        if "policy" in value:
            parse_policy(value["policy"])
        if "mcpServers" in value:
            found = read_configuration(value, "mcp.json", {"TOKEN": "x"})
            assert isinstance(found, Configuration)
            assert (found.invalid, found.warnings) == ((), ())
        elif value.get("announce") == "who":
            assert decode_question(block.code.encode()) == Question(
                **{k: v for k, v in value.items() if k != "announce"}
            )
        elif "announce" in value:
            message = decode_announcement(block.code.encode())
            Catalog.of([message.read_service()], message.read_tools())
        elif "request-queue" in value:
            Catalog.of([value])
        elif "users" in value:
            Grants.of(value)
        elif block.file == "relay.json":
            RelayConfig.load(self._folder / block.file)
        elif "type" not in value and "policy" not in value:
            parse_policy(value)


@pytest.mark.usefixtures("as_published")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[needs_word_llama] * (page.name == "search.md")) for page in PAGES], ids=page_id
)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if TUTORIAL.name in page.read_text(encoding="utf-8") and page not in (TUTORIAL, README):
        save_tutorial(folder)  # the page says that it needs them
    Reader(page, folder, capsys).follow()


def test_a_block_is_run_or_only_shown() -> None:
    for block in EACH:
        assert block.language in RUN | SHOWN, f"{block}: name the language: python, sh, json; or text, for output"


def test_commands_stand_in_blocks_with_a_language() -> None:
    for page in PAGES:
        fenced = False
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            assert fenced or not COMMAND.match(line), f"{page.name}:{number}"


def test_a_reason_belongs_to_a_block() -> None:
    for page in PAGES:
        reasons = re.findall(r"^ *<!-- not run", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(reasons) == sum(block.reason is not None for block in blocks(page)), page.name


@pytest.mark.parametrize(("expected", "is_right"), [("1", True), ("2", False)])
def test_an_output_that_differs_is_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str], expected: str, is_right: bool
) -> None:
    page = folder / "page.md"
    page.write_text(f"```python\nprint(1)\n```\n\n{EXPECTED}\n\n```text\n{expected}\n```\n", encoding="utf-8")
    with nullcontext() if is_right else pytest.raises(AssertionError, match=r"page\.md"):
        Reader(page, folder, capsys).follow()


@pytest.mark.pulsar
def test_from_nothing_to_a_call_on_a_genuine_broker(
    folder: Path, pulsar_endpoint: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tutorial(folder)
    monkeypatch.setenv("DISPATCH_BROKER", pulsar_endpoint.service_url)
    (block,) = (block for block in blocks(TUTORIAL) if "dispatch broker start" in block.code)
    start, serve, call, stop = (shlex.split(line, comments=True) for line in block.code.splitlines())
    assert (start, stop) == (["dispatch", "broker", "start"], ["dispatch", "broker", "stop"])
    assert (serve[:2], serve[-1]) == (["dispatch", "serve"], "&")
    served = [str(folder / word) if word.startswith("joke.py") else word for word in serve[1:-1]]
    with running("-m", "dispatch", *served, ready="non-persistent://tg/request/joke"):
        assert main(call[1:]) == 0
    assert "alice" in capsys.readouterr().out


def test_the_readme_stays_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 220
