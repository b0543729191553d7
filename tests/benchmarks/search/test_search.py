"""The benchmark of tool search, on a small catalogue."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.search.__main__ import main
from benchmarks.search.dataset import DataError, load_dataset
from benchmarks.search.distractors import make_distractors
from benchmarks.search.query_map import learn_query_map
from benchmarks.search.recall import BM25, CONTENDERS, DISPATCH, SPLITS, Recall

TOOLS = {
    "Weather": "Forecasts of rain and sun for any city.",
    "Chef": "Recipes to cook at home.",
    "Trains": "Departures and arrivals at railway stations.",
    "Bank": "Balance and transfers of an account.",
    "Doctor": "Explains symptoms and medicines.",
    "Music": "Plays songs of any artist.",
    "News": "Headlines of newspapers of today.",
    "Chess": "Plays a game of chess.",
}
QUERIES = ("What about {}?", "I need {}", "Please help me with {}", "Can you do {} for me", "{}")


@pytest.fixture(params=["extract", "repository"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The data in both layouts."""
    tools, queries = ("tools.json", "queries.csv")
    if request.param == "repository":
        tools, queries = ("plugin_des.json", "data/all_clean_data.csv")
        (tmp_path / "data").mkdir()
    (tmp_path / tools).write_text(json.dumps(TOOLS), encoding="utf-8")
    columns = "query,tool" if request.param == "extract" else "Query,Tool"
    rows = [
        f'"{query.format(text.split()[0].lower())}",{name.upper()}' for name, text in TOOLS.items() for query in QUERIES
    ]
    (tmp_path / queries).write_text("\n".join([columns, *rows]), encoding="utf-8")
    return tmp_path


def test_the_report_has_every_figure(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    arguments = ["--data", str(folder), "--sizes", "8", "20", "--queries", "10", "--only", "recall", "--only", "sizes"]
    assert main([*arguments, "--json", str(file)]) == 0
    figures = json.loads(file.read_text("utf-8"))
    assert figures["recall"].keys() == SPLITS.keys()
    for contenders in figures["recall"].values():
        assert tuple(contenders) == CONTENDERS
        assert all(0 <= share <= 1 for figure in contenders.values() for share in figure.values())
        assert contenders[DISPATCH]["recall@5"] > 0.5
    assert [(each["tools"], each["contender"]) for each in figures["sizes"]][:2] == [(8, BM25), (8, DISPATCH)]
    assert len(figures["sizes"]) == 6
    assert "p95" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "No folder of MetaTool's data is given"), (["--data", "/nowhere"], "/nowhere has no tools.json")],
)
def test_missing_data_is_reported_with_the_fix(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("METATOOL", raising=False)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Clone https://github.com/HowieHwong/MetaTool" in error


def test_the_environment_names_the_data(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METATOOL", str(folder))
    assert main(["--only", "sizes", "--sizes", "8", "--queries", "2"]) == 0


@pytest.mark.parametrize(
    ("rows", "message"), [("query,tool\na,Unknown", "names the tool 'Unknown'"), ("a,b\nc,d", "no columns")]
)
def test_wrong_queries_are_rejected(tmp_path: Path, rows: str, message: str) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    (tmp_path / "queries.csv").write_text(rows, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        load_dataset(tmp_path)


def test_distractors_differ() -> None:
    tools = make_distractors(9_801)
    assert len({tool.name for tool in tools}) == len({tool.description for tool in tools}) == 9_801
    assert make_distractors(3) == tools[:3]
    with pytest.raises(ValueError, match="at most"):
        make_distractors(100_000)


def test_a_map_turns_queries_towards_their_tools() -> None:
    generator = np.random.default_rng(1)
    tools = np.eye(4, 8, dtype=np.float32)
    answers = [number % 4 for number in range(200)]
    queries = np.roll(tools[answers], 4, axis=1) + 0.1 * generator.normal(size=(200, 8)).astype(np.float32)
    learned = learn_query_map(queries.astype(np.float32), tools, answers)
    assert (np.argmax(queries @ learned @ tools.T, axis=1) == answers).mean() > 0.8
    assert (np.argmax(queries @ tools.T, axis=1) == answers).mean() < 0.5


def test_recall_counts_tools_that_are_not_found() -> None:
    recall = Recall([0, 2, float("inf"), 9])
    assert [recall.at(cut) for cut in (1, 3, 10)] == [0.25, 0.5, 0.75]
    assert recall.mean_reciprocal_rank == pytest.approx((1 + 1 / 3 + 1 / 10) / 4)
