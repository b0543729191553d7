"""Packages of functions as groups of tools."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from dispatch.toolkit import ToolGroupConfig, ToolGroupType, ToolkitService, ToolkitWarning, ToolPackage
from tests.unit.toolkit.samples import action


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "toolkit_shop"
    (tmp_path / name / "orders").mkdir(parents=True)
    (tmp_path / name / "__init__.py").write_text("from os.path import join\n\ndef ping():\n    '''Answers pong.'''\n")
    (tmp_path / name / "orders" / "__init__.py").write_text("")
    (tmp_path / name / "orders" / "list.py").write_text(
        "class C: pass\nasync def find(order: int) -> str:\n    '''Find an order.'''\n    return f'order {order}'\n"
        "def _private(): pass\n"
    )
    (tmp_path / name / "broken.py").write_text("import does_not_exist_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield name
    for module in [each for each in sys.modules if each.split(".")[0] == name]:
        del sys.modules[module]


async def test_public_functions_of_a_package_and_its_subpackages(package: str) -> None:
    with pytest.warns(ToolkitWarning, match=r"'toolkit_shop\.broken' cannot be imported .*does_not_exist_at_all"):
        tools = await ToolPackage(package).list_tools()
    assert [(each.name, each.description) for each in tools] == [("ping", "Answers pong."), ("find", "Find an order.")]
    assert await tools[1].function(order=3) == "order 3"


async def test_public_are_the_functions_that_the_source_of_a_package_finds(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "broken.py").write_text("raise SystemExit(3)\n")
    (tmp_path / package / "_hidden.py").write_text("raise RuntimeError('not imported')\n")
    (tmp_path / package / "__main__.py").write_text("raise RuntimeError('not imported')\n")
    (tmp_path / package / "stock.py").write_text(
        f"import dispatch\nfrom {package}.orders.list import find\n__all__ = ['find', 'count']\n"
        "def count() -> int: ...\ndef not_exported(): ...\n@dispatch.tool(name='order-more')\ndef _order(): ...\n"
    )
    with pytest.warns(ToolkitWarning, match=r"broken' cannot be imported \(SystemExit: 3\)"):
        tools = {each.name: each.id.removeprefix(f"{package}.") for each in await ToolPackage(package).list_tools()}
    assert tools == {"ping": "ping", "find": "orders.list.find", "count": "stock.count", "order-more": "stock._order"}
    with pytest.warns(ToolkitWarning):
        (tool,) = await ToolPackage(package, only=["_order"]).list_tools()
    assert tool.name == "order-more"


@pytest.mark.filterwarnings("ignore::dispatch.toolkit.ToolkitWarning")
def test_a_package_is_a_group_of_the_toolkit(package: str) -> None:
    service = ToolkitService()
    group = ToolPackage(ToolGroupConfig(ToolGroupType.PACKAGE, package), only=["find"])
    service.chain(action(1), group)
    toolkit = service.get_toolkit()
    assert toolkit.successors(group.get_id()) == ["toolkit_shop.orders.list.find"]
    assert toolkit.get_tool_group(group.get_id()) is group
    assert (group.name, group.config.type) == (package, ToolGroupType.PACKAGE)


@pytest.mark.filterwarnings("ignore::dispatch.toolkit.ToolkitWarning")
def test_mistakes_name_their_place(package: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no public function 'fnid'"):
        asyncio.run(ToolPackage(package, only=["fnid"]).list_tools())
    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        asyncio.run(ToolPackage("no_such_package_at_all").list_tools())
    (tmp_path / package / "other.py").write_text("def find(): pass\n")
    with pytest.raises(ValueError, match=r"Two functions 'find' .* toolkit_shop\.orders\.list"):
        asyncio.run(ToolPackage(package).list_tools())
