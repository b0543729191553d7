"""``MODULE:NAME`` → a tool service, or functions."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatch.cli.base import CliError
from dispatch.cli.targets import load_target, name_target

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
    assert type(load_target(f"{module}:{name}").implementation).__name__ == kind


def test_without_a_name_the_only_service_class_is_taken(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        "from dispatch import ToolService\n"
        "class Only(ToolService):\n    async def invoke(self, config, arguments):\n        return ''\n"
    )
    assert type(load_target("one.py").implementation).__name__ == "Only"
    with pytest.raises(CliError, match="has several services: Joke, Needy") as told:
        load_target("services")
    assert told.value.fix == "select one: services:Joke"


@pytest.mark.parametrize(
    ("target", "problem", "fix"),
    [
        ("nowhere:Joke", "The module 'nowhere' does not exist", "or the path of a file"),
        ("services.deeper:Joke", "The module 'services.deeper' does not exist", "the path of a file"),
        ("nowhere.py:Joke", "'nowhere.py' does not exist", "the path of the file"),
        ("services.Joke", "The module 'services.Joke' does not exist", "behind a colon"),
        (".", "'.' is a folder", "the path of the file"),
        ("./", "'.' is a folder", "the path of the file"),
        ("", "No target is given", "an importable module, or the path of a file"),
        ("/dev/null", "'/dev/null' is no regular file", "the path of the file"),
        ("nowhere.json", "'nowhere.json' does not exist", "the path of the file"),
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
        load_target(target)
    assert problem in told.value.message
    assert fix in told.value.fix


@pytest.mark.parametrize("target", ["broken:Joke", "broken.py:Joke"])
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import lone_sibling\n1 / 0\n", r"ZeroDivisionError: division by zero \(.*broken.py, line 2\)"),
        ("def (:\n", r"SyntaxError: .* in Python 3\.\d+ \(.*broken.py, line 1"),
        ("import json\njson.loads('{')\n", r"JSONDecodeError: .*broken.py, line 2\)"),
        ("import not_installed\n", r"No module named 'not_installed' \(.*broken.py, line 1\)"),
        ("import dispatch\ndispatch.tool(readonly=True)\n", r"did you mean 'read_only'\? \(.*broken.py, line 2\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_file_and_line(
    tmp_path: Path, target: str, source: str, problem: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(CliError, match=problem):
        load_target(target)


def test_a_file_never_replaces_a_module_that_dispatch_uses(tmp_path: Path) -> None:
    for name in ("json", "dispatch"):
        (tmp_path / f"{name}.py").write_text("def order(product: str) -> str:\n    'Order.'\n")
        module = sys.modules[name]
        with pytest.raises(CliError, match=f"'{name}.py' would replace the module '{name}'"):
            load_target(f"{name}.py")
        assert sys.modules[name] is module


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("tools = dispatch.Functions(Shop().price)", "name its variable: shop.py:tools"),
        ("", "write tools = dispatch.Functions(Shop(…).price) behind the class, and name it: shop.py:tools"),
    ],
)
def test_functions_that_are_not_found_by_themselves_are_told(tmp_path: Path, code: str, fix: str) -> None:
    method = "    @dispatch.tool\n    def price(self, product: str) -> str:\n        'Price.'\n"
    (tmp_path / "shop.py").write_text(f"import dispatch\n\nclass Shop:\n{method}\n{code}\n")
    with pytest.raises(CliError) as told:
        load_target("shop.py")
    assert told.value.fix == fix


METHODS = "import dispatch\nclass Shop:\n    @dispatch.tool\n    def price(self): ...\nit = Shop()\n"
FUNCTIONS = """
import dispatch

@dispatch.tool
def price(product: str) -> float:
    'Price.'

def order(product: str) -> str:
    'Order.'

def main():
    'Run.'

tools = dispatch.Functions(order)

@dispatch.tool
def hours():
    'Opening hours.'
"""
SERVICE = """
class Joke(dispatch.ToolService):
    async def invoke(self, config, arguments): ...
"""

EXIT = "raise SystemExit('no KEY')"
EXITING = """
class Joke:
    def __init__(self): raise SystemExit(3)
    async def invoke(self, config, arguments): ...
"""


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("shop.py", "shop"),
        ("shop", "shop"),
        ("shop.py:price", "price"),
        ("shop:price,order,main", "price order main"),
        ("shop:hours", "hours"),
        ("shop:order", "order"),
        ("shop:tools", "<Functions functions>"),
    ],
)
def test_functions(tmp_path: Path, target: str, names: str) -> None:
    (tmp_path / "shop.py").write_text(FUNCTIONS)
    loaded = load_target(target)
    assert loaded.implementation is None
    assert " ".join(getattr(each, "__name__", repr(each)) for each in loaded.functions) == names


@pytest.mark.parametrize(
    ("target", "name"),
    [("shop.py", "shop"), ("a/my-shop.py:price", "my-shop"), ("tools.shop", "shop"), ("tools.shop:Joke", "shop")],
)
def test_the_name_of_a_service_is_that_of_its_file_or_module(target: str, name: str) -> None:
    assert name_target(target) == name


@pytest.mark.parametrize(
    ("source", "target", "problem", "fix"),
    [
        (FUNCTIONS + SERVICE, "shop", "has functions and the service class Joke", "shop:Joke or shop:price,hours"),
        (FUNCTIONS + SERVICE, "shop:price,Joke", "'Joke' in 'shop' is no function", "name functions"),
        (FUNCTIONS, "shop:main", "'shop:main' cannot be served: TypeError: ", "fix the class"),
        (
            FUNCTIONS + "both = [price, hours]\n",
            "shop:both",
            "list has no invoke",
            "tools = dispatch.Functions(*both), and",
        ),
        (
            METHODS,
            "shop:Shop",
            "Shop has no invoke",
            "write tools = dispatch.Functions(Shop(…).price), and name it: shop:tools",
        ),
        (
            METHODS,
            "shop:it",
            "Shop has no invoke",
            "write tools = dispatch.Functions(Shop(…).price), and name it: shop:tools",
        ),
        (FUNCTIONS, "shop:pric", "'shop' has no 'pric'", "did you mean 'price'?"),
        ("", "shop.py", "has no functions and no ToolService class", "declare it with @dispatch.tool"),
        (
            EXIT,
            "shop.py",
            "'shop.py' ends the program when it is imported: sys.exit(no KEY) (",
            "if __name__ == '__main__'",
        ),
        (EXIT, "shop", "'shop' ends the program when it is imported: sys.exit(no KEY) (", "if __name__ == '__main__'"),
        (EXITING, "shop:Joke", "'shop:Joke' cannot be served: SystemExit: 3", "create the instance in the module"),
    ],
)
def test_what_is_neither_is_told_with_its_fix(tmp_path: Path, source: str, target: str, problem: str, fix: str) -> None:
    (tmp_path / "shop.py").write_text(source)
    with pytest.raises(CliError) as told:
        load_target(target)
    assert problem in told.value.message
    assert fix in told.value.fix
