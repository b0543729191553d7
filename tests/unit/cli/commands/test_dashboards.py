"""``dispatch dashboards``."""

from __future__ import annotations

import json
from pathlib import Path

from dashboards.dashboard_json import FOLDER, iter_panels, load_dashboards
from tests.unit.cli.conftest import Run

NAMES = ["dispatch-instances.json", "dispatch-overview.json", "dispatch-tool.json"]


def test_export_writes_what_is_committed(run: Run, tmp_path: Path) -> None:
    end = run("dashboards", "export", str(tmp_path / "new" / "folder"))
    assert (end.code, end.err) == (0, "")
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "folder").iterdir()}
    assert written == {path.name: path.read_bytes() for path in FOLDER.glob("*.json")}
    assert sorted(written) == NAMES
    assert all(name in end.out for name in NAMES)


def test_export_overwrites_what_it_wrote_and_leaves_what_is_not_its_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dispatch-tool.json").write_text("former")
    (tmp_path / "mine.json").write_text("mine")
    assert run("dashboards", "export", str(tmp_path), "--json").json == {"folder": str(tmp_path), "files": NAMES}
    assert json.loads((tmp_path / "dispatch-tool.json").read_text())["uid"] == "dispatch-tool"
    assert (tmp_path / "mine.json").read_text() == "mine"


def test_without_a_folder_it_makes_one(run: Run) -> None:
    assert run("dashboards", "export").code == 0
    assert sorted(path.name for path in Path("dispatch-dashboards").iterdir()) == NAMES


def test_a_folder_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    end = run("dashboards", "export", str(tmp_path / "file"))
    assert end.code == 1
    assert end.err.startswith("Error:")
    assert end.out == ""


def test_list_names_every_panel(run: Run) -> None:
    made = load_dashboards()
    end = run("dashboards", "list")
    assert (end.code, end.err) == (0, "")
    for dashboard in made.values():
        assert dashboard["title"] in end.out
        assert all(panel["title"] in end.out for panel in iter_panels(dashboard))
    listed = run("dashboards", "list", "--json").json
    assert [each["uid"] for each in listed] == list(made)
    assert [len(each["panels"]) for each in listed] == [len(list(iter_panels(each))) for each in made.values()]
