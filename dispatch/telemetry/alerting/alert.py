"""An alert, and its form as a Prometheus rule."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

RUNBOOK = "https://github.com/tool-dispatch/tool-dispatch/blob/main/docs/how-to/runbook.md"
"""Has one section per alert; the anchor is the alert's name in lower case."""
PAGE: Final = "page"
TICKET: Final = "ticket"

_DASHBOARDS = {
    "overview": "/d/dispatch-overview/dispatch-overview",
    "tool": "/d/dispatch-tool/dispatch-tool?var-tool={{ $labels.tool | urlquery }}",
    "service": "/d/dispatch-instances/dispatch-instances?var-service={{ $labels.service | urlquery }}",
    "process": "/d/dispatch-overview/dispatch-overview?var-dispatcher={{ $labels.instance | urlquery }}",
    "catalog": "/d/dispatch-instances/dispatch-instances",
}

_VALUES = {
    "<value>": "{{ $value | humanize }}",
    "<share>": "{{ $value | humanizePercentage }}",
    "<count>": '{{ $value | printf "%.0f" }}',
}


def _to_template(text: str) -> str:
    """Translate placeholders to a Prometheus template: ``<value>``, ``<share>``, ``<count>``; others name labels."""
    return re.sub(r"<(\w+)>", lambda found: _VALUES.get(found[0], f"{{{{ $labels.{found[1]} }}}}"), text)


class Alert(msgspec.Struct, frozen=True):
    """An alerting rule.

    Attributes:
        name: CamelCase; the title of its section in the runbook.
        expr: PromQL.
        wait: how long ``expr`` must hold before the alert fires, such as ``5m``; "": fires at once, for expressions that
            cover long windows themselves.
        severity: ``page``: needs a person now; ``ticket``: needs a person within a day.
        summary: one line. ``<tool>`` is replaced by the label, ``<value>`` by the value, ``<share>`` by the value in
            percent, ``<count>`` by the value as a whole number.
        description: the meaning, with the same placeholders.
        subject: selects the dashboard that the alert links to: ``overview``, ``tool``, ``service``, ``process`` or
            ``catalog``.
    """

    name: str
    expr: str
    wait: str
    severity: Literal["page", "ticket"]
    summary: str
    description: str
    subject: Literal["overview", "tool", "service", "process", "catalog"]

    def to_rule(self, grafana: str = "") -> dict[str, Any]:
        """Return the rule as a Prometheus rule file has it.

        Args:
            grafana: base URL of Grafana, such as ``https://grafana.example.org``; "": the dashboard link is a path only.
        """
        waiting = {"for": self.wait} if self.wait else {}
        return {
            "alert": self.name,
            "expr": self.expr,
            **waiting,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": _to_template(self.summary),
                "description": _to_template(self.description),
                "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
                "dashboard": grafana.rstrip("/") + _DASHBOARDS[self.subject],
            },
        }
