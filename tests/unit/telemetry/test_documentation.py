"""docs/reference/traces-logs-events.md names every span attribute and span event of dispatch's own."""

from __future__ import annotations

from pathlib import Path

from dispatch.telemetry import observers

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "traces-logs-events.md").read_text(encoding="utf-8")
OF_EVENTS = {observers.REASON, observers.WAIT, observers.SERVICE}
"""Attributes of span events, and the service's name."""


def test_attributes_and_events_of_our_own_are_named() -> None:
    ours = {value for name, value in vars(observers).items() if name.isupper() and str(value).startswith("dispatch.")}
    assert {name for name in ours - OF_EVENTS if f"`{name}`" not in PAGE} == set()
