"""Panels of the sessions between dispatchers and instances, as both sides count them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from grafana_foundation_sdk.builders import timeseries

from dashboards.colours import PACKET_REJECTIONS, SESSION_ENDS, match_last_word
from dashboards.panels import line_panel, query
from dashboards.queries import SELECTED_DISPATCHERS, increase_from_zero, rate, ratio, series, sum_by

ROLES: Final = (f'{SELECTED_DISPATCHERS},role="caller"', 'role="callee"')
"""Matchers of the selected dispatchers' sessions, and of all services' sessions, whose processes are not selected."""


def of_sessions(metric: str) -> str:
    """Return a selector of ``metric`` on both sides."""
    return _both(lambda where: series(metric, where))


def rate_of_sessions(metric: str) -> str:
    """Return the rate per second on both sides."""
    return _both(lambda where: rate(metric, where))


def _both(expression: Callable[[str], str]) -> str:
    return " or ".join(expression(where) for where in ROLES)


def build_session_panels() -> tuple[timeseries.Panel, ...]:
    """Build the panels."""
    return (
        line_panel(
            "Sessions by state",
            "Sessions by state, as both sides see them: half-open (handshake), open, draining, suspect (probes without an "
            "acknowledgement), suspended (no connection to the broker).",
            "none",
            query(sum_by(of_sessions("dispatch_sessions"), "role", "state"), "{{role}} {{state}}"),
        ),
        line_panel(
            "Sessions ended",
            "Sessions that ended per interval, by reason. Of a caller, silent and restarted are lost instances; handshake: "
            "the session was never open.",
            "none",
            query(
                sum_by(
                    _both(lambda where: increase_from_zero("dispatch_sessions_closed_total", where)), "role", "reason"
                ),
                "{{role}} {{reason}}",
            ),
            bars=True,
            stacked=True,
            colours=match_last_word(SESSION_ENDS),
        ),
        line_panel(
            "Rejected packets",
            "Packets per second that changed nothing: unknown (late, or forged), malformed, refused-hello (the inbox is not "
            "allowed).",
            "pps",
            query(
                sum_by(rate_of_sessions("dispatch_session_packets_rejected_total"), "role", "reason"),
                "{{role}}, {{reason}}",
            ),
            colours=match_last_word(PACKET_REJECTIONS),
        ),
        line_panel(
            "Packets",
            "Packets per second in sessions: sent and received by each side.",
            "pps",
            *(
                query(
                    sum_by(rate_of_sessions(f"dispatch_session_packets_{what}_total"), "role"), f"{{{{role}}}} {what}"
                )
                for what in ("sent", "received")
            ),
        ),
        line_panel(
            "Frames per packet",
            "Frames in one packet, without acknowledgements, on average: the more calls in flight, the more share one.",
            "none",
            query(
                ratio(
                    sum_by(rate_of_sessions("dispatch_session_frames_sent_total"), "role"),
                    sum_by(rate_of_sessions("dispatch_session_packets_sent_total"), "role"),
                ),
                "{{role}}",
            ),
        ),
        line_panel(
            "Data sent",
            "Bytes per second that each side sends in packets.",
            "Bps",
            query(sum_by(rate_of_sessions("dispatch_session_bytes_sent_total"), "role"), "{{role}}"),
        ),
        line_panel(
            "Retransmissions, probes, duplicates",
            "Packets per second: lost ones whose frames were sent again; probes, because no acknowledgement arrived; "
            "received twice.",
            "pps",
            *(
                query(sum_by(rate_of_sessions(f"dispatch_session_{what}_total"), "role"), f"{{{{role}}}} {what}")
                for what in ("retransmissions", "probes", "duplicates")
            ),
        ),
        line_panel(
            "Round-trip time",
            "Round-trip time of open sessions: the median and the worst of a process; of several processes the largest "
            "value.",
            "s",
            query(
                f"max by (role, statistic) ({of_sessions('dispatch_session_rtt_seconds')})", "{{role}} {{statistic}}"
            ),
        ),
        line_panel(
            "Bytes in flight and queued",
            "Bytes sent and not yet acknowledged, payload bytes that wait to be sent, and the smallest window of an open "
            "session.",
            "decbytes",
            query(sum_by(of_sessions("dispatch_session_inflight_bytes"), "role"), "{{role}} in flight"),
            query(sum_by(of_sessions("dispatch_session_queued_bytes"), "role"), "{{role}} queued"),
            query(f"min by (role) ({of_sessions('dispatch_session_window_bytes')})", "{{role}} window"),
        ),
    )
