"""Alerts about a service: its instances, its replies."""

from __future__ import annotations

from tests.dashboards.alerts.case import OTHER_PROCESS, PROCESS, Case, series

STATES = ("up", "warming", "paused", "unresponsive", "ejected")


def instances(process: str = PROCESS, **values: str) -> dict[str, str]:
    """How many there are, by state; of the others none."""
    return {
        series("dispatch_instances", process, service="s", state=state): values.get(state, "0x30") for state in STATES
    }


def replies(disposition: str, process: str = PROCESS) -> str:
    return series("dispatch_replies_total", process, service="s", disposition=disposition)


EJECTIONS = {
    process: series(
        "dispatch_instance_ejections_total", process, service="s", exported_instance="i-1", reason="failures"
    )
    for process in (PROCESS, OTHER_PROCESS)
}
LOST = series("dispatch_service_lost_replies_total", service="s")

SERVICES = (
    Case(
        "DispatchNoHealthyInstance",
        instances(up="1x5 0x20", ejected="1x30", paused="1x30") | instances(OTHER_PROCESS, up="1x30"),
        "10m",
        {"service": "s"},
        {
            "one that begins slowly": instances(up="1x5 0x20", warming="0x6 1x20", ejected="1x30"),
            "for a minute only": instances(up="1x9 0x20", ejected="1x30", paused="1x30"),
        },
        "1",
    ),
    Case(
        "DispatchFewHealthyInstances",
        instances(up="2x30", ejected="2x30") | instances(OTHER_PROCESS, up="4x30"),
        "15m",
        {"service": "s"},
        {
            "three of five": instances(up="3x30", ejected="2x30"),
            "for less than ten minutes": instances(up="4x6 2x30", ejected="0x6 2x30"),
            "one that begins slowly counts": instances(up="2x30", warming="1x30", ejected="2x30"),
            "none at all has an alert of its own": instances(ejected="4x30"),
        },
        "50%",
    ),
    Case(
        "DispatchInstanceEjectedOften",
        {EJECTIONS[PROCESS]: "0+0.1x90", EJECTIONS[OTHER_PROCESS]: "0+0.08x90"},
        "75m",
        {"service": "s", "exported_instance": "i-1"},
        {
            "less than five times, as each of two processes sees it": {EJECTIONS[PROCESS]: "0+0.08x90"},
            "not for five minutes yet": {EJECTIONS[PROCESS]: "0x73 9x20"},
        },
        "6",
    ),
    Case(
        "DispatchLateReplies",
        {replies("late"): "0+1.15x40", replies("matched"): "0+8.85x40", replies("unknown"): "0+9x40"},
        "30m",
        {"service": "s"},
        {
            "one in ten": {replies("late"): "0+1x40", replies("matched"): "0+9x40"},
            "not for ten minutes yet": {replies("late"): "0x24 10+10x9"},
        },
        "11.5%",
    ),
    Case(
        "DispatchLateReplies",
        {replies("late"): "0+0.38x40", replies("matched"): "0+0.38x40"},
        "30m",
        {"service": "s"},
        {"fewer than five in a quarter of an hour": {replies("late"): "0+0.31x40"}},
        "50%",
    ),
    Case(
        "DispatchMalformedReplies",
        {replies("malformed"): "0+0.22x40", replies("matched"): "0+8x40"},
        "30m",
        {"service": "s"},
        {"fewer than three in a quarter of an hour": {replies("malformed"): "0+0.19x40"}},
        "3",
    ),
    Case(
        "DispatchRepliesNotSent",
        {LOST: "0+0.22x40"},
        "30m",
        {"service": "s"},
        {"fewer than three in a quarter of an hour": {LOST: "0+0.19x40"}},
        "3",
    ),
)
