"""What a reader picks at the top of a dashboard, and the ways from one dashboard to another."""

from __future__ import annotations

from urllib.parse import quote

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from dashboards.queries import HERE

OVERVIEW, TOOL, INSTANCES = "dispatch-overview", "dispatch-tool", "dispatch-instances"
"""The dashboards' uids. They are in addresses that people keep: they stay."""
TAG = "tool-dispatch"
METRICS = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
ALL = model.VariableOption(selected=True, text="All", value="$__all")
OBJECTIVES = ("0.99", "0.9", "0.95", "0.995", "0.999", "0.9999")

_KEPT = "${datasource:queryparam}&${job:queryparam}&${dispatcher:queryparam}&${__url_time_range}"


def data_source() -> build.DatasourceVariable:
    """The Prometheus that all panels ask."""
    return build.DatasourceVariable("datasource").label("Metrics").type("prometheus").description("A Prometheus")


def traces() -> build.DatasourceVariable:
    """Where the links to traces lead."""
    return (
        build.DatasourceVariable("traces").label("Traces").type("tempo").description("A Tempo, for the links to traces")
    )


def job() -> build.QueryVariable:
    """As the scraping Prometheus has it."""
    return _labels("job", "Job", "job", "dispatch_build_info", "Of the scrape").include_all(True).multi(True)


def dispatcher() -> build.QueryVariable:
    """Processes with a dispatcher."""
    return (
        _labels("dispatcher", "Dispatcher", "instance", 'dispatch_build_info{job=~"$job"}', "The scraped process")
        .include_all(True)
        .multi(True)
    )


def tools() -> build.QueryVariable:
    """Any number of tools."""
    return tool().include_all(True).multi(True).all_value(".+").current(ALL)


def tool() -> build.QueryVariable:
    """One tool."""
    metric = f"dispatch_calls_total{{{HERE}}}"
    made = _labels("tool", "Tool", "tool", metric, "_OTHER: names that are in no catalogue")
    return made.all_value("").current(model.VariableOption(selected=False, text="", value=""))


def services() -> build.QueryVariable:
    """Any number of services."""
    metric = f"dispatch_replies_total{{{HERE}}}"
    return _labels("service", "Service", "service", metric, "A tool service's id").include_all(True).multi(True)


def objective() -> build.CustomVariable:
    """The share of calls that are to be answered."""
    return (
        build.CustomVariable("objective")
        .label("Objective")
        .description("The share of calls that are to be answered")
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


def to_tool() -> build.DashboardLink:
    """From a series that has a tool to what is known of it."""
    url = f"/d/{TOOL}/{TOOL}?{_KEPT}&var-tool=${{__field.labels.tool}}"
    return build.DashboardLink("Look at ${__field.labels.tool}").url(url)


def to_instances(service: str = "") -> build.DashboardLink:
    """From a tool to the instances that serve it, or from a series that has a service to its own."""
    url = f"/d/{INSTANCES}/{INSTANCES}?{_KEPT}"
    return build.DashboardLink("Look at the instances").url(url + (f"&var-service={service}" if service else ""))


def to_traces(condition: str = "") -> build.DashboardLink:
    """From a series of the tool to its calls' traces, in the same time."""
    traceql = '{name="execute_tool ${tool}"' + condition + "}"
    panes = (
        '{"t":{"datasource":"${traces}","queries":[{"refId":"A","datasource":{"type":"tempo","uid":"${traces}"},'
        f'"queryType":"traceql","query":"{traceql.replace(chr(34), chr(92) + chr(34))}"}}],'
        '"range":{"from":"${__from}","to":"${__to}"}}}'
    )
    # Grafana puts values in where it finds ${…}, so that these stay as they are; all else is of an address.
    return (
        build.DashboardLink("Traces of ${tool}")
        .url(f"/explore?schemaVersion=1&panes={quote(panes, safe='${}:,')}")
        .target_blank(True)
    )


def way_to(uid: str, title: str) -> build.DashboardLink:
    """To another dashboard, from the top of one."""
    return (
        build.DashboardLink(title)
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/{uid}/{uid}?{_KEPT}")
        .icon("dashboard")
        .tooltip(f"The dashboard {title}, for the same dispatchers and time")
    )
