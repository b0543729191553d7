from __future__ import annotations

from pathlib import Path

import pytest

from dashboards import generate
from dashboards.dashboard_json import FOLDER


def test_what_is_committed_is_what_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    there = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert generate.render_dashboards() == there, "run: python -m dashboards.generate"
    assert generate.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_a_second_time_is_the_same() -> None:
    assert generate.render_dashboards() == generate.render_dashboards()


def test_what_differs_is_named_and_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main([], tmp_path) == 0
    (tmp_path / "dispatch-tool.json").write_text("{}")
    (tmp_path / "former.json").write_text("{}")
    capsys.readouterr()
    assert generate.main(["--check"], tmp_path) == 1
    assert capsys.readouterr().out == "differs: dispatch-tool.json\ndiffers: former.json\n"
    assert (tmp_path / "dispatch-tool.json").read_text() == "{}", "it was only looked at"
    assert generate.main([], tmp_path) == 0
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == generate.render_dashboards()
