"""``dispatch mcp``: options, both transports, and the ends of the process."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ToolListChangedNotification

from dispatch.cli.base import CliError
from dispatch.cli.serve import parse_address
from tests.helpers.cli_processes import REPO, Program, environment, started
from tests.helpers.mcp_stdio_program import StdioProgram
from tests.unit.cli.conftest import Run, write_catalog

ARGUMENTS = ("mcp", "--broker", "memory://", "--catalog")


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("localhost:65535", ("localhost", 65_535))],
)
def test_an_address_is_host_and_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "80", ":80", "localhost", "localhost:", "localhost:x", "::1:80", "h:65536", "h:²"]
)
def test_another_form_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(CliError) as caught:
        parse_address(text)
    assert "--http" in caught.value.fix


@pytest.mark.parametrize(
    ("options", "error", "fix"),
    [
        (("--http", "0.0.0.0:0"), "Other machines reach '0.0.0.0'", "--tokens"),
        (("--tokens", "tokens.json"), "are for HTTP", "--http"),
        (("--allow-host", "tools.example"), "are for HTTP", "--http"),
        (("--http", "127.0.0.1:0", "--tokens", "missing.json"), "'missing.json' cannot be read", ""),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: tuple[str, ...], error: str, fix: str, run: Run, catalog_folder: Path
) -> None:
    ended = run(*ARGUMENTS, str(catalog_folder), *options, code=2)
    assert error in ended.err
    assert fix in ended.err
    assert ended.out == ""


@pytest.mark.wall_clock
async def test_a_client_starts_it_and_a_changed_folder_changes_the_list(tmp_path: Path) -> None:
    catalog_folder = write_catalog(tmp_path / "catalogue", policy={"timeout": 2.0})  # for the topics too
    changed = asyncio.Event()

    async def on_message(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    process = StdioServerParameters(
        command=sys.executable, args=["-m", "dispatch", *ARGUMENTS, str(catalog_folder)], cwd=REPO, env=environment()
    )
    async with Client(process, message_handler=on_message) as client, client.listen(tools_list_changed=True):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "tell-joke"]
        (block,) = (await client.call_tool("tell-joke", {"topic": "cats"})).content
        assert json.loads(block.text)["error"] == "no-instance"
        tool = json.loads((catalog_folder / "tool" / "tell-joke.json").read_text())
        (catalog_folder / "tool" / "tell-story.json").write_text(json.dumps(tool | {"name": "tell-story"}))
        await asyncio.wait_for(changed.wait(), 20)
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["read_result", "tell-joke", "tell-story"]


@pytest.mark.wall_clock
async def test_tokens_name_the_users_over_http_and_sigterm_ends_it_while_a_client_listens(
    catalog_folder: Path, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps({"alice": "0123456789abcdef"}))
    options = ("--http", "127.0.0.1:0", "--tokens", str(tokens))
    with started(*ARGUMENTS, str(catalog_folder), *options) as program:
        url = url_of(program)
        async with httpx2.AsyncClient() as http:
            assert (await http.post(url, json={})).status_code == 401
        async with (
            httpx2.AsyncClient(headers={"authorization": "Bearer 0123456789abcdef"}) as http,
            Client(streamable_http_client(url, http_client=http), read_timeout_seconds=20) as client,
            client.listen(tools_list_changed=True),
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == ["read_result", "tell-joke"]
            program.terminate()
            assert_ended(program, 0)
        assert "0123456789abcdef" not in program.err.text()


def url_of(program: Program) -> str:
    program.err.wait_for("/mcp\n")
    return program.err.text().partition("MCP: ")[2].partition("\n")[0]


def assert_ended(program: Program, code: int) -> None:
    assert program.wait(15) == code, program.err.text()
    assert program.out.text() == ""
    assert "Traceback" not in program.err.text()


@pytest.mark.wall_clock
async def test_it_logs_actions_from_outside_and_ctrl_c_ends_it_over_http_while_a_client_listens(
    catalog_folder: Path,
) -> None:
    options = ("--http", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    with started(*ARGUMENTS, str(catalog_folder), *options) as program:
        url = url_of(program)
        admin = program.err.text().split("Admin: ")[1].split()[0]
        async with httpx2.AsyncClient() as http:
            for number, level in enumerate(("ERROR", "WARNING")):  # whatever the level
                body = {"level": level, "logger": "dispatch", "user": "alice", "reason": f"reason {number}"}
                assert (await http.post(f"{admin}/api/log-level", json=body)).status_code == 200
                program.err.wait_for(f"INFO: action: log {level} logger dispatch by 'alice' (reason {number})")
        async with Client(url, read_timeout_seconds=20) as client, client.listen(tools_list_changed=True):
            program.interrupt()
            assert_ended(program, 130)


def test_on_a_terminal_it_says_what_it_serves(catalog_folder: Path) -> None:
    with started(*ARGUMENTS, str(catalog_folder), terminal=True, keyboard=True) as program:
        program.err.wait_for("MCP on stdin and stdout, for a client that starts this command. Ctrl-C ends it; --http")
        program.interrupt()
        program.assert_interrupted()


@pytest.mark.parametrize(("signal", "code"), [("interrupt", 130), ("terminate", 0)])
def test_a_signal_ends_it_on_stdio(signal: str, code: int, catalog_folder: Path) -> None:
    with StdioProgram(*ARGUMENTS, str(catalog_folder)) as program:
        answer: dict[str, Any] = program.request("ping")
        assert "error" in answer or "result" in answer
        assert program.stop(signal) == code
