"""All alerts, in the order of the runbook."""

from __future__ import annotations

from typing import Any

from dispatch.telemetry.alerting.alert import PAGE, TICKET, Alert
from dispatch.telemetry.alerting.burn_rate import FAST, SLOW, burn_rate_expression
from dispatch.telemetry.alerting.catalog_alerts import CATALOG_ALERTS
from dispatch.telemetry.alerting.process_alerts import PROCESS_ALERTS
from dispatch.telemetry.alerting.service_alerts import SERVICE_ALERTS
from dispatch.telemetry.alerting.tool_alerts import TOOL_ALERTS

SLO_ALERTS = (
    Alert(
        "DispatchErrorBudgetFastBurn",
        burn_rate_expression(*FAST),
        "",
        PAGE,
        "<tool> burns its <slo> error budget <value> times as fast as its objective allows",
        "Bad calls of <tool> are <value> times as frequent as the <slo> objective (<objective>) allows. At this rate the "
        "error budget of 30 days is spent within days.",
        "tool",
    ),
    Alert(
        "DispatchErrorBudgetSlowBurn",
        burn_rate_expression(*SLOW),
        "",
        TICKET,
        "<tool> burns its <slo> error budget <value> times as fast as its objective allows",
        "Bad calls of <tool> have been <value> times as frequent as the <slo> objective (<objective>) allows for hours. "
        "At this rate the objective is missed.",
        "tool",
    ),
)
"""Alerts on the error budgets of tools that have an ``slo``; without the rules of ``slo.yml`` they never fire."""

ALERTS: tuple[Alert, ...] = (*SLO_ALERTS, *PROCESS_ALERTS, *CATALOG_ALERTS, *TOOL_ALERTS, *SERVICE_ALERTS)


def alert_groups(grafana: str = "") -> list[dict[str, Any]]:
    """Return the rule groups of ``alerts.yml``. Argument: see :meth:`Alert.to_rule`."""
    groups = {
        "dispatch-slo-alerts": SLO_ALERTS,
        "dispatch-process-alerts": PROCESS_ALERTS,
        "dispatch-catalog-alerts": CATALOG_ALERTS,
        "dispatch-tool-alerts": TOOL_ALERTS,
        "dispatch-service-alerts": SERVICE_ALERTS,
    }
    return [{"name": name, "rules": [each.to_rule(grafana) for each in alerts]} for name, alerts in groups.items()]
