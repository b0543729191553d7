"""``dispatch size``: its figures are those of the benchmarks, and follow from the load."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from dispatch.cli.size import COSTS, cost_of, parse_size, size_deployment
from tests.unit.cli.conftest import Run

BENCHMARKS = Path(__file__).parents[4] / "docs" / "explanation" / "benchmarks.md"


def test_the_costs_are_those_of_the_benchmarks() -> None:
    table = (
        BENCHMARKS.read_text().partition("Processor time of client + service + broker")[2].partition("Other loads")[0]
    )
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
    end = run("size", "--calls", "500/s", "--payload", "10k", "--json")
    assert end.code == 0
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
    end = run("size", "--calls", "1/s", *options)
    assert (end.code, f"Invalid value for '{options[0]}'" in end.err) == (2, True)


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
    end = run("size", *(each for pair in given.items() for each in pair))
    assert end.code == 2
    assert f"'{value}'" in end.err
    assert fix in end.err
