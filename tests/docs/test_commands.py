"""Commands and paths that pages name exist, also where they are not run: sentences, and blocks with a reason."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from dispatch.cli.app import app
from tests.docs.pages import PAGES, ROOT, blocks, page_id, prose

TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
OURS = ("benchmarks", "dashboards", "tests")
"""Packages whose commands have ``--help``; ``python -m pytest`` and others are not checked."""
PATH = re.compile(r"(?:dispatch|tests|benchmarks|dashboards|examples|docs)/[\w./-]*|[\w/]+/[\w]+\.py")


def commands(page: Path) -> Iterator[str]:
    """Yield the lines of shell blocks, and the commands in the sentences of a page."""
    for block in blocks(page):
        if block.language == "sh":
            yield from block.code.splitlines()
    for code in re.findall(r"`([^`\n]+)`", prose(page)):
        if re.match(r"(dispatch|make|python -m|T|[A-Z_]+=\S+ make) ", code):
            yield code


@cache
def root() -> Any:
    return typer.main.get_command(app)


def options(command: Any) -> set[str]:
    return {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help", "-h"}


def check_dispatch(words: list[str]) -> None:
    """Check ``dispatch COMMAND … --option``."""
    command, known = root(), options(root())
    for word in words:
        if word in ("--", "|", "&", ">", "…", "&&"):
            return
        if word.startswith("--"):
            assert word.partition("=")[0] in known, f"no option {word}"
        elif hasattr(command, "commands") and re.fullmatch(r"[a-z]+", word):
            assert word in command.commands, f"no command {word}"
            # A command may have a name of two words: 'tools approve', beside 'tools'.
            longer = command.commands.get(" ".join(words[:2]))
            command = longer or command.commands[word]
            known |= options(command)


@cache
def help_text(module: str) -> str:
    """Return what ``python -m MODULE --help`` prints."""
    with (
        mock.patch.object(sys, "argv", [module, "--help"]),
        contextlib.redirect_stdout(io.StringIO()) as out,
        warnings.catch_warnings(action="ignore", category=RuntimeWarning),  # another test has imported it
        pytest.raises(SystemExit) as end,
    ):
        runpy.run_module(module, run_name="__main__")
    assert not end.value.code, f"python -m {module} --help"
    return out.getvalue()


def check_module(words: list[str]) -> None:
    """Check ``python -m MODULE --option``, and paths of tests after ``python -m pytest``."""
    if words[0] == "pytest":
        check_tests(words[1:])
    elif words[0].partition(".")[0] in OURS:
        assert importlib.util.find_spec(words[0]) is not None, f"no module {words[0]}"
        for word in words[1:]:
            if word.startswith("--"):
                assert word in help_text(words[0]), f"python -m {words[0]} has no {word}"


def check_tests(words: list[str]) -> None:
    for word in words:
        assert not word.startswith("tests/") or (ROOT / word).exists(), f"no {word}"


def check(line: str) -> None:
    """Check one command line.

    Raises:
        AssertionError: it names a command, an option, a target or a file that does not exist.
    """
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        words = line.split()
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["dispatch"]:
        check_dispatch(words[1:])
    elif words[:1] == ["make"]:
        for word in words[1:]:
            name, _, value = word.partition("=")
            assert value or name in TARGETS or name in ("&&",) or not re.fullmatch(r"[a-z-]+", name), (
                f"no target {word}"
            )
            if name == "&&":
                break
            check_tests(value.split())
    elif words[:2] == ["python", "-m"]:
        check_module(words[2:])
    elif words[:1] == ["T"]:
        check_tests(words[1:])


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_commands_of_a_page_exist(page: Path) -> None:
    for line in commands(page):
        try:
            check(line)
        except AssertionError as error:
            raise AssertionError(f"{page_id(page)}: `{line}`: {error}") from None


@pytest.mark.parametrize(
    "line",
    [
        "dispatch cook",
        "dispatch call tell-joke --salt 1",
        "dispatch broker cook",
        "dispatch tools --yes",
        "make tea",
        "make test ARGS=tests/none.py",
        "python -m benchmarks.none",
        "python -m benchmarks.simulation --salt",
        "T tests/none.py -k x",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises(AssertionError):
        check(line)


@pytest.mark.costly
@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "changelog.md"], ids=page_id)
def test_the_paths_of_a_page_exist(page: Path) -> None:
    for code in re.findall(r"`([^`\n ]+)`", prose(page)):
        if PATH.fullmatch(code):
            assert (ROOT / code).exists() or (ROOT / "dispatch" / code).exists(), f"{page_id(page)}: {code}"


def test_make_setup_installs_what_the_tests_of_a_newcomer_need() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (installed,) = re.findall(r"^\$\(VENV\)/\.setup:.*\n(?:\t.*\n)*?\t@\$\(PIP\) install (.*)", makefile, re.MULTILINE)
    assert "import pytest" in (ROOT / "examples" / "test_my_agent.py").read_text(encoding="utf-8")
    assert installed.endswith(" pytest")
