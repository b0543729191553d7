"""A genuine Prometheus evaluates the rules over a dispatcher in trouble: each works, what is recorded has data, and a broken
promise is told of."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dispatch import Slo, Telemetry
from dispatch.telemetry.rules import collect_slos, render_rule_files
from docs.generators.alerts import load_alerts
from tests.helpers.failing_calls import TOOLS, Troubled, catalog
from tests.helpers.metrics_port import expose_metrics
from tests.helpers.prometheus_server import Prometheus, until

pytestmark = [pytest.mark.prometheus, pytest.mark.wall_clock]

ROUND_S = 12
PROMISED = {"availability": 0.99, "latency": 0.25}
FAST = "DispatchErrorBudgetFastBurn"


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
        """Has each record a value by now, and was somebody woken for ``forecast``?"""
        if not self._prometheus.list_targets():
            return False  # it is still starting
        rules = self.rules()
        records = {rule["name"] for rule in rules if rule["type"] == "recording"}
        now = time.time()
        self.lacking = {each for each in records if not self._prometheus.query_range(each, self._began, now)}
        self.pages = [alert for rule in rules if rule["name"] == FAST for alert in rule["alerts"]]
        return not self.lacking and any(alert["labels"]["tool"] == "forecast" for alert in self.pages)


async def test_rules_work_on_what_is_really_scraped(tmp_path: Path) -> None:
    promised = collect_slos(catalog(), user={"slo": PROMISED})
    assert promised == dict.fromkeys(TOOLS, Slo(**PROMISED))
    files = []
    for name, text in render_rule_files(promised).items():
        (tmp_path / name).write_text(text)
        files.append(tmp_path / name)
    telemetry = Telemetry(registry=CollectorRegistry(), traces="off")
    with expose_metrics(telemetry) as port, Prometheus([port], tmp_path / "prometheus", files) as prometheus:
        seen = Evaluated(prometheus)
        async with Troubled(telemetry, ROUND_S):
            await until(seen.everything, "every record, and a page", lambda: (seen.lacking, seen.pages))
        rules = seen.rules()
    assert {rule["name"] for rule in rules if rule["type"] == "alerting"} == {alert["alert"] for alert in load_alerts()}
    assert {(rule["health"], rule.get("lastError", "")) for rule in rules} == {("ok", "")}
    (page,) = [each for each in seen.pages if each["labels"]["tool"] == "forecast"][:1]
    assert page["labels"]["severity"] == "page"
    assert page["annotations"]["summary"].startswith("forecast burns its ")
    assert page["annotations"]["dashboard"] == "/d/dispatch-tool/dispatch-tool?var-tool=forecast"
