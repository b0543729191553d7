"""Dashboard of instances: state, replies and sessions of each service's instances, broker connections, and the catalogue."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards import variables
from dashboards.colours import (
    BAD,
    DISPOSITIONS,
    EXECUTION_RESULTS,
    GOOD,
    INSTANCE_STATES,
    RELOAD_RESULTS,
    SERVICE_FAILURES,
    SERVICE_REJECTION_REASONS,
    match_last_word,
)
from dashboards.panels import assemble_dashboard, line_panel, query, stat_panel
from dashboards.queries import (
    INSTANCE_LABEL,
    SELECTED_DISPATCHERS,
    SELECTED_SERVICES,
    SERVICE_PROCESSES,
    increase_from_zero,
    quantile,
    rate,
    ratio,
    series,
    sum_by,
)
from dashboards.sessions import build_session_panels, rate_of_sessions

IN_FORCE = model.ValueMap(
    {
        "0": model.ValueMappingResult(text="invalid", color=BAD, index=0),
        "1": model.ValueMappingResult(text="in force", color=GOOD, index=1),
    }
)


def build_dashboard() -> Dashboard:
    """Build the dashboard."""
    instances_link = (variables.link_to_instances("${__field.labels.service}"),)
    # Every dispatcher exports the same instances: the maximum over dispatchers counts each instance once.
    seen = f"max by (service, state) ({series('dispatch_instances', SELECTED_SERVICES)})"
    serving = (
        line_panel(
            "Instances by state",
            "Instances by state: up, warming (slow start after an ejection), paused (the instance asked for a pause), "
            "unresponsive (it answers nothing while others do), ejected. Where dispatchers disagree, the maximum that one "
            "of them sees.",
            "none",
            query(seen, "{{service}} {{state}}"),
            links=instances_link,
            stacked=True,
            colours=match_last_word(INSTANCE_STATES),
        ),
        line_panel(
            "Requests in flight by instance",
            "Requests in flight at an instance, from all dispatchers.",
            "none",
            query(
                sum_by(series("dispatch_instance_inflight_calls", SELECTED_SERVICES), "service", INSTANCE_LABEL),
                f"{{{{{INSTANCE_LABEL}}}}}",
            ),
            links=instances_link,
        ),
        line_panel(
            "Ejections",
            "Ejections of an instance per interval, by reason: failures (consecutive failures), success-rate (below that of "
            "the other instances), latency (much slower than these), unresponsive (accepts calls, does not answer).",
            "none",
            query(
                sum_by(
                    increase_from_zero("dispatch_instance_ejections_total", SELECTED_SERVICES),
                    "service",
                    INSTANCE_LABEL,
                    "reason",
                ),
                f"{{{{{INSTANCE_LABEL}}}}} {{{{reason}}}}",
            ),
            links=instances_link,
            bars=True,
            stacked=True,
        ),
    )
    replies = (
        line_panel(
            "Replies by disposition",
            "Replies received per second, by disposition.",
            "reqps",
            query(sum_by(rate("dispatch_replies_total", SELECTED_SERVICES), "disposition"), "{{disposition}}"),
            stacked=True,
            colours=DISPOSITIONS,
        ),
        line_panel(
            "Unmatched replies",
            "Late, duplicate, unknown and malformed replies per second. Unknown replies have the service _OTHER: on a "
            "shared response topic they belong to other callers.",
            "reqps",
            query(
                sum_by(
                    rate("dispatch_replies_total", SELECTED_SERVICES, 'disposition!="matched"'),
                    "service",
                    "disposition",
                ),
                "{{service}} {{disposition}}",
            ),
            links=instances_link,
            colours=match_last_word(DISPOSITIONS),
        ),
        line_panel(
            "Packets lost",
            "Share of the packets that were lost and sent again, by the side of the session that sent them. Calls do not "
            "fail by that.",
            "percentunit",
            query(
                ratio(
                    sum_by(rate_of_sessions("dispatch_session_retransmissions_total"), "role"),
                    sum_by(rate_of_sessions("dispatch_session_packets_sent_total"), "role"),
                ),
                "{{role}}",
            ),
        ),
    )
    processes = (
        line_panel(
            "Executions",
            "Requests executed by a service per second, by result: ok, error (the tool's own), or stopped (cancelled by "
            "the caller, or deadline exceeded). From the processes of the services.",
            "reqps",
            query(
                sum_by(rate("dispatch_service_duration_seconds_count", SERVICE_PROCESSES), "service", "result"),
                "{{service}} {{result}}",
            ),
            links=instances_link,
            stacked=True,
            colours=match_last_word(EXECUTION_RESULTS),
        ),
        line_panel(
            "Execution time, p95",
            "p95 execution time in the service's process. The rest of a call's duration is transport and queueing.",
            "s",
            query(
                quantile(0.95, "dispatch_service_duration_seconds", SERVICE_PROCESSES, by=("service",)), "{{service}}"
            ),
            links=instances_link,
        ),
        line_panel(
            "Running and queued",
            "Requests that a service executes, and requests queued at the service.",
            "none",
            query(sum_by(series("dispatch_service_running", SERVICE_PROCESSES), "service"), "{{service}} running"),
            query(sum_by(series("dispatch_service_queued", SERVICE_PROCESSES), "service"), "{{service}} queued"),
            links=instances_link,
        ),
        line_panel(
            "Requests received",
            "Requests received by a service per second, and copies of requests without a session, which it does not "
            "execute.",
            "reqps",
            query(sum_by(rate("dispatch_service_requests_total", SERVICE_PROCESSES), "service"), "{{service}}"),
            query(sum_by(rate("dispatch_service_repeats_total", SERVICE_PROCESSES), "service"), "{{service}} copies"),
            links=instances_link,
        ),
        line_panel(
            "Rejected by services",
            "Requests rejected by a service per second, by reason.",
            "reqps",
            query(
                sum_by(rate("dispatch_service_refused_total", SERVICE_PROCESSES), "service", "reason"),
                "{{service}} {{reason}}",
            ),
            links=instances_link,
            stacked=True,
            colours=match_last_word(SERVICE_REJECTION_REASONS),
        ),
        line_panel(
            "Cancelled, not sent, malformed",
            "Per second and service: requests cancelled by their callers, replies that could not be sent, malformed "
            "requests.",
            "reqps",
            query(
                sum_by(rate("dispatch_service_cancelled_total", SERVICE_PROCESSES), "service"), "{{service}} cancelled"
            ),
            query(
                sum_by(rate("dispatch_service_lost_replies_total", SERVICE_PROCESSES), "service"),
                "{{service}} not sent",
            ),
            query(
                sum_by(rate("dispatch_service_malformed_total", SERVICE_PROCESSES), "service"), "{{service}} malformed"
            ),
            links=instances_link,
            colours=match_last_word(SERVICE_FAILURES),
        ),
    )
    dispatchers = (
        line_panel(
            "Broker connections",
            "Dispatchers with a broker connection, by process.",
            "none",
            query(sum_by(series("dispatch_broker_connected", SELECTED_DISPATCHERS), "instance"), "{{instance}}"),
        ),
        line_panel(
            "Pending requests",
            "Requests waiting for a reply, by process.",
            "none",
            query(sum_by(series("dispatch_pending_requests", SELECTED_DISPATCHERS), "instance"), "{{instance}}"),
        ),
        line_panel(
            "Versions",
            "Processes by version of dispatch.",
            "none",
            query(f"count by (version) ({series('dispatch_build_info', SELECTED_DISPATCHERS)})", "{{version}}"),
            stacked=True,
        ),
    )
    catalogue = (
        stat_panel(
            "Tools in the catalogue",
            "Tools in the largest catalogue of a dispatcher.",
            "none",
            query(f"max({series('dispatch_catalog_tools', SELECTED_DISPATCHERS)})"),
        ).height(8),
        stat_panel(
            "Last reload",
            "Result of the last reload of catalogue or policy: in force in every process, or invalid in at least one, which "
            "keeps the previous one.",
            "none",
            query(f"min({series('dispatch_catalog_last_reload_successful', SELECTED_DISPATCHERS)})"),
        )
        .height(8)
        .no_value("none yet")
        .mappings([IN_FORCE]),
        line_panel(
            "Tools by source",
            "Tools in the catalogue of each process, by source.",
            "none",
            query(
                sum_by(series("dispatch_catalog_tools", SELECTED_DISPATCHERS), "instance", "source"),
                "{{instance}} {{source}}",
            ),
        ),
        line_panel(
            "Reloads",
            "Reloads of catalogue or policy per interval, by source and result. After a failed reload the previous "
            "one stays in force.",
            "none",
            query(
                sum_by(increase_from_zero("dispatch_catalog_reloads_total", SELECTED_DISPATCHERS), "source", "result"),
                "{{source}} {{result}}",
            ),
            bars=True,
            stacked=True,
            colours=match_last_word(RELOAD_RESULTS),
        ),
        line_panel(
            "Sources up",
            "Share of the processes in which a source of the catalogue is in reach and valid. Elsewhere its last valid "
            "items stay in force.",
            "percentunit",
            query(f"avg by (source) ({series('dispatch_catalog_source_up', SELECTED_DISPATCHERS)})", "{{source}}"),
            maximum=1,
        ),
        line_panel(
            "Refused items",
            "Invalid items of each source: their last valid version is in force, or none. The maximum over the processes.",
            "none",
            query(f"max by (source) ({series('dispatch_catalog_refused_items', SELECTED_DISPATCHERS)})", "{{source}}"),
        ),
        line_panel(
            "Held changes",
            "Changed definitions of each source that wait for approval. The maximum over the processes.",
            "none",
            query(f"max by (source) ({series('dispatch_catalog_held_changes', SELECTED_DISPATCHERS)})", "{{source}}"),
        ),
    )
    return assemble_dashboard(
        variables.INSTANCES,
        "Dispatch: instances and catalogue",
        "Instances of tool services, as dispatchers see them; replies, sessions, executions, broker connections, "
        "versions and the catalogue.",
        (
            variables.data_source(),
            variables.job(),
            variables.dispatcher(),
            variables.services(),
        ),
        (
            variables.link_to_dashboard(variables.OVERVIEW, "Overview"),
            variables.link_to_dashboard(variables.TOOL, "Tool"),
        ),
        {
            "Instances": serving,
            "Replies": replies,
            "Sessions": build_session_panels(),
            "Processes of the services": processes,
            "Dispatchers": dispatchers,
            "Catalogue": catalogue,
        },
    )
