"""A case of an alert, and the unit test of promtool that is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JOB, PROCESS, OTHER_PROCESS = "agents", "a:9464", "b:9464"


def series(metric: str, process: str = PROCESS, **labels: str) -> str:
    """A series as it is scraped from a process."""
    every = {"job": JOB, "instance": process, **labels}
    return f"{metric}{{{','.join(f'{name}={value!r}' for name, value in every.items())}}}"


def calls(outcome: str, tool: str = "look", process: str = PROCESS) -> str:
    """The calls of ``tool`` that ended so."""
    service = tool if tool == "_OTHER" else "library"
    return series("dispatch_calls_total", process, tool=tool, service=service, outcome=outcome)


@dataclass(frozen=True)
class Case:
    """What makes an alert fire, and what nearly does.

    Attributes:
        alert: its name.
        fires: series, a sample each step, in promtool's notation.
        at: when it is looked at.
        labels: of the alert, without its name and severity.
        silent: near misses: why it must not fire, and the series that are different then.
        value: as its texts say it.
        step: between two samples.
        every: how often the rules are evaluated; once is enough for an alert that does not wait.
    """

    alert: str
    fires: Mapping[str, str]
    at: str
    labels: Mapping[str, str]
    silent: Mapping[str, Mapping[str, str]]
    value: str = ""
    step: str = "1m"
    every: str = "1m"

    def unit_tests(self, rule: Mapping[str, Any]) -> list[dict[str, Any]]:
        """As promtool has them; the alert's texts are those of ``rule``, filled in."""
        labels = {"job": JOB, **self.labels}
        said = {key: self._filled(text, labels) for key, text in rule["annotations"].items()}
        expected = {"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": said}
        made = [self._unit_test("fires", self.fires, [expected])]
        return made + [self._unit_test(f"is silent: {why}", values, []) for why, values in self.misses.items()]

    @property
    def misses(self) -> dict[str, Mapping[str, str]]:
        """All series of each near miss, by why it must not fire."""
        return {why: {**self.fires, **changed} for why, changed in self.silent.items()}

    def _unit_test(self, name: str, values: Mapping[str, str], expected: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "name": f"{self.alert} {name}",
            "interval": self.step,
            "input_series": [{"series": each, "values": notation} for each, notation in values.items()],
            "alert_rule_test": [{"eval_time": self.at, "alertname": self.alert, "exp_alerts": expected}],
        }

    def _filled(self, text: str, labels: Mapping[str, str]) -> str:
        for name, value in labels.items():
            for how in (f"{{{{ $labels.{name} }}}}", f"{{{{ $labels.{name} | urlquery }}}}"):
                text = text.replace(how, value.replace(":", "%3A") if "urlquery" in how else value)
        for how in ("humanize", "humanizePercentage", 'printf "%.0f"'):
            text = text.replace(f"{{{{ $value | {how} }}}}", self.value)
        return text
