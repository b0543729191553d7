"""``dispatch tools --watch``, as a process of its own."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import dispatch
from tests.helpers.cli_processes import REPO, Program, environment, started
from tests.helpers.metrics_port import expose_metrics
from tests.unit.cli.conftest import Run, write_catalog


def write_tool(folder: Path, name: str, **keys: object) -> None:
    tool = {"type": "tool-service", "name": name, "description": f"Do {name}.", "service": "joke-service", **keys}
    temporary = folder / "tool" / f".{name}"
    temporary.write_text(json.dumps(tool))
    temporary.replace(folder / "tool" / f"{name}.json")


@contextmanager
def watching(folder: Path, *options: str, terminal: bool = False) -> Iterator[Program]:
    """The command on ``folder``, once it has shown the tools."""
    with started("tools", "--watch", "--catalog", str(folder), *options, terminal=terminal) as program:
        program.out.wait_for("tell-joke")
        yield program


def test_lines_for_each_change_until_ctrl_c(catalog_folder: Path) -> None:
    with watching(catalog_folder, "--all") as program:
        program.out.wait_for("Everything is in force.")
        write_tool(catalog_folder, "sing", version="1.0.0")
        program.out.wait_for("+ sing 1.0.0 ")
        write_tool(catalog_folder, "sing", version="1.0.1")
        program.out.wait_for("~ sing 1.0.1 ")
        write_tool(catalog_folder, "sing", service="joke-servise")
        program.out.wait_for(f"source folder:{catalog_folder}: stale: ")
        program.out.wait_for('Fix: write "service": "joke-service"')
        (catalog_folder / "tool" / "sing.json").unlink()
        program.out.wait_for(f"source folder:{catalog_folder}: ok")
        program.out.wait_for("- sing")
        program.interrupt()
        program.assert_interrupted()
        assert program.err.text() == "Interrupted.\n"


def test_one_json_line_for_each_event(catalog_folder: Path) -> None:
    with watching(catalog_folder, "--json") as program:
        write_tool(catalog_folder, "sing")
        program.out.wait_for('"added": ["sing"]')
        program.interrupt()
        program.assert_interrupted()
    start, *events = map(json.loads, program.out.text().splitlines())
    assert (start["event"], start["sources"]) == ("tools", {f"folder:{catalog_folder}": "ok"})
    assert [tool["name"] for tool in start["tools"]] == ["tell-joke"]
    (changed,) = (event for event in events if event["event"] == "catalog" and event["added"])
    assert changed["source"] == f"folder:{catalog_folder}"
    assert set(changed["fingerprints"]) == {"sing"}


def test_a_live_table_of_the_selected_tools_on_a_terminal_and_the_cursor_comes_back(catalog_folder: Path) -> None:
    with watching(catalog_folder, "--text", "joke", terminal=True) as program:
        write_tool(catalog_folder, "dance")
        write_tool(catalog_folder, "tell-other-joke")
        program.out.wait_for("+ tell-other-joke")
        program.interrupt()
        program.assert_interrupted()
    out = program.out.text()
    assert "dance" not in out
    assert "\x1b[?25l" in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")
    assert "Fingerprint" in out


def test_a_reader_that_closes_the_pipe_ends_it_quietly(catalog_folder: Path) -> None:
    command = [sys.executable, "-m", "dispatch", "tools", "--watch", "--catalog", str(catalog_folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPO, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        write_tool(catalog_folder, "sing")
        assert process.wait(30) == 141
        assert process.stderr.read() == b""


async def test_the_circuits_of_a_running_agent(catalog_folder: Path, run: Run) -> None:
    telemetry = dispatch.Telemetry(registry=CollectorRegistry())
    with expose_metrics(telemetry) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        async with dispatch.connect("memory://", catalog_folder, telemetry=telemetry) as dispatcher:
            breaker = dispatcher.breaker("tell-joke")
            options = ("--catalog", str(catalog_folder), "--metrics", url)
            code, table = await _in_thread(lambda: _output(run, "tools", *options))
            assert code == 0
            header, row = table.splitlines()
            assert row[header.index("CIRCUIT") :].split()[0] == "closed"
            code, details = await _in_thread(lambda: _output(run, "tools", "tell-joke", *options))
            assert "circuit         closed" in details
            code, rows = await _in_thread(lambda: _output(run, "tools", "--json", *options))
            assert json.loads(rows)[0]["circuit"] == "closed"
            with watching(catalog_folder, "--metrics", url) as program:
                breaker.force_open()
                await _in_thread(lambda: program.out.wait_for("circuit of tell-joke: closed → forced-open"))
                program.interrupt()
                await _in_thread(program.assert_interrupted)


async def _in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(function)


def _output(run: Run, *words: str) -> tuple[int, str]:
    end = run(*words)
    return end.code, end.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("tell-joke",), 2, "--text tell-joke"),
        (("--metrics", "http://127.0.0.1:1/metrics"), 4, "cannot be read"),
        (("--trustgraph", "--broker", "memory://"), 2, "memory:// is the embedded broker"),
        (("--version", "one"), 2, "one"),
    ],
)
def test_mistakes_of_the_user(run: Run, tmp_path: Path, words: tuple[str, ...], code: int, message: str) -> None:
    write_catalog(tmp_path / "tools")
    end = run("tools", "--watch", *words)
    assert end.code == code
    assert message in end.err
