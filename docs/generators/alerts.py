"""The alerts and their severities, read from the rules."""

from __future__ import annotations

from dispatch.telemetry.rules import ALERTS
from docs.generators.docstrings import table


def alerts() -> str:
    """Return a table of the alerts; each links to its section of the runbook."""
    rows = [
        (f"[{alert.name}](../how-to/runbook.md#{alert.name.lower()})", alert.severity, alert.wait or "at once")
        for alert in ALERTS
    ]
    return table(("Alert", "Severity", "Pending for"), rows)
