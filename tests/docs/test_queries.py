"""Metrics and recording rules in the queries and sentences of pages exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dispatch.policy import Slo
from dispatch.telemetry.rules import render_rule_files
from docs.generators import metrics
from tests.docs.pages import PAGES, page_id

METRIC = re.compile(r"\b(?:[a-z_]+:)?dispatch_[a-z_]+(?::[a-z_0-9]+)?\b")
OTHER_NAMES = ("dispatch_broker",)
"""A fixture of pytest."""
OTHERS = re.compile(
    r"dispatch_(?:tool|new|reason|call_id|outcome|error_type|trace_id|seconds|user|decision|permission)"
)
"""Attributes of log records."""


def known() -> set[str]:
    names = {metrics.exported_name(family) for family, _ in metrics.families()}
    names |= {f"{name}_{suffix}" for name in names for suffix in ("bucket", "count", "sum")}
    rules = "\n".join(render_rule_files({"tool": Slo(availability=0.99, latency=1.0)}).values())
    return names | set(re.findall(r"record: '?\"?([\w:]+)", rules))


def unknown(text: str) -> set[str]:
    named = {name for name in METRIC.findall(text) if not OTHERS.fullmatch(name) and name not in OTHER_NAMES}
    return named - known()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_metrics_of_a_page_exist(page: Path) -> None:
    assert unknown(page.read_text(encoding="utf-8")) == set()


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    text = "`dispatch_coffee_total` and tool_slo:dispatch_coffee:ratio_rate1h, `dispatch_calls_total`"
    assert unknown(text) == {"dispatch_coffee_total", "tool_slo:dispatch_coffee:ratio_rate1h"}
