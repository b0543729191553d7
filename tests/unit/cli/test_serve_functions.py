"""``dispatch serve`` and ``dispatch export`` for functions, on the embedded broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import dispatch
from dispatch.cli import serve
from dispatch.cli.targets import Reloader, load_target
from dispatch.functions import MODULE_PROVIDERS
from tests.unit.cli.conftest import Run

SHOP = """
import dispatch
from {shelf} import PRICES

class Shop:
    pass

dispatch.provide(Shop, Shop())

@dispatch.tool(read_only=True)
def price(product: str, shop: Shop) -> float:
    'Price of a product in euros.'
    return PRICES[product]
"""
JOKE = "import dispatch\nclass Joke(dispatch.ToolService):\n    async def invoke(self, config, arguments): ...\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path) -> Iterator[None]:
    """``shop.py`` beside ``shelf.py``; what is imported and provided is forgotten afterwards."""
    (tmp_path / "shelf.py").write_text("PRICES = {'lamp': 9.5}\n")
    (tmp_path / "shop.py").write_text(SHOP.format(shelf="shelf"))
    path, provided = list(sys.path), MODULE_PROVIDERS.copy()
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    yield
    sys.dont_write_bytecode = writes
    sys.path[:] = path
    MODULE_PROVIDERS.restore(provided)
    for name, module in tuple(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


# -- export ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [".", "./", "..", "sub/"])
def test_a_folder_is_told_as_such(run: Run, tmp_path: Path, target: str) -> None:
    (tmp_path / "sub").mkdir()
    err = run.refused("serve", target)
    fix = "give the path of the file with your functions, such as shop.py"
    assert err == f"Error: '{Path(target)}' is a folder.\n  fix: {fix}\n"


def test_what_a_module_prints_is_not_among_the_exported_descriptors(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"print('loading')\n{SHOP.format(shelf='shelf')}")
    end = run("export", "shop.py")
    assert end.json["service"]["id"] == "shop"
    assert end.err == "loading\n"


def test_export_writes_the_descriptors(run: Run, tmp_path: Path) -> None:
    end = run.clean("export", "shop.py", "--to", "tools")
    assert end.out.splitlines() == ["tool-service/shop: written.", "tool/price: written."]
    catalog = dispatch.Catalog.of(
        [json.loads((tmp_path / "tools/tool-service/shop.json").read_text())],
        [json.loads((tmp_path / "tools/tool/price.json").read_text())],
    )
    tool = catalog.tool("price")
    assert (tool.description, tool.config) == ("Price of a product in euros.", {"tool": "price"})
    printed = run("export", "shop.py").json
    assert printed["service"]["id"] == "shop"
    assert [each["name"] for each in printed["tools"]] == ["price"]
    assert run("check", "--catalog", "tools").code == 0


def test_export_warns_of_tools_that_are_no_longer_there(run: Run, tmp_path: Path) -> None:
    assert run("export", "shop.py", "--to", "tools", "--service", "store").code == 0
    (tmp_path / "shop.py").write_text(SHOP.format(shelf="shelf").replace("def price", "def cost"))
    del sys.modules["shop"]
    end = run("export", "shop.py", "--to", "tools", "--service", "store", code=0)
    assert "tool/price is not among the functions. Remove it: dispatch rm tool/price" in end.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("shop.py", "other.py", "--service", "shop"), "--service names one service"),
        (("shop.py", "--to", "tools", "--trustgraph"), "An item belongs to one source"),
        (("joke.py",), "is a service class, whose descriptors are not generated"),
        (("bare.py",), "bare.work: the function has no docstring"),
    ],
)
def test_what_cannot_be_exported(run: Run, tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    (tmp_path / "joke.py").write_text(JOKE)
    (tmp_path / "bare.py").write_text("def work(): ...\n")
    assert problem in run.refused("export", *arguments)


# -- serve -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("shop.py", "shelf.py", "--service", "shop"), "there are several targets"),
        (("shop.py", "a/shop.py"), "Two services are named 'shop'"),
        (("shop.py", "shop.py"), "'shop.py' is given twice"),
        (("descriptors",), "'descriptors' is a folder"),
        (("joke.py", "--watch"), "--watch reloads functions"),
        (("shelf.py",), "has no functions and no ToolService class"),
    ],
)
def test_what_cannot_be_served(run: Run, tmp_path: Path, arguments: tuple[str, ...], problem: str) -> None:
    (tmp_path / "descriptors" / "tool").mkdir(parents=True)
    (tmp_path / "joke.py").write_text(JOKE)
    assert problem in run.refused("serve", *arguments)


def test_options_from_the_environment(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    def make(*_arguments: Any, **options: Any) -> dispatch.ToolServer:
        made.update(options)
        raise ValueError("enough")

    monkeypatch.setattr("dispatch.cli.serve.ToolServer", make)
    for name, value in {"SERVICE": "store", "INSTANCE": "one", "CONCURRENCY": "3", "ADMIN": "127.0.0.1:99999"}.items():
        monkeypatch.setenv(f"DISPATCH_{name}", value)
    assert "is not HOST:PORT" in run("serve", "shop.py").err
    monkeypatch.setenv("DISPATCH_ADMIN", "127.0.0.1:0")
    assert "enough" in run("serve", "shop.py").err
    assert (made["service"], made["instance"], made["concurrency"]) == ("store", "one", 3)
    assert "enough" in run("serve", "shop.py", "--concurrency", "4").err
    assert made["concurrency"] == 4


async def test_the_broker_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPATCH_BROKER", "memory://from-the-environment")
    server = dispatch.ToolServer(functions=load_target("shop.py").functions, service="shop")
    catalog = dispatch.Catalog.of([server.descriptors.service], server.descriptors.tools)
    async with server, dispatch.connect(catalog=catalog) as dispatcher:
        assert await dispatcher.call("price", {"product": "lamp"}) == "9.5"


# -- serve --watch -----------------------------------------------------------------------------------------------


class Watched:
    """``dispatch serve --watch shop.py`` in this process, and a dispatcher."""

    def __init__(self, server: dispatch.ToolServer, dispatcher: dispatch.Dispatcher, capsys: Any) -> None:
        self.server = server
        self.dispatcher = dispatcher
        self._capsys = capsys
        self._edits = 0

    async def edit(self, path: Path, text: str) -> str:
        """Write a file, and return what is reported."""
        self._edits += 1
        _write_file(path, text, self._edits)
        await asyncio.sleep(3 * serve.RELOAD_CHECK_S)
        return str(self._capsys.readouterr().err)

    async def price(self) -> str:
        return await self.dispatcher.call("price", {"product": "lamp"})


def _write_file(path: Path, text: str, time: int) -> None:
    path.write_text(text)
    os.utime(path, (time, time))


@contextlib.asynccontextmanager
async def watching(capsys: Any) -> AsyncIterator[Watched]:
    loaded = load_target("shop.py")
    server = dispatch.ToolServer(functions=loaded.functions, broker="memory://watch", service="shop", instance="shop-1")
    reporter = serve.ServerReporter(server, False, Reloader("shop.py", loaded.module))
    serving = asyncio.create_task(serve.serve_until_signal([reporter]))
    await asyncio.sleep(serve.RELOAD_CHECK_S)
    catalog = dispatch.Catalog.of([server.descriptors.service], server.descriptors.tools)
    async with dispatch.connect("memory://watch", catalog) as dispatcher:
        assert "Tools: price. Ctrl-C drains and stops." in capsys.readouterr().err
        yield Watched(server, dispatcher, capsys)
    signal.raise_signal(signal.SIGTERM)
    await serving


async def test_an_edit_is_in_force(capsys: Any, tmp_path: Path) -> None:
    async with watching(capsys) as watched:
        assert await watched.price() == "9.5"
        new = SHOP.format(shelf="shelf").replace("return PRICES", "return 2 * PRICES")
        assert await watched.edit(tmp_path / "shop.py", new) == "shop: loaded again. Tools: price.\n"
        assert await watched.price() == "19.0"
        assert "loaded again" in await watched.edit(tmp_path / "shelf.py", "PRICES = {'lamp': 8}\n")
        assert await watched.price() == "16"
        more = new + "\n@dispatch.tool\ndef close():\n    'Close the shop.'\n"
        assert "Tools: price, close." in await watched.edit(tmp_path / "shop.py", more)
        assert [each["name"] for each in watched.server.descriptors.tools] == ["price", "close"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def (:\n", "cannot be imported: SyntaxError"),
        ("import dispatch\ndispatch.provide(int, 3)\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import dispatch\n@dispatch.tool\ndef price(product: str): ...\n", "the function has no docstring"),
        ("import sys\nsys.exit('stopped')\n", "stopped"),
        ("PRICES = 3\n", "has no functions and no ToolService class"),
        (JOKE, "there are no functions to serve"),
    ],
)
async def test_a_mistake_leaves_the_former_functions(capsys: Any, tmp_path: Path, text: str, problem: str) -> None:
    async with watching(capsys) as watched:
        told = await watched.edit(tmp_path / "shop.py", text)
        assert "shop: not loaded again, the former functions stay." in told
        assert problem in told
        assert await watched.price() == "9.5"
        assert int not in MODULE_PROVIDERS
        assert "loaded again" in await watched.edit(tmp_path / "shop.py", SHOP.format(shelf="shelf") + "# mended\n")
        assert await watched.price() == "9.5"


async def test_modules_of_a_package_are_loaded_again(tmp_path: Path) -> None:
    package = tmp_path / "pack"
    for folder, name, text in (
        (package, "__init__.py", ""),
        (package / "tools", "__init__.py", "from pack.tools.shop import price\n__all__ = ['price']\n"),
        (
            package / "tools",
            "shop.py",
            "from pack.shelf import PRICE\ndef price() -> int:\n    'Price.'\n    return PRICE\n",
        ),
        (package, "shelf.py", "PRICE = 1\n"),
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    loaded = load_target("pack.tools:price")
    reloader = Reloader("pack.tools:price", loaded.module)
    assert not reloader.has_changed()
    _write_file(package / "shelf.py", "PRICE = 2\n", 1)
    assert reloader.has_changed()
    with reloader.load() as new:
        (function,) = new.functions
        assert callable(function)
        assert function() == 2
    assert not reloader.has_changed()
