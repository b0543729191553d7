"""Client of Prometheus' HTTP API, for drawing and testing dashboards."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

TIMEOUT_S = 40.0
"""Timeout of one HTTP request, in seconds: longer than any query of a dashboard takes on a busy machine."""

UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Sample = tuple[Mapping[str, str], list[tuple[float, float]]]
"""Labels of a series, and its samples as (Unix time in seconds, value)."""


class PrometheusApi:
    """One Prometheus server.

    Args:
        url: base URL, without a trailing slash.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def _get(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=TIMEOUT_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # Prometheus is still starting
                    return None
                raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def query_range(self, expr: str, start: float, end: float, step: float = 1.0) -> list[Sample]:
        """Evaluate ``expr`` from ``start`` to ``end`` (Unix seconds) every ``step`` seconds; NaN samples are dropped."""
        data = self._get("query_range", query=expr, start=start, end=end, step=step)
        return [] if data is None else [_sample(each["metric"], each["values"]) for each in data["result"]]

    def query_exemplars(self, expr: str, start: float, end: float) -> list[Mapping[str, Any]]:
        """Return the exemplars of the series in ``expr``, each with ``labels``, ``value`` and ``timestamp``."""
        data = self._get("query_exemplars", query=expr, start=start, end=end)
        return [exemplar for each in data or () for exemplar in each["exemplars"]]

    def list_label_values(self, label: str, selector: str) -> list[str]:
        """List the values of a label among the selected series."""
        found: list[str] | None = self._get(f"label/{label}/values", **{"match[]": selector})
        return found or []

    def list_targets(self) -> list[Mapping[str, Any]]:
        """List the active scrape targets with their health."""
        data = self._get("targets")
        return [] if data is None else list(data["activeTargets"])

    def get_scrape_interval(self) -> float:
        """Return the scrape interval in seconds; of several targets the longest."""
        found = [each["scrapeInterval"] for each in self.list_targets()]
        return max((_parse_duration(each) for each in found), default=15.0)

    def is_scraping(self) -> bool:
        """Return whether the last scrape of every target succeeded."""
        found = self.list_targets()
        return bool(found) and all((each["health"], each["lastError"]) == ("up", "") for each in found)


def _sample(labels: Mapping[str, str], values: Iterable[tuple[float, str]]) -> Sample:
    numbers = [(float(at), float(value)) for at, value in values]
    return labels, [(at, value) for at, value in numbers if value == value]


def _parse_duration(text: str) -> float:
    """Parse a duration in Prometheus notation, such as ``1m30s``."""
    return sum(float(number) * UNIT_SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhd])", text))
