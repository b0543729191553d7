"""Reading of the generated JSON as Grafana does: panels, queries, variables, and their interpolation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "json"

Json = Mapping[str, Any]
Value = str | Sequence[str]
"""Selected value or values of a variable."""
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")


def load_dashboards(folder: Path = FOLDER) -> dict[str, Json]:
    """Load the dashboards of a folder, by uid."""
    read = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return {each["uid"]: each for each in read}


def iter_panels(dashboard: Json) -> Iterator[Json]:
    """Yield the panels of a dashboard, without the rows that contain them."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels") or ()
        else:
            yield panel


def list_queries(panel: Json) -> list[Json]:
    """List the queries of a panel."""
    return list(panel["targets"])


def get_variables(dashboard: Json) -> dict[str, Json]:
    """Return the variables of a dashboard, by name."""
    return {each["name"]: each for each in dashboard["templating"]["list"]}


def find_variables(text: str) -> set[str]:
    """Find the names of the variables in a text, including Grafana's built-in ones."""
    return {found[1] or found[2] for found in _VARIABLE.finditer(text)}


def interpolate(text: str, dashboard: Json, selected: Mapping[str, Value], rate_interval: str) -> str:
    """Replace the variables in ``text`` by values, as Grafana's Prometheus data source does.

    Args:
        selected: values by variable; a variable without an entry has its initial selection, or All.
        rate_interval: value of ``$__rate_interval``, at least four scrape intervals.

    Raises:
        KeyError: the dashboard has no such variable.
    """
    known = get_variables(dashboard)

    def replace(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name == "__rate_interval":
            return rate_interval
        variable = known[name]
        value = selected.get(name)
        if value is None:
            first = variable["current"]["value"]
            value = variable["allValue"] if first == "$__all" else first
            return str(value)
        if not (variable.get("multi") or variable.get("includeAll")):
            return str(value)
        several = [re.escape(each).replace("\\", "\\\\") for each in ([value] if isinstance(value, str) else value)]
        return several[0] if len(several) == 1 else f"({'|'.join(several)})"

    return _VARIABLE.sub(replace, text)
