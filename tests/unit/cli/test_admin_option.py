"""``--admin``: the endpoint of a command that runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.request import Request, urlopen

from tests.helpers.cli_processes import started
from tests.unit.cli.conftest import Run


def test_a_port_that_is_taken_is_said(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        end = run("demo", "--seconds", "5", "--admin", f"127.0.0.1:{port}")
    assert end.code != 0
    assert f"127.0.0.1:{port}" in end.err
    assert "(0: any free one)." in end.err


def test_actions_from_outside_are_logged_whatever_the_level(catalog_folder: Path) -> None:
    options = ("--broker", "memory://audit", "--catalog", str(catalog_folder), "--http", "127.0.0.1:0")
    with started("mcp", *options, "--admin", "127.0.0.1:0") as process:
        process.err.wait_for("Admin: ")
        url = process.err.text().split("Admin: ")[1].split()[0]
        for number, level in enumerate(("ERROR", "WARNING")):
            body = {"level": level, "logger": "dispatch", "user": "alice", "reason": f"reason {number}"}
            content = {"Content-Type": "application/json"}
            with urlopen(Request(f"{url}/api/log-level", json.dumps(body).encode(), content), timeout=10):
                process.err.wait_for(f"INFO: action: log {level} logger dispatch by 'alice' (reason {number})")
