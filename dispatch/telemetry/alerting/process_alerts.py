"""Alerts about one process that calls tools: its way to the broker and back, its catalogue."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import PAGE, TICKET, Alert
from dispatch.telemetry.alerting.promql import without

# Requests leave, and calls run out of time: a tool that simply takes long does not end its calls so.
_REPLY_PATH = """\
sum without (tool, reason) (increase(dispatch_attempts_total[5m])) >= 5
and sum without (tool, outcome) (increase(dispatch_calls_total{outcome=~"timeout|transport"}[5m])) > 0
unless sum without (service, disposition) (increase(dispatch_replies_total{disposition="matched"}[5m])) > 0"""

PROCESS_ALERTS = (
    Alert(
        "DispatchBrokerUnreachable",
        "dispatch_broker_connected == 0",
        "2m",
        PAGE,
        "<instance> does not reach its broker",
        "For 2 minutes no dispatcher of <instance> has had its broker in reach (<count> of them have now). No tool can be "
        "called from there.",
        "process",
    ),
    Alert(
        "DispatchReplyPathDown",
        _REPLY_PATH,
        "5m",
        PAGE,
        "<instance> sends requests and gets no answer",
        "<instance> sent <count> requests in the last 5 minutes; calls ran out of time, and not "
        "one answer was for a call that waited.",
        "process",
    ),
    Alert(
        "DispatchReloadFailed",
        f"count {without()} (dispatch_catalog_last_reload_successful == 0)",
        "5m",
        TICKET,
        "A catalogue or policy was refused; the former one is in force in <count> processes",
        "In <count> processes of <job> the last reload (<source>) had mistakes. "
        "What was changed is not in force there; calls go on as before.",
        "overview",
    ),
    Alert(
        "DispatchTooManyPending",
        'sum without (tool, by) (increase(dispatch_rejections_total{by="exchange"}[10m])) > 0',
        "",
        TICKET,
        "<instance> waits for as many answers as it can",
        "<instance> refused <count> calls in 10 minutes, because 65,536 others waited for their answers.",
        "process",
    ),
)
