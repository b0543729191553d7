"""MCP's conformance suite and the Inspector's command line, where node is installed.

The newest versions need node 22; the pinned ones run on node 20.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.cli_processes import REPO, environment

CONFORMANCE = "@modelcontextprotocol/conformance@0.1.13"
INSPECTOR = "@modelcontextprotocol/inspector@1.0.3"
SCENARIOS = (
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-error",
    "tools-call-with-progress",
    "json-schema-2020-12",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
"""Those about tools and the transport; the others need prompts, resources, or requests to the client."""

pytestmark = pytest.mark.soak  # npx downloads them once

if shutil.which("npx") is not None:

    @pytest.fixture(scope="module")
    def url() -> Iterator[str]:
        """The server with the tools that the suite expects."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.mcp.conformance_server"],
            cwd=REPO,
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
            process.communicate()

    def run_npx(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["npx", "-y", *arguments]
        return subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)

    @pytest.mark.parametrize("scenario", SCENARIOS)
    def test_conformance(scenario: str, url: str, tmp_path: Path) -> None:
        ended = run_npx(tmp_path, CONFORMANCE, "server", "--url", url, "--scenario", scenario)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "0 failed, 0 warnings" in ended.stdout

    def test_inspector(url: str, tmp_path: Path) -> None:
        options = ("--cli", url, "--transport", "http", "--method")
        listed = run_npx(tmp_path, INSPECTOR, *options, "tools/list")
        assert listed.returncode == 0, listed.stderr
        names = [tool["name"] for tool in json.loads(listed.stdout)["tools"]]
        assert "test_simple_text" in names
        called = run_npx(tmp_path, INSPECTOR, *options, "tools/call", "--tool-name", "test_simple_text")
        assert json.loads(called.stdout)["content"][0]["text"].startswith("This is a simple text")
