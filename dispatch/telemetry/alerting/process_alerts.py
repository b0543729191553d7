"""Alerts about one process that calls tools: its broker connection and its replies."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import PAGE, TICKET, Alert

# Requires calls that time out or fail in transport: a tool that only takes long must not fire it.
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
        "<instance> has no connection to its broker",
        "No dispatcher of <instance> has had a broker connection for 2 minutes (connected now: <count>). Every tool call "
        "from this process fails.",
        "process",
    ),
    Alert(
        "DispatchReplyPathDown",
        _REPLY_PATH,
        "5m",
        PAGE,
        "<instance> sends requests and receives no replies",
        "<instance> sent <count> requests in the last 5 minutes; calls timed out or failed in transport, and no reply "
        "matched a pending request.",
        "process",
    ),
    Alert(
        "DispatchPendingLimitReached",
        'sum without (tool, by) (increase(dispatch_rejections_total{by="exchange"}[10m])) > 0',
        "",
        TICKET,
        "<instance> has reached its limit of pending requests",
        "<instance> rejected <count> calls in the last 10 minutes because 65,536 requests were waiting for replies.",
        "process",
    ),
)
