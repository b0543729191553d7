"""promtool finds the rules in dashboards/rules right; each alert fires when it should, and not when it nearly should."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from dashboards.dashboard_json import interpolate, iter_panels, list_queries, load_dashboards
from dashboards.queries import REFUSED_CALLS
from dispatch.catalog import load_directory
from dispatch.policy import Slo
from dispatch.telemetry.gauges import DispatcherCollector, ServerCollector, SessionCollector
from dispatch.telemetry.rules import BAD_CALLS, COUNTED_CALLS, KNOWN_TOOLS, collect_slos, render_rule_files
from docs.generators.alerts import load_alerts
from tests.dashboards.alerts.case import Case, calls
from tests.dashboards.alerts.catalog import CATALOG
from tests.dashboards.alerts.processes import PROCESSES
from tests.dashboards.alerts.services import SERVICES
from tests.dashboards.alerts.slo import FAST, PROMISED, SLOW
from tests.dashboards.alerts.tools import TOOLS
from tests.helpers.prometheus_binaries import find

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "dashboards" / "rules"
RUNBOOK = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
CASES = (*FAST, *SLOW, *PROCESSES, *CATALOG, *TOOLS, *SERVICES)
NAMES = [f"{case.alert}-{number}" for number, case in enumerate(CASES)]
ALERTS = load_alerts()
RULES = {rule["alert"]: rule for rule in ALERTS}


def promtool(*arguments: str | Path) -> str:
    """What it says.

    Raises:
        AssertionError: it finds a mistake.
    """
    command = [find("promtool"), *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    said = ended.stdout + ended.stderr
    assert ended.returncode == 0, said
    return said


def written(folder: Path, made: dict[str, str]) -> list[Path]:
    for name, text in made.items():
        (folder / name).write_text(text)
    return [folder / name for name in made]


def write_case(folder: Path, case: Case) -> Path:
    """The alert alone, with what it looks at: all rules for each case would take minutes."""
    folder.mkdir()
    groups: list[dict[str, Any]] = [{"name": "alone", "rules": [RULES[case.alert]]}]
    if case.alert.startswith("DispatchErrorBudget"):
        groups = yaml.safe_load(render_rule_files(PROMISED)["slo.yml"])["groups"] + groups
    files = written(folder, {"rules.yml": yaml.safe_dump({"groups": groups})})
    document = {
        "rule_files": [str(each) for each in files],
        "evaluation_interval": case.every,
        "group_eval_order": [group["name"] for group in groups],
        "tests": case.unit_tests(RULES[case.alert]),
    }
    (file,) = written(folder, {"cases.yml": yaml.safe_dump(document)})
    return file


# -- what is there --------------------------------------------------------------------------------------------------


def test_bad_calls_are_the_same_in_rules_objectives_and_dashboards() -> None:
    text = "".join(path.read_text() for path in COMMITTED.glob("*.yml"))
    of_some_outcomes = set(re.findall(r'outcome(?:=~|!=|!~)"[^"]+"', text))
    replies, in_vain = 'outcome=~"success|tool_error"', 'outcome=~"timeout|transport"'
    assert of_some_outcomes == {BAD_CALLS, COUNTED_CALLS, REFUSED_CALLS, 'outcome!="cancelled"', replies, in_vain}
    assert KNOWN_TOOLS in text


@pytest.mark.prometheus
def test_promtool_finds_nothing_wrong() -> None:
    said = promtool("check", "rules", *COMMITTED.glob("*.yml"))
    assert said.count("SUCCESS") == 2


@pytest.mark.prometheus
@pytest.mark.parametrize("share", [0.5, 0.9, 0.9999])
def test_nor_with_what_a_catalogue_promises(tmp_path: Path, share: float) -> None:
    user = {"slo": {"availability": share, "latency": 0.3, "latency-share": share}}
    promised = collect_slos(load_directory(ROOT / "examples" / "tools"), user=user)
    assert collect_slos(load_directory(ROOT / "examples" / "tools")) == {"calculate": Slo(0.99, 0.32)}
    assert len(promised) == 5
    odd = {'a "quoted" \\ name': Slo(0.99), "service:s": Slo(latency=81.92)}
    said = promtool("check", "rules", *written(tmp_path, render_rule_files({**promised, **odd})))
    assert said.count("SUCCESS") == 3


def test_every_metric_in_the_rules_is_exported() -> None:
    registry = CollectorRegistry()
    DispatcherCollector.of(registry)
    ServerCollector.of(registry)
    SessionCollector.of(registry)
    exported: set[str] = set()
    for family in registry.collect():
        endings = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(family.type, ("",))
        exported |= {family.name + ending for ending in endings}
    rules = [
        rule
        for text in render_rule_files(PROMISED).values()
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
    ]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    find_variables = {name for rule in rules for name in re.findall(r"[\w:]*dispatch_[\w:]+", rule["expr"])}
    assert find_variables - recorded <= exported
    assert {name for name in find_variables if ":" in name} <= recorded


# -- what counts ----------------------------------------------------------------------------------------------------


@pytest.mark.prometheus
def test_calls_refused_because_of_their_caller_are_neither_good_nor_bad(tmp_path: Path) -> None:
    """90 good and 10 bad calls a minute, 4 of these at the tool's own limit, and 80 refused because of their caller:
    as recorded, and as the first figure of the overview asks."""
    answered = {calls("success"): "0+90x20", calls("timeout"): "0+6x20", calls("cancelled"): "0+30x20"}
    refused = {calls("throttled"): "0+4x20", calls("refused"): "0+50x20", calls("invalid_arguments"): "0+30x20"}
    dashboard = load_dashboards()["dispatch-overview"]
    availability = next(each for each in iter_panels(dashboard) if each["title"] == "Availability")
    (query,) = list_queries(availability)
    asked = {
        "round(tool:dispatch_bad_calls_per_counted_calls:ratio_rate5m * 1000)": 100,
        f"round(({interpolate(query['expr'], dashboard, {}, '5m')}) * 1000)": 900,
    }
    expected = [
        {"expr": f"sum({expr})", "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in asked.items()
    ]
    document = {
        "rule_files": [str(COMMITTED / "recording.yml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in (answered | refused).items()],
                "promql_expr_test": expected,
            }
        ],
    }
    promtool("test", "rules", *written(tmp_path, {"cases.yml": yaml.safe_dump(document)}))


# -- each alert -----------------------------------------------------------------------------------------------------


def test_each_alert_has_cases_and_each_case_an_alert() -> None:
    assert {case.alert for case in CASES} == set(RULES)
    assert all(case.silent for case in CASES)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_a_silent_case_is_a_near_miss(case: Case) -> None:
    """It is the firing one with other values, and has the series that the alert looks at."""
    looked_at = set(re.findall(r"dispatch_\w+", RULES[case.alert]["expr"]))
    for values in case.misses.values():
        assert values != case.fires
        assert any(moves(each) for each in values.values())
        if not case.alert.startswith("DispatchErrorBudget"):  # these look at what is recorded of the series
            assert looked_at <= {each.partition("{")[0] for each in values}


def moves(notation: str) -> bool:
    """Is it anything but nothing, all the time?"""
    return any(float(each) for item in notation.split() for each in item.partition("x")[0].split("+"))


@pytest.mark.slow
@pytest.mark.prometheus
def test_each_fires_when_it_should_and_not_when_it_nearly_should(tmp_path: Path) -> None:
    promtool("test", "rules", *(write_case(tmp_path / name, case) for name, case in zip(NAMES, CASES, strict=True)))


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "wrong",
    [{"at": "3m"}, {"value": "1"}, {"silent": {"it is not": {}}}, {"labels": {}}],
    ids=lambda each: next(iter(each)),
)
def test_a_case_that_is_wrong_is_found(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """Else the test above would say nothing."""
    with pytest.raises(AssertionError, match="DispatchBrokerUnreachable"):
        promtool("test", "rules", write_case(tmp_path / "wrong", replace(PROCESSES[0], **wrong)))


@pytest.mark.parametrize("alert", ALERTS, ids=list(RULES))
def test_each_alert_says_what_whoever_is_woken_needs(alert: dict[str, Any]) -> None:
    assert re.fullmatch(r"Dispatch(?:[A-Z][a-z]+)+", alert["alert"])
    assert alert["labels"]["severity"] in ("page", "ticket")
    texts = alert["annotations"]
    assert set(texts) == {"summary", "description", "runbook_url", "dashboard"}
    assert "$value" in texts["summary"] + texts["description"]
    assert "<" not in texts["summary"] + texts["description"]
    assert texts["dashboard"].startswith("/d/dispatch-")
    assert texts["runbook_url"].endswith(f"docs/how-to/runbook.md#{alert['alert'].lower()}")


@pytest.mark.parametrize("alert", ALERTS, ids=list(RULES))
def test_each_link_leads_to_a_dashboard_and_picks_what_can_be_picked(alert: dict[str, Any]) -> None:
    found = re.fullmatch(r"/d/([\w-]+)/\1(?:\?var-(\w+)=\{\{ .+ \}\})?", alert["annotations"]["dashboard"])
    dashboard = json.loads((ROOT / "dashboards" / "json" / f"{found[1]}.json").read_text())
    assert found[2] in {None, *(variable["name"] for variable in dashboard["templating"]["list"])}


@pytest.mark.parametrize("alert", ALERTS, ids=list(RULES))
def test_each_alert_has_a_section_in_the_runbook(alert: dict[str, Any]) -> None:
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", RUNBOOK, re.DOTALL | re.MULTILINE))
    said = sections[alert["alert"]]
    assert f"**{alert['labels']['severity']}**" in said
    for part in ("**What it means.**", "**What users notice.**", "**Where to look.**", "**What to do.**"):
        assert part in said
    assert re.search(r"```promql\n.*?dispatch_.*?```|`dispatch (?:doctor|check|call)", said, re.DOTALL)


def test_the_runbook_has_no_section_too_many() -> None:
    assert set(re.findall(r"^### (Dispatch\w+)$", RUNBOOK, re.MULTILINE)) == set(RULES)
