"""Prometheus rules: the rule files that apply to all tools, and the error budgets of a catalogue's tools.

``recording.yml`` and ``alerts.yml`` are kept by hand, in ``dashboards/rules`` of the repository. Only ``slo.yml`` depends on
a catalogue and is built here: multi-window, multi-burn-rate rules, as in Google's SRE workbook (chapter 5) and sloth. The
burn rate is the share of bad calls divided by the share that the objective allows: at 1 the objective is just met. The
recorded metrics have the same names for every tool, so that the two alerts of ``alerts.yml`` serve all of them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dispatch.calls.resolution import ToolResolver
from dispatch.catalog import Catalog
from dispatch.documents import FrozenDict
from dispatch.errors import Outcome
from dispatch.policy import DEFAULT_POLICY, Policy, Slo
from dispatch.telemetry.observers import DURATION_BUCKETS, REFUSED

# Meaning of a service-level objective in metrics: which outcomes are bad, and which histogram bound measures a latency.


BAD_OUTCOMES = (Outcome.TIMEOUT, Outcome.TRANSPORT, Outcome.REJECTED, Outcome.THROTTLED)
"""Calls without a reply from the tool, among them those at a limit of the tool or its bulkhead. A tool's own error is a
reply: it counts as good, because dispatch and the service worked."""
UNCOUNTED_OUTCOMES = (str(Outcome.CANCELLED), REFUSED, str(Outcome.INVALID_ARGUMENTS))
"""Excluded from both sides of the ratio: a cancelled call has no known result, and the others were refused because of their
caller alone. One user at its own limit must not spend the tool's error budget, nor a model that invents arguments."""
LEAST_PAGING_FACTOR = 6.0
"""The lowest burn rate at which ``DispatchErrorBudgetFastBurn`` pages."""


def latency_bound(seconds: float) -> float:
    """Return the histogram bound at which a latency objective is measured, in seconds: the smallest bound that is not below
    ``seconds``, so that no call within the objective counts as slow.

    Raises:
        ValueError: ``seconds`` is above the largest bound.
    """
    at = bisect_left(DURATION_BUCKETS, seconds)
    if at == len(DURATION_BUCKETS):
        raise ValueError(f"{seconds!r} s is above the largest histogram bound, {DURATION_BUCKETS[-1]:g} s")
    return DURATION_BUCKETS[at]


def format_percent(share: float) -> str:
    """Format ``0.999`` as ``99.9 %``."""
    return f"{round(share * 100, 6):g} %"


def describe_slo(slo: Slo | None) -> str:
    """Describe an SLO for people; "": it has no objective."""
    objectives: list[str] = []
    if slo is not None and slo.availability is not None:
        objectives.append(f"{format_percent(slo.availability)} of calls are good")
    if slo is not None and slo.latency is not None:
        bound = latency_bound(slo.latency)
        measured = "" if bound == slo.latency else f", measured at {bound:g} s"
        objectives.append(f"{format_percent(slo.latency_share)} of successes within {slo.latency:g} s{measured}")
    return "; ".join(objectives)


def collect_slos(
    catalog: Catalog, base: Policy = DEFAULT_POLICY, user: Mapping[str, Any] = FrozenDict()
) -> Mapping[str, Slo]:
    """Collect the SLOs of a catalogue's tools, by their label in metrics, and of services without tools, which are called
    directly.

    Args:
        catalog: services and tools.
        base: the lowest layer of the policy.
        user: a policy in a descriptor's notation, laid over ``base``: its ``slo`` applies to every tool without one.

    Raises:
        PolicyError: ``user`` is not a valid policy, or conflicts with the policy of a service or tool.
    """
    targets = ToolResolver(catalog, base.merged(user)).check()
    served = {tool.service for tool in catalog.tools.values()}
    every = [targets.describe(name) for name in catalog.tools]
    every += [targets.service(id) for id in catalog.services if id not in served]
    return {each.meter_label: each.policy.slo for each in every if each.policy.slo is not None}


def list_unpageable_objectives(slo: Slo) -> list[str]:
    """List the objectives that can never page: they allow so many bad calls that the burn rate stays below every paging
    factor even if every call fails."""
    objectives = {"availability": slo.availability, "latency-share": None if slo.latency is None else slo.latency_share}
    return [key for key, share in objectives.items() if share is not None and (1 - share) * LEAST_PAGING_FACTOR >= 1]


# PromQL that the error budgets share with the dashboards.


BAD_CALLS = f'outcome=~"{"|".join(BAD_OUTCOMES)}"'
COUNTED_CALLS = f'outcome!~"{"|".join(UNCOUNTED_OUTCOMES)}"'
KNOWN_TOOLS = 'tool!="_OTHER"'
"""Matches tools of the catalogue: ``_OTHER`` counts calls of unknown names."""


# The error budgets of a catalogue's tools.


WINDOWS = ("5m", "30m", "1h", "2h", "6h", "1d", "3d")
"""The windows of the burn rates that ``alerts.yml`` compares."""


def slo_groups(slos: Mapping[str, Slo]) -> list[dict[str, Any]]:
    """Return the rule groups of ``slo.yml``, one per tool.

    Args:
        slos: by the tool's label in metrics.
    """
    return [{"name": f"dispatch-slo-{label}", "rules": list(_slo_rules(label, slo))} for label, slo in slos.items()]


def _slo_rules(label: str, slo: Slo) -> Iterator[dict[str, Any]]:
    tool = f"tool={_quote(label)}"
    if slo.availability is not None:
        counted, bad = (
            {each: _rate("dispatch_calls_total", each, tool, outcomes, over=("outcome",)) for each in WINDOWS}
            for outcomes in (COUNTED_CALLS, BAD_CALLS)
        )
        yield from _burn_rules(label, "availability", slo.availability, counted, bad)
    if slo.latency is not None:
        timed, ok = "dispatch_call_duration_seconds", 'outcome_class="ok"'
        within = f'le="{latency_bound(slo.latency)}"'
        counted = {each: _rate(f"{timed}_count", each, tool, ok, over=("outcome_class",)) for each in WINDOWS}
        bad = {
            each: f"{counted[each]}\n- "
            + _rate(f"{timed}_bucket", each, tool, ok, within, over=("outcome_class", "le"))
            for each in WINDOWS
        }
        yield from _burn_rules(label, "latency", slo.latency_share, counted, bad)


def _burn_rules(
    label: str, slo: str, objective: float, counted: Mapping[str, str], bad: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    labels = {"tool": label, "slo": slo}
    yield {"record": "tool_slo:dispatch_objective:ratio", "expr": f"vector({objective})", "labels": labels}
    which = f"{{tool={_quote(label)},slo={_quote(slo)}}}"
    for window in WINDOWS:
        counted_rate = f"tool_slo:dispatch_counted_calls:rate{window}"
        bad_rate = f"tool_slo:dispatch_bad_calls:rate{window}"
        yield {"record": counted_rate, "expr": counted[window], "labels": labels}
        yield {"record": bad_rate, "expr": bad[window], "labels": labels}
        yield {
            "record": f"tool_slo:dispatch_budget_burn:ratio_rate{window}",
            # Rounded: 1 - 0.99 is 0.010000000000000009.
            "expr": f"{bad_rate}{which}\n/ {counted_rate}{which}\n/ {round(1 - objective, 10):.10g}",
            "labels": {**labels, "objective": f"{objective}"},
        }


def _rate(metric: str, window: str, *matchers: str, over: tuple[str, ...]) -> str:
    """Return the rate per second, summed over the labels ``over`` and those by which Prometheus distinguishes processes. The
    other labels (job, namespace, cluster) stay."""
    without = ", ".join(("instance", "pod", "node", *over))
    return f"sum without ({without}) (rate({metric}{{{','.join(matchers)}}}[{window}]))"


def _quote(value: str) -> str:
    """Quote ``value`` as a PromQL string."""
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'"{escaped}"'


# Rule files.


RECORDING, ALERTS, SLO = "recording.yml", "alerts.yml", "slo.yml"
"""File names."""
_SLO_HEAD = """\
# Error budgets of a catalogue's tools with an objective ('slo' in their policy).
# Generated by 'dispatch rules export'. Do not edit.

"""


def render_rule_files(slos: Mapping[str, Slo] | None = None, grafana: str = "") -> dict[str, str]:
    """Return the text of each rule file, by file name.

    Args:
        slos: by the tool's label in metrics (see :func:`collect_slos`); None or empty: ``slo.yml`` is omitted.
        grafana: base URL of Grafana, such as ``https://grafana.example.org``; "": the dashboard link of an alert is a path
            only.

    Raises:
        FileNotFoundError: the rules are neither inside the installed package nor beside it in a clone.
    """
    package = Path(__file__).parents[1]
    folders = (package / "dashboards" / "rules", package.parent / "dashboards" / "rules")
    folder = next((each for each in folders if (each / ALERTS).is_file()), folders[0])
    files = {name: (folder / name).read_text(encoding="utf-8") for name in (RECORDING, ALERTS)}
    if grafana:
        files[ALERTS] = _link_dashboards(files[ALERTS], grafana.rstrip("/"))
    if slos:
        files[SLO] = _SLO_HEAD + _to_yaml(slo_groups(slos))
    return files


def _link_dashboards(alerts: str, grafana: str) -> str:
    def link(found: re.Match[str]) -> str:
        url = grafana + found[2]
        return found[1] + (url if re.match(r"https?://\S+/d/", url) else _to_json(url))

    return re.sub(r"^( +dashboard: )(/d/.+)$", link, alerts, flags=re.MULTILINE)


def _to_yaml(groups: Sequence[Mapping[str, Any]]) -> str:
    """Return the rule groups as YAML: expressions as blocks, other texts as JSON, which is YAML, too."""
    lines = ["groups:"]
    for group in groups:
        lines += [f"- name: {_to_json(group['name'])}", "  rules:"]
        for rule in group["rules"]:
            lines += [f"  - record: {rule['record']}", "    expr: |-"]
            lines += [f"      {line}" for line in rule["expr"].split("\n")]
            lines += ["    labels:", *(f"      {name}: {_to_json(value)}" for name, value in rule["labels"].items())]
    return "\n".join(lines) + "\n"


def _to_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
