"""All alerts, in the order of the runbook."""

from __future__ import annotations

from typing import Any

from dispatch.telemetry.alerting.alert import PAGE, TICKET, Alert
from dispatch.telemetry.alerting.burn_rate import FAST, SLOW, too_fast
from dispatch.telemetry.alerting.process_alerts import PROCESS_ALERTS
from dispatch.telemetry.alerting.service_alerts import SERVICE_ALERTS
from dispatch.telemetry.alerting.tool_alerts import TOOL_ALERTS

SLO_ALERTS = (
    Alert(
        "DispatchSloBurnsFast",
        too_fast(*FAST),
        "",
        PAGE,
        "<tool> breaks its promise of <slo> <value> times as often as it may",
        "Of the calls of <tool>, bad ones come <value> times as often as the objective "
        "(<slo> <objective>) allows. If it goes on, what a month allows is gone within days.",
        "tool",
    ),
    Alert(
        "DispatchSloBurnsSlowly",
        too_fast(*SLOW),
        "",
        TICKET,
        "<tool> breaks its promise of <slo> <value> times as often as it may",
        "Of the calls of <tool>, bad ones come <value> times as often as the objective "
        "(<slo> <objective>) allows, and have for hours. If it goes on, the objective is missed.",
        "tool",
    ),
)
"""About promises: they speak of tools that have an ``slo``, and are silent without the rules that are made for those."""

ALERTS: tuple[Alert, ...] = (*SLO_ALERTS, *PROCESS_ALERTS, *TOOL_ALERTS, *SERVICE_ALERTS)


def alert_groups(grafana: str = "") -> list[dict[str, Any]]:
    """The groups of ``alerts.yml``. Argument: see :meth:`Alert.rule`."""
    groups = {
        "dispatch-slo-alerts": SLO_ALERTS,
        "dispatch-process-alerts": PROCESS_ALERTS,
        "dispatch-tool-alerts": TOOL_ALERTS,
        "dispatch-service-alerts": SERVICE_ALERTS,
    }
    return [{"name": name, "rules": [each.rule(grafana) for each in alerts]} for name, alerts in groups.items()]
