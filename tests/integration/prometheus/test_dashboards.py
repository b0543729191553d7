"""A genuine Prometheus scrapes a process with a dispatcher and one with tool services, all in trouble, and every panel shows
it for one service; each rule works, what is recorded has data, and a broken promise is told of."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from dashboards.dashboard_json import (
    find_variables,
    get_variables,
    interpolate,
    iter_panels,
    list_queries,
    load_dashboards,
)
from dispatch import Slo, Telemetry
from dispatch.telemetry.rules import collect_slos, render_rule_files
from docs.generators.alerts import load_alerts
from tests.helpers.failing_calls import SERVICES, TOOLS, Troubled, catalog
from tests.helpers.metrics_port import expose_metrics
from tests.helpers.prometheus_binaries import find
from tests.helpers.prometheus_server import JOB, SCRAPE_S, Prometheus, until

pytestmark = [pytest.mark.prometheus, pytest.mark.wall_clock]

ROUND_S = 12
RATE_INTERVAL = f"{4 * SCRAPE_S}s"
"""What Grafana makes of ``$__rate_interval`` where a scrape is a second."""
SAMPLE = 0.5
PROMISED = {"availability": 0.99, "latency": 0.25}
FAST = "DispatchErrorBudgetFastBurn"
DASHBOARDS = load_dashboards()


class Seen:
    """What panels have shown so far.

    Args:
        prometheus: that is asked.

    Attributes:
        lacking: queries that have shown nothing but zeros, or nothing, as (dashboard, panel, PromQL).
        exemplars: traces of exemplars, by (dashboard, panel).
        missing: panels whose exemplars have not come.
    """

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._began = time.time()
        self.lacking: list[tuple[str, str, str]] = []
        self.query_exemplars: dict[tuple[str, str], set[str]] = {}
        self._asked: list[tuple[str, str, str]] = []
        for uid, dashboard in DASHBOARDS.items():
            for panel in iter_panels(dashboard):
                for query in list_queries(panel):
                    asked = uid, panel["title"], query["expr"]
                    self.lacking.append(asked)
                    if query.get("exemplar"):
                        self._asked.append(asked)
        self.missing = {(uid, title) for uid, title, _ in self._asked}

    def _filled(self, uid: str, expr: str) -> list[str]:
        """As each service has it, and each tool where one is picked."""
        picked = [{"service": f"{each}-service"} for each in SERVICES] + [{"service": "_OTHER"}]
        if uid == "dispatch-tool":
            picked = [{"service": str(each["service"]), "tool": name} for name, each in TOOLS.items()]
        return [interpolate(expr, DASHBOARDS[uid], each, RATE_INTERVAL) for each in picked]

    def everything(self) -> bool:
        """Has every query shown something by now?"""
        self.lacking = [asked for asked in self.lacking if not self._shows(asked[0], asked[2])]
        return not self.lacking

    def _shows(self, uid: str, expr: str) -> bool:
        now = time.time()
        return any(
            value
            for each in self._filled(uid, expr)
            for _, values in self._prometheus.query_range(each, self._began, now)
            for _, value in values
        )

    def every_exemplar(self) -> bool:
        """Does each panel that can show single calls show some?"""
        now = time.time()
        for uid, title, expr in self._asked:
            for each in self._filled(uid, expr):
                found = {one["labels"]["trace_id"] for one in self._prometheus.query_exemplars(each, self._began, now)}
                self.query_exemplars.setdefault((uid, title), set()).update(found)
        self.missing = {panel for panel, traces in self.query_exemplars.items() if not traces}
        return not self.missing


def picks(prometheus: Prometheus) -> dict[tuple[str, str], list[str]]:
    """The values to pick from, by dashboard and variable, as Grafana asks for them."""
    found: dict[tuple[str, str], list[str]] = {}
    for uid, dashboard in DASHBOARDS.items():
        for name, variable in get_variables(dashboard).items():
            if variable["type"] == "query":
                parts = re.fullmatch(r"label_values\((.+),(\w+)\)", variable["query"]["query"])
                assert parts is not None
                selector = interpolate(parts[1], dashboard, {}, RATE_INTERVAL)
                found[uid, name] = prometheus.list_label_values(parts[2], selector)
    return found


def lint(port: int) -> str:
    """What promtool has to say about what is served there; "": nothing."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as response:
        text = response.read()
    told = subprocess.run([find("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)
    assert text.count(b"\n# TYPE dispatch_") >= 10
    return (told.stdout + told.stderr).decode() + (f"exit code {told.returncode}" if told.returncode else "")


class Evaluated:
    """What has become of the rules.

    Args:
        prometheus: that evaluates them.

    Attributes:
        lacking: records that have no series yet.
        pages: labels of those who were woken.
    """

    def __init__(self, prometheus: Prometheus) -> None:
        self._prometheus = prometheus
        self._began = time.time()
        self.lacking: set[str] = set()
        self.pages: list[Any] = []

    def rules(self) -> list[dict[str, Any]]:
        """As Prometheus has them: name, health, last error, alerts."""
        with urllib.request.urlopen(f"{self._prometheus.url}/api/v1/rules", timeout=30) as response:
            return [rule for group in json.load(response)["data"]["groups"] for rule in group["rules"]]

    def everything(self) -> bool:
        """Return whether each record has a value, and the page for ``forecast`` was sent."""
        if not self._prometheus.list_targets():
            return False  # it is still starting
        rules = self.rules()
        records = {rule["name"] for rule in rules if rule["type"] == "recording"}
        now = time.time()
        self.lacking = {each for each in records if not self._prometheus.query_range(each, self._began, now)}
        self.pages = [alert for rule in rules if rule["name"] == FAST for alert in rule["alerts"]]
        return not self.lacking and any(alert["labels"]["tool"] == "forecast" for alert in self.pages)

    def check(self) -> None:
        """Check that each rule works, and the text of the page for ``forecast``."""
        rules = self.rules()
        assert {each["name"] for each in rules if each["type"] == "alerting"} == {
            alert["alert"] for alert in load_alerts()
        }
        assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
        page = next(each for each in self.pages if each["labels"]["tool"] == "forecast")
        assert page["labels"]["severity"] == "page"
        assert page["annotations"]["summary"].startswith("forecast burns its ")
        assert page["annotations"]["dashboard"] == "/d/dispatch-tool/dispatch-tool?var-tool=forecast"


def write_rules(folder: Path) -> list[Path]:
    """Write the rules for what every tool promises."""
    promised = collect_slos(catalog(), user={"slo": PROMISED})
    assert promised == dict.fromkeys(TOOLS, Slo(**PROMISED))
    folder.mkdir()
    made = render_rule_files(promised)
    for name, text in made.items():
        (folder / name).write_text(text)
    return [folder / name for name in made]


async def test_every_panel_shows_what_happens_and_every_rule_works(tmp_path: Path) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    telemetry, services = (
        Telemetry(registry=CollectorRegistry(), tracer_provider=provider, sample=SAMPLE) for _ in range(2)
    )
    with (
        expose_metrics(telemetry) as port,
        expose_metrics(services) as other_port,
        Prometheus([port, other_port], tmp_path / "prometheus", write_rules(tmp_path / "rules")) as prometheus,
    ):
        seen, evaluated = Seen(prometheus), Evaluated(prometheus)
        async with Troubled(telemetry, ROUND_S, services):
            await until(seen.everything, "something on every panel", lambda: seen.lacking)
            await until(seen.every_exemplar, "single calls where they can be shown", lambda: seen.missing)
            picked = picks(prometheus)
            assert (lint(port), lint(other_port)) == ("", "")
            await until(evaluated.everything, "every record, and a page", lambda: (evaluated.lacking, evaluated.pages))
            await until(prometheus.is_scraping, "a scrape that is good as a whole", prometheus.list_targets)

        evaluated.check()
        traces = {
            f"{span.context.trace_id:032x}"
            for span in spans.get_finished_spans()
            if span.name.startswith("execute_tool ") and span.context is not None
        }
        for panel, shown in seen.query_exemplars.items():
            assert shown <= traces, panel

        ids = ["_OTHER", *(f"{each}-service" for each in sorted(SERVICES))]
        assert prometheus.list_label_values("service", "dispatch_service_requests_total") == ids[1:]
        here = [f"127.0.0.1:{port}"]
        for uid in DASHBOARDS:
            assert picked[uid, "service"] == ids
            assert picked[uid, "job"] == [JOB]
            assert picked[uid, "dispatcher"] == here
        assert picked["dispatch-overview", "tool"] == picked["dispatch-tool", "tool"] == sorted([*TOOLS, "_OTHER"])
    provider.shutdown()


def test_every_query_is_asked_with_every_variable_put_in() -> None:
    for uid, dashboard in DASHBOARDS.items():
        for panel in iter_panels(dashboard):
            for query in list_queries(panel):
                assert not find_variables(interpolate(query["expr"], dashboard, {"tool": "x"}, RATE_INTERVAL)), (
                    uid,
                    panel["title"],
                )
