"""``dispatch bench``: hands over to the benchmarks of a checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch.cli import bench
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.unit.cli.conftest import Run

PROGRAM = """
import signal, sys, pathlib
print("arguments", sys.argv[1:], flush=True)
if "--wait" in sys.argv:
    try:
        print("ready", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        pathlib.Path("cleaned-up").touch()
        sys.exit(1)
sys.exit(3)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like one."""
    for name in ("benchmarks", "dispatch", "deeper"):
        (tmp_path / "checkout" / name).mkdir(parents=True)
    (tmp_path / "checkout" / "benchmarks" / "__init__.py").touch()  # a regular package, as the genuine one is
    (tmp_path / "checkout" / "benchmarks" / "__main__.py").write_text(PROGRAM)
    return tmp_path / "checkout"


def test_arguments_and_exit_code_pass_through_from_anywhere_in_the_checkout(checkout: Path) -> None:
    code, out, err = ended("bench", "--rounds", "2", "-q", "table", cwd=checkout / "deeper")
    assert (code, err) == (3, "")
    assert out == "arguments ['--rounds', '2', '-q', 'table']\n"


def test_their_help_is_behind_two_dashes(checkout: Path) -> None:
    assert ended("bench", "--", "--help", cwd=checkout)[1] == "arguments ['--help']\n"


def test_outside_of_a_checkout_it_says_where_they_are(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_checkout", lambda: None)
    end = run("bench")
    assert end.code == 2
    assert "they are in the repository" in end.err
    assert "inside a clone" in end.err


def test_an_installed_package_finds_no_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench.dispatch, "__file__", str(tmp_path / "site-packages" / "dispatch" / "__init__.py"))
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda _name: None)
    assert bench.find_checkout() is None


def test_ctrl_c_reaches_the_benchmarks_and_their_exit_code_is_that_of_the_command(checkout: Path) -> None:
    with started("bench", "--wait", cwd=checkout) as program:
        program.out.wait_for("ready")
        program.interrupt()
        assert program.wait(WAIT_S) == 1
    assert (checkout / "cleaned-up").exists()
