"""What an alert is, and how it is written for Prometheus."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import msgspec

RUNBOOK = "https://github.com/tool-dispatch/tool-dispatch/blob/main/docs/how-to/runbook.md"
"""Each alert has a section there, under its own name."""
PAGE: Final = "page"
TICKET: Final = "ticket"

_DASHBOARDS = {
    "overview": "/d/dispatch-overview/dispatch-overview",
    "tool": "/d/dispatch-tool/dispatch-tool?var-tool={{ $labels.tool | urlquery }}",
    "service": "/d/dispatch-instances/dispatch-instances?var-service={{ $labels.service | urlquery }}",
    "process": "/d/dispatch-overview/dispatch-overview?var-dispatcher={{ $labels.instance | urlquery }}",
}

_VALUES = {
    "<value>": "{{ $value | humanize }}",
    "<share>": "{{ $value | humanizePercentage }}",
    "<count>": '{{ $value | printf "%.0f" }}',
}


def _template(text: str) -> str:
    """``text`` as Prometheus fills it in: ``<tool>`` is a label, ``<value>``, ``<share>`` and ``<count>`` are the value."""
    return re.sub(r"<(\w+)>", lambda found: _VALUES.get(found[0], f"{{{{ $labels.{found[1]} }}}}"), text)


class Alert(msgspec.Struct, frozen=True):
    """When somebody is told.

    Attributes:
        name: in CamelCase; the runbook's section has the same.
        expr: PromQL.
        wait: for how long it must be true; "": not at all, because ``expr`` looks at long windows by itself.
        severity: ``page``: somebody is woken; ``ticket``: somebody looks at it within a day.
        summary: one line; ``<tool>`` is the label, ``<value>`` the value, as ``<share>`` in percent, as ``<count>`` whole.
        description: what it means, likewise.
        about: what it is about, which says on what dashboard it is seen: ``overview``, ``tool``, ``service``, ``process``.
    """

    name: str
    expr: str
    wait: str
    severity: Literal["page", "ticket"]
    summary: str
    description: str
    about: Literal["overview", "tool", "service", "process"]

    def rule(self, grafana: str = "") -> dict[str, Any]:
        """As Prometheus has it.

        Args:
            grafana: the address before the path of the dashboard, such as ``https://grafana.example.org``; "": the path
                alone.
        """
        waiting = {"for": self.wait} if self.wait else {}
        return {
            "alert": self.name,
            "expr": self.expr,
            **waiting,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": _template(self.summary),
                "description": _template(self.description),
                "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
                "dashboard": grafana.rstrip("/") + _DASHBOARDS[self.about],
            },
        }
