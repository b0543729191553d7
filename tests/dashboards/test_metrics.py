"""What the dashboards ask for is what a dispatcher and a tool service export, and the other way round."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry

from dashboards.dashboard_json import iter_panels, list_queries, load_dashboards
from dashboards.queries import FAILED, INSTANCE_LABEL
from dispatch import Functions, Telemetry, connect, tool
from dispatch.errors import Outcome
from tests.helpers.failing_calls import Troubled

UNSHOWN: Mapping[str, str] = {
    "dispatch_abandoned_threads": "0 unless a synchronous function hangs; docs/how-to/runbook.md asks for it",
    "dispatch_service_abandoned_threads": "0 unless a synchronous tool hangs; docs/how-to/runbook.md asks for it",
    "dispatch_fleet_members": "`dispatch stats --fleet` lists them",
    "dispatch_fleet_reachable": "1 unless the topic of the fleet is out of reach; docs/how-to/fleet-limits.md",
}
"""Metrics that are on no panel, and why."""
ROUND_S = 16


@tool(read_only=True)
async def nothing() -> str:
    """Do nothing."""
    return ""


SCRAPED = {"job", "instance", INSTANCE_LABEL}
"""Labels that Prometheus gives."""


async def exported() -> dict[str, set[str]]:
    """The series that a dispatcher and tool services in trouble export, with their labels, by family."""
    registry = CollectorRegistry()
    telemetry = Telemetry(registry=registry, traces="off")
    functions, policy = Functions(nothing), {"rate-limit": {"rate": "9/s", "scope": "fleet"}, "quota": "9/day"}
    async with (
        Troubled(telemetry, ROUND_S),
        connect("memory://fleet", catalog=functions, policy=policy, fleet="shop", telemetry=telemetry) as member,
    ):
        await member.execute("nothing")
        await asyncio.sleep(ROUND_S)
        return {
            family.name: {f"{sample.name}{{{','.join(sorted(sample.labels))}}}" for sample in family.samples}
            for family in registry.collect()
        }


def asked() -> dict[str, set[str]]:
    """The metrics that are asked for, with the labels that they are picked by."""
    found: dict[str, set[str]] = {}
    for dashboard in load_dashboards().values():
        for panel in iter_panels(dashboard):
            for query in list_queries(panel):
                for metric, matchers in re.findall(r"(\bdispatch_\w+)\{([^}]*)\}", query["expr"]):
                    found.setdefault(metric, set()).update(re.findall(r'(\w+)[=!]~?"', matchers))
    return found


@pytest.mark.costly
async def test_what_is_asked_for_is_exported_and_what_is_exported_is_shown_or_there_is_a_reason() -> None:
    families = await exported()
    there: dict[str, set[str]] = {}
    for samples in families.values():
        for sample in samples:
            name, _, labels = sample.partition("{")
            there.setdefault(name, set()).update(labels.rstrip("}").split(","))
    for metric, labels in asked().items():
        assert metric in there
        assert labels - SCRAPED <= there[metric], metric
    shown = set(asked())
    unshown = {
        family for family, samples in families.items() if not {sample.partition("{")[0] for sample in samples} & shown
    }
    assert unshown == set(UNSHOWN)
    assert all(UNSHOWN.values())


def test_outcomes_are_those_that_there_are() -> None:
    assert set(FAILED.split("|")) < {str(outcome) for outcome in Outcome}
