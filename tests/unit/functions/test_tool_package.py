"""``dispatch.ToolPackage``: the functions of a package, and modules that cannot be imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dispatch
from dispatch.catalog import CatalogError

FILES = {
    "__init__.py": "from functions_shop.cart import add_item\n__all__ = ['add_item']\nhidden = 1\n",
    "cart.py": (
        "import os\nfrom os.path import join\n"
        "def add_item(name: str) -> str:\n    '''Add a product to the cart.'''\n    return f'added {name}'\n"
        "def _private(): ...\nclass Cart: ...\nVALUE = 3\n"
    ),
    "orders/__init__.py": "",
    "orders/search.py": (
        "import dispatch\n"
        "@dispatch.tool(name='find-order', read_only=True)\nasync def _find(number: int) -> str:\n"
        "    '''Find an order.'''\n    return f'order {number}'\n"
        "def bad(*names): ...\n"
    ),
    "_internal.py": "raise RuntimeError('not imported')\n",
    "__main__.py": "raise RuntimeError('not imported')\n",
    "broken.py": "import does_not_exist_at_all\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    def write(name: str, text: str) -> None:
        path = tmp_path / "functions_shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    for name, text in FILES.items():
        write(name, text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield write
    for module in [each for each in sys.modules if each.split(".")[0] == "functions_shop"]:
        del sys.modules[module]


@pytest.mark.usefixtures("write")
async def test_the_public_functions_of_a_package_are_tools() -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop")]) as dispatcher:
        assert sorted(dispatcher.catalog.tools) == ["add_item", "find-order"]
        assert await dispatcher.call("add_item", {"name": "tea"}) == "added tea"
        assert await dispatcher.call("find-order", {"number": 7}) == "order 7"


@pytest.mark.usefixtures("write")
async def test_what_cannot_be_a_tool_is_refused_by_name_and_the_others_are_tools() -> None:
    dispatcher = dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop")])
    refused: list[dispatch.ItemRefused] = []
    dispatcher.on_event(lambda event: refused.append(event) if isinstance(event, dispatch.ItemRefused) else None)
    async with dispatcher:
        (status,) = dispatcher.registry.sources()
        assert (status.id, status.state, status.tools, status.refused) == ("package:functions_shop", "ok", 2, 3)
    assert sorted((each.origin, each.problem) for each in refused) == [
        (
            "functions_shop.broken",
            "the module cannot be imported (ModuleNotFoundError: No module named 'does_not_exist_at_all')",
        ),
        ("functions_shop.leaves", "the module cannot be imported (SystemExit: 3)"),
        ("functions_shop.orders.search.bad", "a model cannot know the arguments of '*names'"),
    ]


async def test_a_refresh_scans_again(write: Callable[[str, str], None]) -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop")]) as dispatcher:
        write("late.py", "def ping():\n    '''Answer.'''\n    return 'pong'\n")
        write("broken.py", "def repaired():\n    '''Answer.'''\n    return 'works'\n")
        assert (await dispatcher.execute("ping")).error is not None
        await dispatcher.registry.refresh("package:functions_shop")
        assert await dispatcher.call("ping") == "pong"
        assert await dispatcher.call("repaired") == "works"


@pytest.mark.usefixtures("write")
async def test_only_some_functions() -> None:
    package = dispatch.ToolPackage("functions_shop", only=["find-order", "add_itm"], namespace="shop")
    async with dispatch.connect("memory://", catalog=[package]) as dispatcher:
        assert list(dispatcher.catalog.tools) == ["shop-find-order"]
    items = await package.discover()
    problems = [problem for item in items for problem in getattr(item.raw, "problems", ())]
    assert [(each.file, each.key, each.fix) for each in problems if each.key == "only"] == [
        ("functions_shop", "only", "write 'add_item'")
    ]


async def test_objects_of_every_kind_in_a_module(write: Callable[[str, str], None]) -> None:
    write(
        "kinds.py",
        """
import functools
import dispatch
from functions_shop.cart import add_item

class Proxy:
    def __getattribute__(self, name):
        raise RuntimeError("outside of a request")

proxy = Proxy()

class Call:
    def __call__(self, word: str) -> str:
        return word

call = dispatch.tool(name="call")(Call())
add_tea = dispatch.tool(name="add-tea")(functools.partial(add_item, "tea"))

@dispatch.tool
@functools.lru_cache
def cached(number: int) -> int:
    return number

undeclared = functools.partial(add_item, "cup")
""",
    )
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop.kinds")]) as dispatcher:
        assert sorted(dispatcher.catalog.tools) == ["add-tea", "cached", "call"]
        assert await dispatcher.call("add-tea") == "added tea"
        assert await dispatcher.call("call", {"word": "x"}) == "x"
        assert await dispatcher.call("cached", {"number": 3}) == "3"


def test_the_main_module_is_a_module() -> None:
    assert dispatch.ToolPackage("__main__").id == "package:__main__"


@pytest.mark.usefixtures("write")
async def test_a_single_module() -> None:
    async with dispatch.connect("memory://", catalog=[dispatch.ToolPackage("functions_shop.cart")]) as dispatcher:
        assert list(dispatcher.catalog.tools) == ["add_item"]


@pytest.mark.parametrize("name", ["no_such_package_at_all", "no_such_package_at_all.tools", ""])
def test_a_package_that_does_not_exist(name: str) -> None:
    with pytest.raises(CatalogError, match=r"the package cannot be imported .*Fix: correct its name"):
        dispatch.ToolPackage(name)


@pytest.mark.usefixtures("write")
async def test_a_package_that_cannot_be_imported() -> None:
    with pytest.raises(CatalogError, match=r"functions_shop\.broken: the package cannot be imported \(ModuleNotFound"):
        await dispatch.ToolPackage("functions_shop.broken").discover()
