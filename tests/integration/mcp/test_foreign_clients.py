"""Clients of other libraries: MCP's SDK before 2.0, and FastMCP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatch import Policy
from dispatch.mcp import McpServer
from tests.helpers.cli_processes import REPO
from tests.helpers.dispatcher_and_service import stand
from tests.helpers.mcp_connections import serving
from tests.helpers.mcp_server_process import TOOLS, work
from tests.integration.mcp.environments import python_of

CLIENT = Path(__file__).with_name("foreign_client.py")
LIBRARIES = ("v1", "fastmcp")

pytestmark = pytest.mark.soak  # each environment is installed once


def check(output: str) -> None:
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert seen["names"] == ["broken", "city", "read_result", "work"]
    assert seen["success"] == ["about größe 🦊\u2028", False, None]
    assert seen["structured"] == ['{"name":"Köln"}', False, {"name": "Köln"}]
    assert seen["rest of a large result"] == ["x" * 6, False, None]
    assert seen["progress"] == ["about ", "cats"]
    for name, error in (
        ("tool error", "no-topic"),
        ("bad arguments", "invalid-arguments"),
        ("unknown tool", "unknown-tool"),
    ):
        text, is_error, _ = seen[name]
        assert is_error
        assert json.loads(text)["error"] == error


@pytest.mark.parametrize("library", LIBRARIES)
def test_on_stdio(library: str, tmp_path: Path) -> None:
    server = ["env", f"PYTHONPATH={REPO}", sys.executable, "-m", "tests.helpers.mcp_server_process"]
    ended = subprocess.run(
        [python_of(library), CLIENT, library, "--", *server],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    check(ended.stdout)


@pytest.mark.wall_clock
@pytest.mark.parametrize("library", LIBRARIES)
async def test_over_http(library: str, tmp_path: Path) -> None:
    python = python_of(library)
    async with (
        stand(work, TOOLS, policy=Policy()) as (dispatcher, _),
        serving(McpServer(dispatcher, user="alice")) as url,
    ):
        client = await asyncio.create_subprocess_exec(
            *(python, CLIENT, library, url),
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await client.communicate()
    assert client.returncode == 0, err.decode()
    check(out.decode())
