"""The benchmark of reading calls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.calling.__main__ import count_calls, main
from benchmarks.calling.contenders import contenders, read_with_regex
from benchmarks.calling.corpus import Case


def test_wrong_calls_are_counted_apart_from_missed_ones() -> None:
    case = Case("x", "en", "text", [("a", {}), ("b", {"c": 1})])
    rates = count_calls("x", lambda text: [("a", {}), ("b", {"c": 2}), ("d", {})], [case])
    assert (rates.meant, rates.right, rates.missed, rates.wrong) == (2, 1, 1, 2)


@pytest.mark.parametrize("name", contenders())
def test_each_contender_reads_a_clean_call(name: str) -> None:
    text = 'Now:\n<function_call>\n{"name": "f", "call_objective": "o", "args": {"a": 1}}\n</function_call>'
    assert contenders()[name](text) == [("f", {"a": 1})]
    assert contenders()[name]("No call.") == []
    assert read_with_regex("<function_call>{</function_call>") == []


def test_the_report_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main(["--repeats", "1", "--json", str(file)]) == 0
    figures = json.loads(file.read_text("utf-8"))
    ours = figures["rates"]["all forms"][0]
    assert (ours["contender"], ours["right"], ours["missed"], ours["wrong"]) == ("dispatch", ours["meant"], 0, 0)
    assert set(figures) == {"rates", "hostile_ms", "clean_ratios"}
    assert "goal 50 ms" in capsys.readouterr().out
