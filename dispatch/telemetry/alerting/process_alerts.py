"""Alerts about one process: its broker connection, its replies and its sessions."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import PAGE, TICKET, Alert

# Requires calls that time out or fail in transport: a tool that only takes long must not fire it.
_REPLY_PATH = """\
sum without (tool, reason) (increase(dispatch_attempts_total[5m])) >= 5
and sum without (tool, outcome) (increase(dispatch_calls_total{outcome=~"timeout|transport"}[5m])) > 0
unless sum without (service, disposition) (increase(dispatch_replies_total{disposition="matched"}[5m])) > 0"""

# Two or three instances that send many large replies at once lose 7 % without a fault.
_RETRANSMITTED = """\
increase(dispatch_session_retransmissions_total[15m]) / increase(dispatch_session_packets_sent_total[15m]) > 0.1
and increase(dispatch_session_retransmissions_total[15m]) >= 50"""

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
    Alert(
        "DispatchPacketsLost",
        _RETRANSMITTED,
        "5m",
        TICKET,
        "<share> of the packets that <instance> sends in sessions are lost",
        "For 5 minutes <share> of the packets that <instance> sends (role <role>) have been lost and sent again. Calls "
        "succeed, and the slowest ones take longer.",
        "process",
    ),
    Alert(
        "DispatchInstancesLost",
        'sum without (role, reason) (increase(dispatch_sessions_closed_total{role="caller",reason="silent"}[15m])) >= 3',
        "",
        TICKET,
        "<instance> has lost instances <count> times",
        "In the last 15 minutes <count> sessions of <instance> ended because the instance of the tool service did not "
        "answer for a second. Its calls ended with 'instance-lost'.",
        "process",
    ),
    Alert(
        "DispatchPacketsRejected",
        "sum without (reason) (increase(dispatch_session_packets_rejected_total[15m])) >= 100",
        "",
        TICKET,
        "<instance> has rejected <count> packets",
        "In the last 15 minutes <count> packets arrived at <instance> (role <role>) that belong to no session or are "
        "malformed: another client writes to its inbox, or two processes have one name. They changed nothing.",
        "process",
    ),
)
