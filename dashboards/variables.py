"""Variables at the top of the dashboards, and links between dashboards."""

from __future__ import annotations

from urllib.parse import quote

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from dashboards.queries import SELECTED_DISPATCHERS, SELECTED_SERVICES

OVERVIEW, TOOL, INSTANCES = "dispatch-overview", "dispatch-tool", "dispatch-instances"
"""Uids of the dashboards. They are part of bookmarked URLs and must not change."""
TAG = "tool-dispatch"
METRICS = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
ALL = model.VariableOption(selected=True, text="All", value="$__all")
OBJECTIVES = ("0.99", "0.9", "0.95", "0.995", "0.999", "0.9999")

_SELECTION = "${datasource:queryparam}&${job:queryparam}&${dispatcher:queryparam}&${__url_time_range}"
_SAME_SERVICE = "&${service:queryparam}"


def data_source() -> build.DatasourceVariable:
    """Build the variable for the Prometheus data source of all panels."""
    return (
        build.DatasourceVariable("datasource").label("Metrics").type("prometheus").description("Prometheus data source")
    )


def traces() -> build.DatasourceVariable:
    """Build the variable for the Tempo data source of trace links."""
    return (
        build.DatasourceVariable("traces")
        .label("Traces")
        .type("tempo")
        .description("Tempo data source for links to traces")
    )


def job() -> build.QueryVariable:
    """Build the variable for the scrape job."""
    return _labels("job", "Job", "job", "dispatch_build_info", "Prometheus scrape job").include_all(True).multi(True)


def dispatcher() -> build.QueryVariable:
    """Build the variable for processes with a dispatcher."""
    return (
        _labels("dispatcher", "Dispatcher", "instance", 'dispatch_build_info{job=~"$job"}', "Process with a dispatcher")
        .include_all(True)
        .multi(True)
    )


def tools() -> build.QueryVariable:
    """Build the variable for any number of tools."""
    return tool().include_all(True).multi(True).all_value(".+").current(ALL)


def tool() -> build.QueryVariable:
    """Build the variable for one tool."""
    metric = f"dispatch_calls_total{{{SELECTED_SERVICES}}}"
    made = _labels("tool", "Tool", "tool", metric, "_OTHER: calls of unknown tool names")
    return made.all_value("").current(model.VariableOption(selected=False, text="", value=""))


def services() -> build.QueryVariable:
    """Build the variable for any number of services."""
    metric = f'{{__name__=~"dispatch_(calls|replies)_total",{SELECTED_DISPATCHERS}}}'
    return (
        _labels("service", "Service", "service", metric, "Tool service: the id of its descriptor")
        .include_all(True)
        .multi(True)
    )


def objective() -> build.CustomVariable:
    """Build the variable for the availability objective."""
    return (
        build.CustomVariable("objective")
        .label("Objective")
        .description("Availability objective: share of calls that get a reply")
        .values(",".join(OBJECTIVES))
        .current(model.VariableOption(selected=True, text=OBJECTIVES[0], value=OBJECTIVES[0]))
        .options([model.VariableOption(selected=each == OBJECTIVES[0], text=each, value=each) for each in OBJECTIVES])
    )


def _labels(name: str, label: str, values_of: str, metric: str, description: str) -> build.QueryVariable:
    return (
        build.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(METRICS)
        .query({"qryType": 1, "query": f"label_values({metric},{values_of})", "refId": name})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .all_value(".+")
        .current(ALL)
    )


def link_to_tool() -> build.DashboardLink:
    """Link a series with a tool to the dashboard of that tool."""
    url = f"/d/{TOOL}/{TOOL}?{_SELECTION}{_SAME_SERVICE}&var-tool=${{__field.labels.tool}}"
    return build.DashboardLink("Dashboard of ${__field.labels.tool}").url(url)


def link_to_instances(service: str = "") -> build.DashboardLink:
    """Link to the instances dashboard, for one service or for all."""
    url = f"/d/{INSTANCES}/{INSTANCES}?{_SELECTION}"
    return build.DashboardLink("Instances").url(url + (f"&var-service={service}" if service else _SAME_SERVICE))


def link_to_traces(condition: str = "") -> build.DashboardLink:
    """Link a series of a tool to the traces of its calls in the same time range."""
    traceql = '{name="execute_tool ${tool}"' + condition + "}"
    panes = (
        '{"t":{"datasource":"${traces}","queries":[{"refId":"A","datasource":{"type":"tempo","uid":"${traces}"},'
        f'"queryType":"traceql","query":"{traceql.replace(chr(34), chr(92) + chr(34))}"}}],'
        '"range":{"from":"${__from}","to":"${__to}"}}}'
    )
    # Grafana interpolates ${…}: these characters stay unquoted.
    return (
        build.DashboardLink("Traces of ${tool}")
        .url(f"/explore?schemaVersion=1&panes={quote(panes, safe='${}:,')}")
        .target_blank(True)
    )


def link_to_dashboard(uid: str, title: str) -> build.DashboardLink:
    """Link to another dashboard from the top of one."""
    return (
        build.DashboardLink(title)
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/{uid}/{uid}?{_SELECTION}{_SAME_SERVICE}")
        .icon("dashboard")
        .tooltip(f"Dashboard {title}, with the same selection and time range")
    )
