"""Toolkits in YAML: what is read, every mistake, and saving without loss."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from dispatch import CatalogError
from dispatch.calling import call_function, function_calling_prompt
from dispatch.toolkit import (
    Action,
    McpConfig,
    McpService,
    Operator,
    Tool,
    Toolkit,
    ToolkitService,
    ToolkitWarning,
    ToolType,
)
from tests.unit.toolkit.samples import Group, action, four_actions, query

SHOP = Path(__file__).parent / "shop.yml"


def view(toolkit: Toolkit) -> Any:
    """Everything of a toolkit that can be compared."""
    vertices = {
        id: (type(data["data"]).__name__, data["data"].name, getattr(data["data"], "description", ""))
        for id, data in toolkit.vertices_data()
    }
    return vertices, {edge: toolkit.get_score(*edge) for edge in toolkit.edges()}, toolkit.operators


def test_each_chain_and_each_shared_tool_is_there_once() -> None:
    toolkit = Toolkit.load(SHOP)
    assert set(toolkit.edges()) == {
        ("understand", "research"),
        ("research", "decide"),
        ("pay", "report"),  # and none from 'decide' to 'pay': those are two chains
        ("research", "FindOrder"),
        ("decide", "FindOrder"),
        ("research", "Browser"),
        ("decide", "Browser"),
        ("decide", "Files"),
        ("pay", "refund"),
        ("group:Browser", "Browser"),
        ("group:Files", "Files"),
    }
    assert toolkit.get_action("understand") == Action("understand", "understand", "理解问题")
    assert toolkit.operators == (
        Operator("Answer the customer.\n", "text", ("understand", "research")),
        Operator("Pay.", "text", ("pay",), 0.7, 2),
    )
    browser = toolkit.get_tool_group("group:Browser")
    assert isinstance(browser, McpService)
    assert browser.transport_config.args == ["-y", "browser"]


def test_loading_imports_nothing_and_starts_nothing() -> None:
    Toolkit.load(SHOP)
    assert "toolkit_file_shop" not in sys.modules


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "toolkit_file_shop.py").write_text(
        "import dispatch\n"
        "from dispatch.toolkit import Tool\n"
        "class FindOrder(Tool):\n"
        "    def __init__(self):\n"
        "        super().__init__('find_order', 'Finds an order.', self.find)\n"
        "    async def find(self, order):\n"
        "        return f'order {order}'\n"
        "@dispatch.tool(destructive=True)\n"
        "def refund(order: int):\n"
        "    'Pays an order back.'\n"
        "    return f'paid {order}'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.modules.pop("toolkit_file_shop", None)


@pytest.mark.usefixtures("shop")
async def test_a_local_tool_is_imported_at_its_first_call() -> None:
    toolkit = Toolkit.load(SHOP)
    find, refund = toolkit.get_tool("FindOrder"), toolkit.get_tool("refund")
    assert refund is not None
    assert await find.function(order=3) == "order 3"
    assert refund.function(order=4) == "paid 4"
    assert (refund.description, refund.tool_type) == ("Pays an order back.", ToolType.LOCAL_TOOL)


@pytest.mark.usefixtures("shop")
async def test_models_are_shown_the_signature_and_the_docstring_of_a_local_tool() -> None:
    toolkit = Toolkit.load(SHOP)
    find, refund = toolkit.get_tool("FindOrder"), toolkit.get_tool("refund")
    assert find is not None
    refund.description = ""
    shown = function_calling_prompt([find, refund])
    parameters = {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
    described = {"name": "refund", "description": "Pays an order back."}
    assert json.dumps({**described, "parameters": {**parameters, "additionalProperties": False}}) in shown
    assert '"properties": {"order": {}}' in shown
    call = '<function_call>{"name": "refund", "args": {"order": 3,}}</function_call>'
    (refused,) = await call_function([refund], call) or []
    assert "it is destructive, and its arguments were not valid JSON" in refused.output


async def test_a_tool_that_cannot_be_imported_has_no_schema_and_says_so_once() -> None:
    find = Toolkit.load(SHOP).get_tool("FindOrder")
    assert find is not None
    with pytest.warns(ToolkitWarning, match=r"'FindOrder' has no schema: toolkit_file_shop\.FindOrder .*No module"):
        shown = function_calling_prompt([find])
    assert '"parameters": {"type": "object"}}' in shown
    (failed,) = await call_function([find], '<function_call>{"name": "FindOrder", "args": {}}</function_call>') or []
    assert "'FindOrder' was not executed: toolkit_file_shop.FindOrder cannot be loaded" in failed.output


def test_a_module_that_cannot_be_imported_is_named_at_the_call() -> None:
    find = Toolkit.load(SHOP).get_tool("FindOrder")
    assert find is not None
    with pytest.raises(RuntimeError, match=r"'FindOrder' was not executed: toolkit_file_shop\.FindOrder .*No module"):
        find.function(order=3)


class Server:
    """An MCP server with one tool."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def connect(self, config: McpConfig) -> Server:
        self.log.append(f"connect {config.name}")
        return self

    async def call(self, tool_name: str, /, **arguments: Any) -> str:
        return f"{tool_name} {arguments}"

    async def list_tools(self) -> list[Any]:
        return [
            SimpleNamespace(name="open", description="Opens.", input_schema={"type": "object"}),
            SimpleNamespace(name="click", description=None),
        ]

    async def close(self) -> None:
        self.log.append("close")


async def test_an_mcp_server_is_contacted_when_a_tool_is_called() -> None:
    server = Server()
    toolkit = Toolkit.load(SHOP, connect_mcp=server.connect)
    browser = toolkit.get_tool("Browser")
    assert server.log == []
    assert await browser.function(tool_name="open", url="x") == "open {'url': 'x'}"
    assert server.log == ["connect Browser", "close"]


async def test_the_listed_tools_of_a_server_replace_the_one_that_stands_for_them(tmp_path: Path) -> None:
    server = Server()
    toolkit = Toolkit.load(SHOP, connect_mcp=server.connect)
    group = toolkit.get_tool_group("group:Browser")
    assert group is not None
    service = ToolkitService(toolkit)
    service.add_tool_group(group, [(service.get_action("research"), 0.8)])
    assert toolkit.successors("group:Browser") == ["group:Browser/open", "group:Browser/click"]
    assert not toolkit.has_vertex("Browser")
    opened = toolkit.get_tool("group:Browser/open")
    assert opened.description == 'Opens.\n\tInput Schema (Args):\n{\n    "type": "object"\n}'
    assert await opened.function(url="x") == "open {'url': 'x'}"
    named = {"tool_name": "x", "self": "y"}
    assert await opened.function(**named) == f"open {named}"
    toolkit.save(tmp_path / "saved.yml")
    loaded = Toolkit.load(tmp_path / "saved.yml", connect_mcp=server.connect)
    assert view(loaded) == view(toolkit)
    again = loaded.get_tool("group:Browser/click")
    assert await again.function() == "click {}"


def test_saving_loses_nothing(tmp_path: Path) -> None:
    toolkit = Toolkit.load(SHOP)
    toolkit.save(tmp_path / "saved.yml")
    assert yaml.safe_load((tmp_path / "saved.yml").read_text()) == yaml.safe_load(SHOP.read_text())
    assert view(Toolkit.load(tmp_path / "saved.yml")) == view(toolkit)
    assert "理解问题" in (tmp_path / "saved.yml").read_text("utf-8")


def test_saving_keeps_changes(tmp_path: Path) -> None:
    service = ToolkitService(Toolkit.load(SHOP))
    toolkit = service.get_toolkit()
    new = Action("a 9", "new", "New one.")
    service.add_action(new, [(service.get_action("pay"), 0.4)], [(service.get_action("decide"), 1.0)])
    toolkit.set_score("research", "FindOrder", 0.2)
    toolkit.set_score("decide", "Browser", 0.3)
    toolkit.remove_edge("understand", "research")
    toolkit.remove_vertex("report")
    toolkit.save(tmp_path / "saved.yml")
    loaded = Toolkit.load(tmp_path / "saved.yml")
    assert view(loaded)[:2] == view(toolkit)[:2]
    assert loaded.get_action("a 9") == new


def lookup(text: str) -> str:
    """Look something up."""
    return text


def test_a_toolkit_that_code_built_is_saved(tmp_path: Path) -> None:
    service = ToolkitService()
    found = Tool("lookup", "Looks something up.", lookup)
    service.add_action(action(1), [], [])
    service.add_action(action(2), [], [(action(1), 0.6)])
    service.add_tool(found, [(action(1), 0.3), (action(2), 1.0)])
    service.add_tool(Tool("action 1", "The name is the id of an action.", lookup, id="tool:x"), [(action(1), 0.3)])
    service.remove_tool("tool:x")
    service.get_toolkit().save(tmp_path / "saved.yml")
    loaded = Toolkit.load(tmp_path / "saved.yml")
    vertices, scores, _ = view(loaded)
    assert scores == view(service.get_toolkit())[1]
    assert vertices[found.id] == ("LocalTool", "lookup", "Looks something up.")
    again = loaded.get_tool(found.id)
    assert again.function("x") == "x"


@pytest.mark.parametrize(
    "text", ["1e3", "-1.5E-7", "1", "1.5", "no", "true", "~", "2024-01-01", "a\x85b", "0x1f", "\r"]
)
def test_any_text_is_the_same_after_it_was_saved(text: str, tmp_path: Path) -> None:
    service = ToolkitService()
    service.add_action(Action("first", f"{text} ".strip() or "blank", text), [], [])
    service.get_toolkit().save(tmp_path / "saved.yml")
    saved = service.get_toolkit().get_action("first")
    loaded = Toolkit.load(tmp_path / "saved.yml").get_action("first")
    assert (loaded.name, loaded.description) == (saved.name, saved.description)


def test_a_tool_with_the_name_of_an_action(tmp_path: Path) -> None:
    file = tmp_path / "t.yml"
    file.write_text(
        "tools: [{name: search, module_path: m}]\n"
        "actions: [{name: search, desc: s, tools: [{name: search}]}, {name: other, desc: o, tools: [search]}]\n"
    )
    toolkit = Toolkit.load(file)
    assert set(toolkit.edges()) == {("search", "tool:search"), ("other", "tool:search")}
    toolkit.save(file)
    assert view(Toolkit.load(file)) == view(toolkit)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("action: [{name: Look}]", "rename it to 'actions'"),
        ("tools: [{nam: find, module_path: shop}]", "rename 'nam' to 'name', or write name:"),
        ("tools: [{name: find, module: shop}]", "rename 'module' to 'module_path', or write"),
    ],
)
def test_a_key_with_a_spelling_mistake_is_told(text: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "toolkit.yml").write_text(text)
    with pytest.raises(CatalogError) as raised:
        Toolkit.load(tmp_path / "toolkit.yml")
    assert fix in raised.value.problems[0].fix


@pytest.mark.parametrize("what", ["closure", "group", "name", "blank"])
def test_what_a_file_cannot_hold_is_refused_by_name(what: str, tmp_path: Path) -> None:
    service = four_actions()
    for number in range(1, 5):
        service.remove_tool(f"tool {number}")
    if what == "closure":
        service.add_tool(Tool("adder", "", lambda a: a), [(action(1), 1.0)])
    elif what == "group":
        service.add_tool_group(Group("adder", "query"), [(action(1), 1.0)])
    elif what == "blank":
        service.add_action(Action("adder", " ", ""), [], [])
    else:
        for id in "ab":
            service.add_tool(Tool("query", "adder", query, id=id), [(action(1), 1.0)])
    reasons = {"name": "'query', by which", "blank": "one of its actions has no name"}
    with pytest.raises(ValueError, match=reasons.get(what, "'adder' cannot be saved")):
        service.get_toolkit().save(tmp_path / "t.yml")
    assert not (tmp_path / "t.yml").exists()


MCP = "tools: [{name: m, type: MCP, mcp_transport_config: %s}]"


@pytest.mark.costly
@pytest.mark.parametrize(
    ("text", "key", "problem"),
    [
        ("", "", "the file is empty"),
        ("a: [", "", "not YAML"),
        ("- 1", "", "a list instead of an object"),
        ("tools: 1", "tools", "a number instead of a list"),
        ("tools: [x]", "tools[0]", "a text instead of an object"),
        ("tools: [{module_path: m}]", "tools[0].name", "'name' is missing"),
        ("tools: [{name: t}]", "tools[0].module_path", "'module_path' is missing"),
        ("tools: [{name: 1, module_path: m}]", "tools[0].name", "'name' is a number instead of a text"),
        ("tools: [{name: ' ', module_path: m}]", "tools[0].name", "'name' is an empty text instead of a text"),
        ("tools: [{name: t, type: JAVA}]", "tools[0].type", "'JAVA' is not a type of tool"),
        ("tools: [{name: t, module_path: m}, {name: t, module_path: m}]", "tools[1].name", "a second 't'"),
        ("tools: [{name: t, module_path: m, id: a}]\nactions: [{name: a}]", "tools[0].id", "the id 'a' is that of"),
        (MCP % "[]", "tools[0].mcp_transport_config", "a list instead of an object"),
        (MCP % "{transport_type: WEBSOCKET}", "tools[0].mcp_transport_config.transport_type", "WEBSOCKET is not"),
        (MCP % "{transport_type: TCP}", "tools[0].mcp_transport_config.transport_type", "'TCP' is not a transport"),
        (MCP % "{args: x}", "tools[0].mcp_transport_config.args", "a text instead of a list"),
        (MCP % "{timeout: 0}", "tools[0].mcp_transport_config.timeout", "0 is not a number of seconds"),
        ("actions: [{name: a, tools: [{name: serach}]}]", "actions[0].tools[0]", "there is no tool 'serach'"),
        ("actions: [{name: a}, {name: a}]", "actions[1].name", "a second 'a'"),
        ("toolkit: [[{name: a}]]", "toolkit[0][0]", "there is no action 'a'"),
        ("toolkit: [a]", "toolkit[0]", "a text instead of a list"),
        ("operators: [{actions: [a]}]", "operators[0].actions[0]", "there is no action 'a'"),
        ("operators: [{threshold: 2}]", "operators[0].threshold", "2 is not a number in [0, 1]"),
        ("operators: [{hops: -1}]", "operators[0].hops", "-1 is not a number of steps"),
        ("scores: [{from: a, to: b, score: 0.5}]", "scores[0]", "no edge from 'a' to 'b'"),
        ("actions: [{name: a}]\nscores: [{from: a, to: a, score: x}]", "scores[0].score", "'x' is not a number"),
    ],
)
def test_mistakes_have_file_key_and_fix(text: str, key: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "t.yml"
    file.write_text(text)
    with pytest.raises(CatalogError) as caught:
        Toolkit.load(file)
    first = caught.value.problems[0]
    assert (first.file, first.key) == (str(file), key)
    assert problem in first.problem
    assert first.fix


def test_all_mistakes_are_reported_at_once_with_the_near_name(tmp_path: Path) -> None:
    file = tmp_path / "t.yml"
    file.write_text("tools: [{name: search, module_path: m}, {name: t}]\nactions: [{name: a, tools: [{name: serach}]}]")
    with pytest.raises(CatalogError) as caught:
        Toolkit.load(file)
    assert [(each.key, each.fix) for each in caught.value.problems] == [
        ("tools[1].module_path", 'write module_path: "..."'),
        ("actions[0].tools[0]", "write 'search'"),
    ]


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "t.yml").write_bytes(b"app: \xff")
    with pytest.raises(CatalogError, match="not UTF-8: byte 5"):
        Toolkit.load(tmp_path / "t.yml")
