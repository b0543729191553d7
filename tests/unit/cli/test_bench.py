"""``dispatch size``: its figures are those of the benchmarks, and follow from the load.
``dispatch bench``: hands over to the benchmarks of a checkout.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dispatch.cli import bench
from dispatch.cli.bench import COSTS, cost_of, parse_size, size_deployment
from tests.helpers.cli_processes import WAIT_S, ended, started
from tests.unit.cli.conftest import Run

BENCHMARKS = Path(__file__).parents[3] / "docs" / "explanation" / "benchmarks.md"


def test_the_costs_are_those_of_the_benchmarks() -> None:
    text = BENCHMARKS.read_text().partition("Processor time of client + service + broker")[2]
    table = text.partition("Other loads")[0]
    measured = {
        parse_size(found[1].replace(" ", "")): tuple(float(each.replace(",", "")) for each in found[2].split(" + "))
        for found in re.finditer(r"^\| (\d+ [kM]?B) \|.*\| ([\d., +]+) \|$", table, re.MULTILINE)
    }
    assert measured == COSTS


@pytest.mark.parametrize(
    ("payload", "expected"), [(0, 23.0), (120, 23.0), (55_000, 84.8), (1_000_000, 788.0), (2_000_000, 1576.0)]
)
def test_the_cost_grows_with_the_payload(payload: int, expected: float) -> None:
    assert cost_of(payload)[0] == pytest.approx(expected)


def test_more_processes_for_more_calls() -> None:
    few, many = (size_deployment(calls, 10_000, 0.5, 64) for calls in (100, 20_000))
    assert (few["in_flight"], few["dispatchers"], few["instances"]) == (50, 1, 3)
    assert (many["in_flight"], many["dispatchers"], many["instances"]) == (10_000, 2, 225)


def test_the_command(run: Run) -> None:
    end = run("size", "--calls", "500/s", "--payload", "10k", "--json", code=0)
    assert json.loads(end.out) == size_deployment(500, 10_000, 0.1, 64)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1.5k", 1_500), ("1 kB", 1_000), ("1KiB", 1_024), ("1MiB", 1_048_576), ("2G", 2 * 10**9)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_fast_tool_keeps_the_default_bulkhead(run: Run) -> None:
    assert run("size", "--calls", "500/s", "--seconds", "0", "--json").json["max_concurrent_calls"] == 64


@pytest.mark.parametrize("options", [("--seconds", "inf"), ("--seconds", "1e308"), ("--concurrency", "9" * 400)])
def test_figures_without_a_meaning_are_refused(run: Run, options: tuple[str, str]) -> None:
    assert f"Invalid value for '{options[0]}'" in run.refused("size", "--calls", "1/s", *options)


@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("--calls", "many", "500/s"),
        ("--calls", "0/s", "at most 1000000/s"),
        ("--payload", "big", "10k"),
        ("--payload", "9" * 400, "10k"),
        ("--payload", "1iB", "1MiB"),
    ],
)
def test_mistakes(run: Run, option: str, value: str, fix: str) -> None:
    given = {"--calls": "1/s", option: value}
    err = run.refused("size", *(each for pair in given.items() for each in pair))
    assert f"'{value}'" in err
    assert fix in err


PROGRAM = """
import sys, pathlib, time
print("arguments", sys.argv[1:], flush=True)
if "--wait" in sys.argv:
    try:
        print("ready", flush=True)
        while True:
            time.sleep(0.01)  # signal.pause() would miss a signal that came just before it
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
    err = run.refused("bench")
    assert "they are in the repository" in err
    assert "inside a clone" in err


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
