"""Each benchmark runs in its smallest size, and its report has every figure. Some figures are guarantees: nothing grows
over many activations and calls, and every edit of a watched folder comes into force.
"""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.announcements import __main__ as announcements
from benchmarks.calling import __main__ as calling
from benchmarks.calling.contenders import contenders
from benchmarks.catalog import __main__ as catalog
from benchmarks.catalog.activations import GROWTH_KIB, describe_activations, measure_activations
from benchmarks.catalog.folder import describe_figures, measure_folders
from benchmarks.catalog.large_catalog import CHANGES
from benchmarks.functions import __main__ as functions
from benchmarks.functions import served
from benchmarks.harness.broker import Endpoint
from benchmarks.learning import __main__ as learning
from benchmarks.learning.__main__ import compare_after_shift, compare_amounts, pool
from benchmarks.mcp import __main__ as mcp
from benchmarks.micro import call_path, guard_behaviours, guards, rounds, telemetry, thousand_tools
from benchmarks.micro.guard_behaviours import BEHAVIOURS, Behaviour
from benchmarks.micro.memory import retained
from benchmarks.relay.__main__ import summarize
from benchmarks.scale import __main__ as scale
from benchmarks.search import __main__ as search
from benchmarks.search.recall import BM25, CONTENDERS, DISPATCH, SPLITS
from benchmarks.toolkit import __main__ as toolkit
from tests.helpers.run_profile import by_profile
from tests.helpers.word_llama import needs_word_llama

Main = Callable[[Sequence[str] | None], int]
ACTIVATIONS = by_profile(short=400, long=3_000)
EDITS = by_profile(short=30, long=300)
CALLERS = 64


@pytest.fixture(autouse=True)
def freezes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the objects of other tests collectable."""
    monkeypatch.setattr(rounds.gc, "freeze", lambda: None)
    monkeypatch.setattr(thousand_tools, "BLOCK", 10)


def test_a_relay_is_compared_with_direct_calls_of_the_same_round() -> None:
    def figures(p50: float, counted: int, processor: float = 0.0, lost: int = 0) -> dict[str, Any]:
        cpu = {"cpu_s": {"relay": processor}, "cpu_counted": counted}
        return {"p50_ms": p50, "counted": counted, "seconds": 2.0, "lost": lost, **cpu}

    rounds = [
        {
            "direct 1": figures(drift, 10),
            "direct 64": figures(drift, 1_000),
            "forwarded 1": figures(2 * drift, 5, lost=1),
            "forwarded 64": figures(drift, 500, processor=0.1, lost=2),
        }
        for drift in (1.0, 5.0, 2.0)
    ]
    assert summarize(rounds, "forwarded") == {
        "times": 2.0,
        "rate": 0.5,
        "cost_us": 200.0,
        "per_second": 250.0,
        "lost": 9,
    }


def test_call_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = run(call_path.main, tmp_path, "--rounds", "1", "--blocks", "1")
    assert written["costs_us"].keys() == {stack.name for stack in call_path.STACKS}
    assert all(cost > 0 for costs in written["costs_us"].values() for cost in costs)
    assert written["differences_us"].keys() == {each.text for each in call_path.DIFFERENCES}
    assert "the whole path" in capsys.readouterr().out


def run(main: Main, folder: Path, *arguments: str) -> Any:
    """Run the programme and return its figures."""
    file = folder / "new" / "figures.json"
    file.parent.mkdir()
    assert main([*arguments, "--json", str(file)]) == 0
    return json.loads(file.read_text("utf-8"))


def test_guards(tmp_path: Path) -> None:
    written = run(guards.main, tmp_path, "--rounds", "2", "--blocks", "1", "--no-behaviours")
    assert {"bare", "chain", "call-off", "call", "permission", "rejected"} <= written["costs_us"].keys()
    assert all(len(costs) == 2 and min(costs) > 0 for costs in written["costs_us"].values())


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
@pytest.mark.wall_clock
async def test_guards_behave_as_expected(behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_behaviours, "REJECTIONS", 5_000)  # 64 KiB are 13 bytes of each: less than any object
    seen = await behaviour.libraries["dispatch"]()
    assert seen.ok, (behaviour.title, seen.value)


def test_telemetry(tmp_path: Path) -> None:
    written = run(telemetry.main, tmp_path, "--rounds", "2", "--blocks", "1", "--no-memory")
    assert {name: len(costs) for name, costs in written["costs_us"].items()} == {
        stack.name: 2 for stack in telemetry.STACKS
    }
    assert [each["over"] for each in written["differences_us"]] == [each.over for each in telemetry.DIFFERENCES]
    assert written["absent"] == written["retained"] == {}


@pytest.mark.wall_clock
async def test_telemetry_retains_nothing() -> None:
    found = await retained(2_000, 500, filling=2_000, filling_names=50)
    assert 0 < found["calls"].spans < 200, "a call in a hundred, of two spans"
    for kept in found.values():
        assert kept.after.series == kept.before.series > 0


def test_thousand_tools(tmp_path: Path) -> None:
    written = run(thousand_tools.main, tmp_path, "--tools", "3", "--rounds", "2", "--blocks", "1")
    for costs in (written["costs_us"], written["costs_of_seldom_calls_us"]):
        assert {name: len(found) for name, found in costs.items()} == {"one": 2, "many": 2, "many-services": 2}
    assert {each["contender"] for each in written["scrapes"] if not each["bytes"]} == {"no scrape"}


def test_functions(tmp_path: Path) -> None:
    costs = run(functions.main, tmp_path, "--rounds", "1", "--blocks", "1")["costs_us"]
    assert {"bare", "function", "thread", "service"} <= costs.keys()
    assert 0 < costs["bare"][0] < costs["function"][0]


@pytest.mark.pulsar
def test_served_functions(
    pulsar_endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PULSAR_URL", pulsar_endpoint.service_url)
    monkeypatch.setenv("PULSAR_ADMIN_URL", pulsar_endpoint.web_url)
    assert served.main(["--rounds", "2", "--calls", "800"]) == 0
    assert "≤ 1.15" in capsys.readouterr().out


@pytest.mark.pulsar
async def test_announcements(pulsar_endpoint: Endpoint, tmp_path: Path) -> None:
    sizes = ["--starts", "2", "--services", "20", "--instances", "2", "--seconds", "1"]
    arguments = [*sizes, "--broker", pulsar_endpoint.service_url]
    figures = await asyncio.to_thread(run, announcements.main, tmp_path, *arguments)
    assert len(figures["starts_s"]) == 2
    assert figures["load"]["instances"] > 0


def test_mcp(tmp_path: Path) -> None:
    figures = run(mcp.main, tmp_path, "--rounds", "1", "--seconds", "0.2")
    assert figures["calls_per_s"]["tools"] > 10
    assert 0 < figures["p50_ms"]["call"] < figures["p50_ms"]["tools"]


def test_calling(tmp_path: Path) -> None:
    figures = run(calling.main, tmp_path, "--repeats", "1")
    ours = figures["rates"]["all forms"][0]
    assert (ours["contender"], ours["right"], ours["missed"], ours["wrong"]) == ("dispatch", ours["meant"], 0, 0)
    assert set(figures) == {"rates", "hostile_ms", "clean_ratios"}
    text = 'Now:\n<function_call>\n{"name": "f", "call_objective": "o", "args": {"a": 1}}\n</function_call>'
    for read in contenders().values():
        assert read(text) == [("f", {"a": 1})]


def test_toolkit(tmp_path: Path) -> None:
    figures = run(toolkit.main, tmp_path, "--calls", "2")
    assert [(each["starts"], each["threshold"]) for each in figures] == [(1, 0.5), (1, 0.0), (3, 0.5), (3, 0.0)]
    assert all(0 < each["p50_ms"] <= each["p95_ms"] <= each["max_ms"] for each in figures)


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


@needs_word_llama
def test_search(tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS), encoding="utf-8")
    rows = [f'"{query.format(text.split()[0].lower())}",{name}' for name, text in TOOLS.items() for query in QUERIES]
    (tmp_path / "queries.csv").write_text("\n".join(["query,tool", *rows]), encoding="utf-8")
    sizes = ["--sizes", "8", "20", "--queries", "10", "--only", "recall", "--only", "sizes"]
    figures = run(search.main, tmp_path, "--data", str(tmp_path), *sizes)
    assert figures["recall"].keys() == SPLITS.keys()
    for found in figures["recall"].values():
        assert tuple(found) == CONTENDERS
        assert found[DISPATCH]["recall@5"] > 0.5
    assert [(each["tools"], each["contender"]) for each in figures["sizes"]][:2] == [(8, BM25), (8, DISPATCH)]


def test_learning(tmp_path: Path) -> None:
    figures = run(learning.main, tmp_path, "--quick", "--worlds", "1", "--calls", "100")
    assert [len(each) for each in figures["recall"].values()] == [2, 3, 4]
    assert all(figure["ratio_p95"] > 0 for figure in figures["cost"].values())


def test_learned_scores_recall_more_than_written_ones_and_than_the_most_frequent_tools() -> None:
    for row in pool([compare_amounts(seed, (50,)) for seed in range(2)]).values():
        assert row["learned"].low > row["most frequent"].high
        assert row["learned"].value > row["written"].high
        assert row["learned"].value <= row["best possible"].value


def test_learned_scores_recover_from_a_shift() -> None:
    found = pool([compare_after_shift(seed, 20, (0, 20)) for seed in range(2)])
    assert found["0 days after"]["learned"].high < found["before"]["learned"].low
    assert found["20 days after"]["learned"].low > found["20 days after"]["written"].high


def test_catalog(tmp_path: Path) -> None:
    sizes = ["--tools", "60", "--rounds", "2", "--activations", "8", "--edits", "3", "--callers", "2", "--seed", "7"]
    written = run(catalog.main, tmp_path, *sizes)
    assert set(written) == {"tools", "activations", "folder"}
    for name in ("loop_ms", "threads_ms", "latency_ms", "block_ms"):
        assert {kind: len(values) for kind, values in written["tools"][name].items()} == dict.fromkeys(CHANGES, 2)
    assert written["activations"]["activations"] == 8
    assert (written["folder"]["seed"], len(written["folder"]["activations"]), written["folder"]["lost"]) == (7, 3, [])


@pytest.mark.long
def test_nothing_grows_over_many_activations() -> None:
    # In a process of its own: what other tests have left in this one can grow during the measurement.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=logging.disable) as processes:
        figures = processes.submit(measure_activations, ACTIVATIONS).result()
    report = describe_activations(figures)
    assert figures.activations == ACTIVATIONS
    assert figures.failed_calls == 0, report
    assert len({*figures.tasks}) == len({*figures.threads}) == 1, report
    assert figures.growth_kib <= GROWTH_KIB, report


@pytest.mark.long
@pytest.mark.slow
def test_every_edit_of_a_watched_folder_is_in_force_and_no_call_fails() -> None:
    seed = random.randrange(10**6)
    figures = asyncio.run(measure_folders(EDITS, CALLERS, seed))
    assert (figures.lost, figures.failed_calls) == ([], 0), describe_figures(figures)
    assert len(figures.activations) == EDITS
    assert sum(figures.calls.values()) > CALLERS


@pytest.mark.parametrize("main", [guards.main, telemetry.main, thousand_tools.main, catalog.main])
def test_an_unwritable_result_file_is_reported_before_measuring(main: Main, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["--json", str(tmp_path / "file" / "figures.json")])
    assert ended.value.code == 2


@pytest.mark.parametrize("dimension", scale.SIZES)
async def test_scale(dimension: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "CALLS", 100)
    found = await scale.measure(dimension, 3)
    assert all(value > 0 for value in found.values())
    assert f"| {dimension} | 3 | {found['us']:.1f} | 1.00 |" in scale.render({dimension: {3: found}}, None)
