"""What a Prometheus has: its HTTP API, as far as dashboards need it."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any

PATIENCE_S = 40.0
"""For an answer."""

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

Sample = tuple[Mapping[str, str], list[tuple[float, float]]]
"""The labels of a series, and its values by time."""


class Asked:
    """A Prometheus.

    Args:
        url: where it is, without a slash at the end.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def _ask(self, path: str, **parameters: Any) -> Any:
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=PATIENCE_S) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 503:  # it is still starting
                    return None
                raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def over(self, expr: str, start: float, end: float, step: float = 1.0) -> list[Sample]:
        """What a panel is drawn from: values of ``expr`` in that time, without those that are no number."""
        data = self._ask("query_range", query=expr, start=start, end=end, step=step)
        return [] if data is None else [_sample(each["metric"], each["values"]) for each in data["result"]]

    def exemplars(self, expr: str, start: float, end: float) -> list[Mapping[str, Any]]:
        """The exemplars of the series in ``expr``: ``labels``, ``value``, ``timestamp``."""
        data = self._ask("query_exemplars", query=expr, start=start, end=end)
        return [exemplar for each in data or () for exemplar in each["exemplars"]]

    def label_values(self, label: str, selector: str) -> list[str]:
        """The values of a label among the selected series."""
        found: list[str] | None = self._ask(f"label/{label}/values", **{"match[]": selector})
        return found or []

    def targets(self) -> list[Mapping[str, Any]]:
        """What it scrapes, and how that went."""
        data = self._ask("targets")
        return [] if data is None else list(data["activeTargets"])

    def interval(self) -> float:
        """How often it scrapes dispatch, in seconds; the longest, if there are several."""
        found = [each["scrapeInterval"] for each in self.targets()]
        return max((_seconds(each) for each in found), default=15.0)

    def scrapes(self) -> bool:
        """Were the last scrapes of all targets good?"""
        found = self.targets()
        return bool(found) and all((each["health"], each["lastError"]) == ("up", "") for each in found)


def _sample(labels: Mapping[str, str], values: Iterable[tuple[float, str]]) -> Sample:
    numbers = [(float(at), float(value)) for at, value in values]
    return labels, [(at, value) for at, value in numbers if value == value]


def _seconds(text: str) -> float:
    """Of a duration as Prometheus writes it: ``1m30s``."""
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhd])", text))
