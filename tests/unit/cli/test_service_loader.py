"""``MODULE:CLASS`` → a service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.cli.base import CliError
from dispatch.cli.targets import load_service

MODULE = """
from dispatch import ToolService
from {sibling} import TEXT

JOKE_SERVICE = "joke-service"

class Joke(ToolService):
    async def invoke(self, config, arguments, user=""):
        return TEXT

class Needy(Joke):
    def __init__(self, key):
        self.key = key

class Wrong:
    async def invoke(self, what):
        return ""

ready = Needy("key")

def made():
    return Needy("key")

class Space:
    inner = ready
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> Iterator[None]:
    """``services.py`` beside its ``sibling.py``; what is imported is forgotten afterwards."""
    (tmp_path / "lone_sibling.py").write_text("TEXT = 'ha'\n")
    (tmp_path / "services.py").write_text(MODULE.format(sibling="lone_sibling"))
    before, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("module", ["services", "services.py", "./services.py"])
@pytest.mark.parametrize(
    ("name", "kind"), [("Joke", "Joke"), ("ready", "Needy"), ("made", "Needy"), ("Space.inner", "Needy")]
)
def test_a_class_an_instance_a_function_from_a_module_or_a_file(module: str, name: str, kind: str) -> None:
    assert type(load_service(f"{module}:{name}")).__name__ == kind


def test_without_a_name_the_only_service_class_is_taken(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from dispatch import ToolService\n"
        "class Only(ToolService):\n    async def invoke(self, config, arguments):\n        return ''\n"
    )
    assert type(load_service("one.py")).__name__ == "Only"
    with pytest.raises(CliError, match="has several services: Joke, Needy") as told:
        load_service("services")
    assert told.value.fix == "select one: services:Joke"


@pytest.mark.parametrize(
    ("target", "problem", "fix"),
    [
        ("nowhere:Joke", "The module 'nowhere' does not exist", "or the path of a file"),
        ("services.deeper:Joke", "The module 'services.deeper' does not exist", "the path of a file"),
        ("nowhere.py:Joke", "The file 'nowhere.py' does not exist", "the path of the file"),
        ("services:Jok", "'services' has no 'Jok'", "did you mean 'Joke'?"),
        ("services:JokeService", "'services' has no 'JokeService'", "did you mean 'Joke'?"),
        ("services:JOKES", "'services' has no 'JOKES'", "did you mean 'Joke'?"),
        ("services:Xyzzy", "'services' has no 'Xyzzy'", "the name of your service class"),
        ("services:Needy", "missing 1 required positional argument", "create the instance in the module"),
        ("services:Wrong", "cannot tell what 'what' is meant to be", "fix the class"),
        ("lone_sibling", "has no functions and no ToolService class", "declare it with @dispatch.tool"),
        ("lone_sibling:TEXT", "str has no invoke method", "fix the class"),
    ],
)
def test_what_is_no_service_is_told_with_its_fix(target: str, problem: str, fix: str) -> None:
    with pytest.raises(CliError) as told:
        load_service(target)
    assert problem in told.value.message
    assert fix in told.value.fix


@pytest.mark.parametrize("target", ["broken:Joke", "broken.py:Joke"])
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import lone_sibling\n1 / 0\n", r"ZeroDivisionError: division by zero \(.*broken.py, line 2\)"),
        ("def (:\n", r"SyntaxError: .*broken.py, line 1"),
        ("import not_installed\n", r"No module named 'not_installed' \(.*broken.py, line 1\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_file_and_line(
    tmp_path: Path, target: str, source: str, problem: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(CliError, match=problem):
        load_service(target)
