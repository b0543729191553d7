"""The alerts and their severities, read from the rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from docs.generators.docstrings import table

FILE = Path(__file__).resolve().parents[2] / "dashboards" / "rules" / "alerts.yml"


def load_alerts() -> list[dict[str, Any]]:
    """Return the alerts as Prometheus reads them, in the order of the runbook."""
    return [rule for group in yaml.safe_load(FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def alerts() -> str:
    """Return a table of the alerts; each links to its section of the runbook."""
    rows = [
        (
            f"[{alert['alert']}](../how-to/runbook.md#{alert['alert'].lower()})",
            alert["labels"]["severity"],
            alert.get("for", "at once"),
        )
        for alert in load_alerts()
    ]
    return table(("Alert", "Severity", "Pending for"), rows)
