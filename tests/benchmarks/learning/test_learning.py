"""The evaluation of learned scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning.__main__ import compare_after_shift, compare_amounts, main, pool
from benchmarks.learning.contenders import compute_recall, count_hits
from benchmarks.learning.hidden_workflows import TOOLS_OF_AN_ACTION, HiddenWorld


def test_a_recall_has_an_interval_over_workflows() -> None:
    found = compute_recall([(1, 2), (3, 4)] * 50)
    assert found.value == pytest.approx(4 / 6)
    assert found.low < found.value < found.high
    assert compute_recall([(2, 2)] * 10) == compute_recall([(1, 1)] * 7)
    workflow = [("a", "x"), ("a", "y"), ("b", "x")]
    assert count_hits(lambda action: ["x", "w", "v", "y"] if action == "a" else ["y"], [workflow]) == [(1, 3)]


def test_noise_replaces_tools_of_the_workflow_and_a_world_repeats() -> None:
    world = HiddenWorld(3)
    (workflow,) = world.draw_workflows(1)
    assert [(call.action, call.tool) for call in world.play(workflow, 0.0)] == workflow
    noisy = [call for _ in range(200) for call in world.play(workflow, 1.0)]
    assert all(call.tool in world.tools[call.action] for call in noisy)
    kept = sum(noisy[index].tool == workflow[index % len(workflow)][1] for index in range(len(noisy)))
    assert kept / len(noisy) == pytest.approx(1 / TOOLS_OF_AN_ACTION, abs=0.04)
    assert HiddenWorld(3).draw_workflows(5) == HiddenWorld(3).draw_workflows(5)


def test_learned_scores_recall_more_than_written_ones_and_than_the_most_frequent_tools() -> None:
    for row in pool([compare_amounts(seed, (50,)) for seed in range(2)]).values():
        assert row["learned"].low > row["most frequent"].high
        assert row["learned"].value > row["written"].high
        assert row["learned"].value <= row["best possible"].value


def test_learned_scores_recover_from_a_shift() -> None:
    rows = pool([compare_after_shift(seed, 20, (0, 20)) for seed in range(2)])
    assert rows["0 days after"]["learned"].high < rows["before"]["learned"].low
    assert rows["20 days after"]["learned"].low > rows["20 days after"]["written"].high
    assert rows["20 days after"]["learned"].value > rows["20 days after"]["most frequent in action"].high


def test_the_report_has_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert main(["--quick", "--worlds", "1", "--calls", "100", "--json", str(file)]) == 0
    figures = json.loads(file.read_text("utf-8"))
    first, shift, constants = figures["recall"].values()
    assert set(first["20 sessions, noise 20%"]) == {
        *("learned", "written", "most frequent", "most frequent in action", "best possible")
    }
    assert set(shift) == {"before", "0 days after", "5 days after"}
    assert len(constants) == 4
    for figure in figures["cost"].values():
        assert figure["ratio_p95"] > 0
    output = capsys.readouterr().out
    assert "Recall@3 of the next tool" in output
    assert "target ≤ 1.2" in output
