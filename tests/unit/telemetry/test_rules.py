"""What a promise comes to in Prometheus: buckets, windows, and whose promise it is."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dispatch.catalog import Catalog
from dispatch.errors import Outcome
from dispatch.policy import MAX_LATENCY, Policy, PolicyError, Slo
from dispatch.telemetry.observers import DURATION_BUCKETS
from dispatch.telemetry.rules import (
    BAD_CALLS,
    BAD_OUTCOMES,
    COUNTED_CALLS,
    LEAST_PAGING_FACTOR,
    UNCOUNTED_OUTCOMES,
    WINDOWS,
    collect_slos,
    format_percent,
    latency_bound,
    list_unpageable_objectives,
    render_rule_files,
    slo_groups,
)
from docs.generators.alerts import load_alerts

WINDOW_SECONDS = {"5m": 300, "30m": 1800, "1h": 3600, "2h": 7200, "6h": 21600, "1d": 86400, "3d": 259200}
CONDITION = re.compile(
    r"""\(
  tool_slo:dispatch_budget_burn:ratio_rate(?P<short>\w+) > (?P<factor>[\d.]+)
  and tool_slo:dispatch_budget_burn:ratio_rate(?P<long>\w+) > (?P=factor)
  and ignoring \(objective\) tool_slo:dispatch_bad_calls:rate(?P=long) \* (?P<seconds>\d+) >= 5
\)"""
)


def catalog(service: Any = None, *tools: dict[str, Any]) -> Catalog:
    """Two services, one of them without a tool, and the tools ``a``, ``b`` … with these policies."""
    queues = {"request-queue": "non-persistent://tg/request/s", "response-queue": "non-persistent://tg/response/s"}
    more = {} if service is None else {"policy": {"slo": service}}
    described = {"type": "tool-service", "description": "Looks.", "service": "s", "arguments": []}
    return Catalog.of(
        [{"id": "s", **queues, **more}, {"id": "bare", **queues, **more}],
        [{"name": name, **described, "policy": policy} for name, policy in zip("abc", tools, strict=False)],
    )


def speeds(alert: str) -> list[dict[str, str]]:
    """The pairs of windows that an alert compares, and their burn rates."""
    (expr,) = [each["expr"] for each in load_alerts() if each["alert"] == alert]
    found = [each.groupdict() for each in CONDITION.finditer(expr)]
    assert CONDITION.sub("", expr) == "\nor\n" * (len(found) - 1)
    return found


FAST, SLOW = speeds("DispatchErrorBudgetFastBurn"), speeds("DispatchErrorBudgetSlowBurn")


def rules(promised: dict[str, Slo]) -> list[dict[str, Any]]:
    return [rule for group in slo_groups(promised) for rule in group["rules"]]


# -- which calls, which bucket --------------------------------------------------------------------------------------


def test_every_outcome_is_good_bad_or_neither() -> None:
    good = set(Outcome) - {*BAD_OUTCOMES, *UNCOUNTED_OUTCOMES}
    assert good == {Outcome.SUCCESS, Outcome.TOOL_ERROR}
    assert BAD_CALLS == 'outcome=~"timeout|transport|rejected|throttled"'
    assert COUNTED_CALLS == 'outcome!~"cancelled|refused|invalid_arguments"'


def test_the_largest_promise_is_the_largest_bucket() -> None:
    assert DURATION_BUCKETS[-1] == MAX_LATENCY


@given(st.floats(min_value=1e-9, max_value=MAX_LATENCY))
def test_a_latency_is_measured_at_the_least_bucket_that_breaks_no_kept_promise(seconds: float) -> None:
    bound = latency_bound(seconds)
    assert bound in DURATION_BUCKETS
    assert bound >= seconds
    assert not [each for each in DURATION_BUCKETS if seconds <= each < bound]


def test_beyond_the_largest_bucket_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"81\.93 s is above the largest histogram bound, 81\.92 s"):
        latency_bound(81.93)


@pytest.mark.parametrize(("share", "text"), [(0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"), (0.5, "50 %")])
def test_shares_in_words(share: float, text: str) -> None:
    assert format_percent(share) == text


# -- the rules ------------------------------------------------------------------------------------------------------


def test_each_window_that_an_alert_looks_at_is_recorded() -> None:
    used = {window for speed in (*FAST, *SLOW) for window in (speed["short"], speed["long"])}
    assert used == set(WINDOWS) == set(WINDOW_SECONDS)
    for slo in ("availability", "latency"):
        recorded = {rule["record"] for rule in rules({"a": Slo(0.99, 1)}) if rule["labels"]["slo"] == slo}
        assert {f"tool_slo:dispatch_budget_burn:ratio_rate{window}" for window in WINDOWS} <= recorded
        assert len(recorded) == 3 * len(WINDOWS) + 1


def test_burn_rates_are_those_of_the_workbook() -> None:
    """The share of thirty days' budget that is gone when the long window is full."""
    month = 30 * 86400
    spent = [round(float(speed["factor"]) * int(speed["seconds"]) / month, 3) for speed in (*FAST, *SLOW)]
    assert spent == [0.02, 0.05, 0.1, 0.1]
    for speed in (*FAST, *SLOW):
        assert WINDOW_SECONDS[speed["short"]] * 12 == WINDOW_SECONDS[speed["long"]] == int(speed["seconds"])
    assert min(float(speed["factor"]) for speed in FAST) == LEAST_PAGING_FACTOR


def test_only_what_is_promised_is_measured() -> None:
    assert {rule["labels"]["slo"] for rule in rules({"a": Slo(0.99)})} == {"availability"}
    assert {rule["labels"]["slo"] for rule in rules({"a": Slo(latency=1)})} == {"latency"}
    assert rules({}) == []


def test_the_budget_is_what_the_objective_leaves() -> None:
    (burn, *_) = [rule for rule in rules({"a": Slo(0.999)}) if rule["record"].endswith("burn:ratio_rate5m")]
    assert burn["expr"].splitlines()[-1] == "/ 0.001"
    assert burn["labels"] == {"tool": "a", "slo": "availability", "objective": "0.999"}


def test_names_are_quoted() -> None:
    (group,) = slo_groups({'a"b\\c': Slo(0.99)})
    assert 'tool="a\\"b\\\\c"' in group["rules"][1]["expr"]


@pytest.mark.parametrize("name", ["a", 'a"b\\c', "a: b #'", "- x", "no", "1", "é 😀", "{a}", "service:s"])
def test_the_file_has_the_groups(name: str) -> None:
    promised = {name: Slo(0.99, 2.0)}
    assert yaml.safe_load(render_rule_files(promised)["slo.yml"]) == {"groups": slo_groups(promised)}


@pytest.mark.parametrize(
    ("slo", "quiet"),
    [
        (Slo(0.99, 2, 0.95), []),
        (Slo(0.84), []),
        (Slo(0.83), ["availability"]),
        (Slo(0.99, 2, 0.8), ["latency-share"]),
        (Slo(0.99, None, 0.8), []),
    ],
)
def test_objectives_that_wake_nobody_are_known(slo: Slo, quiet: list[str]) -> None:
    """With all calls bad, they come as many times as often as allowed as the budget goes into one."""
    assert list_unpageable_objectives(slo) == quiet


# -- whose promise --------------------------------------------------------------------------------------------------


def test_a_tool_promises_what_its_policy_says_over_its_services() -> None:
    made = catalog(0.9, {}, {"slo": {"latency": 2}}, {"slo": None})
    assert collect_slos(made) == {"a": Slo(0.9), "b": Slo(0.9, 2), "service:bare": Slo(0.9)}


def test_nobody_promises_anything_unless_asked() -> None:
    made = catalog(None, {}, {"slo": 0.999})
    assert collect_slos(made) == {"b": Slo(0.999)}
    assert collect_slos(made, user={"slo": 0.95}) == {"a": Slo(0.95), "b": Slo(0.999), "service:bare": Slo(0.95)}
    assert collect_slos(made, Policy(slo=Slo(0.9)))["a"] == Slo(0.9)


def test_a_users_promise_that_goes_with_no_tools_is_told() -> None:
    made = catalog(None, {"slo": {"latency": 2}})
    with pytest.raises(PolicyError, match=r"'slo\.availability': 2 is not from"):
        collect_slos(made, user={"slo": 2})
    odd = catalog({"latency": 2}, {"slo": {"latency": None, "availability": 0.9}})
    assert collect_slos(odd)["a"] == Slo(0.9)
