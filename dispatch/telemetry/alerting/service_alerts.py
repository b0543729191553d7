"""Alerts about one service: its instances, as dispatchers see them, and what becomes of its replies."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import TICKET, Alert
from dispatch.telemetry.alerting.promql import count, rate, without

_WELL = 'sum without (state) (dispatch_instances{state=~"up|warming"})'
_ALL = "sum without (state) (dispatch_instances)"
_REPLIES = "dispatch_replies_total"
_LATE = 'disposition="late"'
_EITHER = 'disposition=~"late|matched"'

SERVICE_ALERTS = (
    Alert(
        "DispatchNoHealthyInstance",
        f"count {without()} ({_WELL} == 0)",
        "2m",
        TICKET,
        "No instance of <service> is well",
        "As <count> processes see it, every instance of <service> is ejected, or asked to be spared, or there is none.",
        "service",
    ),
    Alert(
        "DispatchFewHealthyInstances",
        f"min {without()} ({_WELL} / {_ALL} > 0) <= 0.5",
        "10m",
        TICKET,
        "Only <share> of the instances of <service> are well",
        "For 10 minutes no more than <share> of the instances of <service> have been up, as the "
        "process sees it that sees fewest. The others have the load of all.",
        "service",
    ),
    Alert(
        "DispatchInstanceEjectedOften",
        # Prometheus renames the label that a tool service's instance has: its own 'instance' is the scraped process.
        f"max {without()} (sum without (reason) (increase(dispatch_instance_ejections_total[1h]))) > 5",
        "5m",
        TICKET,
        "Instance <exported_instance> of <service> was ejected <count> times in an hour",
        "<exported_instance> fails whenever it is tried again: one process ejected it <count> times within "
        "an hour. The other instances of <service> do its work.",
        "service",
    ),
    Alert(
        "DispatchLateReplies",
        f"{rate(_REPLIES, '15m', _LATE, over=('disposition',))}\n"
        f"/ {rate(_REPLIES, '15m', _EITHER, over=('disposition',))}\n"
        f"> 0.1\nand {count(_REPLIES, '15m', _LATE, over=('disposition',))} >= 5",
        "10m",
        TICKET,
        "<share> of the answers of <service> come too late",
        "Nobody waited any more for <share> of the answers that <service> gave in the last 15 "
        "minutes: it works for calls that have timed out or were left.",
        "service",
    ),
    Alert(
        "DispatchMalformedReplies",
        count(_REPLIES, "15m", 'disposition="malformed"', over=("disposition",)) + " >= 3",
        "",
        TICKET,
        "<count> replies of <service> could not be read",
        "<count> replies of <service> in the last 15 minutes had no id, or were none (_OTHER: nobody "
        "knows whose they were). The calls that they were for end as errors of transport, or not before their time is over.",
        "service",
    ),
    Alert(
        "DispatchAnswersLost",
        count("dispatch_service_lost_answers_total", "15m", over=()) + " >= 3",
        "",
        TICKET,
        "<service> could not send <count> answers",
        "<service> did the work, and could not send <count> answers in the last 15 minutes. Their callers "
        "ask for them; work that is not declared repeatable may be lost to them.",
        "service",
    ),
)
