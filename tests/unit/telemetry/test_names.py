"""Names that operators, dashboards, rules and other people's queries hold on to. A change here breaks them: it needs a line
in CHANGELOG.md.
Dashboards drew success magenta and refusals green, a tool had another colour in each panel, and the legend left out
``_OTHER``. A colour has one meaning everywhere, a name one colour, and each series its entry in the legend.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes

from dashboards.dashboard_json import Json, iter_panels, list_queries, load_dashboards
from dashboards.plots import PanelData, plot_dashboard
from dispatch.errors import (
    CallTimeoutError,
    ErrorType,
    InvalidArgumentsError,
    Outcome,
    RejectedError,
    ToolError,
    TransportError,
)
from dispatch.messaging.request import Disposition
from dispatch.messaging.wire import Refusal
from dispatch.resilience.breaker import State
from dispatch.serving.replies import REASONS
from dispatch.telemetry import observers
from dispatch.telemetry.call_metrics import REJECTED_BY
from dispatch.telemetry.gauges import END_REASONS, INSTANCE_STATES, REJECTIONS, RESULTS
from dispatch.telemetry.observers import REFUSED
from tests.helpers.dispatcher_and_service import catalog, serving
from tests.helpers.telemetry_capture import Board, telling

ATTRIBUTES = {
    *("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type", "gen_ai.tool.description"),
    *("gen_ai.tool.call.id", "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    *("messaging.system", "messaging.operation.name", "messaging.operation.type", "messaging.client.id"),
    *("messaging.destination.name", "messaging.destination.template", "messaging.destination.temporary"),
    *("messaging.message.conversation_id", "error.type", "dispatch.service", "dispatch.instance"),
    *("dispatch.outcome", "dispatch.reason", "dispatch.attempts", "dispatch.attempt.number", "dispatch.attempt.reason"),
    *("dispatch.chunks", "dispatch.first_chunk.seconds", "dispatch.wait.seconds"),
}
EVENTS = {"dispatch.retry", "dispatch.hedge", "dispatch.rejected"}
VALUES = {"refused", "execute_tool", "attempt", "send", "process", "extension", "pulsar", "_OTHER"}
ERROR_TYPES = {
    *("invalid-arguments", "invalid-config", "invalid-timeout", "unknown-priority", "request-too-large"),
    *("not-permitted", "permissions-unavailable", "unknown-tool", "relay-loop", "unknown-service"),
    *("circuit-open", "rate-limited", "bulkhead-full", "no-instance", "version-mismatch", "pending-limit"),
    *("timeout", "attempt-timeout", "idle-timeout", "send-timeout", "expired"),
    *("overloaded", "draining", "invalid-request", "service-refused", "instance-lost", "instance-restarted"),
    *("invalid-output", "unknown-result"),
    *("reply-evicted", "malformed-reply", "response-limit-exceeded", "result-too-large", "invalid-result"),
    *("tool-error", "cancelled", "client-failed", "server-failed"),
    *("closed", "disconnected", "connection-lost", "unreachable"),
    *("connection-refused", "unauthorized", "untrusted", "wrong-protocol", "bad-address", "bad-topic"),
    *("no-such-namespace", "topic-busy", "topic-refused", "publish-queue-full", "publish-dropped", "send-failed"),
    "port-taken",
}
DEPRECATED = {
    # Of the conventions' own earlier versions; see reference, b1.
    *("gen_ai.system", "gen_ai.prompt", "gen_ai.completion", "mcp.tool.name", "messaging.operation", "messaging.url"),
    *("messaging.destination", "messaging.destination_kind", "messaging.temp_destination", "messaging.protocol"),
    *("messaging.message_id", "messaging.conversation_id", "messaging.client_id", "messaging.consumer_id"),
    *("messaging.destination.anonymous", "messaging.consumer.id", "messaging.destination.kind", "exception.type"),
}
METRICS = {
    "dispatch_calls": ("counter", ("tool", "service", "outcome")),
    "dispatch_call_duration_seconds": ("histogram", ("tool", "service", "outcome_class")),
    "dispatch_first_chunk_seconds": ("histogram", ("tool", "service")),
    "dispatch_attempts": ("counter", ("tool", "service", "reason")),
    "dispatch_inflight_calls": ("gauge", ("tool", "service")),
    "dispatch_queued_calls": ("gauge", ("tool", "service")),
    "dispatch_abandoned_threads": ("gauge", ("tool", "service")),
    "dispatch_queue_wait_seconds": ("histogram", ("tool", "service")),
    "dispatch_rejections": ("counter", ("tool", "service", "by")),
    "dispatch_rate_limited": ("counter", ("tool", "service", "scope")),
    "dispatch_refused_calls": ("counter", ("user", "reason")),
    "dispatch_retry_budget_exhausted": ("counter", ("tool", "service")),
    "dispatch_circuit_state": ("gauge", ("tool", "service", "state")),
    "dispatch_circuit_transitions": ("counter", ("tool", "service", "to")),
    "dispatch_replies": ("counter", ("service", "disposition")),
    "dispatch_instances": ("gauge", ("service", "state")),
    "dispatch_instance_inflight_calls": ("gauge", ("service", "instance")),
    "dispatch_instance_ejections": ("counter", ("service", "instance", "reason")),
    "dispatch_broker_connected": ("gauge", ()),
    "dispatch_pending_requests": ("gauge", ()),
    "dispatch_catalog_tools": ("gauge", ("source",)),
    "dispatch_catalog_source_up": ("gauge", ("source",)),
    "dispatch_fleet_members": ("gauge", ("fleet",)),
    "dispatch_fleet_reachable": ("gauge", ("fleet",)),
    "dispatch_fleet_share": ("gauge", ("fleet", "kind", "tool")),
    "dispatch_fleet_quota_used": ("gauge", ("fleet", "tool", "per")),
    "dispatch_fleet_quota": ("gauge", ("fleet", "tool", "per")),
    "dispatch_catalog_refused_items": ("gauge", ("source",)),
    "dispatch_catalog_held_changes": ("gauge", ("source",)),
    "dispatch_catalog_last_reload_successful": ("gauge", ("source",)),
    "dispatch_catalog_reloads": ("counter", ("source", "result")),
    "dispatch_version_calls": ("counter", ("tool", "service", "version", "outcome_class")),
    "dispatch_build_info": ("gauge", ("version",)),
    "dispatch_sessions": ("gauge", ("role", "state")),
    "dispatch_sessions_closed": ("counter", ("role", "reason")),
    "dispatch_session_packets_sent": ("counter", ("role",)),
    "dispatch_session_packets_received": ("counter", ("role",)),
    "dispatch_session_packets_rejected": ("counter", ("role", "reason")),
    "dispatch_session_frames_sent": ("counter", ("role",)),
    "dispatch_session_bytes_sent": ("counter", ("role",)),
    "dispatch_session_retransmissions": ("counter", ("role",)),
    "dispatch_session_probes": ("counter", ("role",)),
    "dispatch_session_duplicates": ("counter", ("role",)),
    "dispatch_session_rtt_seconds": ("gauge", ("role", "statistic")),
    "dispatch_session_window_bytes": ("gauge", ("role",)),
    "dispatch_session_inflight_bytes": ("gauge", ("role",)),
    "dispatch_session_queued_bytes": ("gauge", ("role",)),
}
"""Those of a dispatcher, and of sessions. Counters have ``_total`` after their name in a scrape."""


def constants() -> dict[str, str]:
    names = [key for key in vars(observers) if key.isupper() and key != "EXPECTED_TELEMETRY"]
    return {key: value for key in names if isinstance(value := getattr(observers, key), str)}


def test_spans_and_attributes() -> None:
    assert set(constants().values()) - {observers.SCHEMA_URL} == ATTRIBUTES | EVENTS | VALUES
    assert observers.SCHEMA_URL == "https://opentelemetry.io/schemas/1.44.0"
    assert (observers.EXECUTE_TOOL, observers.SEND, observers.PROCESS) == ("execute_tool", "send", "process")


def test_none_is_deprecated() -> None:
    assert not (ATTRIBUTES | EVENTS) & DEPRECATED
    known, deprecated = _conventions(messaging_attributes)
    assert "messaging.client_id" not in known or "messaging.client_id" in deprecated
    messaging = {name for name in ATTRIBUTES if name.startswith("messaging.")}
    assert messaging <= known
    assert not messaging & deprecated
    assert error_attributes.ERROR_TYPE in ATTRIBUTES
    assert messaging_attributes.MessagingSystemValues.PULSAR.value == observers.PULSAR
    operations = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    assert {observers.SEND, observers.PROCESS} <= operations


def _conventions(module: Any) -> tuple[set[str], set[str]]:
    """What OpenTelemetry's package has, and what of it is deprecated: it says so below each name only."""
    found, deprecated = set(), set()
    body = ast.parse(Path(module.__file__).read_text()).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        value = node.value if isinstance(node, ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.add(value.value)
            doc = after.value if isinstance(after, ast.Expr) else None
            if isinstance(doc, ast.Constant) and str(doc.value).strip().startswith("Deprecated"):
                deprecated.add(value.value)
    assert found
    assert deprecated, "it is written another way by now: change this test"
    return found, deprecated


def test_error_types() -> None:
    assert {str(each) for each in ErrorType} == ERROR_TYPES
    assert all(each.name == each.value.upper().replace("-", "_") for each in ErrorType)


def test_refusals_on_the_wire_have_the_names_of_error_types() -> None:
    # `stopped` ends a tool at its caller's deadline: to the caller that is a timeout.
    assert set(REASONS) - {Refusal.STOPPED} <= ERROR_TYPES


def test_telemetry_knows_a_closed_set_of_error_types() -> None:
    expected = {
        ToolError("no-joke", "x"): "tool-error",
        InvalidArgumentsError("request-too-large", "x"): "request-too-large",
        CallTimeoutError("x", limit_name="call"): "timeout",
        CallTimeoutError("x", limit_name="stream"): "timeout",
        CallTimeoutError("x", limit_name="attempt"): "attempt-timeout",
        CallTimeoutError("x", limit_name="stream-idle"): "idle-timeout",
        RejectedError(ErrorType.CIRCUIT_OPEN, "x", rejected_by="breaker"): "circuit-open",
        TransportError("instance-lost", "x"): "instance-lost",
        TransportError("of-another-transport", "x"): "_OTHER",
    }
    assert {repr(error): error.telemetry_type for error in expected} == {repr(e): kind for e, kind in expected.items()}
    # Exporters need plain texts.
    assert all(type(error.telemetry_type) is type(error.type) is str for error in expected)


async def test_metrics_with_their_labels() -> None:
    board = Board()
    policy = {"rate-limit": {"rate": "9/s", "scope": "fleet"}, "quota": "9/day"}
    tools = catalog(work={"version": "1.4.0"})
    async with (
        serving(lambda _: "done", instance="a"),
        telling(board.telemetry(), tools, policy=policy, fleet="shop") as dispatcher,
    ):
        await dispatcher.execute("work")
        await dispatcher.execute("invented")
        dispatcher._running.observer.on_instance_change("lab", "a", "ejected", "failures")
        await dispatcher.reload(catalog(work={"version": "1.4.0"}))
        found = {}
        for family in board.registry.collect():
            labels = {key for sample in family.samples for key in sample.labels} - {"le"}
            found[family.name] = family.type, labels
    ours = {name: (kind, set(labels)) for name, (kind, labels) in METRICS.items()}
    assert {name: seen for name, seen in found.items() if not name.startswith("dispatch_service_")} == ours


def test_values_of_labels() -> None:
    assert {str(each) for each in Outcome} == {
        *("success", "tool_error", "invalid_arguments", "throttled", "timeout", "transport", "cancelled", "rejected")
    }
    states = ("closed", "open", "half-open", "forced-open", "disabled", "metrics-only")
    assert {str(each) for each in State} == {*states}
    assert {str(each) for each in Disposition} == {"matched", "late", "duplicate", "unknown", "malformed"}
    assert INSTANCE_STATES == ("up", "warming", "paused", "unresponsive", "ejected")
    assert REJECTED_BY == ("permissions", "breaker", "rate-limit", "bulkhead", "balancer", "service", "exchange")


def test_buckets() -> None:
    assert observers.DURATION_BUCKETS[:4] == (0.001, 0.0025, 0.005, 0.01)
    assert list(observers.DURATION_BUCKETS[3:]) == [round(0.01 * 2**n, 2) for n in range(14)]
    assert observers.FIRST_CHUNK_BUCKETS == (0.01, 0.1, 0.5, 2.5, 10.0)
    assert observers.WAIT_BUCKETS == (0.001, 0.01, 0.1, 1.0)


DASHBOARDS = load_dashboards()
LINES = [
    pytest.param(panel, id=f"{uid}/{panel['title']}")
    for uid, dashboard in DASHBOARDS.items()
    for panel in iter_panels(dashboard)
    if panel["type"] == "timeseries"
]
OUTCOMES = {
    "success": "green",
    "tool_error": "orange",
    "invalid_arguments": "yellow",
    "timeout": "red",
    "transport": "dark-red",
    "rejected": "blue",
    "throttled": "light-blue",
    "refused": "dark-purple",
    "cancelled": "gray",
}
MEANINGS: dict[str, set[str]] = {
    "{{outcome}}": {*map(str, Outcome), REFUSED},
    "{{by}}": set(REJECTED_BY),
    "{{disposition}}": {str(each) for each in Disposition},
    "{{reason}}": {"first", "retry", "hedge"},
    "{{scope}}": {"tool", "user"},
    "{{to}}": {str(each) for each in State},
    "{{service}} {{state}}": set(INSTANCE_STATES),
    "{{service}} {{disposition}}": {str(each) for each in Disposition},
    "{{service}} {{result}}": set(RESULTS),
    "{{service}} {{reason}}": {value for name, value in vars(Refusal).items() if name.isupper()},
    "{{source}} {{result}}": {"ok", "failed"},
    "{{role}} {{reason}}": set(END_REASONS),
    "{{role}}, {{reason}}": set(REJECTIONS),
}
"""The values of labels with a meaning, by the legends of the panels that show them."""
WITH_MEANING = [each for each in LINES if {one["legendFormat"] for one in list_queries(each.values[0])} & set(MEANINGS)]
TOOLS = ["_OTHER", "appraise", "forecast", "look-up"]


def colours(panel: Json) -> dict[str, str]:
    found = {}
    for override in panel["fieldConfig"].get("overrides") or ():
        for each in override["properties"]:
            if each["id"] == "color":
                found[override["matcher"]["options"].strip("/").removesuffix("$").strip()] = each["value"]["fixedColor"]
    return found


def test_outcomes_have_the_same_colours_wherever_they_are_shown() -> None:
    panels = (panel for dashboard in DASHBOARDS.values() for panel in iter_panels(dashboard))
    shown = [panel for panel in panels if panel["title"] == "Outcomes"]
    assert len(shown) == 2
    assert len(WITH_MEANING) == 15
    for panel in shown:
        assert colours(panel) == OUTCOMES


@pytest.mark.parametrize("panel", WITH_MEANING)
def test_every_value_with_a_meaning_has_a_colour(panel: Json) -> None:
    (legend,) = {query["legendFormat"] for query in list_queries(panel)}
    assert set(colours(panel)) == MEANINGS[legend]


@pytest.mark.parametrize("panel", LINES)
def test_what_has_no_meaning_is_coloured_by_name(panel: Json) -> None:
    assert panel["fieldConfig"]["defaults"]["color"]["mode"] == "palette-classic-by-name"


def test_a_word_has_one_colour_in_all_panels() -> None:
    found: dict[str, set[str]] = {}
    for dashboard in DASHBOARDS.values():
        for panel in iter_panels(dashboard):
            for name, colour in colours(panel).items():
                found.setdefault(name, set()).add(colour)
    assert {name: each for name, each in found.items() if len(each) > 1} == {}


def drawn(label: str, values: dict[str, float]) -> list[tuple[dict[str, Any], list[tuple[float, float]]]]:
    return [({label: name}, [(0.0, value), (1.0, value)]) for name, value in values.items()]


@cache
def overview() -> dict[str, dict[str, str]]:
    """The legend of each panel of lines: the colour of each name, as it is drawn."""
    dashboard = DASHBOARDS["dispatch-overview"]
    shown = {}
    for panel in iter_panels(dashboard):
        label = "outcome" if panel["title"] == "Outcomes" else "tool"
        names = list(OUTCOMES) if label == "outcome" else TOOLS[panel["id"] % 3 :]  # not all tools in every panel
        shown[panel["id"]] = PanelData([drawn(label, dict.fromkeys(names, 1.0)) for _ in list_queries(panel)])
    made = plot_dashboard(dashboard, shown, 0.0, 1.0)
    legends = {}
    for axes in made.axes:
        legend = axes.get_legend()
        if legend is not None:
            handles = [
                to_hex(each.get_facecolor() if hasattr(each, "get_facecolor") else each.get_color())
                for each in legend.legend_handles
            ]
            names = [text.get_text() for text in legend.get_texts()]
            legends[axes.get_title(loc="left")] = dict(zip(names, handles, strict=True))
    return legends


@pytest.mark.costly
def test_drawn_panels_give_a_tool_one_colour_and_the_legend_every_series() -> None:
    legends = overview()
    assert set(legends["Outcomes"]) == set(OUTCOMES)
    by_tool: dict[str, set[str]] = {}
    for title in ("Calls by tool", "Failed calls by tool", "p95 duration by tool", "Rejections by tool"):
        for name, colour in legends[title].items():
            by_tool.setdefault(name, set()).add(colour)
    assert set(by_tool) == set(TOOLS)
    assert {len(each) for each in by_tool.values()} == {1}
    assert len(set.union(*by_tool.values())) == len(TOOLS)


def test_a_drawn_success_is_green_and_a_refusal_blue() -> None:
    outcomes = overview()["Outcomes"]

    def strongest(name: str) -> int:
        parts = [int(outcomes[name][at : at + 2], 16) for at in (1, 3, 5)]
        return parts.index(max(parts))

    assert (strongest("success"), strongest("timeout"), strongest("transport")) == (1, 0, 0)
    assert (strongest("rejected"), strongest("throttled")) == (2, 2)
