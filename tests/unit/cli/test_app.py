"""The boundary: every error a message, every Ctrl-C the same, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dispatch.cli.app import app
from tests.helpers.cli_processes import environment
from tests.unit.cli.conftest import Run, write_catalog


def test_typers_own_runner_sees_the_same_app() -> None:
    end = CliRunner().invoke(app, ["--version"])
    assert end.exit_code == 0
    assert end.output.startswith("dispatch ")


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    end = run("cal")
    assert end.code == 2
    assert "No such command" in end.err


def interrupt(*_arguments: object, **_options: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("arguments", "at_work"),
    [
        (("tools",), "dispatch.catalog.folder.FolderReader.read"),
        (("check", "."), "dispatch.catalog.folder.FolderReader.read"),
        (("call", "tell-joke"), "dispatch.catalog.folder.FolderReader.read"),
        (("doctor",), "dispatch.devtools.localbroker.status"),
        (("serve", "jokes:Joke", "--service", "joke"), "dispatch.cli.serve.load_target"),
        (("bench",), "dispatch.cli.bench.find_checkout"),
        (("demo",), "dispatch.devtools.demo.Demo"),
        (("broker", "start"), "dispatch.devtools.localbroker.start_detached"),
        (("broker", "stop"), "dispatch.devtools.localbroker.stop_detached"),
        (("broker", "status"), "dispatch.devtools.localbroker.status"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_ctrl_c_at_once_in_every_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...], at_work: str
) -> None:
    write_catalog(tmp_path / "tools")
    monkeypatch.setattr(at_work, interrupt)
    end = run(*arguments)
    assert end.code == 130
    assert end.err.endswith("Interrupted.\n")
    assert "Traceback" not in end.err


def test_a_fault_of_ours_is_told_in_a_line_and_with_verbose_in_full(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fault(_folder: str) -> None:
        raise KeyError("oops")

    write_catalog(tmp_path / "tools")
    monkeypatch.setattr("dispatch.catalog.folder.FolderReader.read", fault)
    short, long = run("tools"), run("tools", "--verbose")
    assert (short.code, long.code) == (70, 70)
    assert "Error: dispatch failed unexpectedly: KeyError: 'oops'" in short.err
    assert "--verbose" in short.err
    assert "Traceback" not in short.err
    assert "Traceback" in long.err


def test_a_reader_that_goes_away_ends_it_quietly(catalog_folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        end = subprocess.run(
            [sys.executable, "-m", "dispatch", "tools", "--catalog", str(catalog_folder)],
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)
    assert (end.returncode, end.stderr) == (141, "")
