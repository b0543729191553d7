"""The panels of the dashboards, read from the JSON that Grafana imports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "dashboards" / "json"


def dashboards() -> str:
    """Return a section for each dashboard: its picture, and its panels with their descriptions."""
    order = ("overview", "tool", "instances")
    read = {path.stem.removeprefix("dispatch-"): json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
    return "\n".join(_section(name, read[name]) for name in sorted(read, key=order.index))


def _section(name: str, dashboard: dict[str, Any]) -> str:
    title = dashboard["title"]
    text = f"## {title}\n\n{dashboard.get('description', '')}\n\n![{title}](../images/dashboards-{name}.png)\n"
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            text += f"\n### {panel['title']}\n\n"
        else:
            text += f"- **{panel['title']}**: {panel['description']}\n"
        text += "".join(f"- **{each['title']}**: {each['description']}\n" for each in panel.get("panels", ()))
    return text
