"""docs/how-to/observe.md says what there is, and all of it."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from dispatch import Telemetry
from dispatch.telemetry import names
from dispatch.telemetry.metrics.collector import LiveCollector
from dispatch.telemetry.metrics.service_metrics import Services
from dispatch.telemetry.names import ErrorType

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "observe.md").read_text()


def test_every_metric_and_no_other_stands_in_the_tables() -> None:
    registry = CollectorRegistry()
    LiveCollector.of(registry)
    Services.of(Telemetry(registry=registry))
    exported = {f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()}
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| `dispatch_")]
    assert set(re.findall(r"dispatch_\w+", "\n".join(rows))) == exported


def test_every_kind_of_error_is_named() -> None:
    kinds = {value for name, value in vars(ErrorType).items() if not name.startswith("_")}
    listed = re.search(r"`error\.type` is one of (.*?)\n\n", PAGE, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == kinds


def test_attributes_and_events_of_our_own_are_named() -> None:
    ours = {value for name, value in vars(names).items() if name.isupper() and str(value).startswith("dispatch.")} - {
        names.REASON,
        names.WAIT,
        names.SERVICE,
    }  # of events, and what needs no word
    assert {name for name in ours if f"`{name}`" not in PAGE} == set()
