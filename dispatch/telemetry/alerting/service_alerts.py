"""Alerts about one service: its instances, as dispatchers see them, and its replies."""

from __future__ import annotations

from dispatch.telemetry.alerting.alert import TICKET, Alert
from dispatch.telemetry.alerting.promql import increase, rate, without

_HEALTHY = 'sum without (state) (dispatch_instances{state=~"up|warming"})'
_ALL = "sum without (state) (dispatch_instances)"
_REPLIES = "dispatch_replies_total"
_LATE = 'disposition="late"'
_LATE_OR_MATCHED = 'disposition=~"late|matched"'

SERVICE_ALERTS = (
    Alert(
        "DispatchNoHealthyInstance",
        f"count {without()} ({_HEALTHY} == 0)",
        "2m",
        TICKET,
        "No instance of <service> is healthy",
        "<count> processes see no healthy instance of <service>: each is ejected or paused, or none exists.",
        "service",
    ),
    Alert(
        "DispatchFewHealthyInstances",
        f"min {without()} ({_HEALTHY} / {_ALL} > 0) <= 0.5",
        "10m",
        TICKET,
        "Only <share> of the instances of <service> are healthy",
        "For 10 minutes at most <share> of the instances of <service> have been healthy, in the process that sees the "
        "fewest. These instances carry the whole load.",
        "service",
    ),
    Alert(
        "DispatchInstanceEjectedOften",
        # Prometheus' own label 'instance' is the scraped process, so it renames the scraped label 'instance'.
        f"max {without()} (sum without (reason) (increase(dispatch_instance_ejections_total[1h]))) > 5",
        "5m",
        TICKET,
        "Instance <exported_instance> of <service> was ejected <count> times in an hour",
        "<exported_instance> fails whenever it is used again: one process ejected it <count> times within an hour. The "
        "other instances of <service> carry its load.",
        "service",
    ),
    Alert(
        "DispatchLateReplies",
        f"{rate(_REPLIES, '15m', _LATE, over=('disposition',))}\n"
        f"/ {rate(_REPLIES, '15m', _LATE_OR_MATCHED, over=('disposition',))}\n"
        f"> 0.1\nand {increase(_REPLIES, '15m', _LATE, over=('disposition',))} >= 5",
        "10m",
        TICKET,
        "<share> of the replies of <service> arrive late",
        "<share> of the replies of <service> in the last 15 minutes arrived after their calls had timed out or been "
        "cancelled: the service spends its time on calls that have ended.",
        "service",
    ),
    Alert(
        "DispatchMalformedReplies",
        increase(_REPLIES, "15m", 'disposition="malformed"', over=("disposition",)) + " >= 3",
        "",
        TICKET,
        "<count> replies of <service> were malformed",
        "<count> replies of <service> in the last 15 minutes had no id or could not be decoded (_OTHER: the service is "
        "unknown). Their calls fail with a transport error or a timeout.",
        "service",
    ),
    Alert(
        "DispatchRepliesNotSent",
        increase("dispatch_service_lost_replies_total", "15m", over=()) + " >= 3",
        "",
        TICKET,
        "<service> could not send <count> replies",
        "<service> executed requests in the last 15 minutes and could not send <count> replies. Callers request "
        "retransmission; a call that is neither read-only nor idempotent may end without its result.",
        "service",
    ),
)
