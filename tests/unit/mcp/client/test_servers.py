"""Tools of genuine MCP servers, called through a dispatcher."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import types

import dispatch
import dispatch.mcp.sessions
from tests.helpers.mcp_servers.programs import START_S, connected, stdio, until


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(test())  # type: ignore[arg-type] # a coroutine


@pytest.fixture(params=["auto", "legacy"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both generations of the protocol."""
    monkeypatch.setattr(dispatch.mcp.sessions, "MODE", request.param)
    return str(request.param)


def test_calls_of_a_server(mode: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with connected({"calc": stdio("calculator")}) as dispatcher:
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
            plain = await dispatcher.execute("text_upper", {"text": "größe 🦊"})
            assert (plain.text, plain.content, plain.instance) == ("GRÖSSE 🦊", (), "calc")
            structured = await dispatcher.execute("add", {"a": 1, "b": 2})
            assert structured.structured_content == {"result": 3}
            picture = await dispatcher.execute("picture")
            assert picture.text == "a cat\n[image: image/png, 4 bytes]"
            assert [block["type"] for block in picture.content] == ["text", "image"]
            failed = await dispatcher.execute("fail")
            assert isinstance(failed.error, dispatch.ToolError)
            assert "no such order" in failed.error.message
            late = await dispatcher.execute("wait", {"seconds": 30, "path": str(tmp_path / "late")}, timeout=0.3)
            assert late.outcome is dispatch.Outcome.TIMEOUT
            await until((tmp_path / "late").exists)
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"  # the server lives

    run(test)


def test_a_cancelled_call_reaches_the_server(mode: str, tmp_path: Path) -> None:
    async def test() -> None:
        async with connected({"calc": stdio("calculator")}) as dispatcher:
            pid = await dispatcher.call("pid")
            call = asyncio.create_task(dispatcher.call("wait", {"seconds": 30, "path": str(tmp_path / "stopped")}))
            async with asyncio.timeout(START_S):
                while await dispatcher.call("waiting") != "1":
                    pass
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until((tmp_path / "stopped").exists)
            assert await dispatcher.call("pid") == pid

    run(test)


async def answer(context: Any, params: types.ElicitRequestFormParams) -> types.ElicitResult:
    assert params.message == "Your name?"
    return types.ElicitResult(action="accept", content={"name": "Ada"})


def test_requests_of_a_server_are_rejected_by_name(mode: str) -> None:
    async def test() -> None:
        name = "changing" if mode == "auto" else "calculator"  # the SDK's high-level server asks in the former protocol
        async with connected({"server": stdio(name)}) as dispatcher:
            result = await dispatcher.execute("ask")
        assert result.error is not None
        assert ("elicitation/create" if mode == "auto" else "Elicitation not supported") in result.error.message

    run(test)


def test_a_callback_answers_requests_of_a_server(mode: str) -> None:
    async def test() -> None:
        name = "changing" if mode == "auto" else "calculator"
        async with connected({"server": stdio(name)}, elicitation=answer) as dispatcher:
            assert "Ada" in await dispatcher.call("ask")

    run(test)


def test_invalid_entries_are_reported_by_name_and_the_others_work() -> None:
    async def test() -> None:
        servers = {"calc": stdio("calculator"), "broken": {"args": 3}, "gone": {"command": "/no/such/program"}}
        async with connected(servers) as dispatcher:
            states = {each.id: each for each in dispatcher.registry.sources()}
            assert {id: each.state for id, each in states.items()} == {
                "mcp-calc": "ok",
                "mcp-broken": "failed",
                "mcp-gone": "failed",
            }
            assert "broken: command: neither" in states["mcp-broken"].problem
            assert "No such file" in states["mcp-gone"].problem
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"

    run(test)


def test_hints_are_believed_of_trusted_servers_only() -> None:
    async def test() -> None:
        for trusted in (False, True):
            async with connected({"calc": stdio("calculator", trusted=trusted)}) as dispatcher:
                assert dispatcher.registry.get("add").read_only is trusted
                assert dispatcher.registry.get("add").destructive is None

    run(test)


def test_clashing_names_have_the_prefix_of_their_servers(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        servers = {
            "one": stdio("calculator", only=["add", "fail"]),
            "two": stdio("calculator", only=["add"]),
            "three": stdio("calculator", only=["pid"], prefix="always"),
        }
        async with connected(servers) as dispatcher:
            names = ["fail", "one-add", "three-pid", "two-add"]
            await until(lambda: sorted(tool.name for tool in dispatcher.registry.list()) == names)
            assert (await dispatcher.execute("one-add", {"a": 1, "b": 2})).instance == "one"
            assert (await dispatcher.execute("two-add", {"a": 1, "b": 2})).instance == "two"

    with caplog.at_level(logging.WARNING, "dispatch.mcp"):
        run(test)
    assert [each.getMessage() for each in caplog.records] == ["several MCP servers have a tool 'add': one, two"]


def test_policy_and_permissions_of_a_server_hold_for_its_tools() -> None:
    async def test() -> None:
        entry = stdio("calculator", permissions=["calc:use"], policy={"rate-limit": "1/m"})
        source = dispatch.McpServers({"calc": entry})
        permissions = {"ada": ["calc:*"]}
        async with dispatch.connect("memory://", [source], grants=lambda user: permissions.get(user, [])) as dispatcher:
            refused = await dispatcher.execute("add", {"a": 1, "b": 2}, user="bob")
            assert refused.error is not None
            assert refused.error.type == "not-permitted"
            assert (await dispatcher.execute("add", {"a": 1, "b": 2}, user="ada")).text == "3"
            throttled = await dispatcher.execute("add", {"a": 1, "b": 2}, user="ada", timeout=0.5)
            assert throttled.outcome is dispatch.Outcome.THROTTLED

    run(test)


def test_a_changed_definition_waits_for_its_approval(tmp_path: Path) -> None:
    async def test() -> None:
        source = dispatch.McpServers({"calc": stdio("calculator", on_change="hold")})
        async with dispatch.connect("memory://", [source], approvals=tmp_path / "approved.json") as dispatcher:
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
            await until((tmp_path / "approved.json").exists)
        assert "tool/add" in (tmp_path / "approved.json").read_text()

    run(test)


def test_servers_that_are_added_and_removed(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with dispatch.connect("memory://") as dispatcher:
            entries = {"calc": stdio("calculator", only=["add", "subtract"]), "broken": {}}
            await dispatcher.registry.add_source(dispatch.McpServers(entries))
            assert [each.id for each in dispatcher.registry.sources()] == ["mcp-calc", "mcp-broken"]
            assert await dispatcher.call("add", {"a": 1, "b": 2}) == "3"
            await dispatcher.registry.remove_source("mcp-calc")
            gone = await dispatcher.execute("add", {"a": 1, "b": 2})
            assert gone.error is not None
            assert gone.error.type == "unknown-tool"
            with pytest.raises(ValueError, match="mcp-broken"):
                await dispatcher.registry.add_source(dispatch.McpServers({"other": {}, "broken": {}}))
            assert [each.id for each in dispatcher.registry.sources()] == ["mcp-broken"]

    run(test)
    assert "mcp-calc: 'only' names tools that the server does not have: subtract" in caplog.messages


def test_a_reload_with_other_servers() -> None:
    async def test() -> None:
        async with connected({"calc": stdio("calculator")}) as dispatcher:
            pid = int(await dispatcher.call("pid"))
            await dispatcher.reload([dispatch.McpServers({"other": stdio("calculator"), "broken": {}})])
            assert (await dispatcher.execute("add", {"a": 1, "b": 2})).instance == "other"
            await until(lambda: not Path(f"/proc/{pid}").exists())

    run(test)


def test_stderr_is_in_the_log_and_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with connected({"calc": stdio("calculator")}) as dispatcher:
            assert await dispatcher.call("log", {"text": "x" * 5_000, "lines": 1_000}) == "written"

    with caplog.at_level(logging.INFO, "dispatch.mcp"):
        run(test)
    lines = [each.getMessage() for each in caplog.records if "xxx" in each.getMessage()]
    assert 50 <= len(lines) < 200
    assert max(map(len, lines)) < 1_100
    assert any("lines are left out" in each.getMessage() for each in caplog.records)


def test_an_import_of_dispatch_imports_no_mcp() -> None:
    code = "import sys, dispatch; sys.exit(any(name.split('.')[0] in ('mcp', 'mcp_types') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_sdk_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['mcp'] = None; import dispatch; dispatch.McpServers"
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert "pip install 'tool-dispatch[mcp]'" in found.stderr


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(dispatch.CatalogError, match="No such file"):
        dispatch.McpServers(tmp_path / "mcp.json")
    (tmp_path / "mcp.json").write_text('{"mcpServers": {,}}')
    with pytest.raises(dispatch.CatalogError, match="line 1, column 17"):
        dispatch.McpServers(tmp_path / "mcp.json")


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('\ufeff{"mcpServers": {"größe": {"command": "x"}}}', "utf-8")
    assert [each.id for each in dispatch.McpServers(tmp_path / "mcp.json").sources] == ["mcp-gr_e"]
