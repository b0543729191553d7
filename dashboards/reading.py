"""The dashboards as Grafana reads them: their JSON, its panels and queries, and variables put in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "json"

Json = Mapping[str, Any]
Value = str | Sequence[str]
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")


def load(folder: Path = FOLDER) -> dict[str, Json]:
    """The dashboards by their uids."""
    read = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return {each["uid"]: each for each in read}


def panels(dashboard: Json) -> Iterator[Json]:
    """Those that show something; rows are only what they stand in."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def queries(panel: Json) -> list[Json]:
    """Of a panel."""
    return list(panel["targets"])


def variables(dashboard: Json) -> dict[str, Json]:
    """By their names."""
    return {each["name"]: each for each in dashboard["templating"]["list"]}


def used(text: str) -> set[str]:
    """The variables in a text, Grafana's own among them."""
    return {found[1] or found[2] for found in _VARIABLE.finditer(text)}


def filled(text: str, dashboard: Json, picked: Mapping[str, Value], rate_interval: str) -> str:
    """``text`` with its variables put in, as Grafana's Prometheus does it.

    Args:
        picked: values by variable; of those that are not there, All, or what is picked at first.
        rate_interval: Grafana's ``$__rate_interval``: four scrapes at least.

    Raises:
        KeyError: the dashboard has no such variable.
    """
    known = variables(dashboard)

    def put(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name == "__rate_interval":
            return rate_interval
        variable = known[name]
        value = picked.get(name)
        if value is None:
            first = variable["current"]["value"]
            value = variable["allValue"] if first == "$__all" else first
            return str(value)
        if not (variable.get("multi") or variable.get("includeAll")):
            return str(value)
        several = [re.escape(each).replace("\\", "\\\\") for each in ([value] if isinstance(value, str) else value)]
        return several[0] if len(several) == 1 else f"({'|'.join(several)})"

    return _VARIABLE.sub(put, text)
