"""Alerts about one process: its connection, replies and sessions."""

from __future__ import annotations

from tests.dashboards.alerts.case import OTHER_PROCESS, PROCESS, Case, calls, series

CONNECTED = series("dispatch_broker_connected")
ATTEMPTS = series("dispatch_attempts_total", tool="look", reason="first")
MATCHED = series("dispatch_replies_total", service="s", disposition="matched")
STRANGE = series("dispatch_replies_total", service="_OTHER", disposition="unknown")
FULL = series("dispatch_rejections_total", tool="look", by="exchange")
SENT = series("dispatch_session_packets_sent_total", role="callee")
AGAIN = series("dispatch_session_retransmissions_total", role="callee")
SILENT = series("dispatch_sessions_closed_total", role="caller", reason="silent")
UNKNOWN, MALFORMED = (
    series("dispatch_session_packets_rejected_total", role="callee", reason=reason)
    for reason in ("unknown", "malformed")
)

PROCESSES = (
    Case(
        "DispatchBrokerUnreachable",
        {CONNECTED: "1x6 0x3"},
        "9m",
        {"instance": PROCESS},
        {
            "a connection that comes back within two minutes": {CONNECTED: "1x7 0x1"},
            "one of two dispatchers of the process": {CONNECTED: "2x6 1x3"},
        },
        "0",
    ),
    Case(
        "DispatchReplyPathDown",
        {
            ATTEMPTS: "0+1.12x20",
            calls("timeout"): "0+1x20",
            calls("success"): "9x20",
            MATCHED: "9x20",
            STRANGE: "0+5x20",
        },
        "15m",
        {"instance": PROCESS},
        {
            "one answer in five minutes": {MATCHED: "9x11 10x8"},
            "a tool that takes long: nothing has run out of time": {calls("timeout"): "9x20"},
            "their callers leave": {calls("timeout"): "9x20", calls("cancelled"): "0+1x20"},
            "hardly any requests": {ATTEMPTS: "0+0.95x20"},
            "not for long": {MATCHED: "9x6 10x12"},
            "answers come to another process only": {
                ATTEMPTS: "0x20",
                series("dispatch_attempts_total", OTHER_PROCESS, tool="look", reason="first"): "0+2x20",
                calls("timeout", process=OTHER_PROCESS): "0+2x20",
                series("dispatch_replies_total", OTHER_PROCESS, service="s", disposition="matched"): "0+2x20",
            },
        },
        "6",
    ),
    Case(
        "DispatchReplyPathDown",
        {ATTEMPTS: "0+2x20", calls("transport"): "0+2x20", MATCHED: "9x20"},
        "15m",
        {"instance": PROCESS},
        {"one answer in five minutes": {MATCHED: "9x11 10x8"}},
        "10",
    ),
    Case(
        "DispatchPendingLimitReached",
        {FULL: "0+3x20", series("dispatch_rejections_total", tool="look", by="bulkhead"): "0+3x20"},
        "15m",
        {"instance": PROCESS},
        {"it was so, and is no more": {FULL: "900x20"}},
        "30",
    ),
    Case(
        "DispatchPacketsLost",
        {SENT: "0+1000x40", AGAIN: "0+150x40"},
        "30m",
        {"instance": PROCESS, "role": "callee"},
        {
            "one in twenty": {AGAIN: "0+50x40"},
            "hardly any packets": {SENT: "0+10x40", AGAIN: "0+3x40"},
            "not for five minutes yet": {AGAIN: "0x27 500+2000x12"},
        },
        "15%",
    ),
    Case(
        "DispatchInstancesLost",
        {SILENT: "0+1x20"},
        "15m",
        {"instance": PROCESS},
        {
            "one in a while": {SILENT: "0x10 1x20"},
            "their restarts are known": {
                SILENT: "9x20",
                series("dispatch_sessions_closed_total", role="caller", reason="restarted"): "0+1x20",
            },
            "dispatchers that leave a service": {
                SILENT: "9x20",
                series("dispatch_sessions_closed_total", role="callee", reason="silent"): "0+1x20",
            },
        },
        "15",
    ),
    Case(
        "DispatchPacketsRejected",
        {UNKNOWN: "0+5x40", MALFORMED: "0+5x40"},
        "30m",
        {"instance": PROCESS, "role": "callee"},
        {"late packets of a process that has restarted": {UNKNOWN: "0x10 90x30", MALFORMED: "9x40"}},
        "150",
    ),
)
