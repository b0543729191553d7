"""``dispatch rules export``.
``dispatch dashboards``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.dashboard_json import FOLDER, iter_panels, load_dashboards
from tests.unit.cli.conftest import Run, no_room, write_catalog

ALL = ("recording.yml", "alerts.yml")


def promising(folder: Path, slo: Any) -> str:
    return str(write_catalog(folder, policy={"slo": slo}))


def test_without_a_catalogue_the_rules_for_all_tools(run: Run, tmp_path: Path) -> None:
    end = run.clean("rules", "export")
    assert end.out.splitlines() == [
        "dispatch-rules/recording.yml: written",
        "dispatch-rules/alerts.yml: written",
        "No slo.yml: it needs a catalogue. Name the folder of your descriptors with --catalog DIR.",
        f"For prometheus.yml:  rule_files: ['{tmp_path.resolve()}/dispatch-rules/*.yml']",
    ]
    assert {each.name for each in Path("dispatch-rules").iterdir()} == set(ALL)


def test_they_are_those_of_the_repository(run: Run) -> None:
    run("rules", "export", "there")
    committed = Path(__file__).parents[3] / "dashboards" / "rules"
    for name in ALL:
        assert (Path("there") / name).read_bytes() == (committed / name).read_bytes()


@pytest.mark.parametrize("what", ["rules", "dashboards"])
def test_a_full_disk_leaves_the_former_files(run: Run, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    assert run(what, "export", "there").code == 0
    former = {each.name: each.read_bytes() for each in Path("there").iterdir()}
    with no_room():
        end = run(what, "export", "there")
    assert (end.code, end.out) == (1, "")
    name = "recording.yml" if what == "rules" else "dispatch-instances.json"
    assert end.err == (
        f"Error: File too large: 'there/{name}'.\n  fix: make room on its disk, or raise its quota or limit of size\n"
    )
    assert {each.name: each.read_bytes() for each in Path("there").iterdir()} == former


def test_what_a_catalogue_promises(run: Run, tmp_path: Path) -> None:
    tools = promising(tmp_path / "tools", {"availability": 0.99, "latency": 2})
    end = run("rules", "export", "out/deep", "--catalog", tools, code=0)
    assert "  tell-joke: 99 % of calls are good; 95 % of successes within 2 s, measured at 2.56 s\n" in end.out
    (group,) = yaml.safe_load(Path("out/deep/slo.yml").read_text())["groups"]
    assert group["name"] == "dispatch-slo-tell-joke"
    assert {rule["labels"]["tool"] for rule in group["rules"]} == {"tell-joke"}
    assert run("rules", "export", "again", "--catalog", tools, "--json").json == {
        "folder": "again",
        "files": [*ALL, "slo.yml"],
        "removed": [],
        "objectives": {"tell-joke": "99 % of calls are good; 95 % of successes within 2 s, measured at 2.56 s"},
    }


def test_a_promise_in_ones_own_policy_is_that_of_all_tools_without_one(run: Run, catalog_folder: Path) -> None:
    Path("mine.json").write_text(json.dumps({"slo": 0.8}))
    end = run("rules", "export", "--catalog", str(catalog_folder), "--policy", "mine.json")
    assert (
        "  tell-joke: 80 % of calls are good\n"
        "    availability allows so many bad calls that it can raise tickets but never page.\n"
    ) in end.out


def test_promises_that_are_no_more_take_their_rules_along(run: Run, catalog_folder: Path, tmp_path: Path) -> None:
    run("rules", "export", "out", "--catalog", promising(tmp_path / "tools", 0.99))
    assert Path("out/slo.yml").is_file()
    run("rules", "export", "out", "--catalog", str(tmp_path / "tools"))
    assert Path("out/slo.yml").is_file()
    end = run("rules", "export", "out", "--catalog", str(catalog_folder))
    assert "out/slo.yml: removed\nNo slo.yml: no tool has an objective" in end.out
    assert not Path("out/slo.yml").exists()
    assert run("rules", "export", "out", "--catalog", str(catalog_folder), "--json").json["removed"] == []


def test_links_lead_to_ones_own_grafana(run: Run) -> None:
    run("rules", "export", "--grafana", "https://grafana.example.org/")
    groups = yaml.safe_load(Path("dispatch-rules/alerts.yml").read_text())["groups"]
    links = {rule["annotations"]["dashboard"] for group in groups for rule in group["rules"]}
    assert all(link.startswith("https://grafana.example.org/d/dispatch-") for link in links)


def test_a_catalogue_with_mistakes_is_told_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    tools = promising(tmp_path / "tools", {"availability": 99})
    err = run.refused("rules", "export", "--catalog", tools)
    assert "slo.availability" in err
    assert "99 is not from 0.5 to 0.9999" in err
    assert not Path("dispatch-rules").exists()


@pytest.mark.parametrize("address", ["grafana.example.org", "localhost:3000"])
def test_an_address_without_a_scheme_is_a_mistake(run: Run, address: str) -> None:
    assert f"fix: write http://{address} or https://{address}" in run.refused("rules", "export", "--grafana", address)
    assert not Path("dispatch-rules").exists()


@pytest.mark.costly
def test_odd_addresses_are_quoted(run: Run) -> None:
    odd = ["{{ $externalURL }}", "https://a: b #'\"", "//grafana", "/grafana"]
    for address in odd:
        run("rules", "export", "--grafana", address)
        groups = yaml.safe_load(Path("dispatch-rules/alerts.yml").read_text())["groups"]
        links = {rule["annotations"]["dashboard"] for group in groups for rule in group["rules"]}
        assert all(link.startswith(f"{address}/d/dispatch-") for link in links)


def test_no_pyyaml_is_needed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = promising(tmp_path / "tools", 0.99)
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert run("rules", "export", "--catalog", tools).code == 0
    assert {each.name for each in Path("dispatch-rules").iterdir()} == {*ALL, "slo.yml"}


def test_rules_that_are_not_installed_are_told(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.telemetry.rules.__file__", str(tmp_path / "dispatch" / "telemetry" / "rules.py"))
    err = run.refused("rules", "export")
    assert "The rules were not found" in err
    assert "install tool-dispatch from a wheel" in err
    assert not Path("dispatch-rules").exists()


def test_a_folder_that_cannot_be_is_told(run: Run) -> None:
    Path("taken").write_text("a file")
    assert "taken" in run.refused("rules", "export", "taken", code=1)


NAMES = ["dispatch-instances.json", "dispatch-overview.json", "dispatch-tool.json"]


def test_export_writes_what_is_committed(run: Run, tmp_path: Path) -> None:
    end = run.clean("dashboards", "export", str(tmp_path / "new" / "folder"))
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
    end = run("dashboards", "export", str(tmp_path / "file"), code=1)
    assert end.err.startswith("Error:")
    assert end.out == ""


def test_list_names_every_panel(run: Run) -> None:
    made = load_dashboards()
    end = run.clean("dashboards", "list")
    for dashboard in made.values():
        assert dashboard["title"] in end.out
        assert all(panel["title"] in end.out for panel in iter_panels(dashboard))
    listed = run("dashboards", "list", "--json").json
    assert [each["uid"] for each in listed] == list(made)
    assert [len(each["panels"]) for each in listed] == [len(list(iter_panels(each))) for each in made.values()]
