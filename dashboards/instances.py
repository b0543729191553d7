"""Who serves: the instances of each service, what they answer, and the catalogue that calls are made from."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.models import dashboard as model

from dashboards import variables
from dashboards.colours import (
    BAD,
    DISPOSITIONS,
    GOOD,
    INSTANCE_STATES,
    LOSSES,
    REFUSAL_REASONS,
    RELOAD_RESULTS,
    RUN_RESULTS,
    last,
)
from dashboards.panels import lines, number, page, query
from dashboards.queries import AT_SERVICE, HERE, INSTANCE, SERVICE, happened, quantile, rate, series, total

IN_FORCE = model.ValueMap(
    {
        "0": model.ValueMappingResult(text="refused", color=BAD, index=0),
        "1": model.ValueMappingResult(text="in force", color=GOOD, index=1),
    }
)


def dashboard() -> Dashboard:
    """Made anew."""
    one = (variables.to_instances("${__field.labels.service}"),)
    # Each dispatcher sees the same instances: they are counted once, as the one sees it that has most in that state.
    seen = f"max by (service, state) ({series('dispatch_instances', SERVICE)})"
    serving = (
        lines(
            "Instances by state",
            "Instances of the services, by how they are doing: up, warming (a slow start after an ejection), paused "
            "(it asked to be spared), ejected. Where dispatchers see it differently: the most that one of them "
            "sees.",
            "none",
            query(seen, "{{service}} {{state}}"),
            links=one,
            stacked=True,
            colours=last(INSTANCE_STATES),
        ),
        lines(
            "In flight by instance",
            "Requests that an instance has, of all dispatchers.",
            "none",
            query(
                total(series("dispatch_instance_inflight_calls", SERVICE), "service", INSTANCE),
                f"{{{{{INSTANCE}}}}}",
            ),
            links=one,
        ),
        lines(
            "Ejections",
            "How often an instance was left alone for a while, in an interval, and why: failures (in a row), "
            "success-rate (worse than the others).",
            "none",
            query(
                total(happened("dispatch_instance_ejections_total", SERVICE), "service", INSTANCE, "reason"),
                f"{{{{{INSTANCE}}}}} {{{{reason}}}}",
            ),
            links=one,
            bars=True,
            stacked=True,
        ),
    )
    replies = (
        lines(
            "Replies",
            "Replies that arrive, a second, by what became of them.",
            "reqps",
            query(total(rate("dispatch_replies_total", SERVICE), "disposition"), "{{disposition}}"),
            stacked=True,
            colours=DISPOSITIONS,
        ),
        lines(
            "Replies that no call took",
            "Replies that came too late, twice, for nobody, or could not be read, a second. Those for nobody count "
            "as the service _OTHER: on a topic that callers share they are the others'.",
            "reqps",
            query(
                total(rate("dispatch_replies_total", SERVICE, 'disposition!="matched"'), "service", "disposition"),
                "{{service}} {{disposition}}",
            ),
            links=one,
            colours=last(DISPOSITIONS),
        ),
        lines(
            "Answers asked for again",
            "Questions for answers that should have been here, a second: an instance that has the answer sends it "
            "again.",
            "reqps",
            query(total(rate("dispatch_retransmissions_total", SERVICE), "service"), "{{service}}"),
            links=one,
        ),
    )
    processes = (
        lines(
            "Runs",
            "Requests that a service has run, a second, by how that ended: ok, the tool's own error, or stopped, "
            "because its caller had left or its time was over. From the services' own processes.",
            "reqps",
            query(
                total(rate("dispatch_service_duration_seconds_count", AT_SERVICE), "service", "result"),
                "{{service}} {{result}}",
            ),
            links=one,
            stacked=True,
            colours=last(RUN_RESULTS),
        ),
        lines(
            "Run time, p95",
            "So long take 95 of 100 runs of a service, in its own process. What calls take beyond that is spent on "
            "the way and in line.",
            "s",
            query(quantile(0.95, "dispatch_service_duration_seconds", AT_SERVICE, by=("service",)), "{{service}}"),
            links=one,
        ),
        lines(
            "Running and in line",
            "Requests that a service runs, and that wait there for a place.",
            "none",
            query(total(series("dispatch_service_running", AT_SERVICE), "service"), "{{service}} runs"),
            query(total(series("dispatch_service_queued", AT_SERVICE), "service"), "{{service}} in line"),
            links=one,
        ),
        lines(
            "Requests that arrive",
            "Requests that arrive at a service, a second, whatever becomes of them; and those among them that came "
            "again, because their answer was asked for.",
            "reqps",
            query(total(rate("dispatch_service_requests_total", AT_SERVICE), "service"), "{{service}}"),
            query(total(rate("dispatch_service_repeats_total", AT_SERVICE), "service"), "{{service}} again"),
            links=one,
        ),
        lines(
            "Refused by services",
            "Requests that a service refused, a second, by why.",
            "reqps",
            query(
                total(rate("dispatch_service_refused_total", AT_SERVICE), "service", "reason"),
                "{{service}} {{reason}}",
            ),
            links=one,
            stacked=True,
            colours=last(REFUSAL_REASONS),
        ),
        lines(
            "Stopped, lost, unreadable",
            "Of a service, a second: requests that were stopped because their callers wait no more; answers that "
            "could not be sent; messages that nobody could be answered for.",
            "reqps",
            query(total(rate("dispatch_service_cancelled_total", AT_SERVICE), "service"), "{{service}} stopped"),
            query(total(rate("dispatch_service_lost_answers_total", AT_SERVICE), "service"), "{{service}} lost"),
            query(total(rate("dispatch_service_malformed_total", AT_SERVICE), "service"), "{{service}} unreadable"),
            links=one,
            colours=last(LOSSES),
        ),
    )
    dispatchers = (
        lines(
            "Broker in reach",
            "Dispatchers of each process whose broker is in reach.",
            "none",
            query(total(series("dispatch_broker_connected", HERE), "instance"), "{{instance}}"),
        ),
        lines(
            "Requests that wait",
            "Requests of each process that wait for a reply.",
            "none",
            query(total(series("dispatch_pending_requests", HERE), "instance"), "{{instance}}"),
        ),
        lines(
            "Versions",
            "Processes by the version of dispatch that they run.",
            "none",
            query(f"count by (version) ({series('dispatch_build_info', HERE)})", "{{version}}"),
            stacked=True,
        ),
    )
    catalogue = (
        number(
            "Tools",
            "Tools in the catalogue of the dispatcher that has most.",
            "none",
            query(f"max({series('dispatch_catalog_tools', HERE)})"),
        ).height(8),
        number(
            "Last reload",
            "Whether the catalogue or policy that was to be taken over last is in force, everywhere; or was refused "
            "by a process, and the former one stayed.",
            "none",
            query(f"min({series('dispatch_catalog_last_reload_successful', HERE)})"),
        )
        .height(8)
        .no_value("none yet")
        .mappings([IN_FORCE]),
        lines(
            "Tools by source",
            "Tools in the catalogue of each process, by where they come from.",
            "none",
            query(total(series("dispatch_catalog_tools", HERE), "instance", "source"), "{{instance}} {{source}}"),
        ),
        lines(
            "Reloads",
            "How often another catalogue or policy was to be taken over, in an interval: ok, or failed, and the "
            "former one stayed in force.",
            "none",
            query(total(happened("dispatch_catalog_reloads_total", HERE), "source", "result"), "{{source}} {{result}}"),
            bars=True,
            stacked=True,
            colours=last(RELOAD_RESULTS),
        ),
    )
    return page(
        variables.INSTANCES,
        "Dispatch: instances and catalogue",
        "The instances that serve tools, as dispatchers see them; what becomes of replies; brokers, versions and "
        "the catalogue.",
        (
            variables.data_source(),
            variables.job(),
            variables.dispatcher(),
            variables.services(),
        ),
        (variables.way_to(variables.OVERVIEW, "Overview"), variables.way_to(variables.TOOL, "Tool")),
        {
            "Instances": serving,
            "Replies": replies,
            "In the services' own processes": processes,
            "Dispatchers": dispatchers,
            "Catalogue": catalogue,
        },
    )
